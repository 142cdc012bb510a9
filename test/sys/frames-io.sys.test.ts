import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoName, errnoOf } from '../../src/core/errors.ts';
import {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_VLAN,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  HEADROOM_BYTES,
  TAIL_COUNT,
  TAIL_START,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../src/core/frames.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  EPOLLIN,
  MSG_ZEROCOPY,
  SO_SNDBUF,
  SO_ZEROCOPY,
  SOCK_DGRAM,
  SOL_SOCKET,
} from '../../src/sys/constants.ts';
import { decodeSockaddr, SOCKADDR_BYTES } from '../../src/wire/sockaddr.ts';
import { socketPair } from '../support/descriptors.ts';
import {
  addChain,
  addHead,
  all,
  type GuestMemory,
  guestMemory,
  headOf,
  pattern,
  setWord,
  status,
  table,
  word,
} from '../support/guest-memory.ts';
import { released, tcpPair, udpSocket, waitFor } from '../support/sockets.ts';

const PAGE = native().pageSize();
const MIB = 2 ** 20;
const NO_PREFIX = new Uint8Array(0);
const [EAGAIN, EINVAL, EBADF, EFAULT, EMSGSIZE] = ['EAGAIN', 'EINVAL', 'EBADF', 'EFAULT', 'EMSGSIZE'].map(
  (name) => -errnoOf(name),
) as [number, number, number, number, number];

/** Frames of these lengths, peeked from guest memory: what each consists of. */
function peeked(guest: GuestMemory, lengths: readonly number[], headMax = 64): [FrameTable, Uint8Array[]] {
  const frames = table(lengths.length, 3 * lengths.length, Math.max(headMax, 16));
  const contents = lengths.map((length, i) => pattern(length, i));
  let address = 0;
  for (const bytes of contents) {
    assert.equal(guest.space.write(address, bytes), 0);
    const third = Math.floor(bytes.length / 3);
    const pieces = [third, third, bytes.length - 2 * third].map((count, i) => ({
      address: address + i * third,
      bytes: count,
      space: guest.space.id,
    }));
    addChain(frames, pieces);
    address += bytes.length;
  }
  assert.equal(native().framesPeek(frames.bytes, lengths.length, 0, headMax), lengths.length);
  return [frames, contents];
}

function datagrams(fd: number): Uint8Array[] {
  const into = new Uint8Array(70_000);
  const all: Uint8Array[] = [];
  for (;;) {
    const got = native().readv(fd, [into], 1);
    if (got < 0) return all;
    all.push(into.slice(0, got));
  }
}

/** Prefix i is `bytes` times i + 1. */
function prefixes(count: number, bytes: number): [Uint8Array, (i: number) => Uint8Array] {
  const all = Uint8Array.from({ length: count * bytes }, (_, i) => 1 + Math.floor(i / bytes));
  return [all, (i) => all.subarray(i * bytes, (i + 1) * bytes)];
}

function join(...parts: readonly Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(parts));
}

