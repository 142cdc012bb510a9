/**
 * Receive rings of a guest that is hostile, and headers that one guest sends to another: what reaches whom, and what it costs those
 * who only wanted to send a frame.
 */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { createHostTable } from '../../src/core/host-table.ts';
import {
  counter,
  type HostileGuest,
  MRG_RXBUF_BIT,
  PAYLOAD,
  RX,
  soon,
  turns,
  VNET_BYTES,
} from '../support/hostile-guest.ts';
import { deliver, endScenes, frameOf, openScene, type Scene, Witness } from '../support/hostile-scene.ts';
import { INDIRECT, NEXT, WRITE, writeDescriptor } from '../support/vring.ts';

const BUFFERS = PAYLOAD + 0x10_0000;
const FRAME = frameOf(300, 5);
const WHOLE = VNET_BYTES + FRAME.length;
const ALL = Uint32Array.from({ length: 4096 }, (_, i) => i);

type End = 'broken' | 'used' | 'waits' | 'dropped';

interface Attack {
  readonly what: string;
  readonly end: End;
  readonly mergeable?: boolean;
  /** Descriptors [address, length, flags, next] from 0 on; 0 is offered. */
  readonly desc: readonly (readonly [number | bigint, number, number, number])[];
  /** Heads, instead of 0. */
  readonly heads?: readonly number[];
}

const attacks: Attack[] = [
  { what: 'head >= N', end: 'broken', desc: [], heads: [300] },
  { what: 'next >= N', end: 'broken', desc: [[BUFFERS, 100, WRITE | NEXT, 256]] },
  { what: 'loop: of nothing', end: 'broken', desc: [[BUFFERS, 0, WRITE | NEXT, 0]] },
  {
    what: 'loop: of 64 bytes, beyond what a chain may hold',
    end: 'broken',
    desc: [
      [BUFFERS, 64, WRITE | NEXT, 1],
      [BUFFERS, 64, WRITE | NEXT, 0],
    ],
  },
  { what: 'in after out on RX: for reading alone', end: 'used', desc: [[BUFFERS, 2000, 0, 0]] },
  {
    what: 'in after out on RX: for reading at the end',
    end: 'used',
    desc: [
      [BUFFERS, 2000, WRITE | NEXT, 1],
      [BUFFERS, 2000, 0, 0],
    ],
  },
  { what: 'zero length: a buffer of nothing', end: 'used', desc: [[BUFFERS, 0, WRITE, 0]] },
  { what: 'chain < header: 11 bytes', end: 'used', desc: [[BUFFERS, 11, WRITE, 0]] },
  { what: 'addr outside / wraps: beyond 2^52', end: 'used', desc: [[1n << 53n, 2000, WRITE, 0]] },
  { what: 'addr outside / wraps: outside of memory', end: 'used', desc: [[1n << 40n, 2000, WRITE, 0]] },
  {
    what: 'range crosses region end: half of it',
    end: 'used',
    desc: [[(16n << 20n) - 100n, 2000, WRITE, 0]],
  },
  {
    what: 'RX frame larger than posted buffer without MRG: one byte too few, and the chain stays',
    end: 'dropped',
    desc: [[BUFFERS, WHOLE - 1, WRITE, 0]],
  },
  {
    what: 'MRG with too few buffers: the frame waits, the chains stay',
    end: 'waits',
    mergeable: true,
    desc: [[BUFFERS, WHOLE - 1, WRITE, 0]],
  },
];

async function post(scene: Scene, attack: Attack): Promise<HostileGuest> {
  const guest = await scene.boot({ bits: attack.mergeable === true ? [28, MRG_RXBUF_BIT] : [28] });
  attack.desc.forEach(([address, length, flags, next], i) => {
    guest.rx.driver.writeDesc(i, { address: BigInt(address), length, flags, next });
  });
  guest.rx.offer(...(attack.heads ?? [0]));
  return guest;
}

