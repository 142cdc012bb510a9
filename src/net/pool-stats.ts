/**
 * What pools count, each by itself and all of this thread together. Pools are held weakly here: what a pool that was
 * collected had counted stays in the sums.
 */

export interface PoolStats {
  /** Memory in the pool's slabs. */
  readonly mappedBytes: number;
  /** Memory of leases, each rounded up to a power of two of pages. */
  readonly usedBytes: number;
  readonly usedBytesMax: number;
  /** Leases whose memory is not back yet, and those of them with sends in flight. */
  readonly leases: number;
  readonly lent: number;
  /** Requests served from a slab there was, and those that mapped one. */
  readonly hits: number;
  readonly misses: number;
  /** Requests that could not be served at once. */
  readonly refused: number;
  /** acquire() calls that wait now. */
  readonly waiting: number;
  /** Leases that were collected without release(). */
  readonly leaked: number;
  /** Sends whose bytes were changed meanwhile, as far as `debug` sees. */
  readonly mutated: number;
}

/** Sums; the most that was used at once is not among them, as maxima do not add up. */
export interface PoolSums extends Omit<PoolStats, 'usedBytesMax'> {
  /** Pools now. */
  readonly pools: number;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** What a pool has now: it goes with the pool. */
const levels = ['mappedBytes', 'usedBytes', 'leases', 'lent', 'waiting'] as const;
/** What it has counted: it stays. */
const counts = ['hits', 'misses', 'refused', 'leaked', 'mutated'] as const;

type Source = () => PoolStats;

const sources = new Set<Source>();
const gone: Mutable<PoolSums> = emptySums();
const collected = new FinalizationRegistry<Source>((source) => {
  sources.delete(source);
  const last = source();
  for (const name of counts) gone[name] += last[name];
});

/** Enters a pool; `source` must not refer to it. */
export function watchPool(pool: object, source: Source): void {
  sources.add(source);
  collected.register(pool, source);
}

export function poolSums(): PoolSums {
  const sums = { ...gone, pools: sources.size };
  for (const source of sources) {
    const stats = source();
    for (const name of [...levels, ...counts]) sums[name] += stats[name];
  }
  return sums;
}

function emptySums(): PoolSums {
  return {
    pools: 0,
    mappedBytes: 0,
    usedBytes: 0,
    leases: 0,
    lent: 0,
    hits: 0,
    misses: 0,
    refused: 0,
    waiting: 0,
    leaked: 0,
    mutated: 0,
  };
}
