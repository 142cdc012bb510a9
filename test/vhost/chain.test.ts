/** Descriptor chains, row by row of what drivers have done to devices. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { Worker } from 'node:worker_threads';
import { FRAME_WORDS, type FrameTable, TAIL_COUNT, TAIL_START } from '../../src/core/frames.ts';
import {
  CHAIN_BROKEN,
  CHAIN_FULL,
  CHAIN_SKIP,
  type ChainCounters,
  type ChainOptions,
  ChainReader,
  chainCounters,
} from '../../src/vhost/chain.ts';
import { type RingFeatures, SplitQueue } from '../../src/vhost/queue.ts';
import { scaled } from '../support/counts.ts';
import {
  bytesOf,
  type Descriptor,
  GuestRam,
  INDIRECT,
  INDIRECT_DESC,
  MockDriver,
  NEXT,
  type Piece,
  PLAIN,
  peek,
  piecesOf,
  plainTable,
  WRITE,
  writeDescriptor,
  writeTable,
} from '../support/vring.ts';

const BASE = 0x10000n;
const HIGH = 0x1_2345_0000n;
/** Where indirect tables are put. */
const TABLES = HIGH;

interface Scene {
  readonly ram: GuestRam;
  readonly driver: MockDriver;
  readonly queue: SplitQueue;
  readonly chains: ChainReader;
  readonly table: FrameTable;
}

function scene(
  options: Partial<ChainOptions> & { size?: number; features?: RingFeatures; table?: FrameTable } = {},
): Scene {
  const { size = 8, features = INDIRECT_DESC, table = plainTable(8, 64), ...rest } = options;
  const ram = new GuestRam([BASE, 0x20000], [HIGH, 0x20000]);
  const driver = new MockDriver(size, features);
  const queue = new SplitQueue(driver.memory, size, features, 0, 0);
  const chains = new ChainReader(queue, {
    writable: false,
    space: 7,
    bytesMax: 70_000,
    readIndirect: ram.read,
    ...rest,
  });
  return { ram, driver, queue, chains, table };
}

/** Descriptors by index, of one table. */
type Table = Partial<Record<number, Partial<Descriptor>>>;

function write(view: DataView, table: Table): void {
  for (const [index, descriptor] of Object.entries(table)) {
    const filled = { address: BASE, length: 64, flags: 0, next: 0, ...descriptor };
    writeDescriptor(view, Number(index), filled);
  }
}

/** The counters that are not zero. */
function counted(counters: ChainCounters): Partial<ChainCounters> {
  return Object.fromEntries(Object.entries(counters).filter(([, count]) => count !== 0));
}

describe('chains that are right', () => {
  const rows: [title: string, pieces: Piece[]][] = [
    ['one piece', [{ address: BASE, length: 100 }]],
    [
      'header and frame',
      [
        { address: BASE, length: 12 },
        { address: BASE + 500n, length: 1500 },
      ],
    ],
    [
      'beyond 4 GiB',
      [
        { address: HIGH + 0xffffn, length: 1 },
        { address: HIGH, length: 65_535 },
      ],
    ],
    [
      'as many pieces as the ring has',
      Array.from({ length: 8 }, (_, i) => ({ address: BASE, length: i + 1 })),
    ],
    ['the last address that is one', [{ address: (1n << 52n) - 1n, length: 60_000 }]],
    ['in pieces of nothing', [0, 5, 0, 0, 7, 0].map((length) => ({ address: BASE, length }))],
  ];
  for (const [title, pieces] of rows) {
    for (const indirect of [false, true]) {
      it(`${title}${indirect ? ', indirect' : ''}`, () => {
        const { driver, chains, table, ram } = scene();
        const head = indirect ? driver.indirect(pieces, ram, TABLES) : driver.chain(pieces);
        const expected = pieces.filter(({ length }) => length > 0);
        table.segmentCount = 3;
        assert.equal(chains.read(head, table), expected.length);
        assert.equal(table.segmentCount, 3 + expected.length);
        assert.deepEqual(piecesOf(table, 3, expected.length), expected);
        assert.equal(table.segments[4 * 3 + 3], 7, 'the space');
        assert.equal(
          chains.bytes,
          pieces.reduce((sum, { length }) => sum + length, 0),
        );
        assert.deepEqual(counted(chains.counters), {});
      });
    }
  }

  it('direct descriptors, then an indirect one; its WRITE flag says nothing', () => {
    const { driver, chains, table, ram } = scene();
    const inner = [
      { address: BASE + 1n, length: 2 },
      { address: BASE + 3n, length: 4 },
    ];
    writeTable(ram.find(TABLES, 32) as Uint8Array, inner);
    write(new DataView(driver.memory.desc), {
      5: { address: BASE, length: 12, flags: NEXT, next: 2 },
      2: { address: TABLES, length: 32, flags: INDIRECT | WRITE },
    });
    assert.equal(chains.read(5, table), 3);
    assert.deepEqual(piecesOf(table, 0, 3), [{ address: BASE, length: 12 }, ...inner]);
  });

  it('for the device to write', () => {
    const { driver, chains, table } = scene({ writable: true });
    const pieces = [
      { address: BASE, length: 12, write: true },
      { address: HIGH, length: 1514, write: true },
    ];
    assert.equal(chains.read(driver.chain(pieces), table), 2);
  });

  it('a table that is longer than its chain', () => {
    const { driver, chains, table, ram } = scene();
    const bytes = ram.find(TABLES, 16 * 1024) as Uint8Array;
    bytes.fill(0xff);
    writeTable(bytes, [{ address: BASE, length: 9 }]);
    write(new DataView(driver.memory.desc), { 0: { address: TABLES, length: 16 * 1024, flags: INDIRECT } });
    assert.equal(chains.read(0, table), 1);
  });
});

