/**
 * What a ledger has lent and not got back: a list, oldest first, in which each has its place until it returns, in whatever order that
 * is; and a mark behind those that have already been found to be out for too long.
 *
 *   oldest ── late ── late ── watched ── ... ── newest
 */
import type { Borrower } from './selector.ts';

/** The guest's memory: a mapping that stays as long as somebody holds it. A MemoryLease is one. */
export interface HeldMemory {
  hold(): void;
  release(): void;
}

export interface Loan {
  readonly slot: number;
  readonly borrower: Borrower;
  readonly sinceMs: number;
  /** When it is overdue, by the ledger's own count of time. */
  readonly dueMs: number;
  readonly memory: HeldMemory;
  late: boolean;
  quarantined: boolean;
  before: Loan | null;
  after: Loan | null;
}

export class Loans {
  /** All, and those whose end nobody knows. */
  count = 0;
  quarantined = 0;
  #oldest: Loan | null = null;
  #newest: Loan | null = null;
  #watched: Loan | null = null;

  get oldest(): Loan | null {
    return this.#oldest;
  }

  /** The oldest that watchNext() has not been called for. */
  get watched(): Loan | null {
    return this.#watched;
  }

  add(slot: number, borrower: Borrower, sinceMs: number, dueMs: number, memory: HeldMemory): Loan {
    const before = this.#newest;
    const loan: Loan = {
      slot,
      borrower,
      sinceMs,
      dueMs,
      memory,
      late: false,
      quarantined: false,
      before,
      after: null,
    };
    if (before === null) this.#oldest = loan;
    else before.after = loan;
    this.#newest = loan;
    this.#watched ??= loan;
    this.count += 1;
    return loan;
  }

  remove(loan: Loan): void {
    const { before, after } = loan;
    if (this.#watched === loan) this.#watched = after;
    if (before === null) this.#oldest = after;
    else before.after = after;
    if (after === null) this.#newest = before;
    else after.before = before;
    this.count -= 1;
    if (loan.quarantined) this.quarantined -= 1;
  }

  watchNext(): void {
    this.#watched = this.#watched?.after ?? null;
  }
}
