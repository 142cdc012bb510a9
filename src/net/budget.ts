/** The process's own budget: RLIMIT_MEMLOCK, unless CAP_IPC_LOCK lifts it, shared by all threads (an atomic counter). */
import type { MemlockBudget } from '../core/budget.ts';
import { native } from '../sys/binding.ts';

class ProcessBudget implements MemlockBudget {
  readonly limitPages: number;

  constructor() {
    const sys = native();
    const bytes = sys.memlockLimit();
    this.limitPages = bytes < 0 ? -1 : Math.floor(bytes / sys.pageSize());
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
