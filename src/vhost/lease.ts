/**
 * How long guest memory lasts: until the front-end took it away, and the last frame that is lent from it is complete.
 *
 * A lease stands for the memory as one state of the memory table had it, in a space of its own. Rings and lent frames hold the lease
 * they began with; the table goes on with a new one, and what is looked up from then on is looked up there. The space of the old one is
 * destroyed when nobody holds it any more.
 */
import { assert } from '../core/assert.ts';
import type { Space } from './memory.ts';

/** What rings and frames have of it. */
export interface MemoryLease {
  readonly space: Space;
  hold(): void;
  release(): void;
}

export class Lease implements MemoryLease {
  readonly space: Space;
  #holders = 0;
  /** Not null: closed, and what to do when nobody is left. */
  #onEnd: (() => void) | null = null;

  constructor(space: Space) {
    this.space = space;
  }

  hold(): void {
    this.#holders++;
  }

  release(): void {
    assert(this.#holders > 0, 'a lease is released more often than held');
    this.#holders--;
    this.#settle();
  }

  /** No more holders come but those who copy a reference of their own. `onEnd` runs once, when all have gone. */
  close(onEnd: () => void): void {
    assert(this.#onEnd === null && !this.#ended, 'a lease is closed once');
    this.#onEnd = onEnd;
    this.#settle();
  }

  #ended = false;

  #settle(): void {
    if (this.#onEnd === null || this.#holders > 0) return;
    const onEnd = this.#onEnd;
    this.#onEnd = null;
    this.#ended = true;
    onEnd();
  }
}
