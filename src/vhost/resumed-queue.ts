/**
 * A queue that starts where the last owner of the ring left it.
 *
 * Where to go on giving back is in the ring (used.idx). Where to go on taking is what the front-end says, the base, if that can be: what lies
 * between the two was taken and not given back, so it is a ring's worth at most, and the driver has not made available more than that
 * behind it. DPDK's front-end says 0 to a back-end that comes again, wherever its ring is; then what is not given back is taken again, as
 * after a crash.
 *
 * QEMU says used.idx after a crash, as the order of avail is that of giving back. A transmit queue that had chains overtaken has left
 * notes of those (aside.ts): they are given back now, and what is taken again are the others that are out. Their frames had been
 * handed on; whether they arrived, nobody knows.
 */
import { indexOf, readNotes } from './aside.ts';
import { type RingFeatures, SplitQueue } from './queue.ts';
import type { RingStart } from './session-host.ts';

type Start = Pick<RingStart, 'memory' | 'size' | 'base'>;

export function resumedQueue(start: Start, features: RingFeatures): SplitQueue {
  return resumed(start, features, indexOf(start.memory, 'used'), 0);
}

/** The same of a transmit queue; and how many chains it has given back. */
export function resumedTxQueue(
  start: Start,
  features: RingFeatures,
): { readonly queue: SplitQueue; readonly givenBack: number } {
  const { memory, size } = start;
  const used = indexOf(memory, 'used');
  if (features.inOrder) return { queue: resumed(start, features, used, 0), givenBack: 0 };
  const notes = readNotes(memory, size, used, (indexOf(memory, 'avail') - used) & 0xffff);
  const queue = resumed(start, features, used, notes.aside.size);
  queue.giveBack(notes);
  return { queue, givenBack: notes.aside.size };
}

/** `aside`: so many of the chains that are out do not stand in avail from `used` on. */
function resumed(
  { memory, size, base }: Start,
  features: RingFeatures,
  used: number,
  aside: number,
): SplitQueue {
  const taken = (base - used) & 0xffff;
  const available = (indexOf(memory, 'avail') - base) & 0xffff;
  const isBase = taken >= aside && taken <= size && available <= size;
  return new SplitQueue(memory, size, features, isBase ? base : used + aside, used);
}
