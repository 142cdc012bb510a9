/** A receiver that does not read, at either end: the port is reported congested, its senders wait, and go on. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { codeOf, turnsUntil } from '../support/rds-nodes.ts';
import { type Lab, roles } from './lab.ts';
import { BYE, pattern } from './messages.ts';
import { receiveFlow } from './rds-flows.ts';

const BUFFER_BYTES = 20_000;
const COUNTER_READS_MAX = 200;

export function congestion(lab: Lab): void {
  describe('congestion', () => {
    for (const { role, dials, address } of roles) {
      it(`${role}: ENOBUFS while the kernel's program does not read, then 'writable'`, {
        timeout: 30_000,
      }, async () => {
        const node = lab.node(address);
        const socket = node.bind(lab.port());
        const flow = { bytes: 1000, count: 200 };
        const fifo = `/tmp/${lab.port()}`;
        await lab.guest.run(`mkfifo ${fifo}`);
        const { job, to } = await lab.receiver(flow, { hold: fifo, rcvbuf: BUFFER_BYTES });
        let next = 0;
        const sendNext = (): number => socket.sendmsg(pattern(next, flow.bytes), to);
        // Twice what fits, so that the map is sure to come.
        for (; next < (2 * BUFFER_BYTES) / flow.bytes; next++) sendNext();
        await turnsUntil(() => node.peer(to.address)?.map.congested(to.port) === true);
        assert.equal(codeOf(sendNext), 'ENOBUFS');
        const writable = once(socket, 'writable');
        await lab.guest.run(`: >${fifo}`);
        await writable;
        for (; next < flow.count; next++) {
          while (codeOf(sendNext) === 'ENOBUFS') await once(socket, 'writable');
        }
        while (codeOf(() => socket.sendmsg(BYE, to)) === 'ENOBUFS') await once(socket, 'writable');
        await job.done;
        await turnsUntil(() => node.peer(to.address)?.map.congested(to.port) === false);
        await socket.close();
        lab.fact(
          dials,
          "the kernel's program does not read: its port is congested, then free, and nothing is lost",
        );
      });

      for (const nonblock of [true, false]) {
        const kind = nonblock ? 'non-blocking' : 'blocking';
        it(`${role}: a ${kind} sender of the kernel waits while we do not read`, {
          timeout: 30_000,
        }, async () => {
          const socket = lab.node(address).bind(lab.port(), { receiveBufferBytes: BUFFER_BYTES });
          const flow = { bytes: 1000, count: 200 };
          const before = await lab.kernelCounter('cong_send_blocked');
          // Little room: what is not acknowledged holds it back, so that the map overtakes it.
          const job = lab.sender(flow, socket, { nonblock, sndbuf: 4 * flow.bytes });
          if (nonblock) await job.line('congested');
          else await counted(lab, 'cong_send_blocked', before + 1);
          assert.ok(socket.unreadBytes > BUFFER_BYTES);
          assert.doesNotMatch(job.output, /sent/);
          await receiveFlow(socket, flow);
          await job.done;
          await socket.close();
          lab.fact(
            dials,
            `we do not read: the kernel's ${kind} sender waits, then goes on, and nothing is lost`,
          );
        });
      }
    }
  });
}

async function counted(lab: Lab, name: string, atLeast: number): Promise<void> {
  for (let i = 0; i < COUNTER_READS_MAX; i++) if ((await lab.kernelCounter(name)) >= atLeast) return;
  throw new Error(`${name} did not reach ${atLeast}`);
}
