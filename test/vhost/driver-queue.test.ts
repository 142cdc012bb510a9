/** The driver's side of a split ring: what it writes, and devices who do what they may not. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { DriverQueue } from '../../src/vhost/driver-queue.ts';
import type { RingFeatures } from '../../src/vhost/queue.ts';
import {
  EVENT_IDX,
  IN_ORDER,
  INDIRECT,
  INDIRECT_DESC,
  NEXT,
  PLAIN,
  readDescriptor,
  ringMemory,
  WRITE,
} from '../support/vring.ts';

/** A device that does what the test says. */
class Device {
  readonly memory: ReturnType<typeof ringMemory>;
  readonly queue: DriverQueue;
  readonly desc: DataView;
  readonly avail: DataView;
  readonly used: DataView;
  readonly size: number;
  readonly tables = new ArrayBuffer(8 * 4 * 16);
  idx = 0;
  readonly #heads: Uint32Array;
  readonly #lengths: Uint32Array;

  constructor(size = 8, features: RingFeatures = PLAIN) {
    this.size = size;
    this.memory = ringMemory(size, features);
    this.desc = new DataView(this.memory.desc);
    this.avail = new DataView(this.memory.avail);
    this.used = new DataView(this.memory.used);
    for (const view of [this.desc, this.avail, this.used]) new Uint8Array(view.buffer).fill(0xee);
    const tables = { memory: this.tables, address: 0x1_0000_0000, entries: 4 };
    this.queue = new DriverQueue(this.memory, size, features, features.indirect ? tables : null);
    this.#heads = new Uint32Array(size);
    this.#lengths = new Uint32Array(size);
  }

  add(readable: readonly [number, number][], writable: readonly [number, number][] = []): number {
    const all = [[7, 7], ...readable, ...writable] as [number, number][];
    const addresses = Float64Array.from(all, ([address]) => address);
    const lengths = Uint32Array.from(all, ([, length]) => length);
    return this.queue.add(addresses, lengths, 1, readable.length, writable.length);
  }

  /** Writes a used entry and shows it, with `step` entries at once. */
  use(id: number, length = 0, step = 1): void {
    const at = 4 + 8 * (this.idx % this.size);
    this.used.setUint32(at, id, true);
    this.used.setUint32(at + 4, length, true);
    this.idx = (this.idx + step) & 0xffff;
    this.used.setUint16(2, this.idx, true);
  }

