/**
 * The longest that a connection may hold lent memory: a peer that takes nothing more would hold it for ever.
 *
 * One timer, which runs only while something is lent; the default is none, as a slow peer is no fault.
 */
export class PinDeadline {
  readonly #limitMs: number;
  readonly #sinceMs: () => number | undefined;
  readonly #expired: () => void;
  #timer: NodeJS.Timeout | null = null;

  /** `sinceMs`: since when the oldest lent call waits, in milliseconds of performance.now(). */
  constructor(limitMs: number, sinceMs: () => number | undefined, expired: () => void) {
    this.#limitMs = limitMs;
    this.#sinceMs = sinceMs;
    this.#expired = expired;
  }

  /** Something may have been lent. */
  watch(): void {
    if (this.#limitMs > 0 && this.#timer === null) this.#check();
  }

  stop(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }

  #check(): void {
    this.#timer = null;
    const since = this.#sinceMs();
    if (since === undefined) return;
    const left = since + this.#limitMs - performance.now();
    if (left <= 0) {
      this.#expired();
      return;
    }
    // The memory is lent whether or not the program lives on for other reasons: the timer is none.
    this.#timer = setTimeout(() => this.#check(), left).unref();
  }
}
