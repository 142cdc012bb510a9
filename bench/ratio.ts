/**
 * The result behind most keys: what one contender costs divided by what its neighbour in time costs.
 */
import type { SliceResult } from './harness.ts';
import { type Bound, median, pairedRatio } from './stats.ts';
import { type Details, measured, type Result } from './suite.ts';

/** Slices of one contender, and the number to take from each. */
export type Measure = readonly [slices: readonly SliceResult[], of: (slice: SliceResult) => number];

type Ratio = (
  key: string,
  above: Measure,
  below: Measure,
  unit: string,
  details?: Details,
  alsoNeeds?: boolean,
) => Result;

/**
 * Makes results with the bounds of a suite: the median of the ratios of neighbouring slices. The details show the
 * median of each side, in `unit`. With `alsoNeeds` false the bound does not hold whatever the number: the cell did not
 * do what it says.
 */
export function ratioWithin(bounds: Readonly<Record<string, Bound>>): Ratio {
  return (key, [tops, top], [bottoms, bottom], unit, details = {}, alsoNeeds = true) => {
    const above = tops.map(top);
    const below = bottoms.map(bottom);
    return measured(pairedRatio(above, below), {
      bound: bounds[key],
      details: { [`this${unit}`]: median(above), [`other${unit}`]: median(below), ...details },
      alsoNeeds,
    });
  };
}

/** Sum of a counter of one side over all slices. */
export function total(slices: readonly SliceResult[], side: string, counter: string): number {
  return slices.reduce((sum, slice) => sum + slice.sides[side]!.counters[counter]!, 0);
}

/** Of cells that also sent messages which they had written into before: the same ratio, beside that of a key. */
export function refilledDetails([tops, top]: Measure, [bottoms, bottom]: Measure): Details {
  const above = tops.map(top);
  const below = bottoms.map(bottom);
  return {
    refilledUs: median(above),
    refilledOtherUs: median(below),
    refilledRatio: pairedRatio(above, below).value,
  };
}
