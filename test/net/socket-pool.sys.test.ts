/** Many sockets that send leases of one pool: one slow peer does not starve the others, and nothing sticks to a lease. */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { type Lease, Pool, type TcpSocket } from '../../src/net/index.ts';
import {
  closeDoor,
  closing,
  FORCE,
  fillNumbers,
  KIB,
  MIB,
  numbers,
  type RawPeer,
  rawPair,
} from '../support/door.ts';

const PIECE = 128 * KIB;

afterEach(closeDoor);

/** A program as one would write it: it waits for a lease, and for its return before it asks for more than `most`. */
async function serve(
  client: TcpSocket,
  pool: Pool,
  bytes: number,
  most: number,
  signal?: AbortSignal,
): Promise<void> {
  const flying = new Set<Promise<void>>();
  for (let at = 0; at < bytes; at += PIECE) {
    const lease = await pool.acquire(PIECE, signal === undefined ? {} : { signal });
    fillNumbers(lease.buffer, at);
    const flight = client
      .send(lease)
      .then(() => {})
      .finally(() => {
        lease.release();
        flying.delete(flight);
      });
    flight.catch(() => {});
    flying.add(flight);
    if (flying.size >= most) await Promise.race(flying);
  }
  await Promise.all(flying);
}

describe('one pool for many sockets', { timeout: 30_000 }, () => {
  it('serves ten fast peers while an eleventh never reads and keeps its share, until it is gone', async () => {
    const pool = new Pool({ maxBytes: 8 * MIB, slabBytes: 2 * MIB });
    const most = 4;
    const slow = await rawPair({ zerocopy: FORCE, receiveBytes: 16 * KIB });
    const slowServed = serve(slow.client, pool, 64 * MIB, most);
    const slowFailed = assert.rejects(slowServed, { code: 'ECONNRESET' });
    const fast: { client: TcpSocket; peer: RawPeer }[] = [];
    for (let i = 0; i < 10; i++) fast.push(await rawPair({ zerocopy: FORCE }));
    await Promise.all(
      fast.flatMap(({ client, peer }) => [serve(client, pool, 8 * MIB, most), peer.read(8 * MIB)]),
    );
    // Only the slow one has any.
    assert.ok(pool.stats().leases >= 1 && pool.stats().leases <= most, `${pool.stats().leases} leases`);
    assert.equal(pool.stats().lent, pool.stats().leases);
    slow.peer.reset();
    await slowFailed;
    assert.deepEqual([pool.stats().leases, pool.stats().lent, pool.stats().waiting], [0, 0, 0]);
  });

  it('has back-pressure for the one that asks for more than there is, and for nobody who has', async () => {
    const pool = new Pool({ maxBytes: MIB, slabBytes: MIB });
    const slow = await rawPair({ zerocopy: FORCE, receiveBytes: 16 * KIB });
    const abort = new AbortController();
    const greedy = serve(slow.client, pool, 64 * MIB, 1000, abort.signal);
    const gaveUp = assert.rejects(greedy, { name: 'AbortError' });
    const { client, peer } = await rawPair({ zerocopy: FORCE });
    const lease = pool.tryAcquire(PIECE);
    assert.equal(lease, undefined, 'all of the pool is with the slow peer');
    // What does not come from the pool goes on.
    await Promise.all([client.send(numbers(MIB)), peer.read(MIB)]);
    assert.equal(pool.stats().waiting, 1);
    abort.abort();
    await gaveUp;
    await slow.peer.read(MIB);
    assert.equal((await pool.acquire(PIECE)).state, 'held');
  });
});

describe('a lease that was sent before', { timeout: 30_000 }, () => {
  const ways: readonly [name: string, end: (client: TcpSocket, peer: RawPeer) => void][] = [
    ['was closed', (client) => client.end()],
    ['was destroyed', (client) => client.destroy()],
    ['was reset', (client) => client.resetAndDestroy()],
    ['was reset by its peer', (_client, peer) => peer.reset()],
  ];
  for (const [name, end] of ways) {
    it(`on a connection that ${name} is as good as new on the next`, async () => {
      const pool = new Pool({ maxBytes: 4 * MIB, slabBytes: MIB, debug: true });
      const lease: Lease = await pool.acquire(MIB);
      const first = await rawPair({ zerocopy: FORCE, receiveBytes: 16 * KIB });
      first.client.resume();
      fillNumbers(lease.buffer);
      lease.length = MIB - 8;
      const sent = first.client.send(lease).catch(() => null);
      const closed = closing(first.client);
      end(first.client, first.peer);
      if (name === 'was closed' || name === 'was destroyed') await first.peer.read();
      await sent;
      first.peer.close();
      await closed;
      assert.equal(lease.state, 'held');
      assert.equal(lease.length, MIB - 8, 'what the program has set');
      lease.length = MIB;
      fillNumbers(lease.buffer);
      const { client, peer } = await rawPair({ zerocopy: FORCE });
      const [outcome] = await Promise.all([client.send(lease), peer.read(MIB)]);
      assert.equal(outcome.bytes, MIB);
      assert.ok(outcome.copiedBytes <= MIB);
      lease.release();
      // The same memory for somebody else.
      const next = await pool.acquire(MIB);
      assert.deepEqual([next.state, next.length, next.buffer.length], ['held', MIB, MIB]);
      assert.deepEqual([pool.stats().mutated, pool.stats().lent, pool.stats().leaked], [0, 0, 0]);
      const { mappedBytes } = pool.stats();
      assert.ok(mappedBytes <= 2 * MIB, `${mappedBytes} bytes mapped`);
    });
  }
});
