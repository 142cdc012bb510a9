/** One call, many frames: datagrams that the kernel cuts (UDP_SEGMENT), over loopback. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { FRAME_STATUS, type FrameTable, TAIL_COUNT, TAIL_START } from '../../src/core/frames.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { EPOLLERR, MSG_ZEROCOPY, SO_NO_CHECK, SO_ZEROCOPY, SOL_SOCKET } from '../../src/sys/constants.ts';
import { completionRange, ERRQUEUE_WORDS, isZerocopyCompletion } from '../../src/wire/errqueue.ts';
import {
  addChain,
  all,
  type GuestMemory,
  guestMemory,
  pattern,
  setWord,
  status,
  table,
} from '../support/guest-memory.ts';
import { udpSocket, waitFor } from '../support/sockets.ts';

const PAGE = native().pageSize();
const [EINVAL, EBADF, EFAULT, EMSGSIZE, EIO] = ['EINVAL', 'EBADF', 'EFAULT', 'EMSGSIZE', 'EIO'].map(
  (name) => -errnoOf(name),
) as [number, number, number, number, number];
const PREFIX = Uint8Array.of(8, 7, 6, 5, 4, 3, 2, 1);

interface Scene {
  readonly guest: GuestMemory;
  readonly frames: FrameTable;
  readonly contents: readonly Uint8Array[];
  readonly prefixes: Uint8Array;
  readonly fd: number;
  readonly peer: number;
  received(): Uint8Array[];
  end(): void;
}

/** Frames of these lengths, each in three pieces, and a connected socket. */
function scene(lengths: readonly number[], pieces = 3): Scene {
  const guest = guestMemory(64 * PAGE);
  const frames = table(lengths.length, pieces * lengths.length, 64);
  const contents = lengths.map((length, i) => pattern(length, i));
  let address = 0;
  for (const bytes of contents) {
    assert.equal(guest.space.write(address, bytes), 0);
    const part = Math.floor(bytes.length / pieces);
    const chain = Array.from({ length: pieces }, (_, i) => ({
      address: address + i * part,
      bytes: i === pieces - 1 ? bytes.length - i * part : part,
      space: guest.space.id,
    }));
    addChain(frames, chain);
    address += bytes.length;
  }
  assert.equal(native().framesPeek(frames.bytes, lengths.length, 0, 64), lengths.length);
  const { fd: peer, port } = udpSocket();
  const { fd } = udpSocket();
  calls.connect(fd, '127.0.0.1', port);
  const into = new Uint8Array(70_000);
  return {
    ...{ guest, frames, contents, fd, peer },
    prefixes: new Uint8Array(Buffer.concat(lengths.map(() => PREFIX))),
    received() {
      const got: Uint8Array[] = [];
      for (let n = native().readv(peer, [into], 1); n >= 0; n = native().readv(peer, [into], 1))
        got.push(into.slice(0, n));
      return got;
    },
    end() {
      calls.close(fd);
      calls.close(peer);
      guest.end();
    },
  };
}

function datagram(content: Uint8Array | undefined): Uint8Array {
  return new Uint8Array(Buffer.concat([PREFIX, content as Uint8Array]));
}

