/**
 * Zero-copy completions of one socket: the cookies of messages whose last reference is gone, first in, first out.
 *
 * There is one queue and two ways to read it, as RDS had over time: up to eight cookies as an error-queue record of
 * origin ZCOOKIE (the series that brought zero-copy to RDS), or up to eight as the ZCOPY_COMPLETION control message of
 * recvmsg (Linux 4.17 and later; struct rds_zcopy_cookies). A cookie read one way is gone from the other.
 */
import { Deque } from '../core/deque.ts';

/** SO_EE_ORIGIN_MAX_ZCOOKIES and RDS_MAX_ZCOOKIES. */
export const COOKIES_PER_RECORD = 8;

const none: readonly number[] = Object.freeze([]);

export class CookieQueue {
  readonly #cookies = new Deque<number>();

  get length(): number {
    return this.#cookies.length;
  }

  push(cookie: number): void {
    this.#cookies.push(cookie);
  }

  /** The oldest cookies, at most eight; the same empty array when there are none. */
  take(): readonly number[] {
    const count = Math.min(COOKIES_PER_RECORD, this.#cookies.length);
    if (count === 0) return none;
    const out: number[] = [];
    for (let i = 0; i < count; i++) out.push(this.#cookies.shift() as number);
    return out;
  }

  clear(): void {
    this.#cookies.clear();
  }
}

interface Slot {
  done: (() => void) | null;
}

/**
 * Puts the releases of one lane into the order in which the messages were accepted. The kernel may let go of a later
 * message earlier (one that was copied after all); its owner hears of it in turn.
 */
export class ReleaseOrder {
  readonly #slots = new Deque<Slot>();

  /** Takes the next place. Call the result once, with what to run when all before it have been called. */
  take(): (run: () => void) => void {
    const slot: Slot = { done: null };
    this.#slots.push(slot);
    return (run) => {
      slot.done = run;
      for (;;) {
        const next = this.#slots.first?.done;
        if (next === undefined || next === null) return;
        this.#slots.shift();
        next();
      }
    };
  }
}
