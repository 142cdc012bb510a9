/**
 * The ledger of a transmit queue: which chains of the guest we have, which of them are lent on, and when each goes back as used.
 *
 * A slot is a chain's head: no two chains that are out can have the same, and if a driver tries, the queue is broken. The heads also
 * stand in `order`, as the driver made them available:
 *
 *   order    | done | done | lent | here | here |              report() puts used entries from the front, and stops at
 *              ^first                         ^first + count     the first that is not done
 *
 *   FREE ──take──▶ HERE ──finish──▶ DONE ──report──▶ FREE
 *                   │ lend            ▲ last Ubuf released
 *                   └───finish──▶ OUT ┘
 *                                  └─ overtaken ─▶ ASIDE, out of `order`; released ─▶ reported with the next report()
 *
 * Reports are in the order of avail. So an index says exactly what was given back, and a device that takes over from us, or
 * ourselves after a crash, resumes with nothing lost. The price is that one slow receiver holds up everybody behind it:
 * a chain that is lent for longer than holdMs is overdue, and is set aside, unless IN_ORDER was negotiated; and its borrower gets nothing more for
 * a while (selector.ts). With IN_ORDER nobody may be overtaken: when a chain has held up others for stallMs, its borrower is told to give
 * back what it has at any cost (a stream resets its connection), and after that it gets nothing more for a minute. With `copiesFirst`
 * a lent chain is set aside at once, as the kernel's vhost-net does. A chain that is aside is noted in the ring, so that whoever
 * resumes knows of it (aside.ts).
 *
 * Every lend() gives a Ubuf of its own, the only allocation here, so that of several borrowers of one chain (a frame that is
 * flooded) each is judged by what it does; the chain is done with the last of them.
 *
 * Stopping: drain() ends the lending and the overtaking. When all is back, or at the deadline of whoever waits, detach() says where the next
 * owner of the queue starts: at the first chain that is not reported. What is still lent then is his: he takes those chains again, and
 * gives back those that are aside, by their notes (counted as `forced`). What is released after detach() touches no ring: it only lets go of the memory that was lent.
 *
 * The time comes from the caller. For holdMs a gap between two calls counts as gapMs at most: who was kept from running could not
 * take what came back meanwhile, and that is no borrower's fault.
 *
 * Nothing here signals, waits or throws for what a guest does.
 */
import { assert } from '../core/assert.ts';
import { type ReleaseQueue, releases } from '../core/releases.ts';
import { type Outcome, Ubuf } from '../core/ubuf.ts';
import { type LedgerCounters, ledgerCounters } from './ledger-counters.ts';
import { type HeldMemory, type Loan, Loans } from './loans.ts';
import type { SplitQueue } from './queue.ts';
import { type Borrower, type Borrowers, LENT, REFUSED_COPIES, REFUSED_OVERDUE } from './selector.ts';

/** The most chains of a queue that are lent at once, and a quarter of the ring at most: the rest is for copies. */
const LENT_MAX = 128;
export const HOLD_MS = 5;
/** Less than the 5 s after which Linux takes a transmit queue for dead (dev_watchdog). */
const STALL_MS = 2000;
/** Of the time between two reports, what counts for it at most. */
const STALL_GAP_MS = 250;

/** What a slot is: one of the four, and two flags for those that are HERE or OUT. */
const FREE = 0;
const HERE = 1;
const OUT = 2;
const DONE = 3;
const STATE = 3;
/** A borrower has had it for longer than holdMs. */
const LATE = 4;
/** No longer in `order`. */
const ASIDE = 8;

export interface LedgerOptions {
  readonly borrowers: Borrowers;
  /** Called when there is something to report, or nothing is awaited any more: from releases, and once until report(). */
  readonly onWork: () => void;
  readonly holdMs?: number;
  /** Of the time between two calls, what counts for holdMs at most: all of it if left out. */
  readonly gapMs?: number;
  readonly lentMax?: number;
  readonly stallMs?: number;
  /** Reports copies before what is lent, wherever IN_ORDER was not negotiated. */
  readonly copiesFirst?: boolean;
  readonly counters?: LedgerCounters;
  readonly releases?: ReleaseQueue;
}

