/**
 * zerotx against a Linux kernel's own RDS (rds_tcp), which runs in a guest. This file only makes the surroundings; the tests
 * are in rds-kernel.ts.
 */
import { guestTests } from './guest-tests.ts';

await guestTests('RDS with a Linux kernel', import.meta.url, () => import('./rds-kernel.ts'));