describe('chains that are wrong', () => {
  const broken = CHAIN_BROKEN;
  const skip = CHAIN_SKIP;
  const loop2: Table = { 0: { flags: NEXT, next: 1 }, 1: { flags: NEXT, next: 0 } };
  const rows: {
    readonly title: string;
    readonly direct: Table;
    readonly inner?: Table;
    readonly expected: number;
    readonly reason: keyof ChainCounters;
    readonly features?: RingFeatures;
  }[] = [
    {
      title: 'A1: a descriptor of 0 bytes that follows itself',
      direct: { 0: { length: 0, flags: NEXT, next: 0 } },
      expected: broken,
      reason: 'loop',
    },
    { title: 'A1: 0 -> 1 -> 0', direct: loop2, expected: broken, reason: 'loop' },
    {
      title: 'A1: 0 -> 1 -> 0 of 0 bytes',
      direct: { 0: { length: 0, flags: NEXT, next: 1 }, 1: { length: 0, flags: NEXT, next: 0 } },
      expected: broken,
      reason: 'loop',
    },
    {
      title: 'A1: a tail that follows itself',
      direct: { 0: { flags: NEXT, next: 3 }, 3: { flags: NEXT, next: 3 } },
      expected: broken,
      reason: 'loop',
    },
    {
      title: 'A1: a loop in an indirect table',
      direct: { 0: { flags: INDIRECT, length: 64, address: TABLES } },
      inner: loop2,
      expected: broken,
      reason: 'loop',
    },
    {
      title: 'A1: a loop of 0 bytes in an indirect table',
      direct: { 0: { flags: INDIRECT, length: 16, address: TABLES } },
      inner: { 0: { length: 0, flags: NEXT, next: 0 } },
      expected: broken,
      reason: 'loop',
    },
    {
      title: 'A3: next is the size of the ring',
      direct: { 0: { flags: NEXT, next: 8 } },
      expected: broken,
      reason: 'next',
    },
    {
      title: 'A3: next is 65535',
      direct: { 0: { flags: NEXT, next: 65_535 } },
      expected: broken,
      reason: 'next',
    },
    {
      title: 'A3: next is the size of the indirect table, and in the ring',
      direct: { 0: { flags: INDIRECT, length: 32, address: TABLES } },
      inner: { 0: { flags: NEXT, next: 2 } },
      expected: broken,
      reason: 'next',
    },
    {
      title: 'A5: an address that wraps with its length',
      direct: { 0: { address: 0xffff_ffff_ffff_ff00n, length: 0x200 } },
      expected: skip,
      reason: 'address',
    },
    {
      title: 'A5: an address that would be rounded',
      direct: { 0: { address: 0x20_0000_0000_0001n } },
      expected: skip,
      reason: 'address',
    },
    { title: 'A5: 2^52', direct: { 0: { address: 1n << 52n } }, expected: skip, reason: 'address' },
    {
      title: 'A5: in the middle of a chain',
      direct: { 0: { flags: NEXT, next: 1 }, 1: { flags: NEXT, next: 2, address: 1n << 63n }, 2: {} },
      expected: skip,
      reason: 'address',
    },
    {
      title: 'A5: an indirect table at an address that would be rounded',
      direct: { 0: { flags: INDIRECT, length: 32, address: (1n << 53n) + TABLES } },
      expected: skip,
      reason: 'address',
    },
    {
      title: 'an indirect table that is not in memory',
      direct: { 0: { flags: INDIRECT, length: 32, address: 0x40000n } },
      expected: skip,
      reason: 'address',
    },
    {
      title: 'an indirect table that leaves memory',
      direct: { 0: { flags: INDIRECT, length: 32, address: HIGH + 0x1fff0n } },
      expected: skip,
      reason: 'address',
    },
    {
      title: 'an indirect table of 0 bytes',
      direct: { 0: { flags: INDIRECT, length: 0, address: TABLES } },
      expected: broken,
      reason: 'indirectLength',
    },
    {
      title: 'an indirect table of 24 bytes',
      direct: { 0: { flags: INDIRECT, length: 24, address: TABLES } },
      expected: broken,
      reason: 'indirectLength',
    },
    {
      title: 'an indirect table of 1025 entries',
      direct: { 0: { flags: INDIRECT, length: 16 * 1025, address: TABLES } },
      expected: broken,
      reason: 'indirectLength',
    },
    {
      title: 'an indirect table of 4 GiB',
      direct: { 0: { flags: INDIRECT, length: 0xffff_fff0, address: TABLES } },
      expected: broken,
      reason: 'indirectLength',
    },
    {
      title: 'an indirect table in an indirect table',
      direct: { 0: { flags: INDIRECT, length: 32, address: TABLES } },
      inner: { 0: { flags: INDIRECT, length: 32, address: TABLES } },
      expected: broken,
      reason: 'indirectNested',
    },
    {
      title: 'an indirect table with a next one',
      direct: { 0: { flags: INDIRECT | NEXT, next: 1, length: 32, address: TABLES }, 1: {} },
      expected: broken,
      reason: 'indirectNext',
    },
    {
      title: 'an indirect table that was not negotiated',
      direct: { 0: { flags: INDIRECT, length: 32, address: TABLES } },
      expected: broken,
      reason: 'indirectFeature',
      features: PLAIN,
    },
    { title: 'to be written', direct: { 0: { flags: WRITE } }, expected: skip, reason: 'direction' },
    {
      title: 'to be written at its end',
      direct: { 0: { flags: NEXT, next: 1 }, 1: { flags: WRITE } },
      expected: skip,
      reason: 'direction',
    },
    {
      title: 'to be read after to be written',
      direct: { 0: { flags: WRITE | NEXT, next: 1 }, 1: {} },
      expected: skip,
      reason: 'direction',
    },
    {
      title: 'to be written, in an indirect table',
      direct: { 0: { flags: INDIRECT, length: 16, address: TABLES } },
      inner: { 0: { flags: WRITE } },
      expected: skip,
      reason: 'direction',
    },
    { title: 'of nothing', direct: { 0: { length: 0 } }, expected: skip, reason: 'empty' },
    {
      title: 'of many nothings',
      direct: { 0: { length: 0, flags: NEXT, next: 1 }, 1: { length: 0 } },
      expected: skip,
      reason: 'empty',
    },
    { title: 'of 4 GiB less one', direct: { 0: { length: 0xffff_ffff } }, expected: skip, reason: 'length' },
    {
      title: 'of pieces that are 2^32 together',
      direct: { 0: { length: 0x8000_0000, flags: NEXT, next: 1 }, 1: { length: 0x8000_0000 } },
      expected: skip,
      reason: 'length',
    },
    {
      title: 'of pieces that are one byte too long together',
      direct: { 0: { length: 69_999, flags: NEXT, next: 1 }, 1: { length: 2 } },
      expected: skip,
      reason: 'length',
    },
  ];
  for (const { title, direct, inner, expected, reason, features } of rows) {
    it(`${title}: ${expected === broken ? 'the queue is broken' : 'the chain is skipped'}`, () => {
      const { driver, chains, table, queue, ram } = scene(features === undefined ? {} : { features });
      write(new DataView(driver.memory.desc), direct);
      const tables = ram.find(TABLES, 0x1000) as Uint8Array;
      if (inner !== undefined) write(new DataView(tables.buffer, tables.byteOffset), inner);
      table.segmentCount = 1;
      assert.equal(chains.read(0, table), expected);
      assert.equal(table.segmentCount, 1, 'nothing is left in the table');
      assert.deepEqual(counted(chains.counters), { [reason]: 1 });
      assert.equal(queue.broken !== null, expected === broken);
    });
  }

  it('A1: a loop in a receive queue', () => {
    const { driver, chains, table } = scene({ writable: true });
    write(new DataView(driver.memory.desc), {
      0: { length: 0, flags: NEXT | WRITE, next: 1 },
      1: { length: 0, flags: NEXT | WRITE, next: 0 },
    });
    assert.equal(chains.read(0, table), CHAIN_BROKEN);
  });

  it('A1: a loop through the largest ring ends after 1024 descriptors', () => {
    const size = 32_768;
    const { driver, chains, table, queue } = scene({ size });
    const view = new DataView(driver.memory.desc);
    for (let i = 0; i < size; i++) {
      writeDescriptor(view, i, { address: BASE, length: 0, flags: NEXT, next: (i + 1) % size });
    }
    assert.equal(chains.read(0, table), CHAIN_BROKEN);
    assert.match(queue.broken ?? '', /1024/);
  });

  it('more pieces than a table has: skipped; beside others: the table is full', () => {
    const { driver, chains, table } = scene({ table: plainTable(8, 4) });
    const long = driver.chain(Array.from({ length: 5 }, () => ({ address: BASE, length: 1 })));
    const short = driver.chain(Array.from({ length: 3 }, () => ({ address: BASE, length: 1 })));
    assert.equal(chains.read(long, table), CHAIN_SKIP);
    assert.deepEqual(counted(chains.counters), { segments: 1 });
    assert.equal(chains.read(short, table), 3);
    assert.equal(chains.read(short, table), CHAIN_FULL);
    assert.equal(table.segmentCount, 3);
    table.clear();
    assert.equal(chains.read(short, table), 3);
    assert.deepEqual(counted(chains.counters), { segments: 1 });
  });

  it('counts into what it is given', () => {
    const { queue, ram, driver, table } = scene();
    const counters = chainCounters();
    const options = { writable: false, space: 1, bytesMax: 10, readIndirect: ram.read };
    const chains = new ChainReader(queue, options, counters);
    assert.equal(chains.read(driver.chain([{ address: BASE, length: 11 }]), table), CHAIN_SKIP);
    assert.equal(counters.length, 1);
  });

  it('memory that is gone is a chain of nothing', () => {
    const { driver, chains, table } = scene();
    const head = driver.chain([{ address: BASE, length: 1 }]);
    structuredClone(driver.memory.desc, { transfer: [driver.memory.desc] });
    assert.equal(chains.read(head, table), CHAIN_SKIP);
  });
});