export class TxLedger {
  readonly counters: LedgerCounters;
  #queue: SplitQueue;
  #memory: HeldMemory;
  readonly #options: LedgerOptions;
  readonly #holdMs: number;
  readonly #gapMs: number;
  readonly #lentMax: number;
  readonly #mask: number;
  /** By slot: what it is, and how many borrowings of it are out. */
  readonly #state: Uint8Array;
  readonly #out: Uint16Array;
  /** Slots in the order of avail, from `first` on. */
  readonly #order: Uint16Array;
  #first = 0;
  #count = 0;
  /** Slots that are aside, and of these, those that came back. */
  #aside = 0;
  readonly #back: number[] = [];
  /** All borrowings that are out, and slots that are lent: a slot may have several. */
  readonly #loans = new Loans();
  #lentSlots = 0;
  #nowMs = 0;
  /** The same without the gaps. */
  #attendedMs = 0;
  /** The slot in front that holds up others, and for how long now; -1: none does. */
  #stalled = -1;
  #stalledMs = 0;
  #reportedMs = 0;
  #told = false;
  #draining = false;
  #detached = false;

  constructor(queue: SplitQueue, memory: HeldMemory, options: LedgerOptions) {
    this.#queue = queue;
    this.#memory = memory;
    this.#options = options;
    this.#holdMs = options.holdMs ?? HOLD_MS;
    this.#gapMs = options.gapMs ?? Number.POSITIVE_INFINITY;
    this.#lentMax = Math.min(options.lentMax ?? LENT_MAX, queue.size >> 2);
    this.#mask = queue.size - 1;
    this.#state = new Uint8Array(queue.size);
    this.#out = new Uint16Array(queue.size);
    this.#order = new Uint16Array(queue.size);
    this.counters = options.counters ?? ledgerCounters();
  }

  /** Chains that we have. */
  get pending(): number {
    return this.#count + this.#aside;
  }

  /** Chains that are lent. */
  get lent(): number {
    return this.#lentSlots;
  }

  /** Whether anything that is lent may still come back: what is in quarantine is not worth waiting for. */
  get awaited(): boolean {
    return this.#loans.count > this.#loans.quarantined;
  }

  /** Since when the oldest of what is lent is out; Infinity: nothing is. */
  get oldestSinceMs(): number {
    return this.#loans.oldest?.sinceMs ?? Number.POSITIVE_INFINITY;
  }

  /** When report() is to be called next, as something may be overdue then; Infinity: nothing ever will be. */
  get deadlineMs(): number {
    const { watched } = this.#loans;
    if (watched === null) return Number.POSITIVE_INFINITY;
    return this.#nowMs + Math.min(watched.dueMs - this.#attendedMs, this.#gapMs);
  }

  /** Takes the chain at lastAvail, whose head peekHead(0) gave. Its slot; -1: the queue is broken, as this head is out already. */
  take(head: number): number {
    if (this.#state[head] !== FREE) {
      this.counters.twice += 1;
      return this.#queue.fail(`head ${head} was made available again while it was out`);
    }
    this.#state[head] = HERE;
    this.#order[(this.#first + this.#count) & this.#mask] = head;
    this.#count += 1;
    this.#queue.advance(1);
    this.counters.taken += 1;
    return head;
  }

