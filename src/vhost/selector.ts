/**
 * Whom a guest's memory is lent to, and whom not for now: one record for each borrower, which is a port or whatever a port tells its
 * destinations apart by. Two habits make a borrower a bad one.
 *
 * It copies what it is lent. Then lending costs more than copying at once. The rule is that of the kernel's vhost-net
 * (`vhost_net_tx_select_zcopy`): of each 1024 asked for, a new borrowing is allowed as long as `asked / 64 >= copied`, and then both are
 * counted from 0 again. So one copy after a reset costs 64 packets of copying, and about 1.5 % are tolerated.
 *
 * It keeps what it is lent. A chain that is out for longer than the ledger's holdMs is overdue, and may hold up all the chains behind
 * it. Nothing is lent to who has an overdue chain, and nothing for a back-off time, which doubles with each relapse:
 *
 *   lent ──overdue──▶ backing off, until untilMs ──lent again──▶ in time: back-off forgotten
 *                          ▲                                 └─▶ overdue: doubled ─┐
 *                          └───────────────────────────────────────────────────────┘
 *
 * A completion in time counts only when it was lent after untilMs: what was lent beside the overdue one proves nothing.
 *
 * What a borrower may have at once is its share: a few chains at first, and one more with each that comes back in time, so that it
 * doubles with every round trip; back to the few when one is overdue. A destination that hangs then takes with it a few
 * descriptors of the ring, and not a quarter of it.
 */
import type { Port } from '../core/port.ts';

/** Asked for, between two resets. */
const ROUND = 1024;
/** Asked for, for each copy that is tolerated: a shift. */
const TOLERANCE_SHIFT = 6;

export const BACKOFF_MIN_MS = 100;
export const BACKOFF_MAX_MS = 10_000;
/** After two seconds of everybody's time (STALL_MS of the ledger). */
const BACKOFF_RECALL_MS = 60_000;
/** The share that a borrower starts with. */
export const SHARE_MIN = 8;
/** More than any ledger lends at once. */
const SHARE_MAX = 1024;

/** Why nothing is lent; 0 when it is. */
export const LENT = 0;
export const REFUSED_COPIES = 1;
export const REFUSED_OVERDUE = 2;
export const REFUSED_SHARE = 3;

export class Borrower {
  readonly #recall: () => void;
  /** Borrowings asked for and copied since the last reset. */
  #asked = 0;
  #copied = 0;
  /** Chains that it has now, and of these, for too long. */
  lent = 0;
  overdue = 0;
  #share = SHARE_MIN;
  #backoffMs = 0;
  #untilMs = Number.NEGATIVE_INFINITY;

  /** `recall`: brings back what it has, where that can be done (Port.recall). */
  constructor(recall: () => void = () => {}) {
    this.#recall = recall;
  }

  /** Counts one that is asked for, and says whether it is granted. */
  ask(nowMs: number): number {
    this.#asked += 1;
    if (this.#asked === ROUND) {
      this.#asked = 0;
      this.#copied = 0;
    }
    if (this.overdue > 0 || nowMs < this.#untilMs) return REFUSED_OVERDUE;
    if (this.#asked >> TOLERANCE_SHIFT < this.#copied) return REFUSED_COPIES;
    return this.lent < this.#share ? LENT : REFUSED_SHARE;
  }

  /** One that it has is overdue. */
  late(nowMs: number): void {
    this.overdue += 1;
    this.#share = SHARE_MIN;
    if (nowMs < this.#untilMs) return;
    this.#backoffMs = Math.min(BACKOFF_MAX_MS, Math.max(BACKOFF_MIN_MS, this.#backoffMs * 2));
    this.#untilMs = nowMs + this.#backoffMs;
  }

  /** What it has is called back: it held up others for so long that it is not asked again soon. */
  recall(nowMs: number): void {
    this.#untilMs = Math.max(this.#untilMs, nowMs + BACKOFF_RECALL_MS);
    this.#recall();
  }

  /** One that it had since `sinceMs` has come back. */
  returned(sinceMs: number, wasLate: boolean, copied: boolean): void {
    this.lent -= 1;
    if (copied) this.#copied += 1;
    if (wasLate) this.overdue -= 1;
    else if (sinceMs >= this.#untilMs) {
      this.#backoffMs = 0;
      this.#share = Math.min(SHARE_MAX, this.#share + 1);
    }
  }

  /** Until when nothing is lent to it, for those who show states; in the past: no back-off. */
  get untilMs(): number {
    return this.#untilMs;
  }
}

/** The record of each borrower, for as long as the borrower exists. Shared by the queues of a device. */
export class Borrowers {
  readonly #records = new WeakMap<object, Borrower>();

  of(borrower: object): Borrower {
    let record = this.#records.get(borrower);
    if (record === undefined) {
      record = new Borrower(() => (borrower as Partial<Port>).recall?.());
      this.#records.set(borrower, record);
    }
    return record;
  }
}
