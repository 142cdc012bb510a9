/** Sums over sockets and pools of a thread: what is gone stays counted, and maxima are of all together. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Pool, stats } from '../../src/net/index.ts';
import { connectedSockets } from '../support/net-pair.ts';

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;

/** Collects until `done`, in a bounded number of turns. */
async function collected(done: () => boolean): Promise<void> {
  for (let i = 0; i < 200 && !done(); i++) {
    collectGarbage();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

describe('stats()', { timeout: 30_000 }, () => {
  it('has the sums of all pools, and forgets none that was collected', async () => {
    const before = stats().pools;
    const use = async (): Promise<void> => {
      const pools = [new Pool({ maxBytes: 1 << 20, slabBytes: 1 << 16 }), new Pool({ maxBytes: 1 << 20 })];
      const [first, second] = pools as [Pool, Pool];
      const lease = await first.acquire(1000);
      (await first.acquire(1000)).release();
      (await second.acquire(1 << 20)).release();
      assert.equal(first.tryAcquire(1 << 20), undefined);
      const now = stats().pools;
      const [a, b] = [first.stats(), second.stats()];
      assert.equal(now.pools, before.pools + 2);
      for (const name of ['mappedBytes', 'usedBytes', 'leases', 'hits', 'misses', 'refused'] as const) {
        assert.equal(now[name], before[name] + a[name] + b[name], name);
      }
      assert.deepEqual([a.hits, a.misses, a.refused, b.misses], [1, 1, 1, 1]);
      lease.release();
    };
    await use();
    await collected(() => stats().pools.pools === before.pools);
    const after = stats().pools;
    assert.deepEqual(
      { ...after, hits: after.hits - 1, misses: after.misses - 2, refused: after.refused - 1 },
      before,
    );
  });

  it('counts leases that were lost', async () => {
    const pool = new Pool({ maxBytes: 1 << 20 });
    const before = stats().pools.leaked;
    await (async () => {
      await pool.acquire(1000);
    })();
    await collected(() => stats().pools.leaked > before);
    assert.equal(stats().pools.leaked, before + 1);
    assert.equal(pool.stats().leaked, 1);
  });

  it('has the most that all sockets had lent at once', async () => {
    const bytes = 100_000;
    const { sockets, end } = await connectedSockets({ zerocopy: { mode: 'force', pin: true } }, 4);
    const before = stats();
    // Accepted in this turn, and released in later ones.
    await Promise.all(sockets.map((socket) => socket.send(Buffer.alloc(bytes))));
    const { pinnedBytes, pinnedBytesMax, zerocopy } = stats();
    assert.equal(pinnedBytes, 0);
    assert.equal(zerocopy.pinnedBytes, 0);
    assert.equal(zerocopy.lentBytes - before.zerocopy.lentBytes, 4 * bytes);
    assert.equal(pinnedBytesMax, 4 * bytes);
    assert.equal(zerocopy.pinnedBytesMax, bytes);
    await end();
    assert.equal(stats().closedSockets - before.closedSockets, 8);
    assert.equal(stats().zerocopy.lentBytes, zerocopy.lentBytes);
  });
});
