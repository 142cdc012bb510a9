/**
 * The moment at which a kernel learns how many lanes there are. Its programs that do not wait for that have sent on lane 0, and go on
 * each on a lane of its own: what is on its way on several connections at once has to come out in each program's order. A kernel
 * goes through this once with each peer, so that it takes an address for each time.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { RdsNode } from '../../src/rds/node.ts';
import { type Lab, roles } from './lab.ts';
import { receiveFlow, settled } from './rds-flows.ts';
import { lanesUp } from './rds-lanes.ts';

/** More than there are lanes. */
const PROGRAMS = 12;
/** Large, as each ends a turn of reading; several times what a program may queue before we are there. */
const FLOW = { bytes: 100_000, count: 60 };
const ROOM = 1_000_000;
const SECONDS = 50;
/** Each is a program of the guest. */
const LOOKS_MAX = 100;

export function fanOut(lab: Lab): void {
  describe('what was sent before we were there comes before the rest', () => {
    for (const { role, dials, late } of roles) {
      for (const [i, address] of late.entries()) {
        it(`${role}, time ${i + 1} of ${late.length}`, { timeout: 60_000 }, async () => {
          const ports = Array.from({ length: PROGRAMS }, () => lab.port());
          const options = { nonblock: true, sndbuf: ROOM, seconds: SECONDS };
          const jobs = ports.map((port) => lab.sender(FLOW, { address, port }, options));
          await Promise.all(jobs.map((job) => job.line('bound')));
          await queued(lab, ports);
          const node = lab.node(address);
          const sockets = ports.map((port) => node.bind(port));
          await Promise.all(sockets.map((socket) => receiveFlow(socket, FLOW)));
          await Promise.all(jobs.map((job) => job.done));
          await Promise.all(sockets.map((socket) => socket.close()));
          await settled(node);
          const { size } = await lanesUp(lab, address, dials);
          const [first = 0, ...others] = receivedOnLanes(node);
          const used = others.filter((count) => count > PROGRAMS);
          if (lab.hasLanes) assert.ok(used.length > 1, `messages on the other lanes: ${others}`);
          else assert.deepEqual(used, []);
          assert.ok(first > PROGRAMS, `${first} messages on lane 0`);
          const what = `${PROGRAMS} programs sent ${FLOW.count} messages of ${FLOW.bytes} bytes each, the first before we were there`;
          lab.fact(
            dials,
            `${what}: ${first} came on lane 0, the rest on ${used.length} others, all in order; lanes: ${size}`,
          );
        });
      }
    }
  });
}

/** The kernel has a message to each port. It lists them without addresses. */
async function queued(lab: Lab, ports: readonly number[]): Promise<void> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const to = new Set((await lab.info('send')).map(({ fport }) => Number(fport)));
    if (ports.every((port) => to.has(port))) return;
  }
  throw new Error(`the programs did not send within ${LOOKS_MAX} looks`);
}

/** How many messages the kernel has sent on each lane, which it numbers from 1. */
function receivedOnLanes(node: RdsNode): number[] {
  return node.info().connections.map(({ nextRx }) => Math.max(Number(nextRx) - 1, 0));
}
