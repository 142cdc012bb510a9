/** The process's own budget: RLIMIT_MEMLOCK, unless CAP_IPC_LOCK lifts it, shared by all threads (an atomic counter). */
import type { MemlockBudget } from '../core/budget.ts';
import { native } from '../sys/binding.ts';

/** Left for what else the kernel charges to this user: 21 pages for the io_uring of an event loop on Node 22 and later (measured). */
const RESERVED_PAGES = 24;

class ProcessBudget implements MemlockBudget {
  readonly limitPages: number;

  constructor() {
    const sys = native();
    const bytes = sys.memlockLimit();
    const pages = Math.floor(bytes / sys.pageSize());
    this.limitPages = bytes < 0 ? -1 : pages > 4 * RESERVED_PAGES ? pages - RESERVED_PAGES : pages;
  }

  charge(pages: number): boolean {
    return native().budgetCharge(pages, this.limitPages) === 0;
  }

  uncharge(pages: number): void {
    native().budgetUncharge(pages);
  }

  used(): number {
    return native().budgetUsed();
  }
}

let budget: ProcessBudget | undefined;

/** Reads the limit on first use. */
export function processBudget(): MemlockBudget {
  budget ??= new ProcessBudget();
  return budget;
}
