import assert from 'node:assert/strict';
import { once } from 'node:events';
import { describe, it } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { ZerotxError } from '../../src/core/errors.ts';
import { type Lease, lendLease, returnLease } from '../../src/net/lease.ts';
import { borrow } from '../../src/net/lending.ts';
import { Pool, type PoolOptions } from '../../src/net/pool.ts';

const KIB = 1024;

function coded(code: string): (error: unknown) => boolean {
  return (error) => (error as ZerotxError).code === code;
}

/** A pool of two slabs, each with 64 KiB. */
function smallPool(options: PoolOptions = {}): Pool {
  return new Pool({ maxBytes: 128 * KIB, slabBytes: 64 * KIB, ...options });
}

function takeAll(pool: Pool, bytes: number): Lease[] {
  const leases: Lease[] = [];
  for (let lease = pool.tryAcquire(bytes); lease !== undefined; lease = pool.tryAcquire(bytes))
    leases.push(lease);
  return leases;
}

/** Which of the promises are settled by now. */
async function settled(promises: readonly Promise<unknown>[]): Promise<number[]> {
  const done: number[] = [];
  promises.forEach((promise, index) => {
    const note = (): void => {
      done.push(index);
    };
    promise.then(note, note);
  });
  await new Promise((resolve) => setImmediate(resolve));
  return done;
}

describe('a pool', () => {
  it('counts what it gives', async () => {
    const pool = smallPool();
    const first = await pool.acquire(1000);
    const second = pool.tryAcquire(64 * KIB) as Lease;
    assert.equal(first.pool, pool);
    lendLease(second);
    const { hits, misses, ...rest } = pool.stats();
    assert.equal(hits + misses, 2);
    assert.ok(rest.usedBytes >= 64 * KIB + 1000 && rest.usedBytes <= 128 * KIB);
    assert.deepEqual(rest, {
      mappedBytes: 128 * KIB,
      usedBytes: rest.usedBytes,
      usedBytesMax: rest.usedBytes,
      leases: 2,
      lent: 1,
      refused: 0,
      waiting: 0,
      leaked: 0,
      mutated: 0,
    });
    returnLease(second);
    for (const lease of [first, second]) lease.release();
    assert.equal(pool.trim(), 128 * KIB);
    const { mappedBytes, usedBytes, leases, lent } = pool.stats();
    assert.deepEqual([mappedBytes, usedBytes, leases, lent], [0, 0, 0, 0]);
    assert.equal(pool.stats().usedBytesMax, rest.usedBytes);
  });

  it('refuses at its limit, and waits in acquire()', async () => {
    const pool = smallPool();
    const leases = takeAll(pool, 32 * KIB);
    assert.equal(leases.length, 4);
    assert.equal(pool.stats().refused, 1);
    const waiting = pool.acquire(32 * KIB);
    assert.deepEqual(await settled([waiting]), []);
    assert.deepEqual([pool.stats().waiting, pool.stats().refused], [1, 2]);
    leases[1]?.release();
    assert.equal((await waiting).capacity, 32 * KIB);
    assert.deepEqual([pool.stats().waiting, pool.stats().leases], [0, 4]);
  });

  it('waits for the kernel, not for the program alone', async () => {
    const pool = smallPool({ maxBytes: 64 * KIB });
    const lease = await pool.acquire(64 * KIB);
    const waiting = pool.acquire(64 * KIB);
    lendLease(lease);
    lease.release();
    assert.deepEqual(await settled([waiting]), []);
    returnLease(lease);
    assert.notEqual(await waiting, lease);
  });

  it('serves those who wait in their order, and lets nobody overtake', async () => {
    const pool = smallPool();
    const leases = takeAll(pool, 32 * KIB);
    const promises = [128, 32, 32].map((kib) => pool.acquire(kib * KIB));
    const order = promises.map((promise, index) => promise.then(() => index));
    for (const lease of leases.slice(1)) lease.release();
    assert.deepEqual(await settled(promises), [], 'the first wants all of it');
    assert.equal(pool.tryAcquire(1), undefined, 'though there is room');
    leases[0]?.release();
    assert.equal(await Promise.race(order), 0);
    assert.deepEqual(await settled(promises), [0]);
    (await (promises[0] as Promise<Lease>)).release();
    assert.deepEqual(await settled(promises), [0, 1, 2]);
    assert.ok(pool.tryAcquire(32 * KIB));
  });

  it('gives slabs of one size to another when they are empty', async () => {
    const pool = smallPool();
    const small = takeAll(pool, 1);
    assert.ok(small.length >= 2);
    const large = pool.acquire(64 * KIB);
    // Every second one: no slab is empty.
    for (const lease of small.filter((_, index) => index % 2 === 0)) lease.release();
    if (small.length > 2) assert.deepEqual(await settled([large]), []);
    for (const lease of small.filter((_, index) => index % 2 === 1)) lease.release();
    assert.equal((await large).buffer.length, 64 * KIB);
    assert.ok(pool.stats().mappedBytes <= 128 * KIB);
  });

  it('refuses for good what it can never have', async () => {
    const pool = smallPool();
    for (const bytes of [128 * KIB + 1, 2 ** 31, Number.MAX_SAFE_INTEGER]) {
      assert.throws(() => pool.tryAcquire(bytes), coded('ZTX_TOO_LARGE'));
      await assert.rejects(pool.acquire(bytes), coded('ZTX_TOO_LARGE'));
    }
    assert.equal((await pool.acquire(128 * KIB)).buffer.length, 128 * KIB);
    assert.throws(() => new Pool({ maxBytes: 100 * KIB }).tryAcquire(65 * KIB), coded('ZTX_TOO_LARGE'));
    assert.equal(pool.stats().refused, 0);
  });

  it('checks its arguments', async () => {
    const pool = smallPool();
    for (const bytes of [0, -1, 1.5, Number.NaN]) {
      assert.throws(() => pool.tryAcquire(bytes), coded('ERR_OUT_OF_RANGE'));
      await assert.rejects(pool.acquire(bytes), coded('ERR_OUT_OF_RANGE'));
    }
    await assert.rejects(pool.acquire('1' as unknown as number), coded('ERR_INVALID_ARG_TYPE'));
    await assert.rejects(
      pool.acquire(1, { signal: {} as unknown as AbortSignal }),
      coded('ERR_INVALID_ARG_TYPE'),
    );
    for (const options of [{ maxBytes: 1 }, { slabBytes: 0 }, { slabBytes: 2 ** 31 }]) {
      assert.throws(() => new Pool(options), coded('ERR_OUT_OF_RANGE'));
    }
    assert.throws(() => new Pool({ debug: 1 as unknown as boolean }), coded('ERR_INVALID_ARG_TYPE'));
    assert.throws(() => new Pool(null as unknown as object), coded('ERR_INVALID_ARG_TYPE'));
  });
});

