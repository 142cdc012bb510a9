/**
 * Which messages have come before (rds_recv_incoming): one with a lower number than expected is a duplicate only if it carries
 * RETRANSMITTED; any other sets the expectation, even backwards; a hole is normal.
 */
import { compareSeq } from '../wire/rds.ts';

/** A message number, 64 bits in two halves. */
export interface Sequence {
  readonly hi: number;
  readonly lo: number;
}

/** What a lane's receiver asks of each message. */
export interface SequenceRule {
  /** The next number expected. */
  readonly next: Sequence;
  expect(next: Sequence): void;
  /** True to drop the message; else the expectation has moved behind it. */
  isDuplicate(hi: number, lo: number, flagged: boolean): boolean;
}

export class Expectation implements SequenceRule {
  #hi = 0;
  #lo = 0;

  get next(): Sequence {
    return { hi: this.#hi >>> 0, lo: this.#lo };
  }

  expect({ hi, lo }: Sequence): void {
    this.#hi = hi;
    this.#lo = lo;
  }

  isDuplicate(hi: number, lo: number, flagged: boolean): boolean {
    if (flagged && compareSeq(hi, lo, this.#hi, this.#lo) < 0) return true;
    this.#lo = (lo + 1) >>> 0;
    // Not cut to 32 bits: behind the last number of all comes one that all are below, so that a duplicate of it is one.
    this.#hi = this.#lo === 0 ? hi + 1 : hi;
    return false;
  }
}
