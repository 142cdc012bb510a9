/**
 * Closing with data in flight, on loopback: what was accepted is delivered, memory is given back once and not before the
 * kernel is done with it, and an abort lets nothing out any more.
 */
import assert from 'node:assert/strict';
import { afterEach, describe, it, mock } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { closerStats, LINGER_MS, lingerClosed } from '../../src/net/closer.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import { ZerocopyPolicy } from '../../src/net/policy.ts';
import { ZerocopyEngine } from '../../src/net/zerocopy.ts';
import { type Native, native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { IPPROTO_IP, MSG_ZEROCOPY, SHUT_WR } from '../../src/sys/constants.ts';
import { reactor } from '../../src/sys/reactor.ts';
import { ERRQUEUE_WORDS } from '../../src/wire/errqueue.ts';
import { encodeSockaddr } from '../../src/wire/sockaddr.ts';
import {
  channelPair,
  closeChannels,
  fill,
  type Lent,
  lend,
  offer,
  receive,
  write,
} from '../support/channels.ts';
import { DEADLINE_MS, udpSocket } from '../support/sockets.ts';

// linux/in.h
const IP_RECVERR = 11;
const KIB = 1024;
const MIB = 1024 * KIB;
const PIECE = 64 * KIB;
const ECONNRESET = -errnoOf('ECONNRESET');
const NOTHING = { lingering: 0, quarantinedSockets: 0, quarantinedBytes: 0 };

afterEach(closeChannels);

/** Lets events come until `done`; nothing else in these tests tells when a closed channel has ended. */
async function turnsUntil(done: () => boolean): Promise<void> {
  const endMs = Date.now() + DEADLINE_MS;
  while (!done()) {
    assert.ok(Date.now() < endMs, 'in time');
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const told = (all: readonly Lent[]): number => all.reduce((sum, { outcomes }) => sum + outcomes.length, 0);

describe('close()', { timeout: 8 * DEADLINE_MS }, () => {
  it('delivers what was accepted, then the end, and gives back each piece once when it is read', async () => {
    const pair = await channelPair({ receiveBytes: 64 * KIB });
    const lent = fill(pair, PIECE, 1000);
    const sent = pair.channel.writtenBytes;
    assert.ok(pair.channel.outstanding > 0);
    pair.channel.close();
    assert.equal(pair.channel.closed, true);
    assert.equal(closerStats().lingering, 1);
    const events = pair.watched.events.length;
    assert.deepEqual(await receive(pair.peer), { total: sent, end: 0 });
    await turnsUntil(() => closerStats().lingering === 0);
    assert.equal(told(lent), lent.length);
    assert.ok(lent.every(({ outcomes }) => outcomes.length === 1));
    assert.equal(pair.counters.pinnedBytes, 0);
    assert.equal(pair.watched.events.length, events, 'no handler is called after close()');
  });

  it('gives nothing back while the peer does not read', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    const lent = fill(pair, MIB, 1000);
    const other = await channelPair();
    pair.channel.close();
    // Some turns of the event loop with work on another connection.
    await Promise.all([write(other, lend(MIB)), receive(other.peer, MIB)]);
    assert.equal(told(lent.slice(-1)), 0);
    assert.equal(closerStats().lingering, 1);
    pair.resetPeer();
    await turnsUntil(() => closerStats().lingering === 0);
    assert.equal(told(lent), lent.length);
  });

  it('right after a write that was taken in part delivers that part', async () => {
    const pair = await channelPair({ receiveBytes: 64 * KIB, sendBytes: 256 * KIB });
    const lent = lend(4 * MIB);
    const n = pair.channel.sendLent(lent.ubuf, [lent.bytes], 1);
    assert.ok(n > 0 && n < lent.bytes.length);
    pair.channel.close();
    lent.ubuf.unref();
    assert.deepEqual(lent.outcomes, []);
    assert.deepEqual(await receive(pair.peer), { total: n, end: 0 });
    await turnsUntil(() => lent.outcomes.length > 0);
    assert.equal(lent.outcomes.length, 1);
  });

  it('delivers to a peer that has said its own end before', async () => {
    const pair = await channelPair({ receiveBytes: 64 * KIB });
    calls.shutdown(pair.peer, SHUT_WR);
    await pair.watched.until(() => pair.channel.readable);
    assert.equal(pair.channel.readv([Buffer.alloc(10)], 1), 0);
    const lent = fill(pair, PIECE, 1000);
    const sent = pair.channel.writtenBytes;
    pair.channel.close();
    assert.deepEqual(await receive(pair.peer), { total: sent, end: 0 });
    await turnsUntil(() => closerStats().lingering === 0);
    assert.equal(told(lent), lent.length);
  });

  it('after shutdownWrite() still gives back everything once', async () => {
    const pair = await channelPair({ receiveBytes: 64 * KIB });
    const lent = fill(pair, PIECE, 1000);
    const sent = pair.channel.writtenBytes;
    pair.channel.shutdownWrite();
    pair.channel.shutdownWrite();
    const late = lend(PIECE);
    assert.ok(offer(pair.channel, late.ubuf, late.bytes) < 0, 'nothing is taken after the end');
    pair.channel.close();
    pair.channel.close();
    pair.channel.reset();
    assert.deepEqual(await receive(pair.peer), { total: sent, end: 0 });
    await turnsUntil(() => closerStats().lingering === 0);
    assert.ok(lent.every(({ outcomes }) => outcomes.length === 1));
    assert.equal(late.ubuf.refs, 1);
  });

  it('and a reset by the peer before it has read give back everything once', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    const lent = fill(pair, PIECE, 1000);
    pair.channel.close();
    pair.resetPeer();
    await turnsUntil(() => closerStats().lingering === 0);
    assert.ok(lent.every(({ outcomes }) => outcomes.length === 1));
    assert.equal(pair.counters.pinnedBytes, 0);
  });

  it('with nothing lent closes at once, and copied data arrive', async () => {
    const pair = await channelPair({ mode: 'off' });
    const lent = lend(MIB);
    const received = receive(pair.peer);
    await write(pair, lent);
    pair.channel.close();
    assert.deepEqual(closerStats(), NOTHING);
    assert.deepEqual(await received, { total: MIB, end: 0 });
    assert.deepEqual(lent.outcomes, [{ bytes: MIB, copiedBytes: MIB, exact: true }]);
  });
});

describe('a peer that never reads', { timeout: 3 * DEADLINE_MS }, () => {
  it('is reset at the deadline: everything is given back once, and nothing written later goes out', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    const lent = fill(pair, PIECE, 1000);
    mock.timers.enable({ apis: ['setTimeout'] });
    try {
      pair.channel.close();
      mock.timers.tick(LINGER_MS - 1);
      assert.equal(closerStats().lingering, 1);
      assert.equal(told(lent.slice(-1)), 0);
      mock.timers.tick(1);
      assert.deepEqual(closerStats(), NOTHING);
    } finally {
      mock.timers.reset();
    }
    for (const { bytes } of lent) bytes.fill(0x5a);
    await new Promise((resolve) => setImmediate(resolve));
    assert.ok(lent.every(({ outcomes }) => outcomes.length === 1));
    const { total, end } = await receive(pair.peer);
    assert.equal(end, ECONNRESET);
    assert.ok(total < pair.channel.writtenBytes);
  });
});

