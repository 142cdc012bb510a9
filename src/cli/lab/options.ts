/** Values of options that `zerotx vhost` and `zerotx switch` have both. */
import { InvalidArgumentError } from 'commander';

export const USER_HELP = 'who to go on as when taps are open; root: stay root';
export const STATS_HELP = 'print the counters every so often';

/** Collects an option that may be there several times. */
export function repeated(text: string, before: string[] | undefined): string[] {
  return [...(before ?? []), text];
}

export function count(name: string, min: number, max: number): (text: string) => number {
  return (text) => {
    const value = /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN;
    if (value >= min && value <= max) return value;
    throw new InvalidArgumentError(`not a ${name} from ${min} to ${max}.`);
  };
}

/** Parts of a second are welcome. */
export function seconds(text: string): number {
  const value = /^\d+(?:\.\d+)?$/.test(text) ? Number(text) : 0;
  if (value >= 0.01 && value <= 1e6) return value;
  throw new InvalidArgumentError('not a number of seconds from 0.01 to 1000000.');
}
