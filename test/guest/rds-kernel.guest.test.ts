/**
 * zerotx against a Linux kernel's own RDS (rds_tcp), which runs in a guest: that of Debian's `bookworm` (6.1), or of another suite by
 * ZEROTX_GUEST_SUITE. This file only makes the surroundings; the tests are in rds-kernel.ts.
 */
import { guestTests } from './guest-tests.ts';

process.env.ZEROTX_GUEST_SUITE ??= 'bookworm';
await guestTests('RDS with a Linux kernel', import.meta.url, () => import('./rds-kernel.ts'));
