/**
 * RdsNode.open({ transport: 'kernel' }) in a guest whose kernel has RDS, and our user-space RDS outside. This file only makes the
 * surroundings; the tests are in rds-transport.ts.
 */
import { guestTests } from './guest-tests.ts';
import { guestKernel, SHARE_MODULES } from './kernel.ts';

await guestTests(
  'RDS sockets of a kernel',
  import.meta.url,
  () => import('./rds-transport.ts'),
  () => guestKernel(SHARE_MODULES),
);
