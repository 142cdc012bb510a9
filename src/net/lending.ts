/**
 * Which memory may be lent, for layers that do not know the addon. See sys/lend.ts for the rule.
 *
 * borrow() is the one way in for sockets: it adds leases to what that file knows. A view of a lease's Buffer is sent through
 * the slab's own memory, and its lease stays out of the pool until it is given back.
 */
import { native } from '../sys/binding.ts';
import { lend } from '../sys/lend.ts';
import { type Borrowed, leaseOf, shareLease } from './lease.ts';

export { canLend, lend } from '../sys/lend.ts';
export type { Borrowed } from './lease.ts';

function nothing(): void {}

/** Holds the lease that `view` lies in, so that release() waits for giveBack(); null: it lies in none. */
export function borrowFromLease(view: Uint8Array): Borrowed | null {
  const lease = leaseOf(view.buffer);
  return lease === undefined ? null : shareLease(lease, view);
}

/** Null: it may not be lent, and must be copied. `pin`: the program vouches for memory that nothing else protects. */
export function borrow(view: Uint8Array, pin: boolean): Borrowed | null {
  const lease = leaseOf(view.buffer);
  if (lease !== undefined) return shareLease(lease, view);
  return lend(view, { pin }) ? { view, giveBack: nothing } : null;
}

export function pageBytes(): number {
  return native().pageSize();
}