/** Posts a good buffer, in which the next frame arrives. */
async function receives(scene: Scene, guest: HostileGuest, more: number): Promise<void> {
  const { rx } = guest;
  const used = rx.usedIdx;
  rx.driver.writeDesc(100, { address: BigInt(BUFFERS + 0x8000), length: 4000, flags: WRITE, next: 0 });
  rx.offer(100);
  rx.kick();
  if (more > 0) assert.equal(deliver(scene, FRAME), 1);
  await soon('it arrives', () => rx.usedIdx !== used);
  assert.deepEqual(rx.entry(rx.usedIdx - 1), [100, WHOLE]);
  assert.deepEqual(guest.read(BUFFERS + 0x8000 + VNET_BYTES, FRAME.length), FRAME);
}

describe('what a guest posts to receive in', { timeout: 60_000 }, () => {
  afterEach(endScenes);

  for (const attack of attacks) {
    const { what, end } = attack;
    it(`${what}: ${end}`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene();
      const guest = await post(scene, attack);
      const { rx } = scene.device.stats().details;
      assert.equal(deliver(scene, FRAME), 1);
      await turns(5);
      const now = scene.device.stats().details.rx;
      if (end === 'broken') {
        assert.equal(scene.broken[0]?.ring, RX);
        assert.equal(guest.rx.errors, 1);
        assert.equal(now.droppedBroken - rx.droppedBroken, 1);
        assert.equal(guest.rx.usedIdx, 0);
        // It rests, and so does what else is for it.
        assert.equal(deliver(scene, FRAME), 1);
        assert.equal(scene.device.stats().details.rx.droppedBroken, 2);
        assert.equal(await guest.base(RX), 0);
        guest.rx.driver.availIdx = 0;
        guest.rx.driver.show();
        await guest.start(RX, 0);
        await receives(scene, guest, 1);
      } else {
        assert.deepEqual(scene.broken, []);
        assert.equal(guest.rx.usedIdx, end === 'used' ? 1 : 0);
        if (end === 'used') assert.deepEqual(guest.rx.entry(0), [0, 0]);
        if (end === 'dropped') assert.equal(now.droppedSize, 1);
        // A chain that was too short for the frame is in front of the good one, and short for the next, too.
        if (end === 'used') await receives(scene, guest, now.droppedFault);
        if (end === 'waits') {
          const more = { address: BigInt(BUFFERS + 0x4000), length: 100, flags: WRITE, next: 0 };
          guest.rx.driver.writeDesc(100, more);
          guest.rx.offer(100);
          guest.rx.kick();
          await soon('it has found room', () => guest.rx.usedIdx === 2);
          assert.deepEqual([guest.rx.entry(0)[1], guest.rx.entry(1)[1]], [WHOLE - 1, 1]);
        }
      }
      assert.deepEqual(scene.failures, []);
      await witness.testifies();
    });
  }

  it('num_buffers is right, and the frame is in as many', async () => {
    const scene = await openScene();
    const guest = await scene.boot({ bits: [28, MRG_RXBUF_BIT] });
    const heads = [40, 7, 1, 300].map((length, i) => guest.post(BUFFERS + 0x1000 * i, length));
    assert.equal(deliver(scene, FRAME), 1);
    await soon('used', () => guest.rx.usedIdx === 4);
    assert.deepEqual(
      [0, 1, 2, 3].map((i) => guest.rx.entry(i)),
      [
        [heads[0], 40],
        [heads[1], 7],
        [heads[2], 1],
        [heads[3], WHOLE - 48],
      ],
    );
    const header = new DataView(guest.read(BUFFERS, 12).buffer);
    assert.equal(header.getUint16(10, true), 4);
  });
});

