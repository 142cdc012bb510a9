/**
 * The statistics behind every number the benchmark prints: medians, a distribution-free interval of the median, ratios
 * of interleaved pairs, and whether a bound holds.
 *
 * Times on a shared machine have long right tails and no known distribution, so nothing here assumes one. The interval
 * of the median comes from order statistics: of n independent samples the number below the true median is binomial
 * with p = 1/2, whatever the distribution, so the k-th smallest and the k-th largest enclose it with probability
 * 1 - 2 P(B < k). `medianInterval` takes the largest k that still reaches the confidence asked for. With 15 samples and
 * 95 % that is the 4th smallest and the 4th largest (96.5 %); below 6 samples not even minimum and maximum reach 95 %,
 * and `coverage` says so.
 *
 * A ratio is taken inside each pair first and the median over the pairs afterwards: whatever slows the machine down for
 * a second slows both halves of a pair, and cancels.
 */

export interface Interval {
  value: number;
  low: number;
  high: number;
}

export interface MedianInterval extends Interval {
  /** Samples the median is of. */
  count: number;
  /** Probability, before sampling, that low..high encloses the true median. */
  coverage: number;
}

export interface Bound {
  op: '<=' | '>=';
  limit: number;
}

/** The middle value, or the mean of the two middle ones. */
export function median(samples: readonly number[]): number {
  const sorted = sortedFinite(samples);
  const middle = sorted.length >> 1;
  const upper = sorted[middle]!;
  return sorted.length % 2 === 1 ? upper : (sorted[middle - 1]! + upper) / 2;
}

/** Median with its order-statistics interval; shapes: any number of samples from 1, any unit. */
export function medianInterval(samples: readonly number[], confidence = 0.95): MedianInterval {
  const sorted = sortedFinite(samples);
  const { rank, coverage } = medianRank(sorted.length, confidence);
  return {
    value: median(sorted),
    low: sorted[rank - 1]!,
    high: sorted[sorted.length - rank]!,
    count: sorted.length,
    coverage,
  };
}

/**
 * Largest k (counted from 1) such that the k-th smallest and k-th largest of `count` samples enclose the median with at
 * least `confidence`; 1 when no k reaches it.
 */
export function medianRank(count: number, confidence: number): { rank: number; coverage: number } {
  if (!Number.isInteger(count) || count < 1) throw new RangeError(`no median of ${count} samples`);
  let rank = 1;
  let below = binomialHalf(count, 0);
  let coverage = Math.max(0, 1 - 2 * below);
  for (let k = 2; 2 * k <= count + 1; k++) {
    below += binomialHalf(count, k - 1);
    if (1 - 2 * below < confidence) break;
    rank = k;
    coverage = 1 - 2 * below;
  }
  return { rank, coverage };
}

/** Median and interval of numerator[i] / denominator[i] over interleaved pairs. */
export function pairedRatio(
  numerators: readonly number[],
  denominators: readonly number[],
  confidence = 0.95,
): MedianInterval {
  if (numerators.length !== denominators.length) {
    throw new RangeError(`${numerators.length} numerators for ${denominators.length} denominators`);
  }
  return medianInterval(
    numerators.map((numerator, i) => numerator / denominators[i]!),
    confidence,
  );
}

/** A bound holds if the interval reaches it. */
export function holds(interval: Interval, bound: Bound): boolean {
  return bound.op === '<=' ? interval.low <= bound.limit : interval.high >= bound.limit;
}

/** P(B = k) for B binomial with n trials and p = 1/2; in logarithms, since 2^-n alone underflows at n = 1075. */
function binomialHalf(n: number, k: number): number {
  let log = -n * Math.LN2;
  for (let i = 1; i <= k; i++) log += Math.log((n - k + i) / i);
  return Math.exp(log);
}

function sortedFinite(samples: readonly number[]): number[] {
  if (samples.length === 0) throw new RangeError('no samples');
  for (const sample of samples) {
    if (!Number.isFinite(sample)) throw new RangeError(`sample ${sample} is not a finite number`);
  }
  return [...samples].sort((a, b) => a - b);
}
