/**
 * Time for ports: the one file here that owns timers and reads the clock. Tests hand in another.
 */
export interface PortClock {
  /** Milliseconds with a fraction, never set back. */
  now(): number;
  /** Milliseconds since 1970, with a fraction. */
  wall(): number;
  /** Runs `task` once, after `ms`; returns what cancels it. */
  after(ms: number, task: () => void): () => void;
  /** Runs `task` when events that are there already have had their turn; returns what cancels it. */
  soon(task: () => void): () => void;
}

export const systemClock: PortClock = {
  now: () => performance.now(),
  wall: () => performance.timeOrigin + performance.now(),
  after(ms, task) {
    const timer = setTimeout(task, ms);
    return () => clearTimeout(timer);
  },
  soon(task) {
    const immediate = setImmediate(task);
    return () => clearImmediate(immediate);
  },
};
