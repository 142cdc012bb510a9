/** Whether a frame is lent to the kernel: what the engine allows, and what the chooser has measured. */
import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameTable,
  HEAD_BYTES,
  TAIL_COUNT,
  TAIL_START,
} from '../core/frames.ts';
import type { CopyCause } from '../net/counters.ts';
import { CALL_PAGES_MAX } from '../net/segments.ts';
import type { Sized, ZerocopyEngine } from '../net/zerocopy.ts';
import { CHOICE_BYTES_MIN, LEND_BYTES_MIN, type LendChooser } from './chooser.ts';

/** The engine of a port: it sees how long views are, and the port's own call knows what they stand for. */
export type FrameEngine = ZerocopyEngine<Sized>;

/** The engine is asked about tails, and the chooser, which knows better, about frames. */
export const POLICY_BYTES_MIN: number = LEND_BYTES_MIN / 2;

const PAGE_BYTES = 4096;

/** True: the next frame is to be lent. False is counted, if it is large enough to think of it. Without a chooser all are. */
export function wantsLending(
  table: FrameTable,
  frame: number,
  engine: FrameEngine,
  chooser: LendChooser | null,
  pagesMax: number,
): boolean {
  const record = frame * FRAME_WORDS;
  const bytes = table.records[record + FRAME_BYTES] as number;
  // Most frames are small: they are not worth counting.
  if (bytes < (chooser === null ? LEND_BYTES_MIN : CHOICE_BYTES_MIN) || isAllHead(table, frame)) return false;
  const tailBytes = bytes - (table.records[record + HEAD_BYTES] as number);
  // The chooser before the engine, which looks at the clock.
  let cause: CopyCause | null = engine.policy.never(tailBytes);
  if (cause === null && chooser !== null && !chooser.choose(bytes)) cause = 'threshold';
  cause ??= engine.why(tailBytes);
  if (cause === null && bytes > engine.callBytesMax) cause = 'memlock';
  else if (cause === null && pagesMax > 0 && tailPages(table, frame) >= pagesMax) cause = 'fragments';
  if (cause !== null) engine.copied(null, tailBytes, cause);
  return cause === null;
}

/** For wantsLending(): a stream has no such limit. A datagram has, and its head is one of the pages. */
export const STREAM_PAGES_MAX = 0;
export const DATAGRAM_PAGES_MAX: number = CALL_PAGES_MAX;

/** Nothing of it can be lent. */
export function isAllHead(table: FrameTable, frame: number): boolean {
  return (table.records[frame * FRAME_WORDS + TAIL_COUNT] as number) === 0;
}

export function frameBytes(table: FrameTable, frame: number): number {
  return table.records[frame * FRAME_WORDS + FRAME_BYTES] as number;
}

/** Pages that a tail touches, if guest pages are no smaller than the kernel's smallest; neighbours may share some. */
function tailPages(table: FrameTable, frame: number): number {
  const record = frame * FRAME_WORDS;
  const start = table.records[record + TAIL_START] as number;
  const end = start + (table.records[record + TAIL_COUNT] as number);
  let pages = 0;
  for (let i = start; i < end; i++) {
    const offset = (table.addresses[2 * i] as number) % PAGE_BYTES;
    pages += Math.ceil((offset + (table.segments[4 * i + 2] as number)) / PAGE_BYTES);
  }
  return pages;
}