describe('an aborted acquire()', () => {
  it('rejects with the reason at once', async () => {
    const pool = smallPool();
    await assert.rejects(pool.acquire(1, { signal: AbortSignal.abort() }), { name: 'AbortError' });
    assert.equal(pool.stats().leases, 0);
  });

  it('leaves the queue, and those behind it go on', async () => {
    const pool = smallPool();
    const [kept, given] = takeAll(pool, 64 * KIB);
    const abort = new AbortController();
    const first = pool.acquire(128 * KIB, { signal: abort.signal });
    const second = pool.acquire(64 * KIB, { signal: abort.signal });
    const third = pool.acquire(64 * KIB);
    given?.release();
    assert.deepEqual(await settled([first, second, third]), []);
    const reason = new Error('changed my mind');
    abort.abort(reason);
    await assert.rejects(first, reason);
    // The first left the queue, and so the second was served before its own listener ran.
    assert.equal((await second).state, 'held');
    assert.equal(pool.stats().waiting, 1);
    kept?.release();
    assert.equal((await third).state, 'held');
  });

  it('keeps no listener on the signal, and a late abort changes nothing', async () => {
    const pool = smallPool();
    const leases = takeAll(pool, 64 * KIB);
    const abort = new AbortController();
    const counts = { added: 0, removed: 0 };
    const { addEventListener, removeEventListener } = abort.signal;
    Object.assign(abort.signal, {
      addEventListener(...args: Parameters<typeof addEventListener>) {
        counts.added += 1;
        addEventListener.apply(abort.signal, args);
      },
      removeEventListener(...args: Parameters<typeof removeEventListener>) {
        counts.removed += 1;
        removeEventListener.apply(abort.signal, args);
      },
    });
    const waiting = pool.acquire(64 * KIB, { signal: abort.signal });
    leases[0]?.release();
    const lease = await waiting;
    assert.deepEqual(counts, { added: 1, removed: 1 });
    abort.abort();
    assert.equal(lease.state, 'held');
    assert.equal(pool.stats().leases, 2);
  });
});

