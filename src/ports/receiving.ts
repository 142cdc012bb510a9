/** Offering received frames to whoever joins ports. */
import { FRAME_BYTES, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
import type { Port, PortCounters } from '../core/port.ts';

/** Returns how many frames were taken, from the first, and counts them; without a receiver they are dropped. */
export function offer(port: Port, counters: PortCounters, table: FrameTable): number {
  const { receiver } = port;
  if (receiver === null) {
    counters.rxDropped += table.count;
    return table.count;
  }
  const { count } = table;
  // Before the call: afterwards a tag may have been taken out of a frame.
  let bytes = 0;
  for (let i = 0; i < count; i++) bytes += table.records[i * FRAME_WORDS + FRAME_BYTES] as number;
  const taken = Math.min(count, receiver(table, port));
  for (let i = taken; i < count; i++) bytes -= table.records[i * FRAME_WORDS + FRAME_BYTES] as number;
  counters.rxFrames += taken;
  counters.rxBytes += bytes;
  return taken;
}
