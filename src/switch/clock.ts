/**
 * Time for switches and links: they hold no timer and read no clock themselves, so that tests run them on virtual time.
 * This is the one file of the folder that owns real ones.
 *
 * What they wait for by the clock keeps no process alive: descriptors of ports do.
 */
export interface Clock {
  /** Milliseconds with a fraction, never set back. */
  now(): number;
  /** Runs `fn` once, after `ms`; returns what cancels it. */
  after(ms: number, fn: () => void): () => void;
  /** What now() counts from, in milliseconds since 1970: for capture files. 0 when it is not there. */
  readonly epochMs?: number;
}

export const systemClock: Clock = {
  epochMs: performance.timeOrigin,
  now: () => performance.now(),
  after(ms, fn) {
    const timer = setTimeout(fn, ms);
    timer.unref();
    return () => clearTimeout(timer);
  },
};
