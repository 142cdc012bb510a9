/**
 * A pool under any sequence of what programs and sockets do with it, against a model that knows who holds what: contents
 * stay where they are put, the counts are right, those who wait are served in order and never for ever.
 */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import fc from 'fast-check';
import { type Lease, lendLease, returnLease } from '../../src/net/lease.ts';
import { type Borrowed, borrow } from '../../src/net/lending.ts';
import { Pool } from '../../src/net/pool.ts';

if (process.env.FC_SEED !== undefined) fc.configureGlobal({ seed: Number(process.env.FC_SEED) });

const KIB = 1024;
const MAX_BYTES = 256 * KIB;
const POISON = 0xdb;

type Name =
  | 'tryAcquire'
  | 'acquire'
  | 'abort'
  | 'write'
  | 'setLength'
  | 'move'
  | 'share'
  | 'land'
  | 'release'
  | 'trim';

interface Step {
  readonly name: Name;
  readonly which: number;
  readonly bytes: number;
}

interface Held {
  readonly lease: Lease;
  mark: number;
  moves: number;
  released: boolean;
  /** Buffers the program has seen; all but the last are empty. */
  readonly seen: Buffer[];
  readonly flights: Flight[];
}

interface Flight {
  readonly view: Uint8Array;
  readonly share: Borrowed | null;
}

interface Waiting {
  readonly bytes: number;
  readonly abort: AbortController;
}

class Model {
  readonly pool: Pool;
  readonly debug: boolean;
  /** Leases whose memory is not back. */
  readonly held: Held[] = [];
  readonly waiting: Waiting[] = [];
  #marks = 0;

  constructor(debug: boolean) {
    this.debug = debug;
    this.pool = new Pool({ maxBytes: MAX_BYTES, slabBytes: 64 * KIB, debug });
  }

  async run({ name, which, bytes }: Step): Promise<void> {
    const one = this.held[which % Math.max(1, this.held.length)];
    if (name === 'tryAcquire') {
      const lease = this.pool.tryAcquire(bytes);
      if (this.waiting.length > 0) assert.equal(lease, undefined, 'overtook');
      if (lease !== undefined) this.#granted(lease, bytes);
    } else if (name === 'acquire') {
      this.#acquire(bytes);
    } else if (name === 'abort') {
      const [waiting] = this.waiting.splice(which % Math.max(1, this.waiting.length), 1);
      waiting?.abort.abort();
    } else if (name === 'trim') {
      this.pool.trim();
    } else if (one !== undefined) {
      this.#use(name, one, which, bytes);
    }
    await new Promise((resolve) => setImmediate(resolve));
    this.check();
  }

