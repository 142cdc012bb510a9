/** Frame tables for what a port receives: all of a frame is in the table itself, and nothing of it can be lent. */
import {
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameOwner,
  type FrameTable,
  type FrameTableOptions,
  HEAD_AT,
  HEAD_BYTES,
} from '../core/frames.ts';
import { createFrameTable } from '../sys/frame-table.ts';

/** A table of frames that are all head; throws ENOMEM. */
export function hostTable(options: Pick<FrameTableOptions, 'frames' | 'headBytes'>): FrameTable {
  const owner: FrameOwner = {
    lend: () => null,
    gather(frame, out) {
      const record = frame * FRAME_WORDS;
      const at = table.records[record + HEAD_AT] as number;
      const bytes = table.records[record + HEAD_BYTES] as number;
      out.set(table.bytes.subarray(at, at + bytes));
      return bytes;
    },
  };
  const table = createFrameTable({ ...options, segments: 0 }, owner);
  return table;
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
