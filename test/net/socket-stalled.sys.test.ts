/** Peers that read late, or never: what stays lent, for how long, and what the program hears meanwhile. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import { Pool, stats } from '../../src/net/index.ts';
import { scaled } from '../support/counts.ts';
import {
  closeDoor,
  closing,
  doorPair,
  FORCE,
  KIB,
  MIB,
  numbers,
  rawPair,
  turn,
  turnsUntil,
} from '../support/door.ts';
import { discard } from '../support/sockets.ts';

const PIECE = 64 * KIB;
const stalled = { zerocopy: FORCE, receiveBytes: 16 * KIB };

afterEach(closeDoor);

describe('a peer that never reads', { timeout: scaled(30_000, 600_000) }, () => {
  it('loses the connection after pinTimeoutMs, and everything that was lent is back', async () => {
    const { client } = await rawPair({ ...stalled, zerocopy: { ...FORCE, pinTimeoutMs: 100 } });
    const pinnedBefore = stats().pinnedBytes;
    const pool = new Pool({ maxBytes: 16 * MIB });
    const lease = await pool.acquire(MIB);
    lease.buffer.fill(1);
    const closed = closing(client);
    let calledBack = 0;
    client.write(numbers(MIB), () => {
      calledBack += 1;
    });
    const sends = [client.send(lease), client.send(numbers(8 * MIB)), client.send(numbers(PIECE))];
    const results = await Promise.allSettled(sends);
    for (const result of results) {
      assert.equal(result.status === 'rejected' && result.reason.code, 'ETIMEDOUT');
    }
    assert.deepEqual(await closed, { hadError: true, codes: ['ETIMEDOUT'] });
    assert.equal(calledBack, 1);
    assert.equal(lease.state, 'held');
    assert.equal(pool.stats().lent, 0);
    assert.equal(stats().pinnedBytes, pinnedBefore);
  });

  it('has its say no longer after the close, either: pinTimeoutMs goes on', async () => {
    for (const how of ['destroy', 'end'] as const) {
      const { client, peer } = await rawPair({ ...stalled, zerocopy: { ...FORCE, pinTimeoutMs: 50 } });
      client.resume();
      const heard = new Promise<void>((resolve) => client.write(numbers(MIB), () => resolve()));
      const closed = closing(client);
      client[how]();
      if (how === 'end') peer.shutdownWrite();
      await closed;
      assert.ok(stats().lingering > 0, how);
      await heard;
      await turnsUntil('nothing lingers', () => stats().lingering === 0);
      assert.equal(client.stats().zerocopy.pinnedBytes, 0);
      peer.close();
    }
  });

  it('does not, if all that was lent came back in time, however long it then says nothing', async () => {
    const { client, peer } = await rawPair({ zerocopy: { ...FORCE, pinTimeoutMs: 30 } });
    await Promise.all([client.send(numbers(PIECE)), peer.read(PIECE)]);
    // Longer than the limit, on a second connection whose time does run out.
    const other = await rawPair({ ...stalled, zerocopy: { ...FORCE, pinTimeoutMs: 60 } });
    await assert.rejects(other.client.send(numbers(8 * MIB)), { code: 'ETIMEDOUT' });
    assert.equal(client.destroyed, false);
    await Promise.all([client.send(numbers(PIECE, PIECE)), peer.read(2 * PIECE)]);
  });

  it("keeps the memory without such a limit; 'drain' and callbacks wait for it, and nothing is lost", async () => {
    const { client, peer } = await rawPair(stalled);
    const total = 24 * MIB;
    let drains = 0;
    client.on('drain', () => {
      drains += 1;
      assert.equal(client.writableLength, 0, "'drain' with something waiting");
    });
    const heard: number[] = [];
    for (let at = 0; at < total; at += MIB) client.write(numbers(MIB, at), () => heard.push(at));
    for (let i = 0; i < 200; i++) await turn();
    const before = heard.length;
    const { pinnedBytes } = client.stats().zerocopy;
    assert.ok(pinnedBytes > 0 && before < total / MIB);
    for (let i = 0; i < 200; i++) await turn();
    assert.deepEqual([heard.length, drains, client.stats().zerocopy.pinnedBytes], [before, 0, pinnedBytes]);
    await peer.read(total);
    await turnsUntil('all callbacks', () => heard.length === total / MIB);
    assert.deepEqual(
      heard,
      heard.map((_, i) => i * MIB),
    );
    assert.equal(drains, 1);
    assert.equal(client.stats().zerocopy.pinnedBytes, 0);
  });

  it('and one that is slow sees a large chunk and a small one behind it in order', async () => {
    const { client, peer } = await rawPair(stalled);
    const sent = [client.send(numbers(8 * MIB)), client.send(numbers(64 * KIB, 8 * MIB))];
    const total = 8 * MIB + 64 * KIB;
    let at = 0;
    while (at < total) {
      at = Math.min(total, at + 300_000);
      await peer.read(at);
      await turn();
    }
    for (const { bytes } of await Promise.all(sent)) assert.ok(bytes === 8 * MIB || bytes === 64 * KIB);
    client.end();
    await peer.read();
    assert.deepEqual([peer.total, peer.end], [total, 0]);
  });
});

describe('a peer that has ended', { timeout: scaled(30_000, 600_000) }, () => {
  it('still gets what a half-open socket sends', async () => {
    const { client, peer } = await rawPair({ ...stalled, allowHalfOpen: true });
    client.resume();
    peer.shutdownWrite();
    await once(client, 'end');
    const sent = client.send(numbers(6 * MIB));
    await peer.read(6 * MIB);
    assert.equal((await sent).bytes, 6 * MIB);
    client.end();
    await peer.read();
    assert.equal(peer.end, 0);
    assert.equal((await closing(client)).hadError, false);
  });

  it('still gets what was written before, and the end, from a socket that ends with it', async () => {
    const { client, peer } = await rawPair(stalled);
    client.resume();
    const heard: (Error | null | undefined)[] = [];
    for (let at = 0; at < 8 * MIB; at += MIB) client.write(numbers(MIB, at), (error) => heard.push(error));
    const closed = closing(client);
    peer.shutdownWrite();
    await peer.read();
    assert.deepEqual([peer.total, peer.end], [8 * MIB, 0]);
    assert.deepEqual(await closed, { hadError: false, codes: [] });
    await turnsUntil('all callbacks', () => heard.length === 8);
    assert.ok(heard.every((error) => !error));
  });

  it('may send on to a socket that has ended first', async () => {
    const { client, peer } = await doorPair({ zerocopy: FORCE }, { zerocopy: FORCE, allowHalfOpen: true });
    client.end(numbers(PIECE));
    peer.resume();
    await once(peer, 'end');
    const received: Buffer[] = [];
    client.on('data', (chunk: Buffer) => received.push(chunk));
    const sent = peer.send(numbers(4 * MIB));
    peer.end();
    await once(client, 'close');
    assert.ok(Buffer.concat(received).equals(numbers(4 * MIB)));
    assert.equal((await sent).bytes, 4 * MIB);
  });
});

describe('a program', { timeout: 60_000 }, () => {
  it('that never reads and never writes again still gets its memory back', async () => {
    const { client, peer } = await rawPair(stalled);
    const released = new Promise<void>((resolve) => client.write(numbers(4 * MIB), () => resolve()));
    await peer.read(4 * MIB);
    await released;
    assert.equal(client.stats().zerocopy.pinnedBytes, 0);
  });

  it('gets each buffer back that it sends one after the other on an idle socket', async () => {
    const { client, peer } = await rawPair({ zerocopy: FORCE });
    const stop = discard(peer.fd);
    const buffer = Buffer.alloc(PIECE);
    const count = scaled(1000, 10_000);
    for (let i = 0; i < count; i++) await client.send(buffer);
    stop();
    const { lentBytes, fallbackBytes, pinnedBytes } = client.stats().zerocopy;
    assert.equal(lentBytes + fallbackBytes, count * PIECE);
    assert.ok(lentBytes > 0);
    assert.equal(pinnedBytes, 0);
  });

  it('that plays 4 KiB back and forth makes no zero-copy call at the default threshold', async () => {
    const { client, peer } = await doorPair({ zerocopy: { mode: 'force' } }, { zerocopy: { mode: 'force' } });
    peer.on('data', (chunk) => peer.write(chunk));
    const ball = numbers(4 * KIB);
    for (let i = 0; i < 100; i++) {
      let back = 0;
      client.write(ball);
      while (back < ball.length) back += ((await once(client, 'data')) as [Buffer])[0].length;
    }
    for (const socket of [client, peer]) {
      const { zerocopy } = socket.stats();
      assert.equal(zerocopy.lentCalls, 0);
      assert.equal(zerocopy.copied.threshold, 100 * ball.length);
    }
  });

  it("that goes by 'drain' has many chunks accepted before the first of them is released", async () => {
    const { client, peer } = await rawPair({ zerocopy: FORCE });
    let released = 0;
    let accepted = 0;
    // Microtasks only: the event loop, which brings releases, does not turn meanwhile.
    while (accepted < 8) {
      if (!client.write(numbers(PIECE, accepted * PIECE), () => released++)) await once(client, 'drain');
      accepted += 1;
    }
    assert.equal(released, 0, 'one write per round trip otherwise');
    assert.equal(client.bytesWritten - client.writableLength, 8 * PIECE);
    await peer.read(8 * PIECE);
    await turnsUntil('releases', () => released === 8);
  });
});
