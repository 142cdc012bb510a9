/**
 * A guest whose other processor changes descriptors, tables, headers, rings and payload while the device reads them. Whatever is read is
 * read once: each frame is one that the guest could have meant, and what was checked is what goes out.
 */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  HEAD_BYTES,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../src/core/frames.ts';
import { scaled } from '../support/counts.ts';
import { type Flip, Flipper } from '../support/hostile-flipper.ts';
import {
  type HostileGuest,
  type HostileRing,
  INDIRECT_BIT,
  MRG_RXBUF_BIT,
  PAYLOAD,
  soon,
  TX,
  turn,
  VNET_BYTES,
} from '../support/hostile-guest.ts';
import { deliver, endScenes, frameOf, openScene, type Scene, Witness } from '../support/hostile-scene.ts';
import { INDIRECT, NEXT, WRITE, writeDescriptor } from '../support/vring.ts';

const timeout = scaled(120_000, 3_600_000);
const FLIPS = scaled(1_000_000, 100_000_000);
const FRAMES = scaled(5_000, 2_000_000);
const ALL = Uint32Array.from({ length: 4096 }, (_, i) => i);

/** Places with nothing but one letter, and one that is not in memory. */
const A = PAYLOAD;
const B = PAYLOAD + 0x2_0000;
const C = PAYLOAD + 0x4_0000;
const TABLE = PAYLOAD + 0x6_0000;
const OUTSIDE_HIGH = 0xffff_ffff;
const LETTERS = 0x1_0100;

function letters(guest: HostileGuest): void {
  for (const [at, letter] of [
    [A, 'a'],
    [B, 'b'],
    [C, 'c'],
  ] as const) {
    guest.write(at, new Uint8Array(LETTERS).fill(letter.charCodeAt(0)));
  }
}

/** Where the words of descriptor `index` of a table at `at` are. */
function descFlips(at: number, index: number): Record<'low' | 'high' | 'length' | 'flags' | 'next', number> {
  const desc = at + 16 * index;
  return { low: desc, high: desc + 4, length: desc + 8, flags: desc + 12, next: desc + 14 };
}

/** Offers all that is back, until there were so many flips and frames; restarts a ring that is broken. */
async function race(
  scene: Scene,
  guest: HostileGuest,
  flips: readonly Flip[],
  check: () => void,
  most = Number.POSITIVE_INFINITY,
): Promise<void> {
  const flipper = await Flipper.start(guest, flips);
  const { tx } = guest;
  for (let i = 0; i < tx.driver.size; i++) tx.driver.push(0);
  let restarts = 0;
  try {
    while ((flipper.flips < FLIPS || scene.recorder.count < FRAMES) && restarts < most) {
      if (scene.broken.length > restarts) {
        restarts = scene.broken.length;
        const base = await guest.base(TX);
        tx.driver.setAvailIdx(base);
        await guest.start(TX, base);
      }
      // One at a time, as one head cannot be out twice.
      tx.driver.setAvailIdx((tx.usedIdx + 1) & 0xffff);
      tx.kick();
      await turn();
      check();
    }
  } finally {
    await flipper.stop();
  }
  assert.deepEqual(scene.failures, []);
}

/** Lengths of the runs of a letter. */
function runs(bytes: Uint8Array): string {
  const out: string[] = [];
  for (let i = 0; i < bytes.length; ) {
    let end = i + 1;
    while (end < bytes.length && bytes[end] === bytes[i]) end += 1;
    out.push(`${String.fromCharCode(bytes[i] as number)}${end - i}`);
    i = end;
  }
  return out.join(' ');
}

