/**
 * Which zero-copy calls are still with the kernel.
 *
 * The kernel numbers the successful flagged calls of a socket with a u32 that wraps, and reports completions as ranges
 * [lo, hi], both ends included, modulo 2^32: so hi < lo is legal at the wrap. Ranges may come out of order and
 * merged (Documentation/networking/msg_zerocopy.rst; skb_zerocopy_clone and sock_zerocopy_put in net/core/skbuff.c).
 *
 *   items:   [ done | open | done | open | open ]       at(i) has the number base + i (mod 2^32)
 *              ▲ base: moves over done ones
 *
 * Pure: no socket, no clock. The starting number is a parameter so that the wrap can be tested.
 */
import { Deque } from './deque.ts';

interface Entry<T> {
  readonly item: T;
  done: boolean;
}

export class CompletionTracker<T> {
  readonly #entries = new Deque<Entry<T>>();
  #base: number;
  #outstanding = 0;
  /** Numbers reported that are not outstanding: a kernel fault or ours, counted and otherwise ignored. */
  unexpected = 0;

  constructor(start = 0) {
    this.#base = start >>> 0;
  }

  /** Calls not yet completed. */
  get outstanding(): number {
    return this.#outstanding;
  }

  /** The oldest item still outstanding. */
  get first(): T | undefined {
    return this.#entries.first?.item;
  }

  /** Number that the next successful flagged call gets. */
  get next(): number {
    return (this.#base + this.#entries.length) >>> 0;
  }

  /** Call after a flagged call that returned more than 0. After one that failed, too, if retract() follows: it may have a number. */
  add(item: T): number {
    const number = this.next;
    this.#entries.push({ item, done: false });
    this.#outstanding += 1;
    return number;
  }

  /** Takes the last item out again unless it was completed meanwhile: the call failed, and it had no number after all. */
  retract(): void {
    if (this.#entries.last === undefined || this.#entries.last.done) return;
    this.#entries.pop();
    this.#outstanding -= 1;
  }

  /** Completes the range [lo, hi] modulo 2^32; calls `onDone` once for each item, in number order. */
  complete(lo: number, hi: number, onDone: (item: T) => void): void {
    const count = ((hi - lo) >>> 0) + 1;
    const first = (lo - this.#base) >>> 0;
    // A range that starts behind the base wraps to a huge index: what of it is known still counts.
    const skipped = first < this.#entries.length ? 0 : Math.min(count, 2 ** 32 - first);
    const start = skipped === 0 ? first : 0;
    const end = Math.min(start + count - skipped, this.#entries.length);
    let completed = 0;
    for (let i = start; i < end; i++) {
      const entry = this.#entries.at(i) as Entry<T>;
      if (entry.done) continue;
      entry.done = true;
      completed += 1;
      this.#outstanding -= 1;
      onDone(entry.item);
    }
    this.unexpected += count - completed;
    while (this.#entries.first?.done) {
      this.#entries.shift();
      this.#base = (this.#base + 1) >>> 0;
    }
  }

  /** Items still outstanding, in number order. */
  *pending(): Generator<T> {
    for (const entry of this.#entries) if (!entry.done) yield entry.item;
  }
}
