/**
 * How a run ends, once: after its time, because the peer left, because somebody interrupted it, or because something
 * failed. Whoever comes first decides; everything that waits during a run waits on this as well.
 */

export type EndReason = 'time' | 'peer' | 'interrupt' | 'failure';

export class Ending {
  #reason: EndReason | undefined;
  #failure: unknown;
  readonly #waiting = new Set<() => void>();

  get reason(): EndReason | undefined {
    return this.#reason;
  }

  /** What failed; only with reason `failure`. */
  get failure(): unknown {
    return this.#failure;
  }

  end(reason: Exclude<EndReason, 'failure'>): void {
    this.#settle(reason, undefined);
  }

  fail(error: unknown): void {
    this.#settle('failure', error);
  }

  /** Resolves when the run has ended. */
  whenEnded(): Promise<void> {
    if (this.#reason !== undefined) return Promise.resolve();
    return new Promise((resolve) => this.#waiting.add(resolve));
  }

  /** True as soon as the run has ended, false after `waitMs`. */
  within(waitMs: number): Promise<boolean> {
    if (this.#reason !== undefined) return Promise.resolve(true);
    return new Promise((resolve) => {
      const ended = (): void => {
        clearTimeout(timer);
        this.#waiting.delete(ended);
        resolve(true);
      };
      const timer = setTimeout(() => {
        this.#waiting.delete(ended);
        resolve(false);
      }, waitMs);
      this.#waiting.add(ended);
    });
  }

  #settle(reason: EndReason, failure: unknown): void {
    if (this.#reason !== undefined) return;
    this.#reason = reason;
    this.#failure = failure;
    for (const wake of [...this.#waiting]) wake();
  }
}
