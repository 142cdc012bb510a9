/**
 * The statistics of the benchmark: known binomial ranks, the definition of the interval by brute force over all
 * outcomes, and how often the interval really encloses the median of a skewed distribution.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { holds, median, medianInterval, medianRank, pairedRatio } from '../../bench/stats.ts';

const seed = process.env.FC_SEED;
const fcOptions = seed === undefined ? {} : { seed: Number(seed) };

test('median of odd and even counts, whatever the order', () => {
  assert.equal(median([3]), 3);
  assert.equal(median([5, 1, 3]), 3);
  assert.equal(median([4, 1, 3, 2]), 2.5);
  assert.equal(median([10, 9, 2]), 9, 'sorted as numbers, not as text');
});

test('ranks of the 95 % interval are those of the published tables', () => {
  // n, rank, coverage: sign-test confidence intervals of the median.
  const table: [number, number, number][] = [
    [6, 1, 0.96875],
    [9, 2, 0.9609],
    [15, 4, 0.9648],
    [20, 6, 0.9586],
    [25, 8, 0.9567],
    [30, 10, 0.9572],
    [50, 18, 0.9672],
  ];
  for (const [n, rank, coverage] of table) {
    const found = medianRank(n, 0.95);
    assert.equal(found.rank, rank, `n = ${n}`);
    assert.ok(Math.abs(found.coverage - coverage) < 5e-5, `n = ${n}: ${found.coverage}`);
  }
});

test('too few samples: minimum and maximum, and the coverage admits it', () => {
  const interval = medianInterval([2, 1, 3, 5, 4]);
  assert.deepEqual([interval.low, interval.high], [1, 5]);
  assert.equal(interval.coverage, 0.9375);
  assert.deepEqual(medianInterval([7]), { value: 7, low: 7, high: 7, count: 1, coverage: 0 });
});

test('rank and coverage agree with counting all outcomes', () => {
  for (let n = 1; n <= 12; n++) {
    for (const confidence of [0.5, 0.8, 0.9, 0.95, 0.99]) {
      const { rank, coverage } = medianRank(n, confidence);
      assert.ok(Math.abs(coverage - enclosed(n, rank)) < 1e-12, `n = ${n}, rank ${rank}`);
      const narrower = enclosed(n, rank + 1);
      assert.ok(2 * (rank + 1) > n + 1 || narrower < confidence, `n = ${n}: rank ${rank + 1} would do`);
      assert.ok(rank === 1 || coverage >= confidence);
    }
  }
});

/** Share of the 2^n outcomes (each sample below or above the median) whose k-th and (n+1-k)-th enclose it. */
function enclosed(n: number, rank: number): number {
  let inside = 0;
  for (let outcome = 0; outcome < 2 ** n; outcome++) {
    let below = 0;
    for (let bit = 0; bit < n; bit++) below += (outcome >> bit) & 1;
    if (below >= rank && below <= n - rank) inside++;
  }
  return inside / 2 ** n;
}

test('the interval encloses the median of a skewed distribution as often as it says', () => {
  const random = mulberry32(20260101);
  const rounds = 4000;
  let inside = 0;
  for (let round = 0; round < rounds; round++) {
    const samples = Array.from({ length: 15 }, () => (-Math.log(1 - random())) ** 3);
    const { low, high } = medianInterval(samples);
    const truth = Math.LN2 ** 3;
    if (low <= truth && truth <= high) inside++;
  }
  // 0.9648 expected; six standard deviations are 0.0175.
  assert.ok(Math.abs(inside / rounds - 0.9648) < 0.0175, String(inside / rounds));
});

function mulberry32(start: number): () => number {
  let state = start;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

test('low <= value <= high, and order does not matter', () => {
  fc.assert(
    fc.property(fc.array(fc.double({ noNaN: true, min: -1e9, max: 1e9 }), { minLength: 1 }), (samples) => {
      const interval = medianInterval(samples);
      assert.ok(interval.low <= interval.value && interval.value <= interval.high);
      assert.ok(samples.includes(interval.low) && samples.includes(interval.high));
      assert.deepEqual(medianInterval([...samples].reverse()), interval);
    }),
    fcOptions,
  );
});

test('a machine that slows down by half cancels in the ratio of pairs', () => {
  const slowdown = [1, 1, 2, 2, 1, 3, 1, 2, 1, 1];
  const a = slowdown.map((s) => 50 * s);
  const b = slowdown.map((s) => 100 * s);
  const ratio = pairedRatio(a, b);
  assert.deepEqual([ratio.value, ratio.low, ratio.high, ratio.count], [0.5, 0.5, 0.5, 10]);
  assert.throws(() => pairedRatio([1], [1, 2]), RangeError);
});

test('a bound holds if the interval reaches it', () => {
  const interval = { value: 1.02, low: 0.98, high: 1.06 };
  assert.equal(holds(interval, { op: '<=', limit: 1 }), true);
  assert.equal(holds(interval, { op: '<=', limit: 0.98 }), true);
  assert.equal(holds(interval, { op: '<=', limit: 0.97 }), false);
  assert.equal(holds(interval, { op: '>=', limit: 1.06 }), true);
  assert.equal(holds(interval, { op: '>=', limit: 1.07 }), false);
});

test('a sample that is no number is a bug, not a result', () => {
  assert.throws(() => median([]), RangeError);
  assert.throws(() => medianInterval([1, Number.NaN]), RangeError);
  assert.throws(() => pairedRatio([1, 1], [1, 0]), RangeError);
  assert.throws(() => medianRank(0, 0.95), RangeError);
});
