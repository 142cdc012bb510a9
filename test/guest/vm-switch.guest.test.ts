/**
 * Guests behind `zerotx switch`, which runs as its users run it: a process of its own, with a lab file. Two QEMU guests get a card
 * plugged in for each lab; what they send each other is checked byte for byte. This file only makes the surroundings; the tests
 * are in vm-switch.ts and what it imports.
 */
import { guestTests } from './guest-tests.ts';

await guestTests('guests behind a switch', import.meta.url, () => import('./vm-switch.ts'));