describe('TOCTOU on len/addr/flags/hdr', { timeout }, () => {
  afterEach(endScenes);

  for (const indirect of [false, true]) {
    it(`case A7: address, length and flags flip in ${indirect ? 'an indirect table' : 'the ring'}: one or the other`, async () => {
      const witness = await Witness.arrive();
      const scene = await openScene();
      const guest = await scene.boot({ bits: [INDIRECT_BIT] });
      letters(guest);
      const at = indirect ? TABLE : 0x4_0000;
      const view = new DataView(guest.view(at, 64));
      writeDescriptor(view, 0, { address: BigInt(A), length: 64, flags: 0, next: 1 });
      writeDescriptor(view, 1, { address: BigInt(C), length: 37, flags: 0, next: 0 });
      if (indirect)
        guest.tx.driver.writeDesc(0, { address: BigInt(TABLE), length: 32, flags: INDIRECT, next: 0 });
      const { low, high, length, flags } = descFlips(at, 0);
      const seen = new Set<string>();
      const legal = new Set<string>();
      for (const letter of ['a', 'b']) {
        for (const bytes of [64, 65_535]) {
          legal.add(`${letter}${bytes - VNET_BYTES}`).add(`${letter}${bytes - VNET_BYTES} c37`);
        }
      }
      await race(
        scene,
        guest,
        [
          { at: low, bytes: 4, values: [A, B] },
          { at: high, bytes: 4, values: [0, 0, 0, OUTSIDE_HIGH] },
          { at: length, bytes: 4, values: [64, 64, 64, 65_535] },
          { at: flags, bytes: 2, values: [0, NEXT, NEXT, WRITE] },
        ],
        () => {
          for (const { bytes } of scene.recorder.frames.splice(0)) {
            const shape = runs(bytes);
            assert.ok(legal.has(shape), `${bytes.length} bytes: ${shape.slice(0, 100)}`);
            seen.add(shape);
          }
        },
      );
      assert.ok(seen.size >= 4, [...seen].join('; '));
      assert.deepEqual(scene.broken, []);
      await witness.testifies();
    });
  }

  it('next, indirect and length of the table flip to what breaks the ring, too: broken or right, again and again', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = await scene.boot({ bits: [INDIRECT_BIT] });
    letters(guest);
    guest.tx.driver.writeDesc(0, { address: BigInt(A), length: 64, flags: NEXT, next: 1 });
    guest.tx.driver.writeDesc(1, { address: BigInt(C), length: 37, flags: 0, next: 0 });
    const view = new DataView(guest.view(TABLE, 64));
    writeDescriptor(view, 0, { address: BigInt(A), length: 64, flags: NEXT, next: 1 });
    writeDescriptor(view, 1, { address: BigInt(C), length: 37, flags: 0, next: 0 });
    const [zero, one] = [descFlips(0x4_0000, 0), descFlips(0x4_0000, 1)];
    await race(
      scene,
      guest,
      [
        { at: zero.low, bytes: 4, values: [A, TABLE] },
        { at: zero.length, bytes: 4, values: [64, 32, 33] },
        { at: zero.flags, bytes: 2, values: [NEXT, NEXT, INDIRECT, 0] },
        { at: zero.next, bytes: 2, values: [1, 1, 1, 0, 65_535] },
        { at: one.flags, bytes: 2, values: [0, 0, 0, NEXT] },
        { at: TABLE + 12, bytes: 4, values: [NEXT | (1 << 16), 0, NEXT | (7 << 16), INDIRECT] },
      ],
      () => {
        for (const { bytes } of scene.recorder.frames.splice(0)) {
          // A descriptor may lead to itself for a while, and then on.
          assert.ok(bytes.length <= 256 * 64, `${bytes.length} bytes`);
        }
      },
      scaled(300, 200_000),
    );
    assert.ok(scene.broken.length > 0, 'never broken');
    await witness.testifies();
  });

  it('avail.idx and heads flip: broken or right, and memory is bounded', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    letters(guest);
    for (let i = 0; i < 256; i++) {
      guest.tx.driver.writeDesc(i, { address: BigInt(A), length: 64, flags: 0, next: 0 });
    }
    const avail = 0x4_0000 + 0x2_0000;
    const flips: Flip[] = [{ at: avail + 2, bytes: 2, values: [0, 1, 2, 3, 255, 256, 257, 40_000] }];
    for (let i = 0; i < 256; i += 8)
      flips.push({ at: avail + 4 + 2 * i, bytes: 2, values: [0, 1, 2, 255, 256, 65_535] });
    const flipper = await Flipper.start(guest, flips);
    let restarts = 0;
    const most = scaled(200, 50_000);
    while (flipper.flips < FLIPS || restarts < most) {
      guest.tx.kick();
      await turn();
      if (scene.broken.length === restarts) continue;
      restarts = scene.broken.length;
      if (restarts >= most && flipper.flips >= FLIPS) break;
      const base = await guest.base(TX);
      assert.equal(base, guest.tx.usedIdx, 'as much is back as was taken');
      await guest.start(TX, base);
    }
    await flipper.stop();
    assert.deepEqual(scene.failures, []);
    assert.equal(scene.device.stats().lentNow, 0);
  });

  it('the header flips: what is looked at is what is handed on', async () => {
    const scene = await openScene();
    const guest = await scene.boot();
    const headers = [
      [0x0022_0101, 0x0022_0400, 0x0000_0010],
      [0xffff_ff00, 0xffff_0000, 0xffff_ffff],
    ] as const;
    guest.tx.driver.writeDesc(0, { address: BigInt(A), length: VNET_BYTES + 300, flags: 0, next: 0 });
    guest.write(A, new Uint8Array(Uint32Array.from(headers[0]).buffer));
    let looked = 0;
    const wrong: string[] = [];
    scene.device.receiver = (table: FrameTable) => {
      for (let i = 0; i < table.count; i++) {
        const at = i * FRAME_WORDS;
        const words = [VNET_FLAGS, VNET_GSO, VNET_CSUM].map((word) => table.records[at + word] as number);
        if (words.some((word, k) => word !== headers[0][k] && word !== headers[1][k])) wrong.push(`${words}`);
        // The head is a copy: two looks see the same, though the payload flips as well.
        const head = table.records[at + HEAD_AT] as number;
        const bytes = table.bytes.subarray(head, head + (table.records[at + HEAD_BYTES] as number));
        const once = bytes.slice();
        const whole = new Uint8Array(table.records[at + FRAME_BYTES] as number);
        table.owner.gather(i, whole);
        if (Buffer.compare(bytes, once) !== 0) wrong.push('a head that changes');
        if (Buffer.compare(whole.subarray(0, bytes.length), once) !== 0) wrong.push('another head');
        looked += 1;
      }
      scene.recorder.count += table.count;
      return table.count;
    };
    const flips: Flip[] = [0, 1, 2].map((word) => ({
      at: A + 4 * word,
      bytes: 4,
      values: headers.map((header) => header[word] as number),
    }));
    for (let at = A + 12; at < A + 300; at += 4) flips.push({ at, bytes: 4, values: [0, 0xffff_ffff] });
    await race(scene, guest, flips, () => {});
    assert.deepEqual(wrong, []);
    assert.ok(looked >= FRAMES);
  });

  it('csum_start flips on the way to another guest: it gets one that is in the frame', async () => {
    const [from, to] = [await openScene(), await openScene()];
    from.device.receiver = (table) => {
      from.recorder.count += table.count;
      return to.device.send(table, ALL, 0, table.count);
    };
    const sender = await from.boot({ bits: [0] });
    const receiver = await to.boot({ bits: [1, INDIRECT_BIT] });
    const header = Uint8Array.of(1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0);
    sender.write(A, header);
    sender.tx.driver.writeDesc(0, { address: BigInt(A), length: VNET_BYTES + 300, flags: 0, next: 0 });
    const buffer = new DataView(receiver.view(PAYLOAD, 4096));
    receiver.rx.driver.writeDesc(0, { address: BigInt(PAYLOAD), length: 4096, flags: WRITE, next: 0 });
    for (let i = 0; i < 256; i++) receiver.rx.driver.push(0);
    let came = 0;
    await race(
      from,
      sender,
      [
        { at: A + 6, bytes: 2, values: [34, 299, 60_000] },
        { at: A + 8, bytes: 2, values: [16, 1, 0xffff] },
        { at: A, bytes: 2, values: [1, 0, 0x0101] },
      ],
      () => {
        if (receiver.rx.usedIdx !== (came & 0xffff)) {
          came += 1;
          if (buffer.getUint8(0) === 1) {
            const end = buffer.getUint16(6, true) + buffer.getUint16(8, true) + 2;
            assert.ok(end <= 300, `a checksum that ends at ${end}`);
          }
          assert.equal(buffer.getUint8(1), 0, 'segments were not negotiated');
        }
        receiver.rx.driver.setAvailIdx((receiver.rx.usedIdx + 1) & 0xffff);
      },
    );
    assert.ok(came > FRAMES / 20, `${came} came`);
    const { droppedHeader, droppedOffload } = to.device.stats().details.rx;
    assert.ok(droppedHeader > 0 && droppedOffload > 0);
    assert.deepEqual(to.broken, []);
  });

  it('receive buffers flip: frames go where one of them says, or nowhere', async () => {
    const witness = await Witness.arrive();
    const scene = await openScene();
    const guest = await scene.boot({ bits: [MRG_RXBUF_BIT, INDIRECT_BIT] });
    const fence = new Uint8Array(4096).fill(0xee);
    for (const at of [A + 4096, B + 4096]) guest.write(at, fence);
    const ring: HostileRing = guest.rx;
    for (let i = 0; i < 256; i++) {
      ring.driver.writeDesc(i, { address: BigInt(A), length: 2000, flags: WRITE, next: 0 });
      ring.driver.push(i);
    }
    const flips: Flip[] = [];
    for (let i = 0; i < 256; i += 3) {
      const { low, high, length, flags } = descFlips(0, i);
      flips.push({ at: low, bytes: 4, values: [A, B] });
      flips.push({ at: high, bytes: 4, values: [0, 0, OUTSIDE_HIGH] });
      flips.push({ at: length, bytes: 4, values: [2000, 4096, 0, 11, 12] });
      flips.push({ at: flags, bytes: 2, values: [WRITE, WRITE, 0] });
    }
    const flipper = await Flipper.start(guest, flips);
    const frame = frameOf(1500, 9);
    for (let i = 0; flipper.flips < FLIPS || i < FRAMES; i++) {
      ring.driver.setAvailIdx((ring.usedIdx + 256) & 0xffff);
      deliver(scene, frame);
      if (i % 64 === 0) await turn();
    }
    await flipper.stop();
    assert.deepEqual([scene.broken, scene.failures], [[], []]);
    for (const at of [A + 4096, B + 4096]) assert.deepEqual(guest.read(at, 4096), fence);
    const { rx } = scene.device.stats().details;
    assert.ok(rx.frames > 0 && rx.chainsUseless > 0);
    await witness.testifies();
    await soon('it is still there', () => scene.device.state === 'connected');
  });
});