for (const call of ['framesWrite', 'framesSendmmsg'] as const) {
  describe(call, () => {
    it('sends prefix, head and tail of the frames that were chosen, as a datagram each', () => {
      const guest = guestMemory(64 * PAGE);
      const [frames, contents] = peeked(guest, [100, 14, 3000, 64, 9000, 65]);
      const [a, b] = socketPair(SOCK_DGRAM);
      const which = Uint32Array.of(9, 4, 0, 2, 5, 1, 3, 3);
      const [prefix, prefixOf] = prefixes(8, 12);
      assert.equal(native()[call](a, frames.bytes, which, 0, 7, prefix, 12), EINVAL, 'there is no 9');
      which[0] = 0;
      assert.equal(native()[call](a, frames.bytes, which, 1, 7, prefix, 12), 7);
      assert.deepEqual(
        datagrams(b),
        [1, 2, 3, 4, 5, 6].map((i) => join(prefixOf(i), contents[which[i] as number] as Uint8Array)),
      );
      assert.equal(native()[call](a, frames.bytes, which, 2, 4, NO_PREFIX, 0), 4);
      assert.deepEqual(datagrams(b), [contents[0], contents[2]]);
      assert.equal(native()[call](a, frames.bytes, which, 3, 3, NO_PREFIX, 0), 3);
      assert.deepEqual(datagrams(b), []);
      for (const fd of [a, b]) calls.close(fd);
      guest.end();
    });

    it('sends more than one list of the kernel has room for', () => {
      const guest = guestMemory(256 * PAGE);
      const frames = table(200, 6400, 64);
      assert.equal(guest.space.write(0, pattern(MIB)), 0);
      for (let i = 0; i < 200; i++) {
        addChain(
          frames,
          Array.from({ length: 32 }, (_, piece) => ({
            address: 4000 * i + 16 * piece,
            bytes: 3,
            space: guest.space.id,
          })),
        );
      }
      assert.equal(native().framesPeek(frames.bytes, 200, 0, 14), 200);
      const [a, b] = socketPair(SOCK_DGRAM);
      let at = 0;
      const got: Uint8Array[] = [];
      for (let turn = 0; at < 200 && turn < 200; turn++) {
        at = native()[call](a, frames.bytes, all(200), at, 200, NO_PREFIX, 0);
        got.push(...datagrams(b));
      }
      assert.equal(got.length, 200);
      const out = new Uint8Array(96);
      got.forEach((bytes, i) => {
        assert.equal(native().framesGather(frames.bytes, i, out), 96);
        assert.deepEqual(bytes, out);
      });
      for (const fd of [a, b]) calls.close(fd);
      guest.end();
    });

    it('stops where there is no room, and goes on from there', () => {
      const guest = guestMemory(64 * PAGE);
      const lengths = Array.from({ length: 150 }, (_, i) => 14 + 10 * i);
      const [frames, contents] = peeked(guest, lengths);
      const [a, b] = socketPair(SOCK_DGRAM);
      calls.setOption(a, SOL_SOCKET, SO_SNDBUF, 1);
      const got: Uint8Array[] = [];
      let stops = 0;
      for (let at = 0; at < 150; stops++) {
        const next = native()[call](a, frames.bytes, all(150), at, 150, NO_PREFIX, 0);
        assert.ok(next > at);
        at = next;
        got.push(...datagrams(b));
      }
      assert.ok(stops > 10, `${stops}`);
      assert.deepEqual(got, contents);
      for (const fd of [a, b]) calls.close(fd);
      guest.end();
    });

    it('says which frames could not be sent, and sends the others', () => {
      const guest = guestMemory(64 * PAGE);
      const [frames, contents] = peeked(guest, [100, 200, 300, 400, 500, 60_000]);
      const { fd: peer, port } = udpSocket();
      const fd = calls.socket(2, SOCK_DGRAM);
      calls.connect(fd, '127.0.0.1', port);
      setWord(frames, 0, TAIL_START, frames.options.segments - 1);
      setWord(frames, 0, TAIL_COUNT, 2);
      frames.segments[4 * word(frames, 2, TAIL_START) + 3] = 12_345;
      setWord(frames, 4, HEAD_AT, frames.bytes.length);
      setWord(frames, 1, FRAME_STATUS, 7);
      const [prefix, prefixOf] = prefixes(6, 6000);
      assert.equal(native()[call](fd, frames.bytes, all(6), 0, 6, prefix, 6000), 6);
      assert.deepEqual(
        Array.from(all(6), (i) => (status(frames, i) === 0 ? '' : errnoName(status(frames, i)))),
        ['EINVAL', '', 'EFAULT', '', 'EINVAL', 'EMSGSIZE'],
      );
      assert.deepEqual(
        datagrams(peer),
        [1, 3].map((i) => join(prefixOf(i), contents[i] as Uint8Array)),
      );
      for (const one of [fd, peer]) calls.close(one);
      guest.end();
    });

    it('goes on after an error of an earlier datagram', async () => {
      const { fd: peer, port } = udpSocket();
      const fd = calls.socket(2, SOCK_DGRAM);
      calls.connect(fd, '127.0.0.1', port);
      calls.close(peer);
      const frames = table(3, 1, 64);
      for (let i = 0; i < 3; i++) addHead(frames, pattern(60, i));
      assert.equal(native().sendv(fd, [pattern(1)], 1, 0), 1);
      await waitFor(fd, EPOLLIN, (events) => events !== 0);
      assert.equal(native()[call](fd, frames.bytes, all(3), 0, 3, NO_PREFIX, 0), 3);
      assert.equal(status(frames, 0), errnoOf('ECONNREFUSED'));
      calls.close(fd);
    });

    it('refuses senseless arguments', () => {
      const [a, b] = socketPair(SOCK_DGRAM);
      const frames = table(4, 4, 64);
      const run = (fd: number, which: Uint32Array, from: number, count: number, bytes: number): number =>
        native()[call](fd, frames.bytes, which, from, count, new Uint8Array(40), bytes);
      assert.equal(run(a, all(4), 0, 5, 0), EINVAL);
      assert.equal(run(a, all(4), 3, 2, 0), EINVAL);
      assert.equal(run(a, all(4), 0, 4, 11), EINVAL);
      assert.equal(run(a, all(5), 0, 5, 0), EINVAL);
      assert.equal(run(a, all(4), 0, 4, 2 ** 32 - 1), EINVAL);
      assert.equal(run(0, all(4), 0, 4, 0), EBADF);
      for (const fd of [a, b]) calls.close(fd);
    });
  });
}