describe('A7: a guest that changes what it wrote', () => {
  it('each word of a descriptor is read once', () => {
    const reads = new Map<string, number>();
    const words = new Uint32Array(16);
    const view = new DataView(words.buffer);
    writeDescriptor(view, 0, { address: BASE, length: 12, flags: NEXT, next: 2 });
    writeDescriptor(view, 2, { address: BASE, length: 70, flags: NEXT, next: 3 });
    writeDescriptor(view, 3, { address: TABLES, length: 16, flags: INDIRECT, next: 0 });
    const desc = new Proxy(words, {
      get(target, key) {
        if (typeof key === 'string') reads.set(key, (reads.get(key) ?? 0) + 1);
        return Reflect.get(target, key, target);
      },
    });
    const ram = new GuestRam([HIGH, 16]);
    let tables = 0;
    writeTable(ram.find(TABLES, 16) as Uint8Array, [{ address: BASE, length: 1 }]);
    const queue = { desc, size: 4, features: INDIRECT_DESC, fail: () => -1 } as unknown as SplitQueue;
    const chains = new ChainReader(queue, {
      writable: false,
      space: 0,
      bytesMax: 1000,
      readIndirect(address, out) {
        tables += 1;
        return ram.read(address, out);
      },
    });
    assert.equal(chains.read(0, plainTable()), 3);
    assert.equal(tables, 1);
    const expected = [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15].map((word) => [String(word), 1]);
    assert.deepEqual(
      [...reads].sort(([a], [b]) => Number(a) - Number(b)),
      expected,
    );
  });

  it('a table that changes while it is copied: the copy is what counts', () => {
    const { driver, chains, table, ram } = scene({
      readIndirect(address, out) {
        const read = ram.read(address, out);
        (ram.find(TABLES, 64) as Uint8Array).fill(0xff);
        return read;
      },
    });
    const pieces = [
      { address: BASE, length: 5 },
      { address: HIGH, length: 6 },
    ];
    assert.equal(chains.read(driver.indirect(pieces, ram, TABLES), table), 2);
    assert.deepEqual(piecesOf(table, 0, 2), pieces);
  });

  it('length, address, flags and next flip under the reader: it sees one or the other', {
    timeout: 60_000,
  }, async () => {
    const shared = new SharedArrayBuffer(16 * 8);
    const desc = shared as unknown as ArrayBuffer;
    const { memory } = new MockDriver(8, INDIRECT_DESC);
    const queue = new SplitQueue({ ...memory, desc }, 8, INDIRECT_DESC, 0, 0);
    const ram = new GuestRam([BASE, 16]);
    const chains = new ChainReader(queue, {
      writable: false,
      space: 1,
      bytesMax: 70_000,
      readIndirect: ram.read,
    });
    const view = new DataView(desc);
    writeDescriptor(view, 0, { address: BASE, length: 64, flags: 0, next: 1 });
    writeDescriptor(view, 1, { address: BASE, length: 7, flags: 0, next: 0 });
    const stop = new SharedArrayBuffer(4);
    const worker = new Worker(FLIPPER, { eval: true, workerData: { shared, stop } });
    await once(worker, 'message');
    const table = plainTable();
    const seen = new Map<string, number>();
    for (let i = 0; i < scaled(100_000, 1_000_000); i++) {
      table.clear();
      const result = chains.read(0, table);
      const shape =
        result < 0
          ? `${result} ${queue.broken}`
          : `${piecesOf(table, 0, result).map(({ length }) => length)}`;
      seen.set(shape, (seen.get(shape) ?? 0) + 1);
      queue.broken = null;
      if (result < 0) continue;
      const sum = piecesOf(table, 0, result).reduce((bytes, { length }) => bytes + length, 0);
      assert.equal(chains.bytes, sum);
    }
    Atomics.store(new Int32Array(stop), 0, 1);
    await once(worker, 'exit');
    const possible = [
      '64',
      '65535',
      '64,7',
      '65535,7',
      `${CHAIN_SKIP} null`,
      `${CHAIN_BROKEN} next 65535 in a table of 8`,
    ];
    for (const shape of seen.keys()) assert.ok(possible.includes(shape), shape);
    assert.ok(seen.size > 1, 'nothing flipped while the reader looked');
  });
});

