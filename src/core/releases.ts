/**
 * The queue between "the last reference is gone" and "the owner is told": it moves every onRelease behind the batch
 * that caused it, so that no owner's code runs in the middle of ours (Ubuf rule 4).
 *
 * The scheduler is injected: queueMicrotask in programs (it runs when the current callback has returned), a list that
 * the test drains in simulations.
 */
import { Deque } from './deque.ts';

export interface Releasable {
  release(): void;
}

export class ReleaseQueue {
  readonly #pending = new Deque<Releasable>();
  readonly #schedule: (flush: () => void) => void;
  readonly #flushLater: () => void;
  #scheduled = false;

  constructor(schedule: (flush: () => void) => void) {
    this.#schedule = schedule;
    this.#flushLater = () => this.flush();
  }

  push(item: Releasable): void {
    this.#pending.push(item);
    if (this.#scheduled) return;
    this.#scheduled = true;
    this.#schedule(this.#flushLater);
  }

  /** Runs `task` in its turn: behind what runs now, and never inside it. */
  run(task: () => void): void {
    this.push({ release: task });
  }

  /** Runs all releases queued so far; what they queue in turn runs in the next flush. */
  flush(): void {
    this.#scheduled = false;
    let count = this.#pending.length;
    try {
      for (; count > 0; count--) this.#pending.shift()?.release();
    } finally {
      // An owner's callback threw: the rest still hear of their release, and the error surfaces as uncaught.
      if (this.#pending.length > 0 && !this.#scheduled) {
        this.#scheduled = true;
        this.#schedule(this.#flushLater);
      }
    }
  }
}

/** This thread's queue. */
export const releases: ReleaseQueue = new ReleaseQueue(queueMicrotask);
