/** Frames into the chains that a driver posted: as many as a frame needs, all of it or nothing. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { FRAME_STATUS, FRAME_WORDS, type FrameTable } from '../../src/core/frames.ts';
import { OFFLOAD_ALL, OFFLOAD_CSUM, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../../src/core/port.ts';
import { ChainReader } from '../../src/vhost/chain.ts';
import { type RingFeatures, SplitQueue } from '../../src/vhost/queue.ts';
import { type RxCounters, RxFiller, type RxOptions, rxCounters } from '../../src/vhost/rx.ts';
import {
  deliverTo,
  framesOf,
  GuestRam,
  IN_ORDER,
  MockDriver,
  type Piece,
  PLAIN,
  plainTable,
} from '../support/vring.ts';

const BASE = 0x10000n;

interface Options extends Partial<RxOptions> {
  readonly size?: number;
  readonly features?: RingFeatures;
  readonly table?: FrameTable;
  /** Posted at the start: the lengths of each chain's pieces. */
  readonly posted?: readonly (readonly number[])[];
}

class Scene {
  readonly ram = new GuestRam([BASE, 1 << 20]);
  readonly driver: MockDriver;
  readonly queue: SplitQueue;
  readonly filler: RxFiller;
  /** Calls of deliver, and the frames in each. */
  readonly batches: number[] = [];
  readonly #posted = new Map<number, Piece[]>();
  #at = BASE;

  constructor({
    size = 16,
    features = PLAIN,
    table = plainTable(8, 64),
    posted = [],
    ...options
  }: Options = {}) {
    this.driver = new MockDriver(size, features);
    this.queue = new SplitQueue(this.driver.memory, size, features, 0, 0);
    const chains = new ChainReader(this.queue, {
      writable: true,
      space: 1,
      bytesMax: 2 ** 32 - 1,
      readIndirect: this.ram.read,
    });
    const deliver = deliverTo(this.ram);
    this.filler = new RxFiller(this.queue, chains, table, {
      headerBytes: 12,
      mergeable: true,
      offloads: OFFLOAD_ALL,
      frameBytesMax: 1518,
      deliver: (src, target, count) => {
        this.batches.push(count);
        return deliver(src, target, count);
      },
      ...options,
    });
    for (const lengths of posted) this.post(...lengths);
  }

