import type { Clock } from '../../src/core/clock.ts';

interface Timer {
  readonly atMs: number;
  readonly fn: () => void;
}

/** Time that only advance() moves. Timers run in the order of their times, then of their making. */
export class VirtualClock implements Clock {
  #nowMs = 1000;
  #timers: Timer[] = [];

  now(): number {
    return this.#nowMs;
  }

  after(ms: number, fn: () => void): () => void {
    const timer = { atMs: this.#nowMs + ms, fn };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  }

  soon(fn: () => void): () => void {
    return this.after(0, fn);
  }

  get pending(): number {
    return this.#timers.length;
  }

  advance(ms: number): void {
    const endMs = this.#nowMs + ms;
    for (let fired = 0; fired < 100_000; fired++) {
      const due = this.#timers.filter(({ atMs }) => atMs <= endMs);
      const next = due.reduce<Timer | undefined>(
        (a, b) => (a === undefined || b.atMs < a.atMs ? b : a),
        undefined,
      );
      if (next === undefined) {
        this.#nowMs = endMs;
        return;
      }
      this.#timers = this.#timers.filter((other) => other !== next);
      this.#nowMs = Math.max(this.#nowMs, next.atMs);
      next.fn();
    }
    throw new Error('timers without end');
  }
}
