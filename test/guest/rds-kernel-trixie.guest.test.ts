/**
 * zerotx against the RDS of the kernel of Debian's `trixie`, which is fetched if that is possible; the tests are in
 * rds-kernel-fast.ts. All tests run with it by `ZEROTX_GUEST_SUITE=trixie npm run test:guest -- rds-kernel.guest`.
 */
import { guestTests } from './guest-tests.ts';

process.env.ZEROTX_GUEST_SUITE = 'trixie';
await guestTests('RDS with the kernel of trixie', import.meta.url, () => import('./rds-kernel-fast.ts'));
