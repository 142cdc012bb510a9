/**
 * What a cell is: one way of moving messages, measured in slices.
 *
 * A cell module exports `sides`: for each process that takes part, a factory of a `CellSide`. The harness starts one
 * child process for each side (worker.ts), opens them in the order the suite lists them, and hands every side what the
 * sides before it returned from `open` (a listener returns its port). Then come slices: all sides but the starter are
 * armed, the starter begins, and a slice is over when every side's `run` has resolved. Connections, buffers and
 * processes stay as they are from slice to slice, so start-up is never part of a measurement.
 */

export type Options = Record<string, string | number | boolean>;

/** Anything a side counted or timed in one slice; the suite knows the names. */
export type Counters = Record<string, number>;

export interface Slice {
  /** Messages to move. */
  count: number;
  /** How to move them, if the cell has several ways, e.g. `copy` or `zerocopy`. */
  variant: string;
}

export interface CellSide {
  open(options: Options): Promise<Options>;
  /** Must be ready for the other side's first message when it returns its promise. */
  run(slice: Slice): Promise<Counters>;
  close(): Promise<void>;
}

export interface CellModule {
  sides: Record<string, () => CellSide>;
}

export function numberOption(options: Options, name: string): number {
  const value = options[name];
  if (typeof value !== 'number') throw new TypeError(`option ${name} is ${value}, not a number`);
  return value;
}

export function textOption(options: Options, name: string): string {
  const value = options[name];
  if (typeof value !== 'string') throw new TypeError(`option ${name} is ${value}, not a text`);
  return value;
}
