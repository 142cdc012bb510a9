/** Messages of all sizes, both ways at once, every byte checked at the receiver; copied and lent, completions counted. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { turnsUntil } from '../support/rds-nodes.ts';
import { GUEST, type Lab, roles } from './lab.ts';
import { BYE, type Flow, pattern } from './messages.ts';
import { bothWays, receiveFlow, settled } from './rds-flows.ts';

const MIB = 1024 * 1024;

/** Around the ends of a page, of what one send of TCP takes, of the kernel's default buffer; the longest; and none at all. */
export const edgeSizes: readonly number[] = [
  ...[1, 63, 64, 4095, 4096, 65_535, 65_536, 106_496, MIB, 0],
  ...[3, 47, 48, 1400, 8191, 8193, 262_144, MIB - 1],
];

const flows: readonly Flow[] = [
  { bytes: 64, count: 300 },
  { bytes: 8192, count: 100 },
  { bytes: 100_000, count: 30 },
  { bytes: MIB, count: 6 },
  { bytes: edgeSizes, count: 2 * edgeSizes.length },
];

const MANY = 20_000;

export function data(lab: Lab): void {
  describe('data', () => {
    for (const { role, dials, address } of roles) {
      for (const zerocopy of [false, true]) {
        for (const flow of flows) {
          const size = typeof flow.bytes === 'number' ? `${flow.bytes}` : '0 to 1,048,576';
          const what = `${flow.count} messages of ${size} bytes each way, ${zerocopy ? 'lent' : 'copied'}`;
          it(`${role}: ${what}`, { timeout: 60_000 }, async () => {
            const completed = await bothWays(lab, flow, { ours: address, zerocopy });
            await settled(lab.node(address));
            const cookies = /^completed .*$/m.exec(completed)?.[0] ?? '';
            assert.equal(cookies.startsWith(`completed ${flow.count} `), zerocopy);
            lab.fact(dials, `${what}${zerocopy ? `; the kernel's program: ${cookies}` : ''}`);
          });
        }
      }

      it(`${role}: ${MANY} small messages each way`, { timeout: 60_000 }, async () => {
        const before = performance.now();
        await bothWays(lab, { bytes: 64, count: MANY }, { ours: address, seconds: 50 });
        await settled(lab.node(address));
        lab.fact(
          dials,
          `${MANY} messages of 64 bytes each way in ${Math.round(performance.now() - before)} ms`,
        );
      });

      it(`${role}: many sockets at once`, { timeout: 60_000 }, async () => {
        const many = flows.flatMap(({ bytes, count }) => [
          { flow: { bytes, count: Math.ceil(count / 2) }, zerocopy: false },
          { flow: { bytes, count: Math.floor(count / 2) }, zerocopy: true },
        ]);
        await Promise.all(many.map(({ flow, zerocopy }) => bothWays(lab, flow, { ours: address, zerocopy })));
        await settled(lab.node(address));
        lab.fact(dials, `${many.length} sockets at either end at once`);
      });

      it(`${role}: messages are echoed`, { timeout: 60_000 }, async () => {
        const socket = lab.node(address).bind(lab.port());
        const flow = { bytes: 3000, count: 50 };
        const port = lab.port();
        const to = { address: GUEST, port };
        const job = lab.guest.start(
          `rds-guest echo at=${GUEST}:${port} size=${flow.bytes} count=${flow.count}`,
        );
        await job.line('bound');
        for (let i = 0; i < flow.count; i++) socket.sendmsg(pattern(i, flow.bytes), to);
        await receiveFlow(socket, flow);
        await job.done;
        await socket.close();
      });

      it(`${role}: cookies of lent messages come back in order`, { timeout: 60_000 }, async () => {
        const socket = lab.node(address).bind(lab.port(), { zerocopy: true });
        const flow = { bytes: 65_536, count: 40 };
        const { job, to } = await lab.receiver(flow);
        for (let cookie = 0; cookie < flow.count; cookie++) {
          socket.sendmsg(pattern(cookie, flow.bytes), to, { zerocopy: true, cookie });
        }
        const cookies: number[] = [];
        await turnsUntil(() => {
          const got = socket.recvmsg();
          if (got !== null && 'cookies' in got) cookies.push(...got.cookies);
          return cookies.length === flow.count;
        });
        assert.deepEqual(
          cookies,
          Array.from({ length: flow.count }, (_, i) => i),
        );
        await socket.send(BYE, to);
        await job.done;
        await socket.close();
        lab.fact(
          dials,
          `${flow.count} lent messages of ${flow.bytes} bytes: ${cookies.length} cookies came back`,
        );
      });
    }
  });
}
