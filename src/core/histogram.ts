/**
 * How long things took, in powers of two of a microsecond: bucket i counts values below 2^i us, the last one all others.
 *
 * Not perf_hooks' histogram: that takes tens of kilobytes, and every socket has one of these.
 */
const BUCKETS = 27;

/** Upper bounds of all buckets in microseconds; the last is Infinity. */
export const LATENCY_BOUNDS_US: readonly number[] = Array.from({ length: BUCKETS }, (_, i) =>
  i === BUCKETS - 1 ? Number.POSITIVE_INFINITY : 2 ** i,
);

export interface HistogramSnapshot {
  readonly count: number;
  readonly sumUs: number;
  readonly maxUs: number;
  /** Counts by upper bound in microseconds (1, 2, 4, ...; the last is Infinity), empty ones left out. */
  readonly buckets: readonly { readonly belowUs: number; readonly count: number }[];
}

export class LatencyHistogram {
  count = 0;
  sumUs = 0;
  maxUs = 0;
  /** Made by the first value: most sockets never have one. */
  #buckets: Uint32Array | null = null;

  /** Counts a duration; a negative one, from a clock that was set back, counts as 0. */
  record(us: number): void {
    const value = Math.max(us, 0);
    this.#buckets ??= new Uint32Array(BUCKETS);
    const i = Math.min(BUCKETS - 1, 32 - Math.clz32(Math.min(value, 0xffff_ffff)));
    this.#buckets[i] = (this.#buckets[i] as number) + 1;
    this.count += 1;
    this.sumUs += value;
    if (value > this.maxUs) this.maxUs = value;
  }

  /** Adds what another one has counted. */
  add(other: LatencyHistogram): void {
    this.count += other.count;
    this.sumUs += other.sumUs;
    this.maxUs = Math.max(this.maxUs, other.maxUs);
    const theirs = other.#buckets;
    if (theirs === null) return;
    this.#buckets ??= new Uint32Array(BUCKETS);
    for (let i = 0; i < BUCKETS; i++) this.#buckets[i] = (this.#buckets[i] as number) + (theirs[i] as number);
  }

  snapshot(): HistogramSnapshot {
    const buckets = Array.from(this.#buckets ?? [], (count, i) => ({
      belowUs: LATENCY_BOUNDS_US[i] as number,
      count,
    }));
    return {
      count: this.count,
      sumUs: this.sumUs,
      maxUs: this.maxUs,
      buckets: buckets.filter(({ count }) => count > 0),
    };
  }
}