describe('receive rings that take long to read', { timeout: 60_000 }, () => {
  afterEach(endScenes);

  /** Descriptors of nothing behind each other, `count` of them from `start` on. */
  function nothings(guest: HostileGuest, start: number, count: number, last: number): void {
    for (let i = 0; i < count; i++) {
      const isLast = i + 1 === count;
      guest.rx.driver.writeDesc(start + i, {
        address: BigInt(BUFFERS),
        length: isLast ? last : 0,
        flags: isLast ? WRITE : WRITE | NEXT,
        next: start + i + 1,
      });
    }
  }

  /** Offers the whole ring of chains that all end in the same 1023 descriptors. */
  function offerLong(guest: HostileGuest): void {
    const heads = Array.from({ length: 2048 }, (_, i) => i);
    for (const head of heads) {
      guest.rx.driver.writeDesc(head, { address: 0n, length: 0, flags: WRITE | NEXT, next: 2048 });
    }
    guest.rx.offer(...heads, ...heads);
  }

  for (const [what, last] of [
    ['of nothing', 0],
    ['of a byte each', 1],
    ['of a header each', 12],
  ] as const) {
    it(`4096 chains of 1024 descriptors ${what}: a frame costs some of them, and not all`, async () => {
      const scene = await openScene();
      const guest = await scene.boot({ size: 4096, bits: [28, MRG_RXBUF_BIT] });
      nothings(guest, 2048, 1023, last);
      offerLong(guest);
      for (let i = 1; i <= 20; i++) {
        const before = guest.rx.usedIdx;
        deliver(scene, FRAME);
        // Three looks at 16,384 descriptors and one chain more.
        assert.ok(((guest.rx.usedIdx - before) & 0xffff) <= 3 * 17, `${guest.rx.usedIdx - before} chains`);
      }
      assert.deepEqual(scene.broken, []);
    });
  }

  it('4096 indirect tables of 1024 entries: the same', async () => {
    const scene = await openScene();
    const guest = await scene.boot({ size: 4096, bits: [28, MRG_RXBUF_BIT] });
    const table = new Uint8Array(16 * 1024);
    for (let i = 0; i < 1024; i++) {
      const flags = WRITE | (i < 1023 ? NEXT : 0);
      writeDescriptor(new DataView(table.buffer), i, { address: 0n, length: 0, flags, next: i + 1 });
    }
    guest.write(BUFFERS, table);
    for (let i = 0; i < 4096; i++) {
      guest.rx.driver.writeDesc(i, {
        address: BigInt(BUFFERS),
        length: table.length,
        flags: INDIRECT,
        next: 0,
      });
    }
    guest.rx.offer(...Array.from({ length: 4096 }, (_, i) => i));
    deliver(scene, FRAME);
    assert.ok(guest.rx.usedIdx > 0 && guest.rx.usedIdx <= 3 * 17, `${guest.rx.usedIdx} chains`);
  });

  it('a driver that does not kick gets what waits for it all the same', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    assert.equal(await guest.front.ack(12, Uint8Array.of(0, 1, 0, 0, 0, 0, 0, 0)), 0);
    for (let i = 0; i < 50; i++) {
      assert.equal(deliver(scene, FRAME), 1);
      guest.post(BUFFERS, 2000);
      await soon('it has come', () => guest.rx.usedIdx === i + 1);
      guest.rx.driver.reap();
    }
  });

  it('a guest that never posts: frames wait in a room of bounded size, and then are refused', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    let taken = 0;
    while (deliver(scene, FRAME) === 1) taken += 1;
    assert.ok(taken > 100 && taken <= 512, `${taken}`);
    let writable = 0;
    scene.device.onWritable = () => {
      writable += 1;
    };
    guest.post(BUFFERS, 2000);
    guest.rx.kick();
    await soon('one went in', () => guest.rx.usedIdx === 1);
    for (let i = 0; i < 255; i++) guest.post(BUFFERS, 2000);
    guest.rx.kick();
    await soon('more', () => guest.rx.usedIdx === 256);
    guest.end();
    await soon('gone', () => scene.device.state !== 'connected');
    assert.equal(deliver(scene, FRAME), 1, 'dropped, as nobody is there');
    assert.equal(scene.device.stats().txDropped, 1);
    assert.ok(writable <= 1);
  });
});

