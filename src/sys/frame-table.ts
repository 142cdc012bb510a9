/**
 * Frame tables in memory that native calls may keep pointers into, and the kernel may read for a while.
 */
import { errnoError } from '../core/errors.ts';
import { type FrameOwner, FrameTable, type FrameTableOptions, frameTableBytes } from '../core/frames.ts';
import { native } from './binding.ts';

const HUGE_PAGE_BYTES = 2 * 1024 * 1024;

/** A table in a slab of its own, which goes when nothing refers to it any more; at most 1 GiB. Throws ENOMEM and EINVAL. */
export function createFrameTable(options: FrameTableOptions, owner: FrameOwner): FrameTable {
  const bytes = frameTableBytes(options);
  // Rounded up to 2 MiB, which costs little only where that is little.
  const memory = native().slabCreate(bytes, bytes >= 4 * HUGE_PAGE_BYTES);
  if (typeof memory === 'number') throw errnoError(memory, 'slabCreate');
  return new FrameTable(memory, options, owner);
}
