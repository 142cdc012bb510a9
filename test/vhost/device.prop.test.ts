/**
 * Rings as drivers make them and as they are when somebody has written over them, through queue, chains and ledger together; beside a
 * model of the whole device.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { CHAIN_BROKEN, CHAIN_DESCRIPTORS_MAX, ChainReader } from '../../src/vhost/chain.ts';
import { DriverQueue } from '../../src/vhost/driver-queue.ts';
import { TxLedger } from '../../src/vhost/ledger.ts';
import { SplitQueue } from '../../src/vhost/queue.ts';
import { Borrowers } from '../../src/vhost/selector.ts';
import { scaled } from '../support/counts.ts';
import { DeviceModel } from '../support/device-model.ts';
import { Random } from '../support/random.ts';
import { GuestRam, MockDriver, type Piece, piecesOf, plainTable, ringMemory } from '../support/vring.ts';

const RAM = 0x40_0000n;
const RAM_BYTES = 8192;

class Run {
  readonly random: Random;
  readonly driver: MockDriver;
  readonly ram = new GuestRam([RAM, RAM_BYTES]);
  readonly queue: SplitQueue;
  readonly chains: ChainReader;
  readonly ledger: TxLedger;
  readonly model: DeviceModel;
  readonly table = plainTable(64, 512);
  /** Chains that were taken and not finished. */
  here: number[] = [];
  /** Used entries that were seen. */
  used = 0;
  #tables = 0;

  constructor(seed: number) {
    this.random = new Random(seed);
    const size = this.random.pick([1, 2, 8, 32]);
    const features = { eventIdx: this.random.chance(0.5), indirect: this.random.chance(0.5), inOrder: false };
    const start = this.random.below(65_536);
    this.driver = new MockDriver(size, features, start);
    this.used = start;
    this.queue = new SplitQueue(this.driver.memory, size, features, start, start);
    const bytesMax = 70_000;
    this.chains = new ChainReader(this.queue, {
      writable: false,
      space: 1,
      bytesMax,
      readIndirect: this.ram.read,
    });
    const memory = { hold: () => {}, release: () => {} };
    this.ledger = new TxLedger(this.queue, memory, { borrowers: new Borrowers(), onWork: () => {} });
    const options = {
      size,
      writable: false,
      indirect: features.indirect,
      bytesMax: BigInt(bytesMax),
      segmentsMax: 512,
      descriptorsMax: CHAIN_DESCRIPTORS_MAX,
    };
    this.model = new DeviceModel(this.driver, this.ram, options, start);
  }

  /** The driver adds chains. */
  add(): void {
    const { random, driver } = this;
    for (let count = random.below(6); count > 0; count--) {
      const pieces: Piece[] = Array.from({ length: 1 + random.below(4) }, () => ({
        address: RAM + BigInt(random.below(RAM_BYTES)),
        length: random.below(3000),
      }));
      const at = RAM + BigInt(64 * (this.#tables++ % (RAM_BYTES / 64)));
      if (driver.features.indirect && random.chance(0.5)) driver.indirect(pieces, this.ram, at);
      else driver.chain(pieces);
    }
    driver.show();
  }

  /** The driver takes what was used, as far as it knows what that is. */
  reap(): void {
    const { driver } = this;
    try {
      driver.reap();
    } catch {
      driver.usedIdx = driver.shownUsed;
    }
  }

  /** Somebody writes over a word or two. */
  mutate(): void {
    const { random, driver } = this;
    const { desc, avail } = driver.memory;
    const ram = this.ram.find(RAM, RAM_BYTES) as Uint8Array;
    const target = random.pick([desc, desc, avail, ram.buffer as ArrayBuffer]);
    const words = new Uint16Array(target);
    for (let count = 1 + random.below(3); count > 0; count--) {
      const at = random.below(words.length);
      const value = random.pick([random.below(65_536), random.below(driver.size + 2), 0, 0xffff, 1, 3, 4]);
      // avail.idx is only sometimes driven into a jump.
      if (target === avail && at === 1 && random.chance(0.7)) continue;
      words[at] = value;
    }
  }

  turn(): void {
    const expected = this.model.take();
    const { table, queue } = this;
    table.clear();
    const taken: { head: number; pieces: Piece[] | null }[] = [];
    for (let left = queue.available(); left > 0; left--) {
      const head = queue.peekHead(0);
      if (head < 0) break;
      const start = table.segmentCount;
      const result = this.chains.read(head, table);
      if (result === CHAIN_BROKEN) break;
      if (this.ledger.take(head) < 0) break;
      taken.push({ head, pieces: result < 0 ? null : piecesOf(table, start, result) });
      if (result < 0) this.ledger.finish(head);
      else this.here.push(head);
      table.clear();
    }
    assert.equal(queue.broken !== null, this.model.isBroken, queue.broken ?? 'not broken');
    assert.equal(queue.lastAvail, this.model.last);
    assert.deepEqual(
      taken,
      expected.map(({ head, verdict }) => ({
        head,
        pieces: verdict.kind === 'chain' ? verdict.pieces : null,
      })),
    );
  }

  finish(): void {
    const count = this.random.below(this.here.length + 1);
    for (let i = 0; i < count; i++) {
      const at = this.random.chance(0.7) ? 0 : this.random.below(this.here.length);
      const [head] = this.here.splice(at, 1) as [number];
      this.ledger.finish(head);
      this.model.finish(head);
    }
    const expected = this.model.report();
    assert.equal(this.ledger.report(0), expected.length);
    this.queue.publish();
    const used = new DataView(this.driver.memory.used);
    for (const head of expected) {
      const at = 4 + 8 * (this.used % this.driver.size);
      assert.deepEqual([used.getUint32(at, true), used.getUint32(at + 4, true)], [head, 0]);
      this.used = (this.used + 1) % 65_536;
    }
    assert.equal(this.driver.shownUsed, this.used);
    assert.equal(this.ledger.base(), (this.queue.lastAvail - this.model.held.length) & 0xffff);
  }
}

describe('queue, chains and ledger', () => {
  for (const mutated of [false, true]) {
    it(`agree with the model on ${mutated ? 'mutated' : 'right'} rings`, () => {
      const first = Number(process.env.FC_SEED ?? 1);
      let broken = 0;
      const runs = scaled(1000, 100_000);
      for (let i = 0; i < runs; i++) {
        const run = new Run(first + i);
        try {
          for (let step = 0; step < 30; step++) {
            run.add();
            if (mutated && run.random.chance(0.2)) run.mutate();
            run.turn();
            run.finish();
            if (mutated) run.reap();
            else run.driver.reap();
          }
        } catch (error) {
          throw new Error(`seed ${first + i}`, { cause: error });
        }
        if (run.queue.broken !== null) broken += 1;
      }
      assert.ok(mutated ? broken > runs / 10 && broken < runs : broken === 0, `${broken} broken`);
    });
  }
});

describe('DriverQueue and SplitQueue', () => {
  it('understand each other: every chain arrives as it was added and comes back once', () => {
    const first = Number(process.env.FC_SEED ?? 1);
    for (let i = 0; i < scaled(100, 10_000); i++) {
      try {
        converse(new Random(first + i));
      } catch (error) {
        throw new Error(`seed ${first + i}`, { cause: error });
      }
    }
  });
});

function converse(random: Random): void {
  const size = random.pick([2, 8, 64]);
  const features = {
    eventIdx: random.chance(0.5),
    indirect: random.chance(0.5),
    inOrder: random.chance(0.5),
  };
  const memory = ringMemory(size, features);
  const tables = new GuestRam([RAM, size * 5 * 16]);
  const driver = new DriverQueue(memory, size, features, {
    memory: tables.find(RAM, size * 5 * 16)?.buffer as ArrayBuffer,
    address: Number(RAM),
    entries: 5,
  });
  const queue = new SplitQueue(memory, size, features, 0, 0);
  const chains = new ChainReader(queue, {
    writable: true,
    space: 1,
    bytesMax: 1e6,
    readIndirect: tables.read,
  });
  const table = plainTable(1, 64);
  const made: { head: number; pieces: Piece[] }[] = [];
  const have: number[] = [];
  const back: [number, number][] = [];
  const capacity = new Map<number, number>();
  const [heads, lengths] = [new Uint32Array(size), new Uint32Array(size)];
  // Without a kick the device sleeps, and without an interrupt the driver does: neither may for ever.
  for (let step = 0; step < 60; step++) {
    for (let count = random.below(size); count > 0; count--) {
      const pieces = Array.from({ length: 1 + random.below(Math.min(size, 7)) }, () => ({
        address: BigInt(random.below(2 ** 31)) * 1024n,
        length: 1 + random.below(1000),
      }));
      const addresses = Float64Array.from(pieces, ({ address }) => Number(address));
      const bytes = Uint32Array.from(pieces, ({ length }) => length);
      const head = driver.add(addresses, bytes, 0, 0, pieces.length);
      if (head < 0) break;
      made.push({ head, pieces });
      capacity.set(
        head,
        pieces.reduce((sum, { length }) => sum + length, 0),
      );
    }
    driver.publish();
    assert.equal(queue.available(), made.length);
    for (let count = random.below(made.length + 1); count > 0; count--) {
      const { head, pieces } = made.shift() as { head: number; pieces: Piece[] };
      assert.equal(queue.peekHead(0), head);
      table.clear();
      assert.deepEqual(piecesOf(table, 0, chains.read(head, table)), pieces);
      queue.advance(1);
      have.push(head);
    }
    for (let count = random.below(have.length + 1); count > 0; count--) {
      const at = features.inOrder ? 0 : random.below(have.length);
      const [head] = have.splice(at, 1) as [number];
      const length = random.below((capacity.get(head) as number) + 1);
      queue.put(head, length);
      back.push([head, length]);
    }
    queue.publish();
    for (let reaped = -1; reaped !== 0; ) {
      reaped = driver.reap(heads.subarray(0, 1 + random.below(size)), lengths);
      assert.equal(driver.broken, null);
      for (let i = 0; i < reaped; i++) assert.deepEqual([heads[i], lengths[i]], back.shift());
    }
    assert.deepEqual(back, []);
    assert.equal(driver.outstanding, made.length + have.length);
  }
}
