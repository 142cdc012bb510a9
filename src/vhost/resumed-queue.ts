/**
 * A queue that starts where the last owner of the ring left it.
 *
 * Where to go on giving back is in the ring (used.idx). Where to go on taking is what the front-end says, the base, if that can be: what lies
 * between the two was taken and not given back, so it is a ring's worth at most, and the driver has not made available more than that
 * behind it. DPDK's front-end says 0 to a back-end that comes again, wherever its ring is; then what is not given back is taken again, as
 * after a crash.
 */
import { type RingFeatures, type RingMemory, SplitQueue } from './queue.ts';
import type { RingStart } from './session-host.ts';

export function resumedQueue(
  { memory, size, base }: Pick<RingStart, 'memory' | 'size' | 'base'>,
  features: RingFeatures,
): SplitQueue {
  const used = indexOf(memory, 'used');
  const taken = (base - used) & 0xffff;
  const available = (indexOf(memory, 'avail') - base) & 0xffff;
  const start = taken <= size && available <= size ? base : used;
  return new SplitQueue(memory, size, features, start, used);
}

function indexOf(memory: RingMemory, ring: 'avail' | 'used'): number {
  return Atomics.load(new Uint16Array(memory[ring], 0, 2), 1);
}