describe('a connection with a time limit for lent memory', { timeout: 3 * DEADLINE_MS }, () => {
  for (const [limitMs, lingersMs] of [
    [1000, 1000],
    [60_000, LINGER_MS],
  ] as const) {
    it(`of ${limitMs} ms lingers for ${lingersMs} ms at most`, async () => {
      const pair = await channelPair({ receiveBytes: 4 * KIB });
      fill(pair, PIECE, 1000);
      mock.timers.enable({ apis: ['setTimeout'] });
      try {
        pair.channel.close(undefined, limitMs);
        mock.timers.tick(lingersMs - 1);
        assert.equal(closerStats().lingering, 1);
        mock.timers.tick(1);
        assert.deepEqual(closerStats(), NOTHING);
      } finally {
        mock.timers.reset();
      }
    });
  }
});

describe('reset()', { timeout: 3 * DEADLINE_MS }, () => {
  it('gives everything back at once, and lets no later byte out', async () => {
    const pair = await channelPair({ receiveBytes: 64 * KIB });
    const lent = fill(pair, MIB, 1000);
    pair.channel.reset();
    assert.deepEqual(closerStats(), NOTHING);
    // From here on the memory is the owner's: it writes at once.
    for (const { bytes } of lent) bytes.fill(0x5a);
    await new Promise((resolve) => setImmediate(resolve));
    assert.ok(lent.every(({ outcomes }) => outcomes.length === 1));
    // receive() fails on any byte that is not the pattern.
    const { total, end } = await receive(pair.peer);
    assert.equal(end, ECONNRESET);
    assert.ok(total < pair.channel.writtenBytes);
    assert.equal(pair.counters.pinnedBytes, 0);
  });
});

