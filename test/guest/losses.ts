/** Connections that are lost under traffic, and ends that start again: nothing is lost, nothing comes twice. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type Lab, roles } from './lab.ts';
import { bothWays, settled } from './rds-flows.ts';
import { powerCut } from './rds-power-cut.ts';
import { ourRestart } from './rds-restart.ts';

const DROPS_MIN = 5;
/** More than lanes: so that most of these are used. */
const SOCKETS = 8;

export function losses(lab: Lab): void {
  describe('losses', () => {
    for (const { role, dials, address, restarted, clockBack } of roles) {
      for (const flow of [
        { bytes: 2000, count: 1500 },
        { bytes: 50_000, count: 200 },
      ]) {
        const name = `${role}: connections dropped by the kernel under messages of ${flow.bytes} bytes`;
        it(name, { timeout: 60_000 }, async () => {
          const node = lab.node(address);
          const before = node.counters.conn_reset;
          // Little room, so that both ends have to send until the last drop.
          const traffic = bothWays(lab, flow, {
            ours: address,
            zerocopy: true,
            room: 4 * flow.bytes,
            seconds: 50,
          });
          const drops = await lab.dropLanesDuring(traffic);
          const lost = node.counters.conn_reset - before;
          assert.ok(drops >= DROPS_MIN && lost >= DROPS_MIN, `${drops} drops, ${lost} connections were lost`);
          await settled(node);
          const what = `${flow.count} messages of ${flow.bytes} bytes each way, lent, while the kernel dropped its lanes`;
          lab.fact(dials, `${what} ${drops} times and we lost ${lost} connections: all once and in order`);
        });
      }

      for (const sockets of [1, SOCKETS]) {
        const what = 'our process is killed under traffic, and others take its place';
        it(`${role}: ${what}; sockets: ${sockets}`, { timeout: 60_000 }, () =>
          ourRestart(lab, restarted, dials, { sockets, isUnlucky: false }),
        );
      }

      const unlucky = 'so are processes whose clocks go back, while the kernel drops all lanes';
      it(`${role}: ${unlucky}`, { timeout: 60_000 }, () =>
        ourRestart(lab, clockBack, dials, { sockets: SOCKETS, isUnlucky: true }),
      );
    }

    it('the guest loses power under traffic, and comes back', { timeout: 120_000 }, () => powerCut(lab));
  });
}
