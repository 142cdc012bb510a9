/**
 * The memory one socket sends from.
 *
 * When the socket copies, a message is the caller's again as soon as sendmsg returns: one buffer serves them all. When
 * it lends, a buffer stays lent until its cookie comes back, which may be after the peer has answered, because the
 * answer and TCP's acknowledgement travel separately. Two buffers for each message that may be outstanding let the next
 * one be written meanwhile; they are made when first needed and the one that came back last is taken first, so that a
 * quick peer keeps only a few of them warm in the cache.
 */
import { fillPattern } from '../../wire/rds-stress.ts';

export class SendBuffers {
  readonly #size: number;
  readonly #lends: boolean;
  readonly #max: number;
  readonly #verify: boolean;
  readonly #free: Uint8Array[] = [];
  #made = 0;

  /** `outstanding` is how many messages of this size may be under way at once, or 0 when the socket copies. */
  constructor(size: number, outstanding: number, verify: boolean) {
    this.#size = size;
    this.#lends = outstanding > 0;
    this.#max = Math.max(1, outstanding * 2);
    this.#verify = verify;
  }

  /** A buffer to write a message in, or undefined while all are lent. */
  take(): Uint8Array | undefined {
    const free = this.#free.pop();
    if (free !== undefined) return free;
    if (this.#made === this.#max) return undefined;
    this.#made += 1;
    // Shared memory cannot be taken away from its owner, so every runtime may lend it.
    const memory = this.#lends ? new SharedArrayBuffer(this.#size) : new ArrayBuffer(this.#size);
    const buffer = new Uint8Array(memory);
    // The filler never changes: sending writes the header only.
    if (this.#verify) fillPattern(buffer, 0, this.#size);
    return buffer;
  }

  giveBack(buffer: Uint8Array): void {
    this.#free.push(buffer);
  }
}
