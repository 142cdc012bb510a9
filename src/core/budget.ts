/**
 * The account of pinned pages, as the kernel keeps one per user (mm_account_pinned_pages): a message of `bytes` costs
 * floor(bytes / page) + 2 pages, because it may begin and end inside one.
 */
export interface MemlockBudget {
  /** Pages that may be charged in all; negative: no limit. */
  readonly limitPages: number;
  /** False, with nothing charged, if it would exceed the limit. */
  charge(pages: number): boolean;
  uncharge(pages: number): void;
  /** Pages charged now. */
  used(): number;
}

/** What `bytes` cost, in pages of `pageBytes`. */
export function pinnedPages(bytes: number, pageBytes: number): number {
  return Math.floor(bytes / pageBytes) + 2;
}

/** A budget of its own, for programs that want to limit themselves further, and for tests. */
export class FixedBudget implements MemlockBudget {
  readonly limitPages: number;
  #used = 0;

  constructor(limitPages: number) {
    this.limitPages = limitPages;
  }

  charge(pages: number): boolean {
    if (this.limitPages >= 0 && this.#used + pages > this.limitPages) return false;
    this.#used += pages;
    return true;
  }

  uncharge(pages: number): void {
    this.#used -= pages;
  }

  used(): number {
    return this.#used;
  }
}
