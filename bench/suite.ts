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
  details?: Details;
}

/** What else belongs to a number: how it was measured, the copied share, the rates behind a ratio. */
export type Details = Record<string, number | string>;

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

/** Keys that are measured together. */
export interface Group {
  keys: readonly string[];
  run(options: SuiteOptions): Promise<Results>;
}

/** A suite of groups, of which only those with a key that was asked for are run, one after the other. */
export function groupedSuite(description: string, groups: readonly Group[]): Suite {
  return {
    description,
    keys: groups.flatMap((group) => group.keys),
    async run(options) {
      const results: Results = {};
      for (const group of groups) {
        const wanted = group.keys.filter((key) => options.wants(key));
        if (wanted.length === 0) continue;
        const all = await group.run(options);
        for (const key of wanted) results[key] = all[key]!;
      }
      return results;
    },
  };
}

export function measured(
  interval: Interval | MedianInterval,
  extra: { bound?: Bound | undefined; unit?: string; details?: Details; alsoNeeds?: boolean } = {},
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