  #acquire(bytes: number): void {
    const waiting: Waiting = { bytes, abort: new AbortController() };
    this.waiting.push(waiting);
    this.pool.acquire(bytes, { signal: waiting.abort.signal }).then(
      (lease) => {
        assert.equal(this.waiting.shift(), waiting, 'served out of order');
        this.#granted(lease, bytes);
      },
      (error: Error) => assert.equal(error.name, 'AbortError'),
    );
  }

  #granted(lease: Lease, bytes: number): void {
    assert.equal(lease.capacity, bytes);
    const held: Held = { lease, mark: 0, moves: 0, released: false, seen: [], flights: [] };
    this.held.push(held);
    this.#write(held);
  }

  #write(held: Held): void {
    const { buffer } = held.lease;
    if (buffer !== held.seen.at(-1)) held.seen.push(buffer);
    this.#marks = (this.#marks % 250) + 1;
    held.mark = this.#marks === POISON ? 1 : this.#marks;
    buffer.fill(held.mark);
  }

  #use(name: Name, held: Held, which: number, bytes: number): void {
    const { lease, flights } = held;
    const usable = !held.released && held.moves === 0;
    // A shared view shows what is written, and debug mode counts it: the model writes only between sends.
    if (name === 'write' && usable && flights.length === 0) this.#write(held);
    if (name === 'setLength' && usable) lease.length = bytes % (lease.capacity + 1);
    if (name === 'move' && !held.released) {
      flights.push({ view: lendLease(lease), share: null });
      held.moves += 1;
    }
    if (name === 'share' && usable) {
      const last = held.seen.at(-1) as Buffer;
      const share = borrow(last.subarray(bytes % lease.capacity), false);
      if (share !== null) flights.push({ view: share.view, share });
    }
    if (name === 'land' && flights.length > 0) this.#land(held, which);
    if (name === 'release' && !held.released) {
      lease.release();
      held.released = true;
    }
    if (held.released && flights.length === 0) this.held.splice(this.held.indexOf(held), 1);
  }

  #land(held: Held, which: number): void {
    const [flight] = held.flights.splice(which % held.flights.length, 1) as [Flight];
    assert.ok(isFilled(flight.view, held.mark), 'what is in flight changed');
    if (flight.share !== null) {
      flight.share.giveBack();
    } else {
      returnLease(held.lease);
      held.moves -= 1;
    }
  }

  check(): void {
    const stats = this.pool.stats();
    for (const held of this.held) {
      const { lease, seen, mark, flights, released, moves } = held;
      assert.equal(lease.state, released ? 'released' : moves > 0 ? 'lent' : 'held');
      for (const { view } of flights) assert.ok(isFilled(view, mark));
      for (const buffer of seen.slice(0, -1)) assert.equal(buffer.length, 0);
      if (lease.state !== 'held') {
        assert.equal(seen.at(-1)?.length, 0);
        continue;
      }
      if (lease.buffer !== seen.at(-1)) seen.push(lease.buffer);
      assert.ok(isFilled(lease.buffer, mark));
    }
    const lent = this.held.filter(({ flights }) => flights.length > 0).length;
    const used = this.held.reduce((sum, { lease }) => sum + lease.capacity, 0);
    assert.deepEqual(
      [stats.leases, stats.lent, stats.waiting, stats.leaked, stats.mutated],
      [this.held.length, lent, this.waiting.length, 0, 0],
    );
    assert.ok(used <= stats.usedBytes && stats.usedBytes <= stats.mappedBytes);
    assert.ok(stats.mappedBytes <= MAX_BYTES && stats.usedBytes <= stats.usedBytesMax);
    if (this.held.length === 0) assert.equal(stats.waiting, 0, 'waits for nothing');
    const first = this.waiting[0]?.bytes ?? 0;
    // A slab's worth always fits beside what is rounded up to whole slabs.
    const slabs = this.held.reduce((sum, { lease }) => sum + Math.max(64 * KIB, 2 * lease.capacity), 0);
    if (first > 0) assert.ok(slabs + Math.max(64 * KIB, 2 * first) > MAX_BYTES, 'waits though there is room');
  }

  /** Everything comes back, and everybody is served. */
  async finish(): Promise<void> {
    for (let i = 0; this.held.length > 0; i++) {
      assert.ok(i < 10_000);
      const name = (this.held[0] as Held).flights.length > 0 ? 'land' : 'release';
      await this.run({ name, which: 0, bytes: 1 });
    }
    assert.equal(this.pool.stats().usedBytes, 0);
    this.pool.trim();
    assert.equal(this.pool.stats().mappedBytes, 0);
  }
}

function isFilled(view: Uint8Array, mark: number): boolean {
  return Buffer.alloc(view.length, mark).equals(view);
}

const step: fc.Arbitrary<Step> = fc.record({
  name: fc.constantFrom<Name>(
    'tryAcquire',
    'tryAcquire',
    'acquire',
    'acquire',
    'acquire',
    'abort',
    'write',
    'setLength',
    'move',
    'move',
    'share',
    'land',
    'land',
    'release',
    'release',
    'trim',
  ),
  which: fc.nat(20),
  bytes: fc.oneof(fc.integer({ min: 1, max: 8 * KIB }), fc.integer({ min: 1, max: MAX_BYTES })),
});

it('a pool keeps its promises', { timeout: 120_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(fc.boolean(), fc.array(step, { maxLength: 100, size: 'max' }), async (debug, steps) => {
      const model = new Model(debug);
      for (const one of steps) await model.run(one);
      await model.finish();
    }),
    { numRuns: 300 },
  );
});
