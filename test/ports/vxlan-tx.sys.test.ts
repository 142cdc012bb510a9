/** What a tunnel's socket may answer to a lent frame: each is released once, whatever it is, and none is sent twice. */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { type PortCounters, portCounters } from '../../src/core/port.ts';
import { type ZerocopyCounters, zerocopyCounters } from '../../src/net/counters.ts';
import { ZerocopyPolicy } from '../../src/net/policy.ts';
import { systemClock } from '../../src/ports/clock.ts';
import { VxlanSender } from '../../src/ports/vxlan-tx.ts';
import { type Native, native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { EPOLLIN, MSG_ZEROCOPY, SO_ZEROCOPY, SOL_SOCKET } from '../../src/sys/constants.ts';
import { encodeVxlan, VXLAN_HEADER_BYTES } from '../../src/wire/vxlan.ts';
import { assertFrames, deferred, frame, type GuestFrames } from '../support/frames.ts';
import { all } from '../support/guest-memory.ts';
import { atEnd, closePorts, guest, settled } from '../support/ports.ts';
import { udpSocket, waitFor } from '../support/sockets.ts';

afterEach(closePorts);

interface Scene {
  readonly sender: VxlanSender;
  readonly counters: PortCounters;
  readonly zerocopy: ZerocopyCounters;
  /** Answers to the next lent calls; empty: the kernel's own. */
  readonly script: string[];
  readonly flags: boolean[];
  /** Frames of each call that copies several. */
  readonly runs: number[];
  readonly source: GuestFrames;
  /** Sends frames, waiting for room. */
  send(frames: readonly Uint8Array[]): Promise<void>;
  /** Frames that arrived. */
  received(count: number): Promise<Uint8Array[]>;
}

function scene(): Scene {
  const peer = udpSocket();
  const { fd } = udpSocket();
  calls.connect(fd, '127.0.0.1', peer.port);
  calls.setOption(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
  atEnd(() => calls.close(peer.fd));
  const script: string[] = [];
  const flags: boolean[] = [];
  const runs: number[] = [];
  const sys: Native = {
    ...native(),
    framesGso(...args) {
      runs.push(args[4] - args[3]);
      return native().framesGso(...args);
    },
    framesStream(...args) {
      flags.push((args[8] & MSG_ZEROCOPY) !== 0);
      const name = script.shift() ?? '';
      return name === '' ? native().framesStream(...args) : -errnoOf(name);
    },
  };
  const headers = new Uint8Array(64 * VXLAN_HEADER_BYTES);
  for (let i = 0; i < 64; i++) encodeVxlan(headers, i * VXLAN_HEADER_BYTES, 42);
  const counters = portCounters();
  const zerocopy = zerocopyCounters();
  let wake: () => void = () => {};
  const sender = new VxlanSender({
    sys,
    fd,
    clock: systemClock,
    counters,
    policy: new ZerocopyPolicy({ mode: 'force', thresholdBytes: 512, loopback: () => false }),
    zerocopy,
    chooser: null,
    borrower: {},
    headers: () => headers,
    canCut: true,
    onUncut: () => {},
    writable: () => wake(),
  });
  atEnd(() => sender.close());
  const source = guest();
  const send = async (frames: readonly Uint8Array[]): Promise<void> => {
    const table = source.table(frames);
    for (let at = 0; ; ) {
      const { promise, resolve } = deferred<void>();
      wake = resolve;
      at = sender.send(table, all(frames.length), at, frames.length);
      if (at === frames.length) return;
      await promise;
    }
  };
  const received = async (count: number): Promise<Uint8Array[]> => {
    const frames: Uint8Array[] = [];
    const buffer = Buffer.alloc(70_000);
    await waitFor(peer.fd, EPOLLIN, () => {
      for (let n = native().readv(peer.fd, [buffer], 1); n > 0; n = native().readv(peer.fd, [buffer], 1)) {
        frames.push(Uint8Array.from(buffer.subarray(VXLAN_HEADER_BYTES, n)));
      }
      return frames.length >= count;
    });
    return frames;
  };
  return { sender, counters, zerocopy, script, flags, runs, source, send, received };
}

/** Large, small, large, large. */
const frames = [frame(3000, 1), frame(60, 2), frame(9000, 3), frame(1400, 4)];

describe('a lent frame of a tunnel', { timeout: 30_000 }, () => {
  it('goes in a call of its own, in order with the others', async () => {
    const { send, received, source, counters, flags } = scene();
    await send(frames);
    assertFrames(await received(4), frames);
    await settled(source);
    assert.deepEqual(flags, [true, true, true]);
    assert.equal(counters.txFrames, 4);
    assert.equal(counters.txBytes, 13_460);
  });

  for (const name of ['EAGAIN', 'ENOBUFS']) {
    it(`that meets ${name} is first in line until there is room`, async () => {
      const { send, received, source, counters, zerocopy, script } = scene();
      // ENOBUFS of a flagged call is asked again without the flag: so twice as many.
      script.push(name, name, name, '', name, name, '');
      await send(frames);
      assertFrames(await received(4), frames);
      await settled(source);
      // After a refusal the next ones are copied for a while.
      assert.equal(source.loans.length, name === 'EAGAIN' ? 3 : 1);
      assert.equal(counters.txFrames, 4);
      assert.equal(counters.txErrors, 0);
      assert.equal(zerocopy.pinnedBytes, 0);
    });
  }

  it('that has too many pieces is copied', async () => {
    const { send, received, source, script, flags, zerocopy } = scene();
    script.push('EMSGSIZE', '');
    await send(frames);
    assertFrames(await received(4), frames);
    await settled(source);
    assert.deepEqual(flags.slice(0, 2), [true, false]);
    assert.equal(source.loans[0]?.outcome?.copiedBytes, source.loans[0]?.bytes);
    assert.ok(zerocopy.copied.fragments > 0);
  });

  for (const [name, answers] of [
    ['EMSGSIZE', ['EMSGSIZE', 'EMSGSIZE']],
    ['ECONNREFUSED', ['ECONNREFUSED']],
    ['EPERM', ['EPERM']],
    ['EHOSTUNREACH', ['EHOSTUNREACH']],
  ] as const) {
    it(`that meets ${name} for good is dropped and counted, and those behind it go`, async () => {
      const { send, received, source, counters, script, zerocopy } = scene();
      script.push(...answers);
      await send(frames);
      assertFrames(await received(3), frames.slice(1));
      await settled(source);
      assert.equal(source.loans.length, 3);
      assert.equal(counters.txErrors, 1);
      assert.equal(counters.txFrames, 3);
      assert.equal(zerocopy.unexpectedCompletions, 0);
    });
  }

  it('that waits when the port is closed is given back', async () => {
    const { sender, source, script } = scene();
    script.push(...Array.from({ length: 1000 }, () => 'EAGAIN'));
    const table = source.table(frames);
    assert.equal(sender.send(table, all(4), 0, 4), 1);
    assert.equal(sender.send(table, all(4), 1, 4), 1);
    assert.equal(source.outstanding, 1);
    sender.close();
    await settled(source);
  });

  it('is copied with all behind it when no more is lent', async () => {
    const { send, received, source, flags, runs } = scene();
    source.loansLeft = 1;
    const many = [...frames, ...Array.from({ length: 6 }, (_, i) => frame(1400, 10 + i))];
    await send(many);
    assertFrames(await received(10), many);
    await settled(source);
    assert.deepEqual(flags, [true]);
    assert.deepEqual(runs, [2, 6]);
    assert.equal(source.loans.length, 1);
  });

  it('is copied when nothing may be lent, or is with the kernel already', async () => {
    const { send, received, source, flags } = scene();
    source.refuses = true;
    await send(frames);
    assertFrames(await received(4), frames);
    assert.deepEqual(flags, []);
    assert.equal(source.loans.length, 0);
  });
});