  reap(room = this.size): [number, number][] | -1 {
    const heads = this.#heads.subarray(0, room);
    const count = this.queue.reap(heads, this.#lengths);
    if (count < 0) return -1;
    return Array.from({ length: count }, (_, i) => [heads[i] as number, this.#lengths[i] as number]);
  }
}

describe('DriverQueue', () => {
  it('writes a chain of descriptors, readable ones before writable ones', () => {
    const device = new Device();
    const head = device.add(
      [
        [0x1_2345_6789, 12],
        [0x2000, 1500],
      ],
      [[0x3000, 9]],
    );
    assert.equal(head, 0);
    assert.equal(device.avail.getUint16(2, true), 0, 'not shown');
    assert.equal(device.queue.publish(), true);
    assert.equal(device.avail.getUint16(2, true), 1);
    assert.equal(device.avail.getUint16(4, true), 0);
    const one = readDescriptor(device.desc, 0);
    const two = readDescriptor(device.desc, one.next);
    const three = readDescriptor(device.desc, two.next);
    assert.deepEqual(one, { address: 0x1_2345_6789n, length: 12, flags: NEXT, next: 1 });
    assert.deepEqual(two, { address: 0x2000n, length: 1500, flags: NEXT, next: 2 });
    assert.deepEqual(three, { address: 0x3000n, length: 9, flags: WRITE, next: 0 });
    assert.equal(device.queue.free, 5);
    assert.equal(device.queue.outstanding, 1);
    device.use(0, 9);
    assert.deepEqual(device.reap(), [[0, 9]]);
    assert.equal(device.queue.free, 8);
    assert.equal(device.queue.outstanding, 0);
  });

  it('makes an indirect table where it can', () => {
    const device = new Device(8, INDIRECT_DESC);
    assert.equal(device.add([[0x1000, 1]]), 0, 'one piece needs none');
    assert.equal(readDescriptor(device.desc, 0).flags, 0);
    assert.equal(
      device.add(
        [
          [0x1000, 12],
          [0x2000, 20],
        ],
        [[0x5_0000_0000, 5]],
      ),
      1,
    );
    assert.deepEqual(readDescriptor(device.desc, 1), {
      address: 0x1_0000_0000n + 64n,
      length: 48,
      flags: INDIRECT,
      next: 0,
    });
    const table = new DataView(device.tables, 64);
    assert.deepEqual(
      [0, 1, 2].map((i) => readDescriptor(table, i)),
      [
        { address: 0x1000n, length: 12, flags: NEXT, next: 1 },
        { address: 0x2000n, length: 20, flags: NEXT, next: 2 },
        { address: 0x5_0000_0000n, length: 5, flags: WRITE, next: 0 },
      ],
    );
    assert.equal(device.queue.free, 6);
    assert.equal(
      device.add(Array.from({ length: 5 }, () => [0x1000, 1] as [number, number])),
      2,
      'direct: too long',
    );
    assert.equal(device.queue.free, 1);
    device.queue.publish();
    device.use(2);
    device.use(1, 5);
    assert.deepEqual(device.reap(), [
      [2, 0],
      [1, 5],
    ]);
    assert.equal(device.queue.free, 7);
  });

  it('is full when descriptors are, and takes them again as they came back', () => {
    const device = new Device(4);
    assert.equal(
      device.add([
        [1, 1],
        [1, 1],
      ]),
      0,
    );
    assert.equal(device.add([[1, 1]]), 2);
    assert.equal(
      device.add([
        [1, 1],
        [1, 1],
      ]),
      -1,
    );
    assert.equal(device.add([[1, 1]]), 3);
    assert.equal(device.add([[1, 1]]), -1);
    device.queue.publish();
    device.use(3);
    device.use(0);
    assert.deepEqual(device.reap(), [
      [3, 0],
      [0, 0],
    ]);
    assert.equal(
      device.add([
        [1, 1],
        [1, 1],
      ]),
      3,
    );
    assert.equal(readDescriptor(device.desc, 3).next, 0);
    assert.equal(device.add([[1, 1]]), 1);
  });

  it('reaps no more than there is room for', () => {
    const device = new Device(8);
    for (let i = 0; i < 5; i++) device.add([[1, 1]]);
    device.queue.publish();
    for (let i = 0; i < 5; i++) device.use(i);
    assert.equal((device.reap(3) as unknown[]).length, 3);
    assert.equal(device.queue.outstanding, 2);
    assert.deepEqual(device.reap(3), [
      [3, 0],
      [4, 0],
    ]);
  });

  it('with IN_ORDER one used entry is for all before it, whatever room there is', () => {
    for (const room of [1, 2, 8]) {
      const device = new Device(8, IN_ORDER);
      for (let i = 0; i < 5; i++) device.add([], [[1, 100 + i]]);
      device.queue.publish();
      device.use(3, 50, 4);
      const all: [number, number][] = [];
      for (let i = 0; i < 4; i += room) all.push(...(device.reap(room) as [number, number][]));
      assert.deepEqual(all, [
        [0, 100],
        [1, 101],
        [2, 102],
        [3, 50],
      ]);
      device.use(4, 7);
      assert.deepEqual(device.reap(room), [[4, 7]]);
    }
  });

  it('with IN_ORDER descriptors are used in the order of the table', () => {
    const device = new Device(8, IN_ORDER);
    let next = 0;
    for (let i = 0; i < 100; i++) {
      const head = device.add(Array.from({ length: 1 + (i % 3) }, () => [1, 1] as [number, number]));
      assert.equal(head, next);
      next = (next + 1 + (i % 3)) % 8;
      device.queue.publish();
      device.use(head);
      assert.deepEqual(device.reap(), [[head, 0]]);
    }
  });

  it('goes round 2^16', () => {
    const device = new Device(4, EVENT_IDX);
    for (let i = 0; i < 70_000; i++) {
      const head = device.add([[1, 1]]);
      device.queue.publish();
      device.use(head);
      const reaped = device.reap();
      if (reaped === -1 || reaped[0]?.[0] !== head) assert.fail(`at ${i}`);
    }
    assert.equal(device.queue.availIdx, 70_000 & 0xffff);
  });
});

describe('notifications of a driver', () => {
  it('a kick for each publish(), unless the device wants none', () => {
    const device = new Device();
    assert.equal(device.queue.publish(), false, 'nothing new');
    device.add([[1, 1]]);
    assert.equal(device.queue.publish(), true);
    device.used.setUint16(0, 1, true);
    device.add([[1, 1]]);
    assert.equal(device.queue.publish(), false);
  });

  it('with EVENT_IDX: when avail_event is passed', () => {
    const device = new Device(8, EVENT_IDX);
    device.used.setUint16(0, 1, true);
    const event = (value: number): void => device.used.setUint16(4 + 8 * 8, value, true);
    event(0);
    device.add([[1, 1]]);
    assert.equal(device.queue.publish(), true);
    device.add([[1, 1]]);
    assert.equal(device.queue.publish(), false);
    event(3);
    device.add([[1, 1]]);
    device.add([[1, 1]]);
    assert.equal(device.queue.publish(), true);
  });

  it('interrupts: asked for and not, and what came before', () => {
    for (const features of [PLAIN, EVENT_IDX]) {
      const device = new Device(8, features);
      device.queue.disableInterrupts();
      assert.equal(device.avail.getUint16(0, true), features.eventIdx ? 0 : 1);
      device.add([[1, 1]]);
      device.queue.publish();
      device.use(0);
      assert.equal(device.queue.enableInterrupts(), true);
      device.reap();
      assert.equal(device.queue.enableInterrupts(), false);
      assert.equal(device.avail.getUint16(0, true), 0);
      if (features.eventIdx) assert.equal(device.avail.getUint16(4 + 2 * 8, true), 1);
    }
  });
});

describe('a device that says how long a chain is that is only read', () => {
  for (const length of [1, 2, 1526, 0xffff_ffff]) {
    it(`${length}: it wrote nothing, and goes on`, () => {
      const device = new Device();
      for (let i = 0; i < 20; i++) {
        const head = device.add([[0x1000, 1]]);
        device.queue.publish();
        device.use(head, length);
        assert.deepEqual(device.reap(), [[head, 0]]);
      }
      assert.equal(device.queue.broken, null);
    });
  }
});

describe('a device that does what it may not', () => {
  const rows: [title: string, features: RingFeatures, act: (device: Device) => void][] = [
    ['used.idx jumps beyond what is out', PLAIN, (device) => device.use(0, 0, 4)],
    ['used.idx goes backwards', PLAIN, (device) => device.use(0, 0, 65_535)],
    ['an id that is the size of the ring', PLAIN, (device) => device.use(8)],
    ['an id beyond 16 bits', PLAIN, (device) => device.use(0x1_0000)],
    ['an id of -1', PLAIN, (device) => device.use(0xffff_ffff)],
    ['an id of a descriptor in the middle of a chain', PLAIN, (device) => device.use(1)],
    ['an id that is free', PLAIN, (device) => device.use(6)],
    ['an id twice', PLAIN, (device) => [device.use(0), device.use(0)]],
    ['more bytes than there are', PLAIN, (device) => device.use(2, 101)],
    ['2^32 - 1 bytes', PLAIN, (device) => device.use(2, 0xffff_ffff)],
    ['IN_ORDER, and an id that is further than the index', IN_ORDER, (device) => device.use(2, 0, 1)],
    ['IN_ORDER, and an id before', IN_ORDER, (device) => [device.use(0), device.use(0)]],
  ];
  for (const [title, features, act] of rows) {
    it(`${title}: the queue is broken`, () => {
      const device = new Device(8, features);
      assert.equal(
        device.add([
          [1, 1],
          [1, 1],
        ]),
        0,
      );
      assert.equal(device.add([], [[1, 100]]), 2);
      assert.equal(device.add([[1, 1]]), 3);
      device.queue.publish();
      act(device);
      assert.equal(device.reap(), -1);
      assert.ok(device.queue.broken !== null);
      assert.equal(device.reap(), -1);
      assert.equal(device.add([[1, 1]]), -1);
      assert.equal(device.queue.publish(), false);
      assert.equal(device.queue.enableInterrupts(), false);
    });
  }

  it('cannot use what was not shown to it', () => {
    const device = new Device(8);
    device.add([[1, 1]]);
    device.use(0);
    assert.equal(device.reap(), -1);
  });

  it('that writes into descriptors and the avail ring does not confuse the free list', () => {
    const device = new Device(8);
    assert.equal(
      device.add([
        [1, 1],
        [1, 1],
        [1, 1],
      ]),
      0,
    );
    device.queue.publish();
    new Uint8Array(device.memory.desc).fill(0xff);
    new Uint8Array(device.memory.avail).fill(0xff);
    device.use(0);
    assert.deepEqual(device.reap(), [[0, 0]]);
    assert.equal(device.queue.free, 8);
    const heads = Array.from({ length: 8 }, () => device.add([[1, 1]]));
    assert.deepEqual([...heads].sort(), [0, 1, 2, 3, 4, 5, 6, 7]);
  });
});
