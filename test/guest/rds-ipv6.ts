/** IPv6: global addresses, and link-local ones, which mean something only together with an interface, another at each end. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { edgeSizes } from './data.ts';
import { hasIpv6, type Lab, pairs6 } from './lab.ts';
import { bothWays, settled } from './rds-flows.ts';
import { lanesUp } from './rds-lanes.ts';
import { pingFromGuest, pingFromUs } from './rds-pings.ts';

export function ipv6(lab: Lab): void {
  describe('IPv6', { skip: hasIpv6 ? false : 'this machine has no IPv6' }, () => {
    for (const { scope, role, dials, ours, guest } of pairs6) {
      it(`${scope}, ${role}: pings both ways`, { timeout: 30_000 }, async () => {
        const theirs = await pingFromGuest(lab, ours, guest);
        const own = await pingFromUs(lab, ours, guest);
        const { size } = await lanesUp(lab, ours, dials);
        const what = `IPv6 ${scope}: pings answered by us in ${theirs}; by the kernel in ${own}; lanes: ${size}`;
        lab.fact(dials, what);
      });

      it(`${scope}, ${role}: all sizes both ways`, { timeout: 60_000 }, async () => {
        const flow = { bytes: edgeSizes, count: edgeSizes.length };
        await bothWays(lab, flow, { ours, guest, zerocopy: true });
        await settled(lab.node(ours));
        lab.fact(dials, `IPv6 ${scope}: ${flow.count} messages of 0 to 1,048,576 bytes each way, lent`);
      });

      it(`${scope}, ${role}: lanes dropped under traffic`, { timeout: 60_000 }, async () => {
        const flow = { bytes: 2000, count: 1000 };
        const drops = await lab.dropLanesDuring(bothWays(lab, flow, { ours, guest, room: 16_000 }));
        assert.ok(drops > 1);
        await settled(lab.node(ours));
        lab.fact(
          dials,
          `IPv6 ${scope}: ${flow.count} messages each way while all lanes were dropped ${drops} times`,
        );
      });
    }
  });
}
