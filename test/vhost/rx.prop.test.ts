/** Receiving, at random beside a model that goes byte by byte: nothing lost, nothing doubled, every frame as it was. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ChainReader } from '../../src/vhost/chain.ts';
import { SplitQueue } from '../../src/vhost/queue.ts';
import { RxFiller } from '../../src/vhost/rx.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { deliverTo, framesOf, GuestRam, MockDriver, type Piece, plainTable } from '../support/vring.ts';

const BASE = 0x10_0000n;
const HEADER = 12;

interface Posted {
  readonly head: number;
  readonly place: bigint;
  readonly pieces: readonly Piece[];
  readonly bytes: number;
  /** Something in it makes it useless. */
  readonly bad: boolean;
}

/** What is expected of the used ring: the head, the bytes in it. */
interface Expected {
  readonly head: number;
  readonly bytes: Buffer;
}

class Run {
  readonly random: Random;
  readonly size: number;
  readonly mergeable: boolean;
  readonly driver: MockDriver;
  readonly queue: SplitQueue;
  readonly ram: GuestRam;
  readonly filler: RxFiller;
  /** Chains that the device has, oldest first, and all that are out. */
  available: Posted[] = [];
  readonly out = new Map<number, Posted>();
  delivered = 0;
  /** 8 KiB each: the bytes of a chain, and in the second half its indirect table. */
  readonly #places: bigint[];
  #mark = 0;

  constructor(seed: number) {
    const random = new Random(seed);
    this.random = random;
    this.size = random.pick([4, 16, 64]);
    this.mergeable = random.chance(0.7);
    const features = {
      eventIdx: random.chance(0.5),
      indirect: random.chance(0.5),
      inOrder: random.chance(0.5),
    };
    const start = random.below(65_536);
    this.driver = new MockDriver(this.size, features, start);
    this.queue = new SplitQueue(this.driver.memory, this.size, features, start, start);
    this.ram = new GuestRam([BASE, this.size * 8192]);
    this.#places = Array.from({ length: this.size }, (_, i) => BASE + BigInt(i) * 8192n);
    const options = { writable: true, space: 1, bytesMax: 2 ** 32 - 1, readIndirect: this.ram.read };
    const table = plainTable(random.pick([1, 5, 64]), 4 * this.size);
    this.filler = new RxFiller(this.queue, new ChainReader(this.queue, options), table, {
      headerBytes: HEADER,
      mergeable: this.mergeable,
      offloads: 0,
      frameBytesMax: 3000,
      deliver: deliverTo(this.ram),
    });
  }

  post(): void {
    const { random } = this;
    const lengths = Array.from({ length: 1 + random.below(4) }, () =>
      random.chance(0.1) ? 0 : random.below(random.pick([20, 300, 800])),
    );
    const bad = random.chance(0.03);
    if (this.driver.freeCount < lengths.length) return;
    const place = this.#places.pop() as bigint;
    let at = place;
    const pieces = lengths.map((length, i) => {
      const address = bad && i === lengths.length - 1 ? 1n << 55n : at;
      at += BigInt(length);
      return { address, length: bad && i === lengths.length - 1 ? 5 : length, write: true };
    });
    const indirect = this.driver.features.indirect && random.chance(0.7);
    const head = indirect ? this.driver.indirect(pieces, this.ram, place + 4096n) : this.driver.chain(pieces);
    const posted = { head, place, pieces, bytes: pieces.reduce((sum, { length }) => sum + length, 0), bad };
    this.available.push(posted);
    this.out.set(head, posted);
  }