/** A kernel that goes on reading whatever one does, as a device may; `letGo` gives the completion after all. */
function stubborn(): { sys: Native; letGo: () => void; closed: number[] } {
  const closed: number[] = [];
  let held = true;
  const real = native();
  const sys: Native = {
    ...real,
    sendv: (fd, buffers, count, flags) => real.sendv(fd, buffers, count, flags & ~MSG_ZEROCOPY),
    abort: () => 0,
    shutdown: () => 0,
    close: (fd) => {
      closed.push(fd);
      return real.close(fd);
    },
    drainErrors: (fd, out) => {
      real.drainErrors(fd, out);
      if (held) return 0;
      held = true;
      out.set([0, 5, 0, 0, 0, 0]);
      assert.ok(out.length >= ERRQUEUE_WORDS);
      return 1;
    },
  };
  return {
    sys,
    closed,
    letGo: () => {
      held = false;
    },
  };
}

describe('memory that even an abort does not free', { timeout: 3 * DEADLINE_MS }, () => {
  for (const how of ['linger', 'abort'] as const) {
    it(`stays lent, is counted, and is given back when the kernel lets go (${how})`, async () => {
      const { sys, closed, letGo } = stubborn();
      // A datagram to a closed port comes back as an error, which is an event on this descriptor when the test wants one.
      const { fd } = udpSocket();
      calls.setOption(fd, IPPROTO_IP, IP_RECVERR, 1);
      const gone = udpSocket();
      calls.close(gone.fd);
      calls.connect(fd, '127.0.0.1', gone.port);
      const policy = new ZerocopyPolicy({ mode: 'force', loopback: () => true, thresholdBytes: 1 });
      const engine = new ZerocopyEngine({
        sys,
        fd,
        policy,
        counters: zerocopyCounters(),
        now: Date.now,
      });
      const lent = lend(1000);
      const before = reactor().size;
      mock.timers.enable({ apis: ['setTimeout'] });
      try {
        assert.equal(engine.send(lent.ubuf, [lent.bytes], 1, 0), 1000);
        lent.ubuf.unref();
        lingerClosed(sys, fd, engine, how);
        mock.timers.tick(LINGER_MS);
      } finally {
        mock.timers.reset();
      }
      assert.deepEqual(closerStats(), { lingering: 1, quarantinedSockets: 1, quarantinedBytes: 1000 });
      assert.deepEqual(lent.outcomes, []);
      assert.deepEqual(closed, []);
      letGo();
      native().sendGso(fd, [lent.bytes], 1, 0, 0, encodeSockaddr('127.0.0.1', gone.port));
      await turnsUntil(() => closed.length > 0);
      assert.deepEqual(closed, [fd]);
      assert.deepEqual(closerStats(), NOTHING);
      assert.equal(reactor().size, before);
      assert.equal(lent.outcomes.length, 1);
    });
  }
});
