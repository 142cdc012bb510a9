/** Copy or lend, by what it costs a port that is only simulated: seeded, on virtual time. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  CHOICE_BYTES_MIN,
  DATAGRAM_BEGINS_BYTES,
  LendChooser,
  STREAM_BEGINS_BYTES,
} from '../../src/ports/chooser.ts';
import { Random } from '../support/random.ts';

const KIB = 1024;
const LARGE = 62_000;
const FRAMES = 32;

/** Nanoseconds for a frame. */
type Cost = (bytes: number) => number;

interface Costs {
  /** Of the processor. */
  readonly copyCpu: Cost;
  readonly lendCpu: Cost;
  /** By the clock, if more than that. */
  readonly lendTime?: Cost;
  /** One send in so many loses the processor for 5 ms. */
  readonly stolen?: number;
  /** Bytes a second of the wire, or of whoever sends. */
  readonly limit?: number;
}

class Scene {
  readonly chooser: LendChooser;
  readonly random: Random;
  nowMs = 0;
  cpuMs = 0;
  bytes = 0;
  lentBytes = 0;

  constructor(beginsBytes: number = STREAM_BEGINS_BYTES, seed = 1) {
    this.random = new Random(seed);
    this.chooser = new LendChooser(beginsBytes, () => this.cpuMs);
  }

  /** Sends frames of these sizes in turn for `ms`; the share of the bytes that was lent. */
  run(sizes: readonly number[], ms: number, costs: Costs): number {
    const untilMs = this.nowMs + ms;
    const [bytesBefore, lentBefore] = [this.bytes, this.lentBytes];
    while (this.nowMs < untilMs) this.#send(sizes, costs);
    return (this.lentBytes - lentBefore) / (this.bytes - bytesBefore);
  }

  #send(sizes: readonly number[], { copyCpu, lendCpu, lendTime, stolen, limit }: Costs): void {
    this.chooser.look(this.nowMs, this.bytes);
    let cpuNs = 0;
    let timeNs = 0;
    let sent = 0;
    for (let i = 0; i < FRAMES; i++) {
      const bytes = sizes[i % sizes.length] as number;
      const lends = this.chooser.choose(bytes);
      const frameNs = lends ? lendCpu(bytes) : copyCpu(bytes);
      cpuNs += frameNs;
      timeNs += Math.max(frameNs, lends && lendTime !== undefined ? lendTime(bytes) : 0);
      sent += bytes;
      if (lends) this.lentBytes += bytes;
    }
    const noise = 0.5 + this.random.next();
    const leastNs = limit === undefined ? 0 : (sent / limit) * 1e9;
    this.bytes += sent;
    this.cpuMs += (noise * cpuNs) / 1e6;
    this.nowMs += Math.max(noise * timeNs, leastNs) / 1e6;
    if (stolen !== undefined && this.random.chance(1 / stolen)) this.nowMs += 5;
  }
}

const copyCold: Cost = (bytes) => 900 + 0.15 * bytes;
const copyHot: Cost = (bytes) => 900 + 0.02 * bytes;
const lend: Cost = (bytes) => 1900 + 0.04 * bytes;
const cold: Costs = { copyCpu: copyCold, lendCpu: lend };
const hot: Costs = { copyCpu: copyHot, lendCpu: lend };
/** Lending is cheap, and a guest waits for its memory. */
const slow: Costs = { ...cold, lendTime: (bytes) => 1.3 * copyCold(bytes) };
const same: Costs = { copyCpu: copyCold, lendCpu: copyCold };