describe('csum_start/offset, gso_size 0, hdr_len lies: from one guest to another', {
  timeout: 60_000,
}, () => {
  afterEach(endScenes);

  /** flags, gso_type, hdr_len, gso_size, csum_start, csum_offset; what arrives of it, or null. */
  const headers: readonly (readonly [string, readonly number[], readonly number[] | null])[] = [
    ['nothing', [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
    ['flags that nobody knows', [0xf8, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]],
    ['a checksum in the frame', [1, 0, 0, 0, 34, 6], [1, 0, 0, 0, 34, 6]],
    ['a checksum that ends with it', [1, 0, 0, 0, 290, 8], [1, 0, 0, 0, 290, 8]],
    ['a checksum that ends a byte behind it', [1, 0, 0, 0, 291, 8], null],
    ['a checksum that starts behind it', [1, 0, 0, 0, 301, 0], null],
    ['a checksum whose place wraps 16 bits', [1, 0, 0, 0, 0xffff, 0xffff], null],
    ['a checksum whose place wraps to 0', [1, 0, 0, 0, 0xfff0, 0x10], null],
    ['segments of no size', [1, 1, 54, 0, 34, 16], null],
    ['segments of a kind that nobody knows', [1, 2, 54, 100, 34, 16], null],
    ['segments of UDP', [1, 3, 54, 100, 34, 16], null],
    [
      'segments with a header that is longer than the frame',
      [1, 1, 0xffff, 100, 34, 16],
      [1, 1, 300, 100, 34, 16],
    ],
    ['segments without a checksum', [0, 1, 54, 100, 34, 16], [0, 1, 54, 100, 0, 0]],
  ];

  for (const [what, sent, expected] of headers) {
    it(`${what}: ${expected === null ? 'dropped and returned' : 'arrives as far as it is true'}`, async () => {
      const [from, to] = [await openScene(), await openScene()];
      from.device.receiver = (table) => to.device.send(table, ALL, 0, table.count);
      const sender = await from.boot({ bits: [0, 11, 12, 28] });
      const receiver = await to.boot({ bits: [1, 7, 8, 28] });
      receiver.post(BUFFERS, 2000);
      const header = new Uint8Array(12);
      const [flags = 0, type = 0, ...words] = sent;
      header.set([flags, type]);
      words.forEach((word, i) => {
        new DataView(header.buffer).setUint16(2 + 2 * i, word, true);
      });
      sender.send(FRAME, PAYLOAD, [WHOLE], header);
      await soon('it is returned', () => sender.tx.usedIdx === 1);
      await turns(3);
      assert.equal(receiver.rx.usedIdx, expected === null ? 0 : 1);
      const { rx } = to.device.stats().details;
      if (expected === null) {
        assert.equal(rx.droppedHeader + rx.droppedOffload, 1);
        return;
      }
      const got = receiver.read(BUFFERS, WHOLE);
      const view = new DataView(got.buffer);
      const fields = [got[0], got[1], ...[2, 4, 6, 8].map((at) => view.getUint16(at, true))];
      assert.deepEqual(fields, expected);
      assert.deepEqual(got.subarray(12), FRAME);
    });
  }

  it('a frame of a thousand to one that takes one: the rest waits, and nothing is lost that was taken', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const table = createHostTable(256, 300);
    for (let i = 0; i < 256; i++) table.bytes.set(FRAME, table.headAt(table.addHead(300)));
    assert.equal(scene.device.send(table, ALL, 0, 256), 256);
    for (let i = 0; i < 256; i++) {
      guest.post(BUFFERS, 2000);
      guest.rx.kick();
      await soon('the next', () => guest.rx.driver.reap().length === 1);
    }
    assert.equal(scene.device.stats().details.rx.frames, 256);
    assert.ok(counter(guest.rx.callFd) > 0);
  });
});
