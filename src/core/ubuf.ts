/**
 * Ubuf: bytes that somebody lent, counted until the last one who looks at them is done.
 *
 * Linux (`ubuf_info`), vhost and RDS share this shape, and here one class carries it:
 *
 *   owner ──lend──▶ Ubuf ──ref──▶ holders (the kernel per zero-copy number, a retransmit list, ...) ──unref──▶ owner
 *
 * Rules:
 * 1. Born with one reference, which belongs to whoever made it. ref() or unref() on a dead one is a bug (assert).
 * 2. Whoever keeps a Ubuf after returning holds a reference; nobody stores bare bytes.
 * 3. The bytes are read-only while lent: a change after lending is sent, even by a retransmission.
 * 4. `onRelease` runs exactly once, on this thread, after the batch that dropped the last reference, never inside
 *    it: so it may send again, close, or throw without harm to the caller of unref().
 * 5. Closing never forces a release: only unref() does, and the kernel's references end when the kernel says so.
 *    Bytes whose end cannot be learned in time are in quarantine: `onQuarantine` tells whoever waits; they are counted, never
 *    recycled, and released if the kernel lets go after all.
 * 6. What is in flight is bounded by those who lend (bytes and count); this class only counts.
 * 7. The outcome says how many of the bytes were copied after all. That is a result to report, not a failure;
 *    `exact` is false when the kernel merged the records the count comes from.
 */
import { assert } from './assert.ts';
import type { ReleaseQueue } from './releases.ts';

export interface Outcome {
  /** Bytes lent. */
  readonly bytes: number;
  /** Of these, bytes that zerotx or the kernel copied. */
  readonly copiedBytes: number;
  /** False where the kernel merged completion records: a merged record carries the flag of its first part only. */
  readonly exact: boolean;
}

export class Ubuf {
  /** The bytes, in order, as the pieces they were lent in. */
  readonly iov: readonly Uint8Array[];
  readonly byteLength: number;
  /** Bytes sent by copying so far; a retransmission may count a byte twice, so release() clamps it. */
  copiedBytes = 0;
  exact = true;
  readonly #onRelease: (outcome: Outcome) => void;
  readonly #queue: ReleaseQueue;
  readonly #onQuarantine: (() => void) | null;
  readonly #outsideBytes: number;
  #refs = 1;

  /** `outsideBytes`: what is lent besides `iov` and has no ArrayBuffer, such as a guest's memory. */
  constructor(
    iov: readonly Uint8Array[],
    onRelease: (outcome: Outcome) => void,
    queue: ReleaseQueue,
    onQuarantine: (() => void) | null = null,
    outsideBytes = 0,
  ) {
    this.iov = iov;
    let total = outsideBytes;
    for (const piece of iov) total += piece.byteLength;
    this.byteLength = total;
    this.#outsideBytes = outsideBytes;
    this.#onRelease = onRelease;
    this.#queue = queue;
    this.#onQuarantine = onQuarantine;
  }

  /** The memory is no longer what was lent: its ArrayBuffer was detached or shrunk by the program. */
  get taken(): boolean {
    let total = this.#outsideBytes;
    for (const piece of this.iov) total += piece.byteLength;
    return total !== this.byteLength;
  }

  /** References now; 0 means dead. */
  get refs(): number {
    return this.#refs;
  }

  ref(): this {
    assert(this.#refs > 0, 'ref() on a released Ubuf');
    this.#refs += 1;
    return this;
  }

  unref(): void {
    assert(this.#refs > 0, 'unref() on a released Ubuf');
    this.#refs -= 1;
    if (this.#refs === 0) this.#queue.push(this);
  }

  /** Nobody knows when the references that are left will end. */
  quarantine(): void {
    this.#onQuarantine?.();
  }

  /** Called by the ReleaseQueue alone. */
  release(): void {
    const bytes = this.byteLength;
    this.#onRelease({ bytes, copiedBytes: Math.min(bytes, this.copiedBytes), exact: this.exact });
  }
}
