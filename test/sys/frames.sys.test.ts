import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoName, errnoOf } from '../../src/core/errors.ts';
import {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_VLAN,
  HEAD_AT,
  HEAD_BYTES,
  HEADROOM_BYTES,
  TAIL_COUNT,
  TAIL_START,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../src/core/frames.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { memfd } from '../../src/sys/fds.ts';
import { GuestSpace } from '../../src/sys/space.ts';
import {
  addChain,
  addHead,
  addTarget,
  all,
  frameBytes,
  guestMemory,
  headOf,
  pattern,
  setWord,
  status,
  table,
  tailOf,
  word,
} from '../support/guest-memory.ts';

const PAGE = native().pageSize();
const GIB = 2 ** 30;
const EINVAL = -errnoOf('EINVAL');
const HEADER = Uint8Array.of(1, 0x81, 0x42, 0, 0xb4, 5, 34, 0, 16, 0, 2, 0);

/** The name of each frame's status, and '' for 0. */
function statuses(of: ReturnType<typeof table>): string[] {
  return Array.from({ length: of.count }, (_, i) => (status(of, i) === 0 ? '' : errnoName(status(of, i))));
}

describe('framesPeek', () => {
  it('takes header and head out of a chain, however it is cut, and leaves the tail where it is', () => {
    const { space, end } = guestMemory(16 * PAGE);
    const frame = pattern(1000);
    const bytes = new Uint8Array([...HEADER, ...frame]);
    assert.equal(space.write(PAGE - 500, bytes), 0);
    const cuts = [
      [],
      [12],
      [1, 11],
      [0, 0, 12, 12, 13],
      [5, 100, 268],
      [268],
      [267],
      [269],
      [12, 268, 268],
      [900, 1012, 1012],
      [11, 26],
    ];
    const peeked = table(cuts.length, 64, 256);
    for (const cut of cuts) {
      const ends = [...cut, bytes.length];
      const pieces = ends.map((to, i) => ({
        address: PAGE - 500 + (ends[i - 1] ?? 0),
        bytes: to - (ends[i - 1] ?? 0),
        space: space.id,
      }));
      setWord(peeked, addChain(peeked, pieces), FRAME_SLOT, 99);
    }
    setWord(peeked, 0, FRAME_VLAN, 5);
    assert.equal(native().framesPeek(peeked.bytes, cuts.length, 12, 256), cuts.length);
    space.write(0, new Uint8Array(2 * PAGE));
    cuts.forEach((cut, i) => {
      assert.equal(status(peeked, i), 0);
      assert.equal(word(peeked, i, HEAD_AT), peeked.headAt(i));
      assert.deepEqual(
        headOf(peeked, i),
        frame.subarray(0, 256),
        `${cut}: the guest cannot change it any more`,
      );
      assert.equal(frameBytes(peeked, i), 1000);
      const tail = tailOf(peeked, i);
      assert.equal(tail[0]?.address, PAGE - 500 + 268, `${cut}`);
      assert.equal(
        tail.reduce((sum, piece) => sum + piece.bytes, 0),
        1000 - 256,
      );
      assert.ok(tail[0] !== undefined && tail[0].bytes > 0, `${cut}: a tail begins with a byte`);
      assert.equal(word(peeked, i, VNET_FLAGS), 1 | (0x81 << 8) | (0x42 << 16));
      assert.equal(word(peeked, i, VNET_GSO), 0x5b4 | (34 << 16));
      assert.equal(word(peeked, i, VNET_CSUM), 16 | (2 << 16));
      assert.equal(word(peeked, i, FRAME_SLOT), 99);
    });
    assert.equal(word(peeked, 0, FRAME_VLAN), 5);
    end();
  });

  it('takes short frames whole, with any header there is', () => {
    const { space, end } = guestMemory(PAGE);
    const bytes = new Uint8Array([...HEADER, ...pattern(256)]);
    assert.equal(space.write(0, bytes), 0);
    for (const header of [0, 10, 12]) {
      const peeked = table(4, 4, 256);
      for (const length of [14, 60, 255, 256]) {
        addChain(peeked, [{ address: 12 - header, bytes: header + length, space: space.id }]);
      }
      assert.equal(native().framesPeek(peeked.bytes, 4, header, 256), 4);
      [14, 60, 255, 256].forEach((length, i) => {
        assert.deepEqual(headOf(peeked, i), pattern(length));
        assert.equal(word(peeked, i, TAIL_COUNT), 0);
        assert.equal(frameBytes(peeked, i), length);
        if (header === 12) return;
        assert.equal(word(peeked, i, VNET_CSUM) >>> 16, 0, 'num_buffers is not in a short header');
        if (header === 0) assert.deepEqual([word(peeked, i, VNET_FLAGS), word(peeked, i, VNET_GSO)], [0, 0]);
      });
    }
    end();
  });

  it('copies no more than the slot has room for, nor than it is told', () => {
    const { space, end } = guestMemory(PAGE);
    assert.equal(space.write(0, pattern(1000)), 0);
    for (const [max, got] of [
      [64, 64],
      [1000, 96],
      [0, 0],
      [2 ** 32 - 1, 96],
    ] as const) {
      const peeked = table(2, 2, 96);
      addChain(peeked, [{ address: 0, bytes: 1000, space: space.id }]);
      peeked.bytes[peeked.headAt(1) - HEADROOM_BYTES] = 0x77;
      assert.equal(native().framesPeek(peeked.bytes, 1, 0, max), 1);
      assert.deepEqual(headOf(peeked, 0), pattern(1000).subarray(0, got));
      assert.deepEqual(tailOf(peeked, 0), [{ address: got, bytes: 1000 - got, space: space.id }]);
      assert.equal(peeked.bytes[peeked.headAt(1) - HEADROOM_BYTES], 0x77);
    }
    end();
  });

  it('knows frames that are too short and too long, and goes on', () => {
    const { space, end } = guestMemory(32 * PAGE);
    const peeked = table(16, 16, 256);
    const lengths = [0, 1, 11, 12, 25, 26, 12 + 65_566, 12 + 65_567, 2 ** 32 - 1, 100];
    for (const bytes of lengths) addChain(peeked, [{ address: 0, bytes, space: space.id }]);
    // More than 2^32 in the sum.
    addChain(
      peeked,
      [2 ** 31, 2 ** 31, 100].map((bytes) => ({ address: 0, bytes, space: space.id })),
    );
    addChain(peeked, []);
    assert.equal(native().framesPeek(peeked.bytes, peeked.count, 12, 256), 3);
    const bad = 'EMSGSIZE';
    assert.deepEqual(statuses(peeked), [bad, bad, bad, bad, bad, '', '', bad, bad, '', bad, bad]);
    for (const frame of [0, 7, 10]) {
      assert.deepEqual(
        [HEAD_BYTES, TAIL_COUNT, FRAME_BYTES].map((which) => word(peeked, frame, which)),
        [0, 0, 0],
      );
    }
    assert.equal(frameBytes(peeked, 6), 65_566);
    end();
  });

  it('knows segments that are not in their space, also where nothing would be copied from', () => {
    const { space, end } = guestMemory(4 * PAGE);
    const other = guestMemory(4 * PAGE);
    const gone = new GuestSpace();
    gone.destroy();
    const good = { address: 0, bytes: 400, space: space.id };
    const bad = [
      { ...good, address: 4 * PAGE },
      { ...good, address: 4 * PAGE - 399 },
      { ...good, address: -1 },
      { ...good, address: -0.5 },
      { ...good, address: 2 ** 53 },
      { ...good, address: 2 ** 64 },
      { ...good, address: Number.POSITIVE_INFINITY },
      { ...good, address: Number.NEGATIVE_INFINITY },
      { ...good, address: Number.NaN },
      { ...good, address: -Number.MAX_VALUE },
      { ...good, space: 0 },
      { ...good, space: gone.id },
      { ...good, space: 2 ** 32 - 1 },
      { ...good, space: space.id + 1024 },
    ];
    const peeked = table(64, 256, 256);
    for (const one of bad) {
      addChain(peeked, [one]);
      addChain(peeked, [good, good, one]);
    }
    addChain(peeked, [good, { ...bad[0], bytes: 0 } as typeof good]);
    addChain(peeked, [{ ...good, address: -0 }]);
    assert.equal(native().framesPeek(peeked.bytes, peeked.count, 12, 256), 2);
    assert.deepEqual(statuses(peeked), [...bad.flatMap(() => ['EFAULT', 'EFAULT']), '', '']);
    end();
    assert.equal(native().framesPeek(peeked.bytes, peeked.count, 12, 256), 0);
    other.end();
  });

  it('crosses adjacent regions, and reads above 4 GiB', () => {
    const fd = memfd('zerotx-frames', 6 * GIB);
    const space = new GuestSpace();
    const edge = 4.75 * GIB;
    assert.equal(space.map(fd, 0, edge, 0, 0n), 0);
    assert.equal(space.map(fd, edge, 6 * GIB - edge, edge, BigInt(edge)), 0);
    calls.close(fd);
    const bytes = new Uint8Array([...HEADER, ...pattern(2000)]);
    const places = [3.9 * GIB, 4 * GIB - 6, 4 * GIB - 1000, 4.1 * GIB, 5.9 * GIB, 6 * GIB - bytes.length];
    places.push(...[1, 6, 12, 13, 100, 268, 269, 2011].map((before) => edge - before));
    const peeked = table(32, 32, 256);
    const target = table(32, 64, 64);
    for (const place of places) {
      const address = Math.floor(place);
      peeked.clear();
      target.clear();
      assert.equal(space.write(address, bytes), 0);
      addChain(peeked, [{ address, bytes: bytes.length, space: space.id }]);
      assert.equal(native().framesPeek(peeked.bytes, 1, 12, 256), 1);
      const out = new Uint8Array(2000);
      assert.equal(native().framesGather(peeked.bytes, 0, out), 2000);
      assert.deepEqual(out, pattern(2000), `${place}`);
      addTarget(target, 0, HEADER, [{ address: 5.5 * GIB, bytes: 3000, space: space.id }]);
      assert.equal(native().framesDeliver(peeked.bytes, target.bytes, 1), 1);
      const arrived = new Uint8Array(bytes.length);
      assert.equal(space.read(5.5 * GIB, arrived), 0);
      assert.deepEqual(arrived, bytes);
    }
    space.destroy();
  });

  it('refuses senseless arguments', () => {
    const peeked = table(4, 4, 64);
    assert.equal(native().framesPeek(peeked.bytes, 5, 12, 64), EINVAL);
    for (const header of [1, 11, 13, 2 ** 32]) {
      assert.equal(native().framesPeek(peeked.bytes, 1, header, 64), header === 2 ** 32 ? 0 : EINVAL);
    }
    assert.equal(native().framesPeek(peeked.bytes.subarray(8), 1, 12, 64), EINVAL);
    assert.equal(native().framesPeek(peeked.bytes.subarray(0, -16), 1, 12, 64), EINVAL);
    assert.equal(native().framesPeek(new Uint8Array(0), 0, 12, 64), EINVAL);
    setWord(peeked, 0, TAIL_START, 4);
    setWord(peeked, 0, TAIL_COUNT, 1);
    setWord(peeked, 1, TAIL_START, 2 ** 32 - 1);
    setWord(peeked, 1, TAIL_COUNT, 2);
    setWord(peeked, 2, TAIL_START, 1);
    setWord(peeked, 2, TAIL_COUNT, 2 ** 32 - 1);
    peeked.count = 3;
    assert.equal(native().framesPeek(peeked.bytes, 3, 12, 64), 0);
    assert.deepEqual(statuses(peeked), ['EINVAL', 'EINVAL', 'EINVAL']);
  });
});

describe('framesDeliver', () => {
  it('writes header, head and tail over the segments, from guest to guest', () => {
    const from = guestMemory(16 * PAGE);
    const to = guestMemory(16 * PAGE);
    const frame = pattern(5000);
    assert.equal(from.space.write(2 * PAGE, frame), 0);
    const source = table(4, 16, 128);
    const chain = [
      { address: 2 * PAGE, bytes: 3000, space: from.space.id },
      { address: 2 * PAGE + 3000, bytes: 2000, space: from.space.id },
    ];
    addChain(source, chain);
    assert.equal(native().framesPeek(source.bytes, 1, 0, 128), 1);
    addHead(source, pattern(100, 3));
    const target = table(8, 32, 64);
    const room = (address: number, bytes: number) => ({ address, bytes, space: to.space.id });
    addTarget(target, 0, HEADER, [room(0, 5), room(100, 7), room(200, 4000), room(5000, 1000)]);
    addTarget(target, 1, HEADER, [room(7000, 2000)]);
    addTarget(target, 1, new Uint8Array(0), [room(9000, 99), room(10_000, 0), room(11_000, 1)]);
    assert.equal(native().framesDeliver(source.bytes, target.bytes, 3), 3);
    const memory = new Uint8Array(to.space.view(0, 16 * PAGE) as ArrayBuffer);
    assert.deepEqual(
      [...memory.subarray(0, 6), ...memory.subarray(100, 108)],
      [...[...HEADER.subarray(0, 5), 0], ...[...HEADER.subarray(5), 0]],
    );
    assert.deepEqual(memory.slice(200, 4200), frame.subarray(0, 4000));
    assert.deepEqual(memory.slice(5000, 6000), frame.subarray(4000));
    assert.equal(memory[6000], 0);
    assert.deepEqual(memory.slice(7000, 7112), new Uint8Array([...HEADER, ...pattern(100, 3)]));
    assert.deepEqual(
      new Uint8Array([...memory.subarray(9000, 9099), ...memory.subarray(11_000, 11_001)]),
      pattern(100, 3),
    );
    from.end();
    to.end();
  });

  it('writes nothing where there is too little room', () => {
    const to = guestMemory(PAGE);
    const source = table(1, 1, 1000);
    addHead(source, pattern(100));
    const target = table(4, 4, 64);
    for (const bytes of [111, 0, 112]) {
      addTarget(target, 0, HEADER, [{ address: 1000 * target.count, bytes, space: to.space.id }]);
    }
    addTarget(target, 0, HEADER, []);
    assert.equal(native().framesDeliver(source.bytes, target.bytes, 4), 1);
    assert.deepEqual(statuses(target), ['EMSGSIZE', 'EMSGSIZE', '', 'EMSGSIZE']);
    const memory = new Uint8Array(to.space.view(0, PAGE) as ArrayBuffer);
    assert.ok(memory.subarray(0, 2000).every((byte) => byte === 0));
    to.end();
  });

  it('fails for what either guest has not got, and for indexes out of range', () => {
    const from = guestMemory(PAGE);
    const to = guestMemory(PAGE);
    const source = table(4, 8, 64);
    addChain(source, [{ address: 0, bytes: 1000, space: from.space.id }]);
    assert.equal(native().framesPeek(source.bytes, 1, 0, 64), 1);
    addHead(source, pattern(60));
    const target = table(8, 16, 64);
    const good = { address: 0, bytes: PAGE, space: to.space.id };
    addTarget(target, 1, HEADER, [{ ...good, address: PAGE - 20 }]);
    addTarget(target, 4, HEADER, [good]);
    addTarget(target, 1, HEADER, [good]);
    setWord(target, 2, HEAD_AT, target.bytes.length - 11);
    addTarget(target, 1, HEADER, [good]);
    setWord(target, 3, TAIL_COUNT, 17);
    addTarget(target, 1, HEADER, [good]);
    setWord(target, 4, HEAD_BYTES, 2 ** 32 - 1);
    addTarget(target, 0, HEADER, [good]);
    assert.equal(native().framesDeliver(source.bytes, target.bytes, 6), 1);
    assert.deepEqual(statuses(target), ['EFAULT', 'EINVAL', 'EINVAL', 'EINVAL', 'EINVAL', '']);
    from.end();
    assert.equal(native().framesDeliver(source.bytes, target.bytes, 6), 0);
    assert.equal(statuses(target)[5], 'EFAULT');
    setWord(source, 1, HEAD_AT, source.bytes.length - 59);
    target.clear();
    addTarget(target, 1, HEADER, [good]);
    assert.equal(native().framesDeliver(source.bytes, target.bytes, 1), 0);
    assert.deepEqual(statuses(target), ['EINVAL']);
    assert.equal(native().framesDeliver(source.bytes, target.bytes, 9), EINVAL);
    to.end();
  });

  it('takes a guest that sends to where it sends from', () => {
    const { space, end } = guestMemory(PAGE);
    assert.equal(space.write(0, pattern(1000)), 0);
    const source = table(1, 1, 64);
    addChain(source, [{ address: 0, bytes: 1000, space: space.id }]);
    assert.equal(native().framesPeek(source.bytes, 1, 0, 64), 1);
    const target = table(1, 1, 64);
    addTarget(target, 0, HEADER, [{ address: 30, bytes: 1012, space: space.id }]);
    assert.equal(native().framesDeliver(source.bytes, target.bytes, 1), 1);
    end();
  });
});

describe('framesGather and framesChecksum', () => {
  it('read head and tail', () => {
    const { space, end } = guestMemory(4 * PAGE);
    const bytes = pattern(3 * PAGE).map((byte) => byte | 0x80);
    assert.equal(space.write(0, bytes), 0);
    const frames = table(4, 8, 300);
    addChain(frames, [
      { address: 0, bytes: 1000, space: space.id },
      { address: 1000, bytes: 2 * PAGE - 1000, space: space.id },
    ]);
    addChain(frames, [{ address: 5, bytes: 200, space: space.id }]);
    addChain(frames, [{ address: 4 * PAGE - 50, bytes: 50, space: space.id }]);
    assert.equal(native().framesPeek(frames.bytes, 3, 0, 256), 3);
    const out = new Uint8Array(2 * PAGE + 10);
    assert.equal(native().framesGather(frames.bytes, 0, out), 2 * PAGE);
    assert.deepEqual(out.subarray(0, 2 * PAGE), bytes.subarray(0, 2 * PAGE));
    assert.equal(native().framesGather(frames.bytes, 0, out.subarray(0, 2 * PAGE)), 2 * PAGE);
    assert.equal(native().framesGather(frames.bytes, 0, out.subarray(0, 2 * PAGE - 1)), -errnoOf('EMSGSIZE'));
    assert.equal(native().framesGather(frames.bytes, 4, out), EINVAL);

    const total = (part: Uint8Array): number => part.reduce((sum, byte) => sum + byte, 0);
    const both = total(bytes.subarray(0, 2 * PAGE)) + total(bytes.subarray(5, 205));
    assert.equal(native().framesChecksum(frames.bytes, Uint32Array.of(1, 0, 2), 3), both);
    assert.equal(
      native().framesChecksum(frames.bytes, Uint32Array.of(0, 0, 0), 1),
      total(bytes.subarray(0, 2 * PAGE)),
    );
    assert.equal(native().framesChecksum(frames.bytes, all(3), 4), EINVAL);
    assert.equal(native().framesChecksum(frames.bytes, Uint32Array.of(4), 1), EINVAL);
    end();
    assert.equal(native().framesGather(frames.bytes, 0, out), -errnoOf('EFAULT'));
    assert.equal(
      native().framesChecksum(frames.bytes, all(2), 2),
      total(headOf(frames, 0)) + total(headOf(frames, 1)),
    );
    assert.deepEqual(statuses(frames), ['EFAULT', '', '']);
  });

  it('add up any number of bytes', () => {
    const frames = table(1, 1, 5000);
    for (const bytes of [14, 15, 1023, 1024, 1025, 1032, 2048, 4999]) {
      frames.clear();
      addHead(frames, new Uint8Array(bytes).fill(255));
      assert.equal(native().framesChecksum(frames.bytes, all(1), 1), bytes * 255);
      assert.equal(word(frames, 0, FRAME_STATUS), 0);
    }
  });
});