describe('a lease that is lost', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;

  /** Collects until `done`; the registry tells in a task of its own. */
  async function collectUntil(done: () => boolean): Promise<void> {
    for (let turn = 0; !done(); turn++) {
      assert.ok(turn < 1000, 'not collected');
      collect();
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  it('gives its memory back when it is collected, and is counted', { timeout: 60_000 }, async () => {
    const pool = smallPool();
    const lose = (): void => {
      for (const lease of takeAll(pool, 32 * KIB)) lease.buffer.fill(1);
    };
    lose();
    const waiting = pool.acquire(128 * KIB);
    await collectUntil(() => pool.stats().leaked === 4);
    assert.equal((await waiting).buffer.length, 128 * KIB);
    assert.equal(pool.stats().leases, 1);
  });

  it('is not lost while a view of its buffer is used', { timeout: 60_000 }, async () => {
    const pool = smallPool();
    const viewOf = (): Uint8Array =>
      new Uint8Array((pool.tryAcquire(64 * KIB) as Lease).buffer.buffer, 10, 20);
    const lose = (): void => {
      (pool.tryAcquire(64 * KIB) as Lease).buffer.fill(1);
    };
    let view: Uint8Array | undefined = viewOf();
    lose();
    await collectUntil(() => pool.stats().leaked === 1);
    assert.equal(view.length, 20);
    assert.equal(pool.stats().leases, 1);
    view = undefined;
    await collectUntil(() => pool.stats().leaked === 2);
    assert.equal(pool.stats().leases, 0);
  });

  it('is no leak when it was released or is still in flight', { timeout: 60_000 }, async () => {
    const pool = smallPool();
    const inFlight: (() => void)[] = [];
    const use = (): void => {
      const lent = pool.tryAcquire(32 * KIB) as Lease;
      lendLease(lent);
      inFlight.push(() => returnLease(lent));
      const shared = borrow((pool.tryAcquire(32 * KIB) as Lease).buffer, false);
      inFlight.push(() => shared?.giveBack());
      (pool.tryAcquire(32 * KIB) as Lease).release();
    };
    use();
    let collected = 0;
    const witness = new FinalizationRegistry(() => {
      collected += 1;
    });
    for (let i = 0; i < 3; i++) {
      const before = collected;
      witness.register({}, i);
      await collectUntil(() => collected > before);
    }
    assert.deepEqual([pool.stats().leaked, pool.stats().leases, pool.stats().lent], [0, 2, 2]);
    // In a function of its own, whose frame keeps none of them.
    const land = (): void => {
      for (const giveBack of inFlight.splice(0)) giveBack();
    };
    land();
    await collectUntil(() => pool.stats().leaked === 2);
    assert.deepEqual([pool.stats().leases, pool.stats().lent], [0, 0]);
  });

  it('keeps its memory for ever if it was abandoned in flight', { timeout: 60_000 }, async () => {
    const pool = smallPool();
    const abandon = (): Uint8Array => lendLease(pool.tryAcquire(64 * KIB) as Lease);
    const bytes = abandon().fill(7);
    await collectUntil(() => pool.stats().leaked === 1);
    assert.deepEqual([pool.stats().leases, pool.stats().lent], [1, 1]);
    const others = takeAll(pool, 64 * KIB);
    assert.equal(others.length, 1);
    others[0]?.buffer.fill(8);
    assert.ok(bytes.every((byte) => byte === 7));
  });
});

describe('a pool in debug mode', () => {
  it('fills memory that comes back with 0xDB', () => {
    const pool = smallPool({ debug: true });
    const lease = pool.tryAcquire(32 * KIB) as Lease;
    lease.buffer.fill(7);
    const bytes = lendLease(lease);
    returnLease(lease);
    assert.equal(bytes[0], 7);
    lease.release();
    assert.ok(bytes.every((byte) => byte === 0xdb));
  });

  it('sees writes to what is in flight, and warns once', async () => {
    const pool = smallPool({ debug: true });
    const warnings: Error[] = [];
    const onWarning = (warning: Error): unknown => warnings.push(warning);
    process.on('warning', onWarning);
    const lease = pool.tryAcquire(32 * KIB) as Lease;
    const bytes = lendLease(lease);
    returnLease(lease);
    const whole = borrow(lease.buffer, false);
    const part = borrow(lease.buffer.subarray(100, 200), false);
    lease.buffer[0] = (lease.buffer[0] as number) ^ 1;
    whole?.giveBack();
    part?.giveBack();
    assert.equal(pool.stats().mutated, 1, 'the part did not change');
    // Only a program that kept the memory by force can do this to a lease that moved.
    lendLease(lease);
    lendLease(lease);
    bytes[5] = (bytes[5] as number) ^ 1;
    returnLease(lease);
    assert.equal(pool.stats().mutated, 1, 'not before the last return');
    returnLease(lease);
    assert.equal(pool.stats().mutated, 2);
    await once(process, 'warning');
    process.off('warning', onWarning);
    assert.deepEqual(
      warnings.map((warning) => [warning.name, (warning as NodeJS.ErrnoException).code]),
      [['ZerotxWarning', 'ZTX_MUTATED']],
    );
  });
});
