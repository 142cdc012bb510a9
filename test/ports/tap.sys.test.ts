/**
 * A tap port over what is no tap: a pair of datagram sockets keeps frames apart as a tap does, takes the same calls, and
 * needs no rights. What a tap may say besides is put into its mouth.
 */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { FRAME_STATUS, FRAME_WORDS } from '../../src/core/frames.ts';
import { OFFLOAD_ALL } from '../../src/core/port.ts';
import { MacvtapPort } from '../../src/ports/macvtap.ts';
import { TapPort, type TapPortOptions } from '../../src/ports/tap.ts';
import { type Native, native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { SOCK_DGRAM } from '../../src/sys/constants.ts';
import { flowHash } from '../../src/wire/flow.ts';
import { socketPair } from '../support/descriptors.ts';
import { assertFrames, deferred, FrameSink, frame, sendAll } from '../support/frames.ts';
import { addHead, table } from '../support/guest-memory.ts';
import { atEnd, closePorts, guest, opened } from '../support/ports.ts';

afterEach(closePorts);

const VNET_BYTES = 12;

interface Host {
  readonly port: TapPort;
  /** The other ends: what the host would read and write. */
  readonly ends: readonly number[];
  /** Errors for the next writes; 0 lets one through. */
  readonly script: string[];
}

async function host(options: Partial<TapPortOptions> = {}): Promise<Host> {
  const ends: number[] = [];
  const script: string[] = [];
  const sys: Native = {
    ...native(),
    framesWrite(fd, bytes, which, from, count, prefixes, prefixBytes) {
      for (let at = from; at < count; at++) {
        const name = script.shift();
        if (name === 'EAGAIN' || name === 'ENOBUFS') return at;
        if (name !== undefined && name !== '') {
          const records = new Uint32Array(bytes.buffer, bytes.byteOffset + 64);
          records[(which[at] as number) * FRAME_WORDS + FRAME_STATUS] = errnoOf(name);
        } else if (native().framesWrite(fd, bytes, which, at, at + 1, prefixes, prefixBytes) === at)
          return at;
      }
      return count;
    },
  };
  const open = (): { fd: number; name: string } => {
    const [fd, end] = socketPair(SOCK_DGRAM);
    ends.push(end);
    atEnd(() => calls.close(end));
    return { fd, name: 'tap7' };
  };
  const port = await opened(new TapPort({ name: 'tap', device: 'tap%d', ...options }, open, sys));
  return { port, ends, script };
}

/** All that the host would read now: vnet header and frame, each. */
function read(fd: number): Buffer[] {
  const out: Buffer[] = [];
  const buffer = Buffer.alloc(70_000);
  for (let n = native().readv(fd, [buffer], 1); n > 0; n = native().readv(fd, [buffer], 1)) {
    out.push(Buffer.from(buffer.subarray(0, n)));
  }
  return out;
}

function withoutHeaders(messages: readonly Buffer[]): Buffer[] {
  return messages.map((message) => message.subarray(VNET_BYTES));
}

describe('a tap port', { timeout: 30_000 }, () => {
  it('writes each frame behind its vnet header, and takes all offloads', async () => {
    const { port, ends } = await host();
    assert.equal(port.device, 'tap7');
    assert.equal(port.capability.offloads, OFFLOAD_ALL);
    assert.equal(port.capability.zeroCopy, 'never');
    const frames = [frame(14, 1), frame(1514, 2), frame(62_000, 3)];
    const header = Uint8Array.of(1, 1, 54, 0, 0xa8, 0x05, 34, 0, 16, 0, 0, 0);
    const source = guest();
    await source.send(port, frames, [header]);
    const messages = read(ends[0]!);
    assertFrames(withoutHeaders(messages), frames);
    header[10] = 1;
    assertFrames([messages[0]!.subarray(0, VNET_BYTES)], [header]);
    assert.equal(source.loans.length, 0);
    assert.deepEqual([port.counters.txFrames, port.counters.txBytes], [3, 63_528]);
  });

  it('reads frames and their headers, and drops what is none', async () => {
    const { port, ends } = await host({ offloads: OFFLOAD_ALL });
    const sink = new FrameSink(port);
    const header = Uint8Array.of(1, 1, 54, 0, 0xa8, 0x05, 34, 0, 16, 0, 1, 0);
    const frames = [frame(60, 1), frame(65_562, 2)];
    for (const one of [frames[0]!, new Uint8Array(13), new Uint8Array(0), frames[1]!]) {
      native().sendv(ends[0]!, [Buffer.concat([header, one])], 1, 0);
    }
    await sink.until(2);
    assertFrames(sink.frames, frames);
    assert.deepEqual([...new Uint8Array(sink.vnet[1]!.slice().buffer)], [...header]);
    assert.equal(port.counters.rxErrors, 2);
    assert.equal(port.counters.rxFrames, 2);
  });

  // Every error that writing to a tap has been seen to give, and a few more.
  for (const name of ['EIO', 'EINVAL', 'EFAULT', 'EMSGSIZE', 'ENOMEM', 'EPERM', 'ENODEV', 'E2BIG', 'EBADF']) {
    it(`drops a frame that meets ${name}, and goes on`, async () => {
      const { port, ends, script } = await host();
      const frames = Array.from({ length: 8 }, (_, i) => frame(100 + i, i));
      script.push('', name, '', name, name);
      await guest().send(port, frames);
      assertFrames(withoutHeaders(read(ends[0]!)), [frames[0]!, frames[2]!, ...frames.slice(5)]);
      assert.equal(port.counters.txErrors, 3);
      assert.equal(port.counters.txFrames, 5);
      assert.equal(port.isUp, true);
    });
  }

  for (const name of ['EAGAIN', 'ENOBUFS']) {
    it(`keeps a frame that meets ${name}, and those behind it, for when there is room`, async () => {
      const { port, ends, script } = await host();
      const frames = Array.from({ length: 6 }, (_, i) => frame(100 + i, i));
      script.push('', name, name, name, '', '', name);
      const sent = guest().send(port, frames);
      assertFrames(withoutHeaders(read(ends[0]!)), frames.slice(0, 1));
      assert.equal(port.counters.txErrors, 0);
      await sent;
      assertFrames(withoutHeaders(read(ends[0]!)), frames.slice(1));
      assert.equal(port.counters.txFrames, 6);
    });
  }

  it('waits for a full queue, without a call in between', async () => {
    const { port, ends } = await host();
    const frames = Array.from({ length: 400 }, (_, i) => frame(1514, i));
    const sent = guest().send(port, frames);
    const got: Buffer[] = [];
    while (got.length < frames.length) {
      got.push(...withoutHeaders(read(ends[0]!)));
      await new Promise((resolve) => setImmediate(resolve));
    }
    await sent;
    assertFrames(got, frames);
  });

  it('never writes what is shorter than an Ethernet header', async () => {
    const { port, ends } = await host();
    const short = table(16, 0, 64);
    for (let bytes = 0; bytes <= 14; bytes++) addHead(short, frame(14, bytes).subarray(0, bytes));
    await sendAll(port, short);
    assertFrames(withoutHeaders(read(ends[0]!)), [frame(14, 14)]);
    assert.equal(port.counters.txDropped, 14);
  });

  it('keeps flows to queues, in order, and reads from all', async () => {
    const { port, ends } = await host({ queues: 3 });
    assert.equal(ends.length, 3);
    const frames = Array.from({ length: 90 }, (_, i) => flow(i % 10, i));
    const source = guest({ headMax: 64 });
    const sent = source.table(frames);
    const queues = frames.map((_, i) => flowHash(sent, i) % 3);
    await sendAll(port, sent);
    ends.forEach((end, queue) => {
      const expected = frames.filter((_, i) => queues[i] === queue);
      assert.ok(expected.length > 0);
      assertFrames(withoutHeaders(read(end)), expected);
    });
    const sink = new FrameSink(port);
    ends.forEach((end, i) => {
      native().sendv(end, [Buffer.concat([new Uint8Array(VNET_BYTES), frame(60, i)])], 1, 0);
    });
    await sink.until(3);
    const received = sink.frames.map((bytes) => Buffer.from(bytes).toString('hex')).sort();
    assert.deepEqual(received, ends.map((_, i) => Buffer.from(frame(60, i)).toString('hex')).sort());
  });

  it('holds back what the receiver does not take', async () => {
    const { port, ends } = await host();
    const sink = new FrameSink(port);
    sink.takes = 0;
    const frames = Array.from({ length: 100 }, (_, i) => frame(60 + i, i));
    for (const one of frames) {
      native().sendv(ends[0]!, [Buffer.concat([new Uint8Array(VNET_BYTES), one])], 1, 0);
    }
    await new Promise((resolve) => setImmediate(resolve));
    sink.takes = 7;
    while (sink.frames.length < frames.length) {
      port.resume();
      await new Promise((resolve) => setImmediate(resolve));
    }
    assertFrames(sink.frames, frames);
    assert.equal(port.counters.rxFrames, frames.length);
  });

  it('whose device is removed has no carrier, and drops', async () => {
    const { port } = await host({ queues: 2 });
    const { promise, resolve } = deferred<void>();
    port.onChange = () => resolve();
    // The kernel raises an error event on all queues.
    port.error();
    await promise;
    assert.equal(port.isUp, false);
    await guest().send(port, [frame(60, 1)]);
    assert.equal(port.counters.txDropped, 1);
    await port.close();
  });

  it('that cannot be opened leaves nothing behind', async () => {
    let made = 0;
    const open = (): { fd: number; name: string } => {
      if (made === 2) throw Object.assign(new RangeError('no more'), { code: 'EBUSY' });
      made += 1;
      const [fd, end] = socketPair(SOCK_DGRAM);
      atEnd(() => assert.equal(native().sendv(end, [frame(14, 1)], 1, 0), -errnoOf('ECONNREFUSED')));
      return { fd, name: 'tap7' };
    };
    const port = new TapPort({ name: 'tap', device: 'tap%d', queues: 3 }, open);
    await assert.rejects(port.open(), { code: 'EBUSY' });
    assert.equal(port.isUp, false);
    assert.throws(() => new TapPort({ name: 't', device: 't', queues: 0 }), RangeError);
    await assert.rejects(new MacvtapPort({ name: 'm', device: 'no-such-device' }).open(), { code: 'ENODEV' });
    await assert.rejects(new MacvtapPort({ name: 'm', device: '/dev/no-such-file' }).open(), {
      code: 'ENOENT',
    });
  });
});

/** An IPv4 frame of UDP port `port`. */
function flow(port: number, seed: number): Uint8Array {
  const out = frame(80, seed);
  out.set([0x08, 0x00, 0x45, 0], 12);
  out.set([0, 0], 20);
  out[23] = 17;
  out.set([10, 0, 0, 1, 10, 0, 0, 2, 0, port, 0, 80], 26);
  return out;
}
