/** Copy or lend, by what it is said to cost. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  type CostPriors,
  DATAGRAM_PRIORS,
  LEND_BYTES_MIN,
  LendChooser,
  STREAM_PRIORS,
} from '../../src/ports/chooser.ts';
import { Random } from '../support/random.ts';

interface Costs {
  copyNs(bytes: number): number;
  lendNs(bytes: number): number;
  /** One frame in so many loses the CPU for 5 ms. */
  readonly stolen?: number;
}

/** Sends `count` frames of `bytes`; the share of those lent. */
function run(
  chooser: LendChooser,
  bytes: number,
  count: number,
  costs: Costs,
  random = new Random(1),
): number {
  let lent = 0;
  for (let i = 0; i < count; i++) {
    const lends = chooser.choose(bytes);
    if (lends) lent += 1;
    const noise = 0.5 + random.next();
    const steals = costs.stolen !== undefined && random.chance(1 / costs.stolen) ? 5e6 : 0;
    chooser.measured(bytes, lends, noise * (lends ? costs.lendNs(bytes) : costs.copyNs(bytes)) + steals);
    if (lends) chooser.completed(1, 300 * noise);
  }
  return lent / count;
}

const cold: Costs = { copyNs: (bytes) => 900 + 0.15 * bytes, lendNs: (bytes) => 1500 + 0.02 * bytes };
const hot: Costs = { copyNs: (bytes) => 900 + 0.02 * bytes, lendNs: (bytes) => 1500 + 0.02 * bytes };

describe('what a port chooses', () => {
  it('begins with what is known: large frames are lent over a stream, an MTU of 1500 is not', () => {
    const stream = new LendChooser(STREAM_PRIORS);
    assert.equal(stream.estimate(62_000).lends, true);
    assert.equal(stream.estimate(1514).lends, false);
    assert.equal(stream.thresholdBytes, 16_384);
    assert.equal(new LendChooser(DATAGRAM_PRIORS).estimate(1514).lends, false);
  });

  it('never lends below 1 KiB, not even to know', () => {
    const chooser = new LendChooser(STREAM_PRIORS);
    for (let i = 0; i < 10_000; i++) assert.equal(chooser.choose(LEND_BYTES_MIN - 1), false);
  });

  for (const [name, costs, lendsLarge] of [
    ['cold', cold, true],
    ['hot', hot, false],
  ] as const) {
    it(`finds the cheaper way, and goes the other with fewer and fewer frames: ${name} memory`, () => {
      for (const priors of [STREAM_PRIORS, DATAGRAM_PRIORS, opposite(STREAM_PRIORS)]) {
        const chooser = new LendChooser(priors);
        for (const bytes of [1514, 9014, 62_000]) run(chooser, bytes, 4096, costs);
        const share = run(chooser, 62_000, 64 * 256, costs);
        const other = lendsLarge ? 1 - share : share;
        assert.ok(other > 0 && other < 1 / 64, `${share} of the large ones are lent`);
        const small = run(chooser, 1514, 64 * 256, costs);
        assert.ok(small < 0.03, `${small} of the small ones are lent`);
      }
    });
  }

  it('is not impressed by a thread that lost its CPU', () => {
    const chooser = new LendChooser(STREAM_PRIORS);
    const share = run(chooser, 62_000, 64 * 1024, { ...cold, stolen: 200 });
    assert.ok(share > 0.9, `${share}`);
  });

  it('follows when the costs change', () => {
    const chooser = new LendChooser(STREAM_PRIORS);
    run(chooser, 62_000, 8192, hot);
    assert.equal(chooser.estimate(62_000).lends, false);
    assert.ok(chooser.thresholdBytes > 62_000);
    run(chooser, 62_000, 64 * 1024, cold);
    assert.equal(chooser.estimate(62_000).lends, true);
    assert.ok(chooser.thresholdBytes <= 32_768);
  });

  it('counts the completion to what lending costs', () => {
    const chooser = new LendChooser(STREAM_PRIORS);
    const costs: Costs = { copyNs: () => 3000, lendNs: () => 2500 };
    run(chooser, 62_000, 4096, costs);
    assert.equal(chooser.estimate(62_000).lends, true);
    for (let i = 0; i < 200; i++) chooser.completed(2, 4000);
    for (let i = 0; i < 4096; i++) {
      const lends = chooser.choose(62_000);
      chooser.measured(62_000, lends, lends ? 2500 : 3000);
    }
    assert.equal(chooser.estimate(62_000).lends, false);
  });

  it('does not waver where both cost the same', () => {
    const chooser = new LendChooser(STREAM_PRIORS);
    const same: Costs = { copyNs: () => 3300, lendNs: () => 3000 };
    run(chooser, 62_000, 4096, same);
    const random = new Random(3);
    let changes = 0;
    let last = chooser.estimate(62_000).lends;
    for (let i = 0; i < 500; i++) {
      run(chooser, 62_000, 64, same, random);
      const now = chooser.estimate(62_000).lends;
      if (now !== last) changes += 1;
      last = now;
    }
    assert.ok(changes < 40, `${changes} changes in 500 rounds`);
  });
});

/** Believes the reverse of everything. */
function opposite(priors: CostPriors): CostPriors {
  return {
    copyFrameNs: priors.lendFrameNs + priors.completionNs,
    copyNsPerByte: priors.lendNsPerByte,
    lendFrameNs: priors.copyFrameNs,
    lendNsPerByte: priors.copyNsPerByte,
    completionNs: 0.1,
  };
}