  /**
   * Gives back the chains that were taken last, which will be taken again: `count` of them, or as many as are neither
   * finished nor lent. How many.
   */
  untake(count: number): number {
    let given = 0;
    for (; given < count && this.#count > 0; given++) {
      const slot = this.#order[(this.#first + this.#count - 1) & this.#mask] as number;
      if (((this.#state[slot] as number) & STATE) !== HERE || this.#out[slot] !== 0) break;
      this.#state[slot] = FREE;
      this.#count -= 1;
    }
    this.#queue.rewind(given);
    this.counters.taken -= given;
    return given;
  }

  /** The frame was sent or dropped: but for what is lent of it, the chain is done. */
  finish(slot: number): void {
    this.#state[slot] = this.#out[slot] === 0 ? DONE : ((this.#state[slot] as number) & ~STATE) | OUT;
  }

  /** Lends `bytes` of the chain, before it is finished. Null: they are to be copied. */
  lend(slot: number, bytes: number, borrower: object, nowMs: number): Ubuf | null {
    assert(((this.#state[slot] as number) & STATE) === HERE, 'lend() of a chain that is finished');
    this.#see(nowMs);
    const { counters } = this;
    const record = this.#options.borrowers.of(borrower);
    const verdict = record.ask(nowMs);
    if (verdict !== LENT) {
      if (verdict === REFUSED_COPIES) counters.refusedCopies += 1;
      else if (verdict === REFUSED_OVERDUE) counters.refusedOverdue += 1;
      else counters.refusedLimit += 1;
      return null;
    }
    if (this.#draining) {
      counters.refusedDraining += 1;
      return null;
    }
    const again = this.#out[slot] !== 0;
    if (!again && this.#lentSlots >= this.#lentMax) {
      counters.refusedLimit += 1;
      return null;
    }
    if (!again) this.#lentSlots += 1;
    counters.lent += 1;
    counters.lentBytes += bytes;
    this.#out[slot]! += 1;
    record.lent += 1;
    const loan = this.#loans.add(slot, record, nowMs, this.#attendedMs + this.#holdMs, this.#memory);
    loan.memory.hold();
    return new Ubuf(
      [],
      (outcome) => this.#released(loan, outcome),
      this.#options.releases ?? releases,
      () => this.#lost(loan),
      bytes,
    );
  }

  /** Puts the used entries that are due, and sets aside what is overdue. How many were put: the caller publishes them. */
  report(nowMs: number): number {
    if (this.#detached) return 0;
    this.#see(nowMs);
    this.#told = false;
    this.#findOverdue();
    // Those in order first: while there are any, there is room for the notes of the others (aside.ts).
    let put = this.#inOrder();
    for (; this.#back.length > 0; put++) {
      const slot = this.#back.pop() as number;
      this.#state[slot] = FREE;
      this.#aside -= 1;
      this.#queue.put(slot, 0);
    }
    if (this.#queue.features.inOrder) this.#findStalled();
    this.#reportedMs = nowMs;
    this.counters.reported += put;
    return put;
  }

  /** Lends no more, and overtakes nothing, so that base() stays exact. */
  drain(): void {
    this.#draining = true;
  }

  /** Lends again. */
  resume(): void {
    this.#draining = false;
  }

  /** Goes on with another view of the same ring: the guest's memory has been mapped anew. */
  attach(queue: SplitQueue, memory: HeldMemory): void {
    assert(queue.size === this.#queue.size && queue.lastAvail === this.#queue.lastAvail, 'not the same ring');
    queue.follow(this.#queue);
    this.#queue = queue;
    this.#memory = memory;
  }

  /** Index in avail of the first chain that is not reported: where the next owner of the queue starts. */
  base(): number {
    return (this.#queue.lastAvail - this.#count) & 0xffff;
  }

  /**
   * The end: returns base(), and leaves what is still lent to itself. To its borrowers it is overdue, as each of these keeps a guest's
   * memory mapped: a guest that comes and goes must not lend more of it every time.
   */
  detach(): number {
    if (!this.#detached) {
      this.counters.forced += this.#aside;
      for (let loan = this.#loans.oldest; loan !== null; loan = loan.after) {
        if (!loan.late) loan.borrower.late(this.#nowMs);
        loan.late = true;
      }
    }
    this.#detached = true;
    this.#draining = true;
    return this.base();
  }

  /** Puts what is done, from the front. */
  #inOrder(): number {
    const { features } = this.#queue;
    const overtakes = !features.inOrder && !this.#draining;
    const always = this.#options.copiesFirst === true;
    const state = this.#state;
    let put = 0;
    for (; this.#count > 0; this.#count--) {
      const slot = this.#order[this.#first & this.#mask] as number;
      const is = state[slot] as number;
      if (is === DONE) {
        state[slot] = FREE;
        this.#queue.put(slot, 0);
        put += 1;
      } else {
        if (!overtakes || (is & STATE) !== OUT || !(always || (is & LATE) !== 0)) break;
        state[slot] = is | ASIDE;
        this.#queue.setAside(slot);
        this.#aside += 1;
        this.counters.overtaken += 1;
      }
      this.#first = (this.#first + 1) & this.#mask;
    }
    return put;
  }

  #see(nowMs: number): void {
    this.#attendedMs += Math.min(nowMs - this.#nowMs, this.#gapMs);
    this.#nowMs = nowMs;
  }

  #findOverdue(): void {
    const loans = this.#loans;
    for (let loan = loans.watched; loan !== null; loan = loans.watched) {
      if (this.#attendedMs < loan.dueMs) return;
      loans.watchNext();
      if (!loan.late) this.#late(loan);
    }
  }

  /** A ring that waits for one chain, though others are done or will be, does so for stallMs and no longer. */
  #findStalled(): void {
    const slot = this.#order[this.#first & this.#mask] as number;
    if (this.#count < 2 || this.#draining || ((this.#state[slot] as number) & STATE) !== OUT) {
      this.#stalled = -1;
      return;
    }
    if (slot !== this.#stalled) {
      this.#stalled = slot;
      this.#stalledMs = 0;
      return;
    }
    this.#stalledMs += Math.min(this.#nowMs - this.#reportedMs, STALL_GAP_MS);
    if (this.#stalledMs < (this.#options.stallMs ?? STALL_MS)) return;
    this.#stalledMs = 0;
    this.counters.recalls += 1;
    const holders = new Set<Borrower>();
    for (let loan = this.#loans.oldest; loan !== null; loan = loan.after) {
      if (loan.slot === slot) holders.add(loan.borrower);
    }
    // What comes of it must not come from within a turn.
    for (const holder of holders) (this.#options.releases ?? releases).run(() => holder.recall(this.#nowMs));
  }

  #late(loan: Loan): void {
    loan.late = true;
    loan.borrower.late(this.#nowMs);
    this.#state[loan.slot]! |= LATE;
    this.counters.overdue += 1;
  }

  /** Nobody knows when it will come back: it is as good as overdue. */
  #lost(loan: Loan): void {
    if (loan.quarantined) return;
    loan.quarantined = true;
    this.#loans.quarantined += 1;
    this.counters.quarantined += 1;
    if (!loan.late) this.#late(loan);
    this.#tell();
  }

  #released(loan: Loan, outcome: Outcome): void {
    const { slot } = loan;
    const copied = outcome.copiedBytes > 0;
    this.#loans.remove(loan);
    loan.borrower.returned(loan.sinceMs, loan.late, copied);
    loan.memory.release();
    if (copied) this.counters.copied += 1;
    this.#out[slot]! -= 1;
    if (this.#detached) this.counters.late += 1;
    if (this.#out[slot] !== 0) return;
    this.#lentSlots -= 1;
    const is = this.#state[slot] as number;
    if ((is & ASIDE) !== 0) this.#back.push(slot);
    else if ((is & STATE) === OUT) this.#state[slot] = DONE;
    // Behind one that is not done there is nothing to report yet.
    const isFront = (is & STATE) !== HERE && slot === this.#order[this.#first & this.#mask];
    if ((is & ASIDE) !== 0 || isFront || !this.awaited) this.#tell();
  }

  #tell(): void {
    if (this.#told || this.#detached) return;
    this.#told = true;
    this.#options.onWork();
  }
}