  /** Posts a chain of pieces of these lengths. Its head. */
  post(...lengths: readonly number[]): number {
    return this.postPieces(
      lengths.map((length) => {
        const piece = { address: this.#at, length, write: true };
        this.#at += BigInt(length) + 3n;
        return piece;
      }),
    );
  }

  postPieces(pieces: Piece[]): number {
    const head = this.driver.chain(pieces);
    assert.ok(head >= 0);
    this.driver.show();
    this.#posted.set(head, pieces);
    return head;
  }

  fill(frames: FrameTable, from = 0): number {
    const which = Uint32Array.from({ length: frames.count }, (_, i) => i);
    const stopped = this.filler.fill(frames, which, from, frames.count);
    this.queue.publish();
    return stopped;
  }

  /** Used entries: head, length, and what is in the chain. */
  reap(): { head: number; length: number; bytes: Buffer }[] {
    return this.driver.reap().map(([head, length]) => {
      const pieces = this.#posted.get(head) ?? [];
      const all = Buffer.concat(
        pieces.map((piece) => this.ram.find(piece.address, piece.length) ?? Buffer.alloc(0)),
      );
      assert.ok(length <= pieces.reduce((sum, piece) => sum + piece.length, 0));
      return { head, length, bytes: all.subarray(0, length) };
    });
  }

  /** Frames as the driver puts them together, by num_buffers. */
  frames(): { header: Buffer; frame: Buffer; buffers: number }[] {
    const entries = this.reap();
    const frames: { header: Buffer; frame: Buffer; buffers: number }[] = [];
    while (entries.length > 0) {
      const first = entries.shift();
      if (first === undefined || first.length === 0) continue;
      const buffers = first.bytes.readUInt16LE(10);
      const parts = [first, ...entries.splice(0, buffers - 1)];
      const bytes = Buffer.concat(parts.map((part) => part.bytes));
      frames.push({ header: bytes.subarray(0, 12), frame: bytes.subarray(12), buffers });
    }
    return frames;
  }

  get counted(): Partial<RxCounters> {
    return Object.fromEntries(Object.entries(this.filler.counters).filter(([, count]) => count !== 0));
  }
}

/** A frame of `length` bytes, different for each `mark`. */
function frame(length: number, mark = 1): Buffer {
  return Buffer.from(Array.from({ length }, (_, i) => (i * 31 + mark * 17) & 0xff));
}

describe('a frame in a chain', () => {
  it('has the header before it, and its length in the used entry', () => {
    const scene = new Scene({ posted: [[2048]] });
    const sent = frame(1514);
    assert.equal(scene.fill(framesOf([sent])), 1);
    const [entry] = scene.reap();
    assert.equal(entry?.length, 1526);
    assert.equal(entry?.bytes.subarray(0, 12).toString('hex'), '00000000000000000000' + '0100');
    assert.deepEqual(entry?.bytes.subarray(12), sent);
    assert.deepEqual(scene.counted, { frames: 1, bytes: 1514, chains: 1 });
  });

  it('in pieces, wherever they end', () => {
    for (const lengths of [
      [12, 60],
      [1, 11, 60],
      [5, 67],
      [10, 2, 30, 30],
      [0, 12, 0, 60, 0],
      [30, 42],
      [72],
    ]) {
      const scene = new Scene({ posted: [lengths], mergeable: false });
      assert.equal(scene.fill(framesOf([frame(60)])), 1);
      assert.deepEqual(
        scene.frames().map((one) => one.frame),
        [frame(60)],
      );
    }
  });

  it('without MRG_RXBUF num_buffers is 1 in a header of 12 bytes; one of 10 has none', () => {
    const scene = new Scene({ posted: [[2048]], mergeable: false });
    scene.fill(framesOf([frame(60)]));
    assert.equal(scene.frames()[0]?.buffers, 1);
    const legacy = new Scene({ posted: [[70]], mergeable: false, headerBytes: 10 });
    assert.equal(legacy.fill(framesOf([frame(60)])), 1);
    const [entry] = legacy.reap();
    assert.equal(entry?.length, 70);
    assert.deepEqual(entry?.bytes.subarray(10), frame(60));
  });

  it('takes more chains with MRG_RXBUF, and says how many', () => {
    const scene = new Scene({ posted: [[600], [600], [600], [600]] });
    assert.equal(scene.fill(framesOf([frame(1500), frame(60, 2)])), 2);
    assert.equal(scene.queue.lastAvail, 4);
    const frames = scene.frames();
    assert.deepEqual(
      frames.map(({ buffers }) => buffers),
      [3, 1],
    );
    assert.deepEqual(
      frames.map((one) => one.frame),
      [frame(1500), frame(60, 2)],
    );
    assert.deepEqual(scene.counted, { frames: 2, bytes: 1560, chains: 4 });
  });

  it('one that fits exactly takes no more', () => {
    const scene = new Scene({ posted: [[612], [600], [600]] });
    scene.fill(framesOf([frame(1200)]));
    assert.equal(scene.frames()[0]?.buffers, 2);
    assert.equal(scene.queue.lastAvail, 2);
  });

  it('many frames go in several batches when the table is full of records or of pieces', () => {
    for (const table of [plainTable(3, 64), plainTable(64, 7)]) {
      const scene = new Scene({ table, posted: Array.from({ length: 8 }, () => [12, 500]) });
      const sent = Array.from({ length: 8 }, (_, i) => frame(100 + i, i));
      assert.equal(scene.fill(framesOf(sent)), 8);
      assert.deepEqual(scene.batches, [3, 3, 2]);
      assert.deepEqual(
        scene.frames().map((one) => one.frame),
        sent,
      );
    }
  });

  it('starts where it is told, and only takes what it is told', () => {
    const scene = new Scene({ posted: [[200], [200], [200]] });
    const table = framesOf([frame(60, 1), frame(61, 2), frame(62, 3), frame(63, 4)]);
    assert.equal(scene.filler.fill(table, Uint32Array.of(9, 3, 1, 9), 1, 3), 3);
    scene.queue.publish();
    assert.deepEqual(
      scene.frames().map((one) => one.frame),
      [frame(63, 4), frame(61, 2)],
    );
  });
});

describe('B23: chains that are too short, or too few', () => {
  it('without MRG_RXBUF a frame that is longer than its chain is dropped, and the chain stays', () => {
    const scene = new Scene({ mergeable: false, posted: [[300], [2000]] });
    assert.equal(scene.fill(framesOf([frame(289), frame(288, 2), frame(1000, 3)])), 3);
    assert.deepEqual(
      scene.frames().map((one) => one.frame),
      [frame(288, 2), frame(1000, 3)],
    );
    assert.deepEqual(scene.counted, { frames: 2, bytes: 1288, chains: 2, droppedSize: 1 });
  });

  it('with too few chains everything is as it was, and the frame is not taken', () => {
    const scene = new Scene({ posted: [[600], [600], [600]] });
    const table = framesOf([frame(500), frame(1300, 2), frame(60, 3)]);
    assert.equal(scene.fill(table), 1);
    assert.equal(scene.queue.lastAvail, 1);
    assert.equal(scene.frames().length, 1);
    assert.equal(scene.fill(table, 1), 1, 'still too few');
    assert.deepEqual(scene.reap(), []);
    scene.post(600);
    assert.equal(scene.fill(table, 1), 2);
    assert.deepEqual(
      scene.frames().map(({ frame: bytes, buffers }) => [bytes, buffers]),
      [[frame(1300, 2), 3]],
    );
    scene.post(600);
    assert.equal(scene.fill(table, 2), 3);
    assert.deepEqual(scene.counted, { frames: 3, bytes: 1860, chains: 5 });
  });

  it('no chain at all', () => {
    const scene = new Scene();
    assert.equal(scene.fill(framesOf([frame(60)])), 0);
    assert.deepEqual(scene.batches, []);
    assert.deepEqual(scene.counted, {});
  });

  it('a frame that does not fit into all that a driver can post is dropped, not waited for', () => {
    const scene = new Scene({ size: 4, posted: [[100], [100], [100], [100]] });
    assert.equal(scene.fill(framesOf([frame(389), frame(388, 2)])), 2);
    assert.deepEqual(
      scene.frames().map((one) => one.frame),
      [frame(388, 2)],
    );
    assert.deepEqual(scene.counted, { frames: 1, bytes: 388, chains: 4, droppedSize: 1 });
  });

  it('a frame whose chains do not fit into a table is dropped, not waited for', () => {
    const scene = new Scene({
      table: plainTable(4, 4),
      posted: [
        [100, 100, 100],
        [100, 100, 100],
      ],
    });
    assert.equal(scene.fill(framesOf([frame(400), frame(60, 2)])), 2);
    assert.deepEqual(
      scene.frames().map((one) => one.frame),
      [frame(60, 2)],
    );
    assert.equal(scene.filler.counters.droppedSize, 1);
  });

  it('a chain that is shorter than the header goes back empty; one that has room for it alone does with MRG_RXBUF', () => {
    for (let length = 1; length < 12; length++) {
      const scene = new Scene({ posted: [[length], [200]] });
      assert.equal(scene.fill(framesOf([frame(60)])), 1);
      const entries = scene.reap();
      assert.deepEqual(
        entries.map((entry) => entry.length),
        [0, 72],
      );
      assert.deepEqual(scene.counted, { frames: 1, bytes: 60, chains: 1, chainsUseless: 1 });
    }
    const scene = new Scene({ posted: [[12], [1], [200]] });
    assert.equal(scene.fill(framesOf([frame(60)])), 1);
    assert.deepEqual(
      scene.frames().map(({ frame: bytes, buffers }) => [bytes, buffers]),
      [[frame(60), 3]],
    );
  });

  it('chains of no bytes go back empty, and a call takes at most a ring of them', () => {
    const scene = new Scene({ size: 8, posted: Array.from({ length: 8 }, () => [0]) });
    assert.equal(scene.fill(framesOf([frame(60)])), 0);
    assert.deepEqual(
      scene.reap().map(({ length }) => length),
      Array(8).fill(0),
    );
    assert.equal(scene.filler.counters.chainsUseless, 8);
  });

  it('a driver that posts useless chains as fast as they come back cannot keep us', () => {
    const table = plainTable(1, 64);
    const scene = new Scene({ size: 8, table, posted: Array.from({ length: 8 }, () => [1]) });
    // As if it did so between any two steps: avail.idx is always a ring ahead.
    const idx = new Uint16Array(scene.driver.memory.avail);
    const { queue } = scene;
    const advance = queue.advance.bind(queue);
    queue.advance = (count) => {
      advance(count);
      idx[1] = queue.lastAvail + 8;
    };
    assert.equal(scene.fill(framesOf([frame(60), frame(60)])), 0);
    assert.equal(queue.lastAvail, 8);
    // Nor with a frame's worth of good ones at the start of each batch.
    scene.driver.writeDesc(0, { address: BASE, length: 100, flags: 2, next: 0 });
    assert.equal(scene.fill(framesOf(Array.from({ length: 5 }, () => frame(60)))), 1);
    assert.equal(queue.lastAvail, 16);
  });

  it('a useless chain in the middle of a frame: what was gathered goes back, and the frame starts behind it', () => {
    for (const features of [PLAIN, IN_ORDER]) {
      const scene = new Scene({ features, posted: [[50], [50]] });
      const bad = scene.postPieces([{ address: 1n << 60n, length: 50, write: true }]);
      const good = [scene.post(50), scene.post(50), scene.post(50)];
      assert.equal(scene.fill(framesOf([frame(120)])), 1);
      const entries = scene.reap();
      assert.deepEqual(
        entries.map(({ head, length }) => [head, length]),
        [
          [0, 0],
          [1, 0],
          [bad, 0],
          [good[0], 50],
          [good[1], 50],
          [good[2], 32],
        ],
      );
      assert.equal(entries[3]?.bytes.readUInt16LE(10), 3);
      assert.deepEqual(scene.counted, { frames: 1, bytes: 120, chains: 3, chainsUseless: 3 });
    }
  });

  it('a chain for the device to read goes back empty', () => {
    const scene = new Scene();
    scene.postPieces([{ address: BASE, length: 500 }]);
    scene.post(500);
    assert.equal(scene.fill(framesOf([frame(60)])), 1);
    assert.deepEqual(
      scene.reap().map(({ length }) => length),
      [0, 72],
    );
  });

  it('a chain outside of memory: its frame is dropped, its chains go back empty, those behind are right', () => {
    const scene = new Scene({ posted: [[60]] });
    scene.postPieces([{ address: 0x500n, length: 60, write: true }]);
    scene.post(2000);
    assert.equal(scene.fill(framesOf([frame(100), frame(200, 2)])), 2);
    const entries = scene.reap();
    assert.deepEqual(
      entries.map(({ length }) => length),
      [0, 0, 212],
    );
    assert.deepEqual(entries[2]?.bytes.subarray(12), frame(200, 2));
    assert.deepEqual(scene.counted, { frames: 1, bytes: 200, chains: 1, chainsUseless: 2, droppedFault: 1 });
  });

  it('A1: a loop breaks the queue: what was placed goes out, the rest is dropped', () => {
    const scene = new Scene({ posted: [[200]] });
    const head = scene.post(40, 40);
    scene.driver.writeDesc(head, { address: BASE, length: 0, flags: 3, next: head });
    assert.equal(scene.fill(framesOf([frame(60), frame(60), frame(60)])), 3);
    assert.equal(scene.reap().length, 1);
    assert.ok(scene.queue.broken !== null);
    assert.equal(scene.filler.counters.droppedBroken, 2);
    assert.equal(scene.fill(framesOf([frame(60)])), 1, 'and everything from then on');
    assert.equal(scene.filler.counters.droppedBroken, 3);
  });

  it('A13: avail.idx jumps', () => {
    const scene = new Scene({ posted: [[200]] });
    scene.driver.setAvailIdx(1000);
    assert.equal(scene.fill(framesOf([frame(60)])), 1);
    assert.equal(scene.filler.counters.droppedBroken, 1);
  });
});

describe('what a guest did not negotiate', () => {
  /** flags, gso_type, hdr_len, gso_size, csum_start, csum_offset. */
  type Vnet = readonly [number, number, number, number, number, number];

  function words([flags, type, hdr, size, start, offset]: Vnet): [number, number, number] {
    return [(flags | (type << 8) | (hdr << 16)) >>> 0, (size | (start << 16)) >>> 0, offset | 0xbeef0000];
  }

  /** The header that the guest gets, or the counter of the drop. */
  function through(vnet: Vnet, offloads: number, length = 1000, frameBytesMax = 1518): Vnet | string {
    const scene = new Scene({ posted: [[70_000]], offloads, frameBytesMax });
    const counters = rxCounters();
    assert.equal(scene.fill(framesOf([frame(length)], () => words(vnet))), 1);
    const [one] = scene.frames();
    if (one === undefined) {
      const [dropped] = Object.keys(scene.counted);
      assert.ok(dropped !== undefined && dropped in counters);
      return dropped;
    }
    const { header } = one;
    return [header[0], header[1], ...[2, 4, 6, 8].map((at) => header.readUInt16LE(at))] as unknown as Vnet;
  }

  const none: Vnet = [0, 0, 0, 0, 0, 0];
  const partial: Vnet = [1, 0, 54, 0, 34, 16];
  const tso4: Vnet = [1, 1, 54, 1448, 34, 16];
  const all = OFFLOAD_ALL;
  const rows: [
    title: string,
    vnet: Vnet,
    offloads: number,
    expected: Vnet | string,
    length?: number,
    max?: number,
  ][] = [
    ['no header', none, 0, none],
    ['a checksum to fill in', partial, all, partial],
    ['a checksum to fill in, not negotiated', partial, 0, 'droppedOffload'],
    ['a checksum beyond the frame', [1, 0, 0, 0, 990, 9], all, 'droppedHeader'],
    ['a checksum that ends with the frame', [1, 0, 0, 0, 990, 8], all, [1, 0, 0, 0, 990, 8]],
    ['B19: a checksum whose place is beyond 65535', [1, 0, 0, 0, 65_535, 65_535], all, 'droppedHeader'],
    ['a checksum that was found right', [2, 0, 0, 0, 7, 7], all, [2, 0, 0, 0, 0, 0]],
    ['a checksum that was found right, not negotiated', [2, 0, 0, 0, 7, 7], 0, none],
    ['both', [3, 0, 54, 0, 34, 16], all, partial],
    ['flags that nobody knows', [0xfc, 0, 9, 9, 9, 9], all, none],
    ['TSO over IPv4', tso4, OFFLOAD_CSUM | OFFLOAD_TSO4, tso4, 60_000],
    ['TSO over IPv4, not negotiated', tso4, OFFLOAD_CSUM | OFFLOAD_TSO6, 'droppedOffload', 60_000],
    ['TSO without checksum offload', tso4, OFFLOAD_TSO4, 'droppedOffload', 60_000],
    [
      'TSO over IPv6',
      [1, 4, 74, 1428, 54, 16],
      OFFLOAD_CSUM | OFFLOAD_TSO6,
      [1, 4, 74, 1428, 54, 16],
      60_000,
    ],
    ['TSO with ECN', [1, 0x81, 54, 1448, 34, 16], all, [1, 0x81, 54, 1448, 34, 16], 60_000],
    [
      'TSO with ECN, not negotiated',
      [1, 0x81, 54, 1448, 34, 16],
      OFFLOAD_CSUM | OFFLOAD_TSO4,
      'droppedOffload',
      60_000,
    ],
    ['UFO', [1, 3, 54, 1448, 34, 6], all, 'droppedOffload', 60_000],
    ['a type that nobody knows', [1, 0x77, 54, 1448, 34, 6], all, 'droppedOffload', 60_000],
    ['segments of 0 bytes', [1, 1, 54, 0, 34, 16], all, 'droppedHeader', 60_000],
    ['hdr_len beyond the frame', [1, 1, 65_535, 500, 34, 16], all, [1, 1, 1000, 500, 34, 16]],
    ['a frame of the MTU with a tag', none, all, none, 1518],
    ['a frame beyond the MTU', none, all, 'droppedSize', 1519],
    ['a jumbo frame', none, all, none, 9018, 9018],
  ];
  for (const [title, vnet, offloads, expected, length, max] of rows) {
    it(title, () => {
      assert.deepEqual(through(vnet, offloads, length, max), expected);
    });
  }
});

describe('the filler', () => {
  it('refuses a table without room for headers: a bug of the caller', () => {
    assert.throws(() => new Scene({ table: plainTable(4, 4, 8) }), /virtio_net_hdr/);
  });

  it('sees what the native layer says of each frame', () => {
    const scene = new Scene({
      posted: [[200], [200], [200]],
      deliver: (_, target) => {
        target.records[1 * FRAME_WORDS + FRAME_STATUS] = 90;
        return 2;
      },
    });
    assert.equal(scene.fill(framesOf([frame(60), frame(60), frame(60)])), 3);
    assert.deepEqual(
      scene.reap().map(({ length }) => length),
      [72, 0, 72],
    );
    assert.equal(scene.filler.counters.droppedFault, 1);
  });
});