  send(): void {
    const { random } = this;
    const frames = Array.from({ length: 1 + random.below(10) }, () =>
      Buffer.alloc(random.pick([60, 14 + random.below(100), 1514, 2000]), ++this.#mark),
    );
    const table = framesOf(frames);
    const which = Uint32Array.from(frames, (_, i) => i);
    let at = 0;
    // Again and again as long as it makes progress: one call takes at most one ring of chains.
    for (let calls = 0; calls < frames.length + this.size; calls++) {
      const before = this.queue.lastAvail;
      const stopped = this.filler.fill(table, which, at, frames.length);
      this.queue.publish();
      const expected = this.expect(frames.slice(at, stopped), frames[stopped]);
      const entries = this.driver.reap();
      assert.deepEqual(
        entries.map(([head, length]) => [head, this.contents(head).subarray(0, length).toString('hex')]),
        expected.map(({ head, bytes }) => [head, bytes.toString('hex')]),
      );
      for (const [head] of entries) this.release(head);
      at = stopped;
      if (at === frames.length || this.queue.lastAvail === before) break;
    }
  }

  release(head: number): void {
    this.#places.push((this.out.get(head) as Posted).place);
    this.out.delete(head);
  }

  contents(head: number): Buffer {
    const pieces = (this.out.get(head) as Posted).pieces;
    return Buffer.concat(
      pieces.map(({ address, length }) => this.ram.find(address, length) ?? Buffer.alloc(0)),
    );
  }

  /** What becomes of `frames`, and of the chains that are of no use to the one that was tried behind them. */
  expect(frames: readonly Buffer[], next: Buffer | undefined): Expected[] {
    const expected = frames.flatMap((frame) => this.place(frame));
    return next === undefined ? expected : [...expected, ...this.place(next, false)];
  }

  /** Takes chains for a frame from `available`; without success only those that are of no use. */
  place(frame: Buffer, fits?: boolean): Expected[] {
    const before = this.useless();
    const bytes = Buffer.concat([Buffer.alloc(HEADER), frame]);
    const parts: Expected[] = [];
    let rest = bytes;
    let bad = this.available.findIndex((one) => one.bad || one.bytes === 0);
    if (bad < 0) bad = this.available.length;
    const usable = this.mergeable ? this.available.slice(0, bad) : this.available.slice(0, 1);
    for (const { head, bytes: room } of usable) {
      if (rest.length === 0) break;
      parts.push({ head, bytes: rest.subarray(0, room) });
      rest = rest.subarray(room);
    }
    if (rest.length === 0) {
      assert.ok(fits !== false, 'a frame was not taken though it fits');
      bytes.writeUInt16LE(parts.length, 10);
      this.available.splice(0, parts.length);
      this.delivered += 1;
      return [...before, ...parts];
    }
    if (!this.mergeable || bad === this.available.length) return before;
    // What was gathered goes back with the bad one.
    const back = this.available.splice(0, bad + 1).map(({ head }) => ({ head, bytes: Buffer.alloc(0) }));
    return [...before, ...back, ...this.place(frame, fits)];
  }

  /** Chains at the front that no frame can start in. */
  useless(): Expected[] {
    const expected: Expected[] = [];
    for (let first = this.available[0]; first !== undefined; first = this.available[0]) {
      if (!(first.bad || first.bytes < HEADER)) break;
      this.available.shift();
      expected.push({ head: first.head, bytes: Buffer.alloc(0) });
    }
    return expected;
  }
}

describe('RxFiller', () => {
  it('agrees with its model', () => {
    const first = Number(process.env.FC_SEED ?? 1);
    let delivered = 0;
    for (let i = 0; i < scaled(300, 30_000); i++) {
      const run = new Run(first + i);
      try {
        for (let step = 0; step < 40; step++) {
          for (let count = run.random.below(20); count > 0; count--) run.post();
          run.driver.show();
          run.send();
          assert.equal(run.queue.available(), run.available.length);
          assert.deepEqual(run.driver.outstanding.sort(), run.available.map(({ head }) => head).sort());
        }
      } catch (error) {
        throw new Error(`seed ${first + i}`, { cause: error });
      }
      delivered += run.delivered;
    }
    assert.ok(delivered > 10_000, `${delivered} frames arrived`);
  });
});
