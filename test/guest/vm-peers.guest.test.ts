/**
 * The guests of the vhost-user tests by themselves: two of them, joined by what QEMU has of its own (a stream, datagrams,
 * taps). What passes here proves the guests, their programs and the harness, and nothing of ours. This file only makes the
 * surroundings; the tests are in vm-peers.ts.
 */
import { guestTests } from './guest-tests.ts';

await guestTests('guests without us', import.meta.url, () => import('./vm-peers.ts'));
