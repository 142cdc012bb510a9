/** Time for those who hold no timer and read no clock themselves: tests hand in another. Which real ones there are is said where they are made. */
export interface Clock {
  /** Milliseconds with a fraction, never set back. */
  now(): number;
  /** What now() counts from, in milliseconds since 1970: for capture files. 0 when it is not there. */
  readonly epochMs?: number;
  /** Runs `task` once, after `ms`; returns what cancels it. */
  after(ms: number, task: () => void): () => void;
  /** Runs `task` when events that are there already have had their turn; returns what cancels it. */
  soon(task: () => void): () => void;
}
