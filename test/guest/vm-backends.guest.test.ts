/**
 * The other programs of the vhost-user tests by themselves: guests and DPDK's front-end with the back-ends of others, passt
 * and DPDK's. What passes here proves the harness, and nothing of ours. This file only makes the surroundings; the tests are
 * in vm-backends.ts.
 */
import { compiledWithDpdk, dpdk } from '../../bench/baselines/dpdk.ts';
import { guestTests } from './guest-tests.ts';
import { passtPackage } from './passt.ts';

await guestTests(
  'back-ends of others',
  import.meta.url,
  () => import('./vm-backends.ts'),
  async () => {
    await passtPackage();
    await compiledWithDpdk(await dpdk(), 'dpdk-vhost');
  },
);
