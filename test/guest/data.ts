/** Messages of all sizes, both ways at once, every byte checked at the receiver; copied and lent. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { assertIdle, turnsUntil } from '../support/rds-nodes.ts';
import { type Flow, GUEST, type Lab, receiveFlow, roles, sendFlow } from './lab.ts';
import { BYE, pattern } from './messages.ts';

const MIB = 1024 * 1024;

const flows: readonly Flow[] = [
  { bytes: 64, count: 300 },
  { bytes: 8192, count: 100 },
  { bytes: 100_000, count: 30 },
  { bytes: MIB, count: 6 },
];

export function data(lab: Lab): void {
  describe('data', () => {
    for (const { role, address } of roles) {
      for (const zerocopy of [false, true]) {
        for (const flow of flows) {
          const name = `${role}: ${flow.count} messages of ${flow.bytes} bytes each way, ${zerocopy ? 'lent' : 'copied'}`;
          it(name, { timeout: 60_000 }, async () => {
            await bothWays(lab, address, flow, zerocopy);
            assertIdle(lab.node(address));
          });
        }
      }

      it(`${role}: many sockets at once`, { timeout: 60_000 }, async () => {
        const many = flows.flatMap(({ bytes, count }) => [
          { flow: { bytes, count: Math.ceil(count / 2) }, zerocopy: false },
          { flow: { bytes: bytes - 1, count: Math.ceil(count / 2) }, zerocopy: true },
        ]);
        await Promise.all(many.map(({ flow, zerocopy }) => bothWays(lab, address, flow, zerocopy)));
        assertIdle(lab.node(address));
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
      });
    }
  });
}

async function bothWays(lab: Lab, address: string, flow: Flow, zerocopy: boolean): Promise<void> {
  const node = lab.node(address);
  const socket = node.bind(lab.port(), { zerocopy });
  const { job: receiver, to } = await lab.receiver(flow);
  const sender = lab.sender(flow, socket, { zerocopy });
  await Promise.all([sendFlow(socket, flow, to), receiveFlow(socket, flow)]);
  await Promise.all([receiver.done, sender.done]);
  await turnsUntil(() => socket.queuedBytes === 0);
  await socket.close();
}
