/**
 * What a suite is: a set of keys that can be measured, each with the bound it has to meet, if any.
 */

import type { Timing } from './harness.ts';
import { type Bound, holds, type Interval, type MedianInterval } from './stats.ts';

export interface Result {
  /** Median, and the 95 % interval of the median (see stats.ts); null when skipped. */
  value: number | null;
  low: number | null;
  high: number | null;
  /** Present when the key has a bound and was measured. */
  bound?: string;
  holds?: boolean;
  unit?: string;
  /** Interleaved pairs behind the value. */
  pairs?: number;
  /** Why there is no value. */
  skipped?: string;
  /** What else belongs to the number: the copied share, the rates behind a ratio. */
  details?: Record<string, number>;
}

export type Results = Record<string, Result>;

export interface SuiteOptions {
  pairs: number;
  timing: Timing;
  quick: boolean;
  /** Whether a key was asked for; all are unless `--only` names some. */
  wants(key: string): boolean;
}

export interface Suite {
  description: string;
  keys: readonly string[];
  run(options: SuiteOptions): Promise<Results>;
}

export function measured(
  interval: Interval | MedianInterval,
  extra: { bound?: Bound; unit?: string; details?: Record<string, number>; alsoNeeds?: boolean } = {},
): Result {
  const { bound, unit, details } = extra;
  return {
    value: interval.value,
    low: interval.low,
    high: interval.high,
    ...(bound && {
      bound: `${bound.op} ${bound.limit}`,
      holds: holds(interval, bound) && extra.alsoNeeds !== false,
    }),
    ...(unit !== undefined && { unit }),
    ...('count' in interval && { pairs: interval.count }),
    ...(details && { details }),
  };
}

export function skipped(reason: string): Result {
  return { value: null, low: null, high: null, skipped: reason };
}
