/**
 * How long guest memory lasts: until the front-end took it away, and the last frame that is lent from it is complete.
 *
 * A lease stands for the memory as one state of the memory table had it. Rings and lent frames hold the lease they began
 * with; the table goes on with a new one. What the table dropped is unmapped when nobody holds the old lease, nor an older one
 * of the same space, whose frames may lie in the dropped region as well:
 *
 *   lease 1 (held by a frame) --> lease 2 (nobody) --> lease 3 (current)
 *           drops region A               drops region B: waits for lease 1 too
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
  #older: Lease | null = null;
  #newer: Lease | null = null;
  /** Not null: closed, and what to do when nobody is left. */
  #onEnd: (() => void) | null = null;

  constructor(space: Space, older: Lease | null = null) {
    this.space = space;
    if (older === null || older.#ended) return;
    this.#older = older;
    older.#newer = this;
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
    if (this.#onEnd === null || this.#holders > 0 || this.#older !== null) return;
    const onEnd = this.#onEnd;
    this.#onEnd = null;
    this.#ended = true;
    onEnd();
    const newer = this.#newer;
    if (newer === null) return;
    this.#newer = null;
    newer.#older = null;
    newer.#settle();
  }
}
