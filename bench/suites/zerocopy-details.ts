/**
 * What became of the bytes that a cell over zerotx/net sent, for the details of a result: a number that is called
 * zero-copy counts only if the kernel, and the library, copied none.
 */
import type { SliceResult } from '../harness.ts';
import { total } from '../ratio.ts';
import type { Details } from '../suite.ts';

/** Tails of writes that are below the threshold may go in ordinary calls. */
const COPIED_SHARE_MAX = 0.01;

/** Counters of the sending side over all slices; causes of copying that never happened are left out. */
export function zerocopyDetails(slices: readonly SliceResult[], messageBytes: number): Details {
  const sent = slices.reduce((sum, slice) => sum + slice.count * messageBytes, 0);
  const sides = Object.entries(slices[0]!.sides);
  const [side, report] = sides.find(([, { counters }]) => 'lentCalls' in counters)!;
  const sums = Object.keys(report.counters).map((name): [string, number] => [
    name,
    total(slices, side, name),
  ]);
  const told = sums.filter(([name, sum]) => sum > 0 || !name.startsWith('copied.'));
  return { bytes: sent, ...Object.fromEntries(told) };
}

/** Whether all the bytes, but for a few tails, were sent from where they lay. */
export function neverCopied({ bytes, kernelCopiedCalls, fallbackBytes }: Details): boolean {
  return kernelCopiedCalls === 0 && Number(fallbackBytes) <= COPIED_SHARE_MAX * Number(bytes);
}
