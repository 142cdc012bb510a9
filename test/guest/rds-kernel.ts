/** The tests with a kernel, in the order in which they run: see rds-kernel.guest.test.ts. */
import { after, before, describe } from 'node:test';
import { congestion } from './congestion.ts';
import { data } from './data.ts';
import { firstContact } from './first-contact.ts';
import { Lab } from './lab.ts';
import { losses } from './losses.ts';
import { fanOut } from './rds-fan-out.ts';
import { ipv6 } from './rds-ipv6.ts';
import { lanes } from './rds-lanes.ts';

describe('RDS with a Linux kernel', () => {
  const lab = new Lab();
  before(
    async () => {
      await lab.setUp();
      console.log(`the guest runs Linux ${lab.kernel}`);
    },
    { timeout: 120_000 },
  );
  after(() => lab.tearDown());

  firstContact(lab);
  data(lab);
  ipv6(lab);
  lanes(lab);
  fanOut(lab);
  congestion(lab);
  losses(lab);
});
