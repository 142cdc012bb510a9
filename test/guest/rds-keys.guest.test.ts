/**
 * TCP keys under a guest's kernel: TCP-AO is rarer than MD5, and this machine's own kernel may have neither. Suites whose kernels have
 * it: sid (ZEROTX_GUEST_SUITE). This file only makes the surroundings; the test is in rds-keys.ts.
 */
import { guestTests } from './guest-tests.ts';
import { guestKernel, SHARE_MODULES } from './kernel.ts';

await guestTests(
  'TCP keys under a kernel',
  import.meta.url,
  () => import('./rds-keys.ts'),
  () => guestKernel(SHARE_MODULES),
);
