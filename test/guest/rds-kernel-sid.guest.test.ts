/**
 * zerotx against the RDS of the kernel of Debian's `sid` (7.x, which has eight lanes), in whatever version it has that day; it is fetched if that
 * is possible. The tests are in rds-kernel.ts.
 */
import { guestTests } from './guest-tests.ts';

process.env.ZEROTX_GUEST_SUITE = 'sid';
await guestTests('RDS with the kernel of sid', import.meta.url, () => import('./rds-kernel.ts'));