describe('what a port chooses', () => {
  it('begins with what is known: over a stream large frames are lent, of datagrams none is', () => {
    const stream = new LendChooser(STREAM_BEGINS_BYTES, () => 0);
    assert.equal(stream.thresholdBytes, 32 * KIB);
    for (const [bytes, lends] of [
      ...([
        [1514, false],
        [16_438, false],
        [32 * KIB - 1, false],
      ] as const),
      ...([
        [32 * KIB, true],
        [48 * KIB, true],
        [65_549, true],
      ] as const),
    ] as const) {
      assert.equal(stream.choose(bytes), lends, `${bytes}`);
      assert.equal(stream.lends(bytes), lends, `${bytes}`);
    }
    const datagrams = new LendChooser(DATAGRAM_BEGINS_BYTES, () => 0);
    assert.equal(datagrams.thresholdBytes, Number.POSITIVE_INFINITY);
    assert.equal(datagrams.choose(9000), false);
  });

  it('never lends below 8 KiB, not even to know', () => {
    for (const bytes of [64, 1514, CHOICE_BYTES_MIN - 1]) {
      const free: Costs = { copyCpu: copyCold, lendCpu: () => 1 };
      assert.equal(new Scene().run([bytes], 5000, free), 0, `${bytes}`);
    }
  });

  for (const [name, costs, lendsLarge] of [
    ['cold memory', cold, true],
    ['hot memory', hot, false],
    ['memory that a guest waits for', slow, false],
    ['memory that a guest waits for, on a wire that is slower', { ...slow, limit: 2e9 }, true],
    ['a machine that is shared', { ...cold, stolen: 200 }, true],
  ] as const) {
    it(`finds the better way: ${name}`, () => {
      for (const begins of [STREAM_BEGINS_BYTES, DATAGRAM_BEGINS_BYTES, 0]) {
        for (let seed = 1; seed <= 2; seed++) {
          const scene = new Scene(begins, seed);
          scene.run([LARGE], 12_000, costs);
          const share = scene.run([LARGE], 20_000, costs);
          assert.ok(lendsLarge ? share > 0.99 : share < 0.01, `seed ${seed}: ${share} is lent`);
          assert.equal(scene.chooser.lends(LARGE), lendsLarge);
        }
      }
    });
  }

  it('decides for each size by itself', () => {
    const scene = new Scene();
    for (let round = 0; round < 10; round++)
      for (const bytes of [9000, 14_000, 20_000, 30_000, 62_000]) scene.run([bytes], 3000, cold);
    const lent = [9000, 14_000, 20_000, 30_000, 62_000].map((bytes) => scene.chooser.lends(bytes));
    assert.deepEqual(lent, [false, true, true, true, true]);
    assert.equal(scene.chooser.thresholdBytes, 12 * KIB);
  });

  it('loses nothing that matters against copying, at whatever size, from the third second on', () => {
    // What 16 KiB were like: lending halves the throughput.
    const bad: Costs = { copyCpu: copyCold, lendCpu: (bytes) => 2 * copyCold(bytes) };
    for (const costs of [bad, slow, hot]) {
      for (const bytes of [4150, 8246, 16_438, 65_549]) {
        const scene = new Scene();
        scene.run([bytes], 3000, costs);
        const before = { ms: scene.nowMs, bytes: scene.bytes };
        scene.run([bytes], 20_000, costs);
        const rate = (scene.bytes - before.bytes) / (scene.nowMs - before.ms);
        const copying = (bytes / costs.copyCpu(bytes)) * 1e6;
        assert.ok(rate > 0.97 * copying, `${bytes}: ${rate / copying}`);
      }
    }
  });

  it('follows when the costs change', () => {
    const scene = new Scene();
    scene.run([LARGE], 10_000, hot);
    assert.equal(scene.chooser.lends(LARGE), false);
    scene.run([LARGE], 70_000, cold);
    assert.equal(scene.chooser.lends(LARGE), true);
  });

  it('seldom changes its mind where both cost the same', () => {
    for (let seed = 1; seed <= 3; seed++) {
      const scene = new Scene(STREAM_BEGINS_BYTES, seed);
      let changes = 0;
      let last = true;
      for (let i = 0; i < 300; i++) {
        scene.run([LARGE], 1000, same);
        const now = scene.chooser.lends(LARGE);
        if (now !== last) changes += 1;
        last = now;
      }
      assert.ok(changes <= 20, `seed ${seed}: ${changes} changes in five minutes`);
    }
  });

  it('goes on as before where nothing can be found out', () => {
    // A few frames a second; and a class that is a tenth of what is sent.
    const rare = new Scene();
    rare.run([LARGE], 600_000, { ...hot, limit: 100_000 });
    assert.equal(rare.chooser.lends(LARGE), true);
    const scene = new Scene();
    scene.run([...new Array<number>(9).fill(40_000), LARGE], 60_000, cold);
    assert.equal(scene.chooser.lends(LARGE), true);
    assert.equal(scene.chooser.lends(40_000), true);
  });

  it('tries a port that sends in bursts, too', () => {
    const scene = new Scene();
    for (let i = 0; i < 2000 && scene.chooser.lends(LARGE); i++) {
      scene.run([LARGE], 1, hot);
      scene.nowMs += 50;
    }
    assert.equal(scene.chooser.lends(LARGE), false);
  });
});