describe('framesGso', () => {
  it('sends prefix, head and tail of the frames that were chosen, a datagram each', () => {
    const { frames, contents, prefixes, fd, received, end } = scene([900, 60, 900, 900, 900, 500]);
    const which = Uint32Array.of(1, 0, 2, 4, 3, 5);
    const n = native().framesGso(fd, frames.bytes, which, 1, 6, prefixes, 8, 908, 0);
    assert.equal(n, 4 * 908 + 508);
    assert.deepEqual(
      received(),
      [0, 2, 4, 3, 5].map((i) => datagram(contents[i])),
    );
    assert.equal(native().framesGso(fd, frames.bytes, which, 0, 1, prefixes, 8, 908, 0), 68);
    assert.deepEqual(received(), [datagram(contents[1])]);
    assert.equal(native().framesGso(fd, frames.bytes, which, 2, 2, prefixes, 8, 908, 0), 0);
    assert.deepEqual(received(), []);
    end();
  });

  it('lends them all in one call, which is one completion', async () => {
    const { frames, contents, prefixes, fd, received, end } = scene([3000, 3000, 3000, 3000]);
    calls.setOption(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
    for (let round = 0; round < 2; round++) {
      assert.equal(
        native().framesGso(fd, frames.bytes, all(4), 0, 4, prefixes, 8, 3008, MSG_ZEROCOPY),
        4 * 3008,
      );
      assert.deepEqual(received(), contents.map(datagram));
    }
    const records = new Uint32Array(8 * ERRQUEUE_WORDS);
    let completed = 0;
    await waitFor(fd, EPOLLERR, () => {
      const count = native().drainErrors(fd, records);
      for (let i = 0; i < count; i++) {
        if (!isZerocopyCompletion(records, i)) continue;
        const { lo, hi } = completionRange(records, i);
        completed += hi - lo + 1;
      }
      return completed === 2;
    });
    assert.equal(native().outstanding(fd), 0);
    end();
  });

  it('takes all or none: a frame that cannot be read says so', () => {
    const { frames, contents, prefixes, fd, received, end } = scene([900, 900, 900, 900]);
    setWord(frames, 2, TAIL_START, frames.options.segments - 1);
    setWord(frames, 2, TAIL_COUNT, 2);
    setWord(frames, 2, FRAME_STATUS, 0);
    assert.equal(native().framesGso(fd, frames.bytes, all(4), 0, 4, prefixes, 8, 908, 0), EINVAL);
    assert.equal(status(frames, 2), -EINVAL);
    assert.deepEqual(received(), []);
    const which = Uint32Array.of(0, 1, 3);
    assert.equal(native().framesGso(fd, frames.bytes, which, 0, 3, prefixes, 8, 908, 0), 3 * 908);
    assert.deepEqual(
      received(),
      [0, 1, 3].map((i) => datagram(contents[i])),
    );
    end();
  });

  it('says so of memory that has gone', () => {
    const { guest, frames, prefixes, fd, received, end } = scene([900, 900]);
    guest.space.destroy();
    const n = native().framesGso(fd, frames.bytes, all(2), 0, 2, prefixes, 8, 908, 0);
    assert.equal(n, EFAULT);
    assert.equal(status(frames, 0), -EFAULT);
    assert.deepEqual(received(), []);
    end();
  });

  it('refuses what the kernel does not cut, and sends nothing of it', () => {
    const { frames, prefixes, fd, received, end } = scene(new Array<number>(80).fill(900));
    const send = (count: number, segmentBytes: number): number =>
      native().framesGso(fd, frames.bytes, all(80), 0, count, prefixes, 8, segmentBytes, 0);
    assert.equal(send(80, 908), EMSGSIZE, 'more than fits in a packet');
    for (const bytes of [0, 0x1_0000, 0xffff_ffff]) assert.equal(send(4, bytes), EINVAL, `${bytes}`);
    calls.setOption(fd, SOL_SOCKET, SO_NO_CHECK, 1);
    const n = send(4, 908);
    assert.ok(n === EINVAL || n === EIO, `without a checksum: ${n}`);
    assert.deepEqual(received(), []);
    end();
  });

  it('refuses more pieces than a call takes', () => {
    const { frames, prefixes, fd, received, end } = scene(new Array<number>(40).fill(900), 40);
    const n = native().framesGso(fd, frames.bytes, all(40), 0, 40, prefixes, 8, 908, 0);
    assert.equal(n, EMSGSIZE);
    assert.deepEqual(received(), []);
    end();
  });

  it('checks what it is given', () => {
    const { frames, prefixes, fd, received, end } = scene([900, 900]);
    const { framesGso } = native();
    assert.equal(framesGso(fd, frames.bytes, Uint32Array.of(0, 2), 0, 2, prefixes, 8, 908, 0), EINVAL);
    assert.equal(framesGso(fd, frames.bytes, all(2), 2, 1, prefixes, 8, 908, 0), EINVAL);
    assert.equal(framesGso(fd, frames.bytes, all(2), 0, 3, prefixes, 8, 908, 0), EINVAL);
    assert.equal(framesGso(fd, frames.bytes, all(2), 0, 2, prefixes.subarray(1), 8, 908, 0), EINVAL);
    assert.equal(framesGso(0, frames.bytes, all(2), 0, 2, prefixes, 8, 908, 0), EBADF);
    assert.throws(() => framesGso(fd, null as never, all(2), 0, 2, prefixes, 8, 908, 0), TypeError);
    assert.throws(() => framesGso(fd, frames.bytes, all(2), 0, 2, prefixes, 8, '908' as never, 0), TypeError);
    assert.deepEqual(received(), []);
    end();
  });
});
