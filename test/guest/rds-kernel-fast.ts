/** What is shown with every kernel that can be had, in some ten seconds: see rds-kernel.ts for all. */
import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Lab, roles } from './lab.ts';
import { bothWays, settled } from './rds-flows.ts';
import { lanesUp } from './rds-lanes.ts';
import { pingFromGuest, pingFromUs } from './rds-pings.ts';

const MIB = 1024 * 1024;

describe('RDS with another Linux kernel', () => {
  const lab = new Lab();
  before(
    async () => {
      await lab.setUp();
      console.log(`the guest runs Linux ${lab.kernel}`);
    },
    { timeout: 120_000 },
  );
  after(() => lab.tearDown());

  for (const { role, dials, address } of roles) {
    it(`${role}: handshake, pings both ways, lanes`, { timeout: 30_000 }, async () => {
      const ours = await pingFromUs(lab, address);
      const theirs = await pingFromGuest(lab, address);
      const { size } = await lanesUp(lab, address, dials);
      lab.fact(dials, `pings are answered by the kernel in ${ours}; by us in ${theirs}; lanes: ${size}`);
    });

    it(`${role}: messages of 1 MiB both ways, lent`, { timeout: 60_000 }, async () => {
      const flow = { bytes: MIB, count: 6 };
      await bothWays(lab, flow, { ours: address, zerocopy: true });
      await settled(lab.node(address));
      lab.fact(dials, `${flow.count} messages of 1 MiB each way, lent, all completed`);
    });

    it(`${role}: all lanes dropped under traffic`, { timeout: 60_000 }, async () => {
      const flow = { bytes: 2000, count: 1000 };
      const traffic = Promise.all(
        [1, 2, 3, 4].map(() => bothWays(lab, flow, { ours: address, room: 16_000, seconds: 50 })),
      );
      const drops = await lab.dropLanesDuring(traffic);
      assert.ok(drops > 1);
      await settled(lab.node(address));
      const { size } = await lanesUp(lab, address, dials);
      const what = `4 sockets at either end sent ${flow.count} messages each while all lanes were dropped ${drops} times`;
      lab.fact(dials, `${what}: all once and in order; lanes: ${size}`);
    });
  }
});
