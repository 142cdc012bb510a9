/**
 * Zero-copy completions of one socket: the cookies of messages whose last reference is gone, first in, first out.
 *
 * There is one queue and two ways to read it, as RDS had over time: up to eight cookies as an error-queue record of
 * origin ZCOOKIE (the series that brought zero-copy to RDS), or up to eight as the ZCOPY_COMPLETION control message of
 * recvmsg (Linux 4.17 and later; struct rds_zcopy_cookies). A cookie read one way is gone from the other.
 */
import { Deque } from '../core/deque.ts';

/** SO_EE_ORIGIN_MAX_ZCOOKIES and RDS_MAX_ZCOOKIES. */
const COOKIES_PER_RECORD = 8;

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

/** So many addresses are kept, at the least, before those of which nothing is under way are forgotten. */
const ORDERS_KEPT = 1024;

interface Slot {
  done: (() => void) | null;
}

/**
 * Puts the releases of one peer into the order in which the messages were accepted. The kernel may let go of a later
 * message earlier (one that was copied after all); its owner hears of it in turn.
 */
class ReleaseOrder {
  readonly #slots = new Deque<Slot>();

  /** Every place was called. */
  get isIdle(): boolean {
    return this.#slots.length === 0;
  }

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

/** The same for all peers of a socket: those of one do not wait for those of another. */
export class ReleaseOrders {
  readonly #orders = new Map<string, ReleaseOrder>();
  #keep = ORDERS_KEPT;

  /** The next place among those of `address`. */
  take(address: string): (run: () => void) => void {
    let order = this.#orders.get(address);
    if (order === undefined) {
      if (this.#orders.size >= this.#keep) this.#forgetIdle();
      order = new ReleaseOrder();
      this.#orders.set(address, order);
    }
    return order.take();
  }

  #forgetIdle(): void {
    for (const [address, order] of this.#orders) if (order.isIdle) this.#orders.delete(address);
    this.#keep = Math.max(ORDERS_KEPT, 2 * this.#orders.size);
  }
}