describe('framesStream', () => {
  it('sends the same bytes however it is interrupted', () => {
    const guest = guestMemory(1024 * PAGE);
    const lengths = Array.from({ length: 100 }, (_, i) => 14 + ((i * 997) % 30_000));
    const [frames, contents] = peeked(guest, lengths, 200);
    const [a, b] = socketPair();
    const which = all(100).reverse();
    const [prefix, prefixOf] = prefixes(100, 4);
    const wanted = [...which].map((frame, i) => join(prefixOf(i), contents[frame] as Uint8Array));
    const got: Uint8Array[] = [];
    let from = 0;
    let skip = 0;
    let turns = 0;
    while (from < 100) {
      const taken = native().framesStream(a, frames.bytes, which, from, 100, prefix, 4, skip, 0);
      assert.ok(taken > 0 && taken <= MIB, `${taken}`);
      skip += taken;
      while (from < 100 && skip >= (wanted[from] as Uint8Array).length)
        skip -= (wanted[from++] as Uint8Array).length;
      got.push(...datagrams(b));
      turns += 1;
    }
    assert.ok(turns > 3);
    assert.equal(skip, 0);
    assert.ok(Buffer.concat(got).equals(Buffer.concat(wanted)));
    assert.equal(native().framesStream(a, frames.bytes, which, 100, 100, prefix, 4, 0, 0), 0);
    for (const fd of [a, b]) calls.close(fd);
    guest.end();
  });

  it('leaves out what was sent, wherever that ends', () => {
    const guest = guestMemory(PAGE);
    const [frames, contents] = peeked(guest, [30, 40], 20);
    const [a, b] = socketPair();
    const bytes = join(
      pattern(3),
      contents[0] as Uint8Array,
      pattern(6).subarray(3),
      contents[1] as Uint8Array,
    );
    for (let skip = 0; skip <= bytes.length; skip++) {
      const taken = native().framesStream(a, frames.bytes, all(2), 0, 2, pattern(6), 3, skip, 0);
      assert.equal(taken, bytes.length - skip);
      assert.deepEqual(join(...datagrams(b)), bytes.subarray(skip));
    }
    assert.equal(native().framesStream(a, frames.bytes, all(2), 0, 2, pattern(6), 3, 1000, 0), 0);
    for (const fd of [a, b]) calls.close(fd);
    guest.end();
  });

  it('takes at most 1 MiB in 1,024 pieces, and says EAGAIN and EPIPE', async () => {
    const guest = guestMemory(MIB);
    const frames = table(40, 4000, 64);
    for (let i = 0; i < 40; i++) addChain(frames, [{ address: 0, bytes: 65_000, space: guest.space.id }]);
    assert.equal(native().framesPeek(frames.bytes, 40, 0, 14), 40);
    const { client, close } = await tcpPair();
    const taken = native().framesStream(client, frames.bytes, all(40), 0, 40, NO_PREFIX, 0, 0, 0);
    assert.ok(taken > 65_000 && taken <= MIB, `${taken}`);
    let last = taken;
    for (let i = 0; i < 1000 && last > 0; i++) {
      last = native().framesStream(client, frames.bytes, all(40), 0, 40, NO_PREFIX, 0, 0, 0);
    }
    assert.equal(last, EAGAIN);
    close();

    frames.clear();
    addChain(
      frames,
      Array.from({ length: 2000 }, () => ({ address: 0, bytes: 10, space: guest.space.id })),
    );
    assert.equal(native().framesPeek(frames.bytes, 1, 0, 10), 1);
    const [a, b] = socketPair();
    assert.equal(native().framesStream(a, frames.bytes, all(1), 0, 1, NO_PREFIX, 0, 0, 0), 10_240);
    calls.close(b);
    assert.equal(native().framesStream(a, frames.bytes, all(1), 0, 1, NO_PREFIX, 0, 0, 0), -errnoOf('EPIPE'));
    calls.close(a);
    guest.end();
  });

  it('begins no frame that cannot be read', () => {
    const guest = guestMemory(PAGE);
    const [frames, contents] = peeked(guest, [50, 60, 70], 20);
    frames.segments[4 * (word(frames, 1, TAIL_START) + 1) + 3] = 12_345;
    const [a, b] = socketPair();
    assert.equal(native().framesStream(a, frames.bytes, all(3), 0, 3, pattern(9), 3, 0, 0), 53);
    assert.deepEqual(join(...datagrams(b)), join(pattern(3), contents[0] as Uint8Array));
    assert.equal(status(frames, 1), -EFAULT);
    assert.equal(native().framesStream(a, frames.bytes, all(3), 1, 3, pattern(9), 3, 0, 0), EFAULT);
    assert.equal(native().framesStream(a, frames.bytes, all(3), 0, 3, pattern(9), 3, 53, 0), EFAULT);
    assert.deepEqual(datagrams(b), []);
    for (const fd of [a, b]) calls.close(fd);
    guest.end();
  });

  it('counts calls with MSG_ZEROCOPY', async () => {
    const guest = guestMemory(64 * PAGE);
    const [frames, contents] = peeked(guest, [40_000, 30_000]);
    const { client, server, close } = await tcpPair({ zerocopy: true });
    const taken = native().framesStream(client, frames.bytes, all(2), 0, 2, NO_PREFIX, 0, 0, MSG_ZEROCOPY);
    assert.equal(taken, 70_000);
    assert.equal(native().outstanding(client), 1);
    const got: Uint8Array[] = [];
    await waitFor(server, EPOLLIN, () => {
      got.push(...datagrams(server));
      return Buffer.concat(got).length === taken;
    });
    assert.ok(Buffer.concat(got).equals(Buffer.concat(contents)));
    await released(client);
    close();
    guest.end();
  });

  it('lends to UDP, a datagram a call, even when the guest has unmapped it since', async () => {
    const guest = guestMemory(64 * PAGE);
    const [frames, contents] = peeked(guest, [9000], 200);
    const { fd: peer, port } = udpSocket();
    const fd = calls.socket(2, SOCK_DGRAM);
    calls.setOption(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
    calls.connect(fd, '127.0.0.1', port);
    const run = (): number =>
      native().framesStream(fd, frames.bytes, all(1), 0, 1, pattern(8, 9), 8, 0, MSG_ZEROCOPY);
    assert.equal(run(), 9008);
    guest.end();
    assert.equal(run(), EFAULT);
    assert.deepEqual(datagrams(peer), [join(pattern(8, 9), contents[0] as Uint8Array)]);
    await released(fd);
    for (const one of [fd, peer]) calls.close(one);
  });
});

describe('framesRead', () => {
  it('fills slot after slot, and every word of the records', () => {
    const [a, b] = socketPair(SOCK_DGRAM);
    const into = table(4, 1, 100);
    into.records.fill(0xffff_ffff);
    assert.equal(native().framesRead(b, into.bytes, 4, 12), EAGAIN);
    const header = Uint8Array.of(1, 3, 0x42, 0, 0xb4, 5, 34, 0, 16, 0, 7, 0);
    for (const bytes of [14, 99, 60]) native().sendv(a, [join(header, pattern(bytes))], 1, 0);
    assert.equal(native().framesRead(b, into.bytes, 4, 12), 3);
    [14, 99, 60].forEach((bytes, i) => {
      assert.deepEqual(headOf(into, i), pattern(bytes));
      assert.equal(word(into, i, HEAD_AT), into.headAt(i));
      const words = [
        TAIL_START,
        TAIL_COUNT,
        FRAME_BYTES,
        FRAME_STATUS,
        FRAME_SLOT,
        FRAME_VLAN,
        FRAME_WORDS - 1,
      ];
      assert.deepEqual(
        words.map((which) => word(into, i, which)),
        [0, 0, bytes, 0, 0, 0, 0],
      );
      assert.deepEqual(
        [VNET_FLAGS, VNET_GSO, VNET_CSUM].map((which) => word(into, i, which)),
        [0x42_0301, 0x22_05b4, 0x7_0010],
      );
    });
    assert.equal(word(into, 3, HEAD_AT), 0xffff_ffff);
    for (const fd of [a, b]) calls.close(fd);
  });

  it('says what is too short, and what filled its slot', () => {
    const [a, b] = socketPair(SOCK_DGRAM);
    const into = table(8, 1, 112);
    for (const bytes of [5, 10, 23, 24, 121, 122, 200]) native().sendv(a, [pattern(bytes)], 1, 0);
    into.bytes[into.headAt(7) - HEADROOM_BYTES] = 0x77;
    assert.equal(native().framesRead(b, into.bytes, 3, 10), 3);
    assert.deepEqual(
      [0, 1, 2].map((i) => [word(into, i, FRAME_BYTES), status(into, i)]),
      [0, 0, 13].map((bytes) => [bytes, -EMSGSIZE]),
    );
    assert.equal(native().framesRead(b, into.bytes, 100, 10), 4);
    assert.deepEqual(
      [0, 1, 2, 3].map((i) => [word(into, i, FRAME_BYTES), status(into, i)]),
      [
        [14, 0],
        [111, 0],
        [112, -EMSGSIZE],
        [112, -EMSGSIZE],
      ],
    );
    assert.equal(into.bytes[into.headAt(7) - HEADROOM_BYTES], 0x77);
    for (const header of [1, 11]) assert.equal(native().framesRead(b, into.bytes, 1, header), EINVAL);
    assert.equal(native().framesRead(0, into.bytes, 1, 12), EBADF);
    assert.equal(native().framesRead(b, into.bytes.subarray(0, 32), 1, 12), EINVAL);
    for (const fd of [a, b]) calls.close(fd);
  });
});

describe('framesRecvmmsg', () => {
  it('splits datagrams into prefix and frame, and says who sent them', async () => {
    const [receiver, sender] = [udpSocket(), udpSocket()];
    calls.connect(sender.fd, '127.0.0.1', receiver.port);
    const lengths = [14, 200, 3, 8, 22, 100, 2000, 0];
    for (const bytes of lengths)
      native().sendv(sender.fd, [join(pattern(8, bytes % 100), pattern(bytes))], 1, 0);
    native().sendv(sender.fd, [pattern(5)], 1, 0);
    const into = table(16, 1, 256);
    into.records.fill(0xffff_ffff);
    const prefix = new Uint8Array(16 * 8);
    const from = new Uint8Array(16 * SOCKADDR_BYTES);
    await waitFor(receiver.fd, EPOLLIN, (events) => events !== 0);
    assert.equal(native().framesRecvmmsg(receiver.fd, into.bytes, 2, prefix, 8, from), 2);
    assert.deepEqual([headOf(into, 0), headOf(into, 1)], [pattern(14), pattern(200)]);
    assert.equal(native().framesRecvmmsg(receiver.fd, into.bytes, 16, prefix, 8, from), 7);
    const rest = [3, 8, 22, 100, 256, 0, 0];
    const bad = [-EMSGSIZE, -EMSGSIZE, 0, 0, -EMSGSIZE, -EMSGSIZE, -EMSGSIZE];
    rest.forEach((bytes, i) => {
      assert.deepEqual(headOf(into, i), pattern(bytes));
      assert.equal(word(into, i, FRAME_BYTES), bytes);
      assert.equal(status(into, i), bad[i]);
      assert.deepEqual(
        [VNET_FLAGS, VNET_GSO, VNET_CSUM, TAIL_COUNT].map((which) => word(into, i, which)),
        [0, 0, 0, 0],
      );
      const address = decodeSockaddr(from.subarray(i * SOCKADDR_BYTES, (i + 1) * SOCKADDR_BYTES), 16);
      assert.equal(address.port, sender.port);
      if (i < 6)
        assert.deepEqual(prefix.subarray(8 * i, 8 * i + 8), pattern(8, (lengths[i + 2] as number) % 100));
    });
    assert.equal(native().framesRecvmmsg(receiver.fd, into.bytes, 16, prefix, 8, from), EAGAIN);
    for (const { fd } of [receiver, sender]) calls.close(fd);
  });

  it('does without addresses and prefixes, and refuses too little room for them', () => {
    const [a, b] = socketPair(SOCK_DGRAM);
    const into = table(100, 1, 256);
    native().sendv(a, [pattern(50)], 1, 0);
    const recv = (max: number, prefix: number, bytes: number, addresses: number): number =>
      native().framesRecvmmsg(b, into.bytes, max, new Uint8Array(prefix), bytes, new Uint8Array(addresses));
    assert.equal(recv(4, 31, 8, 0), EINVAL);
    assert.equal(recv(4, 0, 0, 4 * 28 - 1), EINVAL);
    assert.equal(recv(64, 64, 2 ** 32 - 1, 0), EINVAL);
    assert.equal(recv(1000, 0, 0, 0), 1, 'at most 64 a call');
    assert.deepEqual(headOf(into, 0), pattern(50));
    assert.equal(native().framesRecvmmsg(0, into.bytes, 1, NO_PREFIX, 0, NO_PREFIX), EBADF);
    for (const fd of [a, b]) calls.close(fd);
  });
});
