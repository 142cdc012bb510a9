/** Received frames: offering them to whoever joins ports, and taking out of their table what was taken, or is none. */
import { FRAME_BYTES, FRAME_STATUS, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
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

/** Takes the first `count` frames out of a table; the others move up, in their records alone. */
export function dropFirst(table: FrameTable, count: number): void {
  if (count > 0) {
    table.records.copyWithin(0, count * FRAME_WORDS, table.count * FRAME_WORDS);
    table.count -= count;
  }
}

/** Takes frames with a FRAME_STATUS out of a table; returns how many there were. */
export function dropBad(table: FrameTable): number {
  const { records } = table;
  let kept = 0;
  for (let i = 0; i < table.count; i++) {
    const record = i * FRAME_WORDS;
    if ((records[record + FRAME_STATUS] as number) !== 0) continue;
    if (kept < i) records.copyWithin(kept * FRAME_WORDS, record, record + FRAME_WORDS);
    kept += 1;
  }
  const dropped = table.count - kept;
  table.count = kept;
  return dropped;
}
