/**
 * zerotx against the RDS of the kernel of Debian's `trixie` (6.12), in whatever version it has that day; it is fetched if that
 * is possible. The tests are in rds-kernel.ts.
 */
import { guestTests } from './guest-tests.ts';

process.env.ZEROTX_GUEST_SUITE = 'trixie';
await guestTests('RDS with the kernel of trixie', import.meta.url, () => import('./rds-kernel.ts'));
