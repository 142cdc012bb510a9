/** What a kernel or a device may refuse, played by a native layer that refuses it: on loopback nothing of this happens. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { type Native, native } from '../../src/sys/binding.ts';
import { MSG_ZEROCOPY, SOL_UDP, UDP_SEGMENT } from '../../src/sys/constants.ts';
import { DEADLINE_MS } from '../support/sockets.ts';
import { bound, closeSockets, Inbox, make, pattern } from '../support/udp.ts';

const sys = native();
const { sendGso, getsockoptInt } = sys;

afterEach(async () => {
  Object.assign(sys, { sendGso, getsockoptInt });
  await closeSockets();
});

interface SendCall {
  readonly bytes: number;
  readonly flagged: boolean;
  readonly segmentBytes: number;
}

/** Records the calls, and lets `refuse` answer some of them. */
function spy(refuse: (call: SendCall) => string | null): SendCall[] {
  const calls: SendCall[] = [];
  sys.sendGso = (...args: Parameters<Native['sendGso']>): number => {
    const [, views, count, flags, segmentBytes] = args;
    const bytes = views.slice(0, count).reduce((sum, view) => sum + view.byteLength, 0);
    const call = { bytes, flagged: (flags & MSG_ZEROCOPY) !== 0, segmentBytes };
    calls.push(call);
    const error = refuse(call);
    return error === null ? sendGso(...args) : -errnoOf(error);
  };
  return calls;
}

async function force() {
  const { socket: receiver, port } = await bound({ type: 'udp4', recvBufferSize: 1 << 20 });
  const sender = make({ type: 'udp4', zerocopy: { mode: 'force', pin: true } });
  sender.connect(port, '127.0.0.1');
  await once(sender, 'connect');
  return { sender, inbox: new Inbox(receiver) };
}

async function arrives(inbox: Inbox, payload: Buffer, segmentBytes: number): Promise<void> {
  const messages = await inbox.take(Math.ceil(payload.length / segmentBytes));
  assert.deepEqual(Buffer.concat(messages.map(({ data }) => data)), payload);
}

describe('segmented calls', { timeout: 4 * DEADLINE_MS }, () => {
  it('that a device refuses become one call per datagram, for that destination', async () => {
    const { sender, inbox } = await force();
    const calls = spy(({ segmentBytes }) => (segmentBytes > 0 ? 'EIO' : null));
    const payload = pattern(50_000);
    assert.equal((await sender.sendSegments(payload, 20_000)).bytes, 50_000);
    await arrives(inbox, payload, 20_000);
    assert.deepEqual(calls[0], { bytes: 50_000, flagged: true, segmentBytes: 20_000 });
    assert.deepEqual(
      calls.slice(1).map(({ bytes, flagged }) => [bytes, flagged]),
      [
        [20_000, true],
        [20_000, true],
        [10_000, false],
      ],
    );
    await sender.sendSegments(payload, 25_000);
    assert.equal(calls.length, 6, 'it is not tried again');
  });

  it('are never made where the kernel does not know them', async () => {
    sys.getsockoptInt = (fd, level, name) =>
      level === SOL_UDP && name === UDP_SEGMENT ? -errnoOf('ENOPROTOOPT') : getsockoptInt(fd, level, name);
    const { sender, inbox } = await force();
    const calls = spy(() => null);
    await sender.sendSegments(pattern(5000), 1000);
    await arrives(inbox, pattern(5000), 1000);
    assert.deepEqual(
      calls.map(({ bytes, segmentBytes }) => [bytes, segmentBytes]),
      Array.from({ length: 5 }, () => [1000, 0]),
    );
  });
});

describe('lent calls', { timeout: 4 * DEADLINE_MS }, () => {
  for (const error of ['ENOBUFS', 'ENOMEM', 'EMSGSIZE', 'EOPNOTSUPP']) {
    it(`that are refused with ${error} are copied, and nobody notices`, async () => {
      const { sender, inbox } = await force();
      const calls = spy(({ flagged }) => (flagged ? error : null));
      for (let i = 0; i < 3; i++) {
        const outcome = await sender.sendSegments(pattern(60_000), 1000);
        assert.deepEqual(outcome, { bytes: 60_000, copiedBytes: 60_000, exact: true });
        await arrives(inbox, pattern(60_000), 1000);
      }
      const { lentCalls, refusedEnobufs, refusedOther, fallbackBytes } = sender.stats().zerocopy;
      assert.equal(lentCalls, 0);
      assert.equal(fallbackBytes, 180_000);
      assert.equal(refusedEnobufs + refusedOther, calls.filter(({ flagged }) => flagged).length);
      assert.equal(sender.stats().lending, error !== 'EOPNOTSUPP');
    });
  }
});

describe('errors of a send', { timeout: 4 * DEADLINE_MS }, () => {
  it('end it and no other', async () => {
    const { sender, inbox } = await force();
    spy(({ bytes }) => (bytes === 7 ? 'EPERM' : null));
    const sends = [3, 7, 4].map((bytes) => sender.sendSegments(pattern(bytes), 10));
    const results = await Promise.allSettled(sends);
    assert.deepEqual(
      results.map(({ status }) => status),
      ['fulfilled', 'rejected', 'fulfilled'],
    );
    const [, failed] = results;
    assert.equal(failed?.status === 'rejected' && failed.reason.code, 'EPERM');
    assert.deepEqual(
      (await inbox.take(2)).map(({ data }) => data.length),
      [3, 4],
    );
    assert.equal(sender.stats().failedSends, 1);
  });

  it('in the middle of a payload leave out the rest, and give the memory back', async () => {
    const { sender, inbox } = await force();
    let made = 0;
    spy(() => {
      made += 1;
      return made === 2 ? 'EPERM' : null;
    });
    await assert.rejects(sender.sendSegments(pattern(150_000), 1000), { code: 'EPERM' });
    await arrives(inbox, pattern(150_000).subarray(0, 64_000), 1000);
    assert.equal(sender.stats().zerocopy.pinnedBytes, 0);
    assert.equal(sender.stats().datagramsWritten, 64);
  });

  it('are no reason to wait: ENOBUFS with nothing in the send buffer is one', async () => {
    const { sender } = await force();
    spy(() => 'ENOBUFS');
    await assert.rejects(sender.sendSegments(pattern(60_000), 1000), { code: 'ENOBUFS', next: 'retry' });
  });
});
