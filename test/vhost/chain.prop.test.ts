/** Random and mutated descriptor tables, read by the code and by the model: they must agree on everything. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import {
  CHAIN_BROKEN,
  CHAIN_DESCRIPTORS_MAX,
  CHAIN_SKIP,
  type ChainCounters,
  ChainReader,
} from '../../src/vhost/chain.ts';
import { SplitQueue } from '../../src/vhost/queue.ts';
import { judge } from '../support/chain-model.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import {
  GuestRam,
  INDIRECT,
  MockDriver,
  NEXT,
  piecesOf,
  plainTable,
  WRITE,
  writeDescriptor,
} from '../support/vring.ts';

const RAM = 0x7000n;
const RAM_BYTES = 2048;

/** A descriptor that is mostly sensible, in a table of `count`. */
function descriptor(
  random: Random,
  count: number,
  writable: boolean,
  depth: number,
): [bigint, number, number, number] {
  const wild = random.chance(0.04);
  let flags = writable ? WRITE : 0;
  if (random.chance(0.02)) flags ^= WRITE;
  if (random.chance(0.6)) flags |= NEXT;
  if (random.chance(0.02)) flags |= random.below(65_536);
  let address = RAM + BigInt(random.below(RAM_BYTES));
  let length = random.chance(0.2) ? 0 : random.below(200);
  if (random.chance(depth === 0 ? 0.25 : 0.01)) {
    flags = (flags | INDIRECT) & ~(random.chance(0.97) ? NEXT : 0);
    length = 16 * (1 + random.below(6)) + (random.chance(0.05) ? 8 : 0);
    address = RAM + BigInt(16 * random.below(RAM_BYTES / 16));
  }
  if (wild)
    address = [1n << 52n, (1n << 52n) - 1n, 1n << 53n, (1n << 64n) - 8n, 0n][random.below(5)] as bigint;
  if (wild) length = random.pick([0, 1, 65_535, 0x7fff_ffff, 0xffff_ffff]);
  // Forward in most cases, so that chains end.
  const next = random.chance(0.9) ? random.below(count) : random.below(count + 2);
  return [address, length, flags, next];
}

function fill(view: DataView, count: number, random: Random, writable: boolean, depth: number): void {
  for (let i = 0; i < count; i++) {
    const [address, length, flags, next] = descriptor(random, count, writable, depth);
    writeDescriptor(view, i, { address, length, flags, next });
  }
}

function compare(seed: number): string {
  const random = new Random(seed);
  const size = random.pick([1, 2, 4, 8, 16, 64]);
  const writable = random.chance(0.5);
  const features = { eventIdx: false, indirect: random.chance(0.9), inOrder: false };
  const segmentsMax = random.pick([2, 6, 64]);
  const bytesMax = random.pick([300, 70_000, 2 ** 32 - 1]);
  const ram = new GuestRam([RAM, RAM_BYTES]);
  const driver = new MockDriver(size, features);
  const bytes = ram.find(RAM, RAM_BYTES) as Uint8Array;
  fill(new DataView(bytes.buffer), RAM_BYTES / 16, random, writable, 1);
  // Inside of indirect tables, `next` is small.
  for (let i = 0; i < RAM_BYTES / 16; i++) {
    if (random.chance(0.9)) new DataView(bytes.buffer).setUint16(16 * i + 14, random.below(6), true);
  }
  const desc = new DataView(driver.memory.desc);
  fill(desc, size, random, writable, 0);
  const queue = new SplitQueue(driver.memory, size, features, 0, 0);
  const chains = new ChainReader(queue, { writable, space: 3, bytesMax, readIndirect: ram.read });
  const table = plainTable(1, segmentsMax);
  let kinds = '';
  for (let head = 0; head < size; head++) {
    const verdict = judge(desc, ram, head, {
      size,
      writable,
      indirect: features.indirect,
      bytesMax: BigInt(bytesMax),
      segmentsMax,
      descriptorsMax: CHAIN_DESCRIPTORS_MAX,
    });
    const before = { ...chains.counters };
    table.clear();
    queue.broken = null;
    const result = chains.read(head, table);
    const label = `seed ${seed}, head ${head}: ${JSON.stringify(verdict, (_, value) => (typeof value === 'bigint' ? `${value}` : value))}`;
    assert.equal(queue.broken !== null, verdict.kind === 'broken', label);
    if (verdict.kind === 'chain') {
      assert.deepEqual(piecesOf(table, 0, Math.max(0, result)), verdict.pieces, label);
      assert.deepEqual(chains.counters, before, label);
    } else {
      assert.equal(result, verdict.kind === 'skip' ? CHAIN_SKIP : CHAIN_BROKEN, label);
      assert.equal(table.segmentCount, 0, label);
      const reason = verdict.reason as keyof ChainCounters;
      assert.deepEqual(chains.counters, { ...before, [reason]: before[reason] + 1 }, label);
    }
    kinds += verdict.kind === 'chain' ? `c${verdict.pieces.length > 3 ? '+' : ''} ` : `${verdict.reason} `;
  }
  return kinds;
}

describe('ChainReader', () => {
  it('agrees with the model on random tables, direct and indirect', () => {
    const seen = new Map<string, number>();
    const first = Number(process.env.FC_SEED ?? 1);
    for (let i = 0; i < scaled(3000, 300_000); i++) {
      for (const kind of compare(first + i)
        .trim()
        .split(' '))
        seen.set(kind, (seen.get(kind) ?? 0) + 1);
    }
    const kinds = ['c', 'c+', 'next', 'loop', 'indirectFeature', 'indirectNested', 'indirectNext'];
    for (const kind of [...kinds, 'indirectLength', 'direction', 'address', 'length', 'segments', 'empty']) {
      assert.ok((seen.get(kind) ?? 0) > 20, `${kind} came up ${seen.get(kind) ?? 0} times`);
    }
  });

  it('gives back the pieces of any chain that a driver makes', () => {
    const piece = fc.record(
      { address: fc.bigInt(0n, (1n << 52n) - 1n), length: fc.nat(4000) },
      { noNullPrototype: true },
    );
    fc.assert(
      fc.property(
        fc.array(fc.array(piece, { minLength: 1, maxLength: 19 }), { maxLength: 12 }),
        fc.boolean(),
        fc.boolean(),
        (wanted, writable, indirect) => {
          const ram = new GuestRam([0x5000n, 19 * 16 * 12]);
          const features = { eventIdx: false, indirect, inOrder: false };
          const driver = new MockDriver(256, features);
          const queue = new SplitQueue(driver.memory, 256, features, 0, 0);
          const options = { writable, space: 1, bytesMax: 2 ** 32 - 1, readIndirect: ram.read };
          const chains = new ChainReader(queue, options);
          const table = plainTable(1, 512);
          wanted.forEach((chain, i) => {
            const pieces = chain.map((one) => ({ ...one, write: writable }));
            const at = 0x5000n + BigInt(i * 19 * 16);
            const head = indirect ? driver.indirect(pieces, ram, at) : driver.chain(pieces);
            const expected = chain.filter(({ length }) => length > 0);
            const start = table.segmentCount;
            const count = chains.read(head, table);
            assert.equal(count, expected.length === 0 ? CHAIN_SKIP : expected.length);
            assert.deepEqual(piecesOf(table, start, Math.max(0, count)), expected);
          });
        },
      ),
      {
        numRuns: scaled(200, 20_000),
        ...(process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) }),
      },
    );
  });
});
