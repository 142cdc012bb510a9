/**
 * Lending over real TCP connections on loopback: situations in which zero-copy senders were seen to lose buffers, hang
 * or corrupt the stream. What happens around closing is in closer.sys.test.ts, limits in limits.sys.test.ts, and what
 * loopback cannot show, such as records that the kernel did not copy, in engine.test.ts.
 *
 * Not here, because nothing in this package does it: zero-copy over UDP (fragments of a datagram, completions out of
 * order under a small optmem), adopting descriptors of Node's dgram or net, and io_uring. A packet tap that is opened in
 * mid-stream changes nothing on a path that ends on this host, where the kernel copies anyway; the change of the flag
 * alone is in engine.test.ts.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { afterEach, describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import { native } from '../../src/sys/binding.ts';
import { SlabPool } from '../../src/sys/slab.ts';
import {
  channelPair,
  closeChannels,
  fill,
  fillPattern,
  type Lent,
  lend,
  offer,
  receive,
  write,
} from '../support/channels.ts';
import { DEADLINE_MS, discard } from '../support/sockets.ts';

const KIB = 1024;
const MIB = 1024 * KIB;
const PIECE = 64 * KIB;

afterEach(closeChannels);

describe('numbers of zero-copy calls', { timeout: 6 * DEADLINE_MS }, () => {
  it('are one per successful call, also when it takes only a part', async () => {
    const pair = await channelPair({ sendBytes: 256 * KIB, receiveBytes: 64 * KIB });
    const { channel, watched, counters } = pair;
    const lent = lend(64 * MIB);
    let taken = 0;
    let parts = 0;
    let at = 0;
    const received = receive(pair.peer, lent.bytes.length);
    await watched.until(() => {
      while (at < lent.bytes.length) {
        const piece = lent.bytes.subarray(at, at + MIB);
        const n = channel.sendLent(lent.ubuf, [piece], 1);
        assert.ok(n >= 0);
        if (n === 0) return false;
        taken += 1;
        if (n < piece.length) parts += 1;
        at += n;
      }
      return true;
    });
    lent.ubuf.unref();
    assert.equal((await received).total, lent.bytes.length);
    await watched.until(() => lent.outcomes.length > 0);
    assert.ok(parts > 0, 'a buffer of 256 KiB takes no MiB at once');
    assert.equal(counters.lentCalls + counters.refusedEnobufs, taken);
    assert.equal(counters.lentBytes + counters.fallbackBytes, lent.bytes.length);
    assert.equal(counters.unexpectedCompletions, 0);
    assert.equal(counters.pinnedBytes, 0);
    assert.equal(lent.outcomes.length, 1);
  });

  it('are not used up by calls that fail: those after them are confirmed under the right ones', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    const { channel, watched, counters } = pair;
    const all: Lent[] = [];
    let refused = 0;
    // The buffers settle while the peer does not read: now and then a little more is taken.
    for (let i = 0; i < 1000 && refused < 50; i++) {
      const lent = lend(PIECE, channel.writtenBytes);
      if (channel.sendLent(lent.ubuf, [lent.bytes], 1) > 0) all.push(lent);
      else refused += 1;
      lent.ubuf.unref();
    }
    assert.equal(refused, 50);
    const sent = channel.writtenBytes;
    await receive(pair.peer, sent);
    await watched.until(() => channel.writable && channel.outstanding === 0);
    const late = lend(PIECE, sent);
    await write(pair, late);
    await receive(pair.peer, PIECE, sent);
    await watched.until(() => late.outcomes.length > 0);
    for (const { outcomes } of [...all, late]) assert.equal(outcomes.length, 1);
    assert.equal(counters.unexpectedCompletions, 0);
  });

  it('are all confirmed in a thousand sends, one after the other, on one idle connection', async () => {
    const pair = await channelPair();
    const stop = discard(pair.peer);
    const lent = Array.from({ length: 1000 }, () => lend(32 * KIB));
    let next = 0;
    await pair.watched.until(() => {
      if (next > 0 && lent[next - 1]!.outcomes.length === 0) return false;
      if (next === lent.length) return true;
      const { ubuf, bytes } = lent[next++]!;
      assert.equal(pair.channel.sendLent(ubuf, [bytes], 1), bytes.length);
      ubuf.unref();
      return false;
    });
    assert.equal(pair.counters.lentCalls, 1000);
    assert.equal(pair.counters.unexpectedCompletions, 0);
    assert.ok(lent.every(({ outcomes }) => outcomes.length === 1));
    stop();
  });
});

describe('a program', { timeout: 6 * DEADLINE_MS }, () => {
  it('that never reads and never writes again still gets its memory back', async () => {
    const pair = await channelPair();
    const lent = lend(MIB);
    await write(pair, lent);
    assert.equal(lent.outcomes.length, 0);
    await receive(pair.peer, MIB);
    await pair.watched.until(() => lent.outcomes.length > 0);
    const [outcome] = lent.outcomes;
    assert.equal(outcome?.bytes, MIB);
    assert.equal(outcome?.copiedBytes, MIB, 'loopback copies, and says so');
  });

  it('writes on without waiting for releases: acceptance is enough', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    const taken = fill(pair, PIECE, 8);
    assert.equal(taken.length, 8);
    assert.ok(taken.every(({ outcomes }) => outcomes.length === 0));
    assert.ok(pair.channel.outstanding > 0);
  });

  it('that exchanges 4 KiB by 4 KiB makes no zero-copy call at the default threshold', async () => {
    const pair = await channelPair();
    const echo = [Buffer.alloc(4 * KIB)];
    for (let i = 0; i < 100; i++) {
      const lent = lend(4 * KIB);
      await write(pair, lent);
      await receive(pair.peer, 4 * KIB);
      assert.equal(native().sendv(pair.peer, echo, 1, 0), 4 * KIB);
      let back = 0;
      await pair.watched.until(() => {
        back += Math.max(0, pair.channel.readv(echo, 1));
        return back === 4 * KIB;
      });
      assert.deepEqual(lent.outcomes, [{ bytes: 4 * KIB, copiedBytes: 4 * KIB, exact: true }]);
    }
    assert.equal(pair.counters.lentCalls, 0);
    assert.equal(pair.counters.fallbackBytes, 400 * KIB);
  });

  it('that lends to loopback in mode auto is copied for, from the first byte', async () => {
    const pair = await channelPair({ mode: 'auto' });
    const lent = lend(MIB);
    const received = receive(pair.peer, MIB);
    await write(pair, lent);
    await received;
    assert.equal(pair.counters.lentCalls, 0);
    assert.deepEqual(lent.outcomes, [{ bytes: MIB, copiedBytes: MIB, exact: true }]);
  });

  it('sees the stream in order, whatever mixture of lent and copied pieces it is made of', async () => {
    const pair = await channelPair({ sendBytes: 128 * KIB });
    const sizes = [MIB, 100, 4 * KIB, PIECE, 1, 300 * KIB, 32 * KIB - 1, 32 * KIB, 2 * MIB, 17];
    const total = sizes.reduce((sum, size) => sum + size, 0);
    const received = receive(pair.peer, total);
    let from = 0;
    const all: Lent[] = [];
    for (const size of sizes) {
      const lent = lend(size, from);
      from += size;
      all.push(lent);
      await write(pair, lent, 200 * KIB);
    }
    assert.equal((await received).total, total);
    await pair.watched.until(() => all.every(({ outcomes }) => outcomes.length === 1));
    assert.ok(pair.counters.lentCalls > 0 && pair.counters.fallbackBytes > 0);
  });
});

describe('a reset by the peer', { timeout: 3 * DEADLINE_MS }, () => {
  it('with 50 calls pending gives each back once, and before the error is met', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    const { channel, watched, counters } = pair;
    // Fills what loopback delivers at once, so that the 50 stay in the send queue.
    assert.ok(channel.send([Buffer.alloc(256 * KIB)], 1, false) > 0);
    const lent = fill(pair, 8 * KIB, 50);
    assert.equal(lent.length, 50);
    const before = watched.events.length;
    pair.resetPeer();
    await watched.until(() => channel.readable && lent.every(({ outcomes }) => outcomes.length > 0));
    assert.ok(lent.every(({ outcomes }) => outcomes.length === 1));
    const [first, ...then] = watched.events.slice(before);
    assert.equal(first, 'released');
    assert.ok(then.includes('readable'));
    assert.equal(channel.readv([Buffer.alloc(10)], 1), -errnoOf('ECONNRESET'));
    assert.equal(counters.pinnedBytes, 0);
    const late = lend(PIECE);
    assert.ok(offer(channel, late.ubuf, late.bytes) < 0, 'sending goes on failing, and lends nothing');
    assert.equal(late.ubuf.refs, 1);
  });

  it('leaves readable what came before it', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    fill(pair, PIECE, 1000);
    assert.equal(native().sendv(pair.peer, [Buffer.from('last words')], 1, 0), 10);
    await pair.watched.until(() => pair.channel.readable);
    pair.resetPeer();
    await pair.watched.until(() => pair.channel.outstanding === 0);
    const into = Buffer.alloc(100);
    assert.equal(pair.channel.readv([into], 1), 10);
    assert.equal(into.toString('latin1', 0, 10), 'last words');
    assert.equal(pair.channel.readv([into], 1), -errnoOf('ECONNRESET'));
  });
});

describe('the error queue', { timeout: 3 * DEADLINE_MS }, () => {
  it('is read with room for the largest record, and the length set anew for each', () => {
    // A control buffer that is too short loses a confirmation for good; see also the IPv6 connection below.
    const source = readFileSync(new URL('../../../native/data.c', import.meta.url), 'utf8');
    const bytes = Number(/#define CONTROL_BYTES (\d+)/.exec(source)?.[1]);
    assert.ok(bytes >= 128, `${bytes} bytes`);
    const loop = /while \(count < capacity\) \{([\s\S]*?)recvmsg\(/.exec(source)?.[1];
    assert.match(loop ?? '', /\.msg_controllen = sizeof control\.bytes/);
  });

  const hasIpv6 = Object.values(networkInterfaces()).some((list) =>
    list?.some(({ address }) => address === '::1'),
  );
  it('of an IPv6 connection, with its longer records, confirms as well', {
    skip: !hasIpv6 && 'no ::1 here',
  }, async () => {
    const pair = await channelPair({ address: '::1' });
    const all: Lent[] = [];
    for (let i = 0; i < 20; i++) {
      const lent = lend(PIECE, i * PIECE);
      all.push(lent);
      await write(pair, lent);
      await receive(pair.peer, PIECE, i * PIECE);
    }
    await pair.watched.until(() => all.every(({ outcomes }) => outcomes.length > 0));
    assert.equal(pair.counters.lentCalls, 20);
    assert.equal(pair.counters.unexpectedCompletions, 0);
  });
});

describe('one pool', { timeout: 6 * DEADLINE_MS }, () => {
  it('serves ten connections while an eleventh, whose peer never reads, keeps its share', async () => {
    const pool = new SlabPool({ slabBytes: MIB, maxBytes: 24 * MIB });
    const counters = zerocopyCounters();
    const stalled = await channelPair({ receiveBytes: 4 * KIB, sendBytes: MIB, counters });
    const fast = await Promise.all(Array.from({ length: 10 }, () => channelPair({ counters })));
    const bytes = 4 * MIB;
    const held = lend(pool.take(PIECE)!.bytes);
    let kept = 0;
    while (offer(stalled.channel, held.ubuf, held.bytes) > 0) kept += 1;
    held.ubuf.unref();
    assert.ok(kept > 0 && kept < 100, `${kept} pieces: its send buffer is the bound`);
    await Promise.all(
      fast.map(async (pair) => {
        const received = receive(pair.peer, bytes);
        for (let at = 0; at < bytes; at += MIB) {
          const unit = pool.take(MIB)!;
          fillPattern(unit.bytes, at);
          const lent = lend(unit.bytes);
          await write(pair, lent);
          await pair.watched.until(() => lent.outcomes.length > 0);
          pool.give(unit);
        }
        assert.equal((await received).total, bytes);
      }),
    );
    assert.deepEqual(held.outcomes, []);
    assert.ok(counters.pinnedBytes > 0 && counters.pinnedBytes <= kept * PIECE);
    assert.equal(pool.usedUnits, 1);
    closeChannels();
    await new Promise(setImmediate);
    assert.equal(held.outcomes.length, 1);
    assert.equal(counters.pinnedBytes, 0);
  });

  it('gives memory to the next connection with no trace of the last', async () => {
    const pool = new SlabPool({ slabBytes: MIB, maxBytes: MIB });
    const first = await channelPair({ receiveBytes: 4 * KIB });
    const unit = pool.take(MIB)!;
    fillPattern(unit.bytes);
    const early = lend(unit.bytes);
    offer(first.channel, early.ubuf, unit.bytes);
    early.ubuf.unref();
    assert.equal(pool.take(MIB), undefined, 'all of the pool is out');
    first.channel.reset();
    await new Promise(setImmediate);
    assert.equal(early.outcomes.length, 1);
    pool.give(unit);

    const second = await channelPair();
    const again = pool.take(MIB)!;
    assert.equal(again, unit);
    fillPattern(again.bytes, 12_345);
    const late = lend(again.bytes);
    await write(second, late);
    assert.deepEqual(late.outcomes, [], 'released by its own connection only');
    await receive(second.peer, MIB, 12_345);
    await second.watched.until(() => late.outcomes.length > 0);
    assert.equal(late.outcomes.length, 1);
    assert.equal(early.outcomes.length, 1);
  });
});

it('the event loop is not kept busy by a record: after the drain there is silence', {
  timeout: 3 * DEADLINE_MS,
}, async () => {
  const pair = await channelPair();
  const stop = discard(pair.peer);
  const lent = lend(PIECE);
  await write(pair, lent);
  await pair.watched.until(() => lent.outcomes.length > 0);
  const events = pair.watched.events.length;
  // A round trip of another pair: time enough for an event that kept coming.
  for (let i = 0; i < 10; i++) {
    const other = await channelPair();
    native().sendv(other.peer, [Buffer.from('x')], 1, 0);
    await other.watched.until(() => other.channel.readable);
    other.channel.reset();
  }
  assert.equal(pair.watched.events.length, events);
  stop();
});