/** Flips words of descriptor 0 until it is told to stop: length, high word of the address, flags with next. */
const FLIPPER = `
  const { parentPort, workerData } = require('node:worker_threads');
  const words = new Uint32Array(workerData.shared);
  const stop = new Int32Array(workerData.stop);
  const other = [[2, 64, 65535], [1, 0, 0xffffffff], [3, 1 << 16, (1 << 16) | 1], [3, 1 << 16, 0xffff0001]];
  parentPort.postMessage('running');
  for (let i = 0; Atomics.load(stop, 0) === 0; i++) {
    const [word, one, two] = other[(i >> 6) % other.length];
    words[word] = i & 1 ? one : two;
  }
`;

describe('A9, A11: frames come out as they went in', () => {
  const frame = Buffer.from(Array.from({ length: 300 }, (_, i) => (i * 7) & 0xff));
  const header = Buffer.from('010203040506070809101112', 'hex');
  const splits: [title: string, lengths: number[]][] = [
    ['all in one', [312]],
    ['header and frame', [12, 300]],
    ['1 + 11', [1, 11, 300]],
    ['10 + 2', [10, 2, 300]],
    ['header in single bytes', [...Array.from({ length: 12 }, () => 1), 300]],
    ['header in three, with the frame behind it', [5, 5, 100, 202]],
    ['with nothings', [0, 12, 0, 150, 0, 150, 0]],
  ];
  for (const [title, lengths] of splits) {
    it(`A9: ${title}`, () => {
      const { driver, chains, table, ram } = scene({ size: 32 });
      const bytes = Buffer.concat([header, frame]);
      let at = BASE;
      let from = 0;
      const pieces = lengths.map((length) => {
        const address = at;
        (ram.find(address, length) as Uint8Array).set(bytes.subarray(from, from + length));
        from += length;
        at += BigInt(length) + 13n;
        return { address, length };
      });
      const start = table.segmentCount;
      const count = chains.read(driver.chain(pieces), table);
      assert.deepEqual(Buffer.from(bytesOf(ram, table, start, count) ?? []), bytes);
      table.records[TAIL_START] = start;
      table.records[TAIL_COUNT] = count;
      table.count = 1;
      assert.deepEqual(
        peek(ram, table, 12).map((one) => Buffer.from(one as Uint8Array)),
        [frame],
      );
    });
  }

  it('A11: chains whose frame is too short reach the native layer as they are, which refuses them', () => {
    for (let length = 1; length < 26; length++) {
      const { driver, chains, table, ram } = scene();
      assert.equal(chains.read(driver.chain([{ address: BASE, length }]), table), 1);
      table.records[0 * FRAME_WORDS + TAIL_START] = 0;
      table.records[0 * FRAME_WORDS + TAIL_COUNT] = 1;
      table.count = 1;
      assert.deepEqual(peek(ram, table, 12), [90]);
    }
  });
});
