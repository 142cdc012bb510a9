/**
 * A pool of memory that programs lease, fill and send without a copy.
 *
 *   acquire(bytes) ──▶ Lease ──▶ program writes lease.buffer ──▶ socket.send(lease) ──▶ lease.release() ──▶ pool
 *
 * The pool maps at most `maxBytes`; that is its back-pressure. When it is used up, acquire() waits. Who waits is served in
 * order: a small request does not overtake a large one, nor does tryAcquire() overtake anybody, so that nobody starves.
 * Slabs of one size that are empty give way to another size that is waited for.
 *
 * A lease that the program loses without release() is found when it is collected; its memory goes back, and is counted.
 * One with a send in flight is not collected, because the send refers to it; what the kernel never lets go of
 * stays out of the pool for ever.
 *
 * `debug` looks for writes to memory in flight, by a checksum at lending and at return, and fills memory that comes back
 * with 0xDB, so that a read after release is seen. Both cost a pass over the memory.
 */
import { emitWarning } from 'node:process';
import { checkInteger, checkObject, checkOptionalBoolean, checkSignal } from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import { SlabPool } from '../sys/slab.ts';
import { createLease, type Hold, type Lease, type LeaseOwner } from './lease.ts';
import { type PoolStats, watchPool } from './pool-stats.ts';

export interface PoolOptions {
  /** Most memory to map: 256 MiB if left out. */
  readonly maxBytes?: number;
  /** Memory mapped at a time: 2 MiB (one huge page) if left out; rounded up to a power of two, and at most maxBytes. */
  readonly slabBytes?: number;
  /** Checks that nothing in flight is written to, and poisons what comes back. */
  readonly debug?: boolean;
}

interface Counts {
  lent: number;
  refused: number;
  leaked: number;
  mutated: number;
}

interface Waiter {
  readonly bytes: number;
  readonly resolve: (lease: Lease) => void;
  readonly reject: (reason: unknown) => void;
  unlisten(): void;
}

const POISON = 0xdb;
/** The largest page that Linux has on the machines we run on. */
const MAX_BYTES_MIN = 64 * 1024;
/** What one mapping can have (native/slab.c). */
const SLAB_BYTES_MAX = 2 ** 30;

export class Pool {
  readonly #slabs: SlabPool;
  readonly #waiters = new Set<Waiter>();
  readonly #owner: LeaseOwner;
  readonly #collected: FinalizationRegistry<Hold>;
  readonly #counts: Counts = { lent: 0, refused: 0, leaked: 0, mutated: 0 };

  constructor(options: PoolOptions = {}) {
    checkObject('options', options);
    const { maxBytes, slabBytes, debug } = options;
    if (maxBytes !== undefined)
      checkInteger('options.maxBytes', maxBytes, MAX_BYTES_MIN, Number.MAX_SAFE_INTEGER);
    if (slabBytes !== undefined) checkInteger('options.slabBytes', slabBytes, 1, SLAB_BYTES_MAX);
    checkOptionalBoolean('options.debug', debug);
    this.#slabs = new SlabPool({
      ...(maxBytes === undefined ? {} : { maxBytes }),
      ...(slabBytes === undefined ? {} : { slabBytes }),
    });
    this.#owner = this.#ownerOfLeases(debug === true);
    this.#collected = new FinalizationRegistry((hold) => this.#leak(hold));
    watchPool(this, statsOf(this.#slabs, this.#counts, this.#waiters));
  }

  /**
   * A lease of `bytes`. Waits, in order, when the pool is used up; the signal ends the wait with its reason. Rejects with
   * `ZTX_TOO_LARGE` when the pool can never have so much in one piece, and ENOMEM when the system has no memory for it and no
   * lease is out whose return could help.
   */
  async acquire(bytes: number, options: { readonly signal?: AbortSignal } = {}): Promise<Lease> {
    checkObject('options', options);
    const { signal } = options;
    checkSignal('options.signal', signal);
    this.#checkBytes(bytes);
    if (signal?.aborted) throw signal.reason;
    const lease = this.tryAcquire(bytes);
    if (lease !== undefined) return lease;
    return new Promise((resolve, reject) => {
      const onAbort = (): void => {
        this.#waiters.delete(waiter);
        reject(signal?.reason);
        this.#serve();
      };
      const unlisten = (): void => signal?.removeEventListener('abort', onAbort);
      const waiter: Waiter = { bytes, resolve, reject, unlisten };
      signal?.addEventListener('abort', onAbort, { once: true });
      this.#waiters.add(waiter);
      this.#serve();
    });
  }

  /** A lease of `bytes` if there is room now and nobody waits, else undefined. Throws `ZTX_TOO_LARGE` as acquire() rejects. */
  tryAcquire(bytes: number): Lease | undefined {
    this.#checkBytes(bytes);
    const lease = this.#waiters.size > 0 ? undefined : this.#grant(bytes);
    if (lease === undefined) this.#counts.refused += 1;
    return lease;
  }

  /** Unmaps slabs of which nothing is in use. Returns the bytes given up. */
  trim(): number {
    return this.#slabs.trim();
  }

  stats(): PoolStats {
    return statsOf(this.#slabs, this.#counts, this.#waiters)();
  }

  #checkBytes(bytes: number): void {
    checkInteger('bytes', bytes, 1, Number.MAX_SAFE_INTEGER);
    if (this.#slabs.fits(bytes)) return;
    const most = `the pool maps at most ${this.#slabs.maxBytes} bytes, in powers of two of pages up to 1 GiB`;
    throw new ZerotxError('ZTX_TOO_LARGE', `no lease can have ${bytes} bytes: ${most}`);
  }

  #grant(bytes: number): Lease | undefined {
    const unit = this.#slabs.take(bytes);
    if (unit === undefined) return undefined;
    const hold: Hold = { unit, flights: 0, spoiled: false };
    const lease = createLease(this, this.#owner, hold, bytes);
    this.#collected.register(lease, hold, hold);
    return lease;
  }

  /** Gives those who wait what there is, until the first of them cannot be served. */
  #serve(): void {
    for (const waiter of this.#waiters) {
      try {
        const lease = this.#grant(waiter.bytes);
        if (lease !== undefined) waiter.resolve(lease);
        else if (this.#slabs.usedUnits > 0) return;
        else waiter.reject(outOfMemory(waiter.bytes));
      } catch (error) {
        waiter.reject(error);
      }
      this.#waiters.delete(waiter);
      waiter.unlisten();
    }
  }

  #leak(hold: Hold): void {
    this.#counts.leaked += 1;
    // A lease that goes with sends in flight was abandoned with them: the kernel may read its memory for ever.
    if (hold.flights === 0) this.#takeBack(hold);
  }

  #takeBack(hold: Hold): void {
    if (hold.spoiled) {
      this.#slabs.retire(hold.unit);
    } else {
      if (this.#owner.debug) hold.unit.bytes.fill(POISON);
      this.#slabs.give(hold.unit);
    }
    this.#serve();
  }

  #ownerOfLeases(debug: boolean): LeaseOwner {
    return {
      debug,
      departed: () => {
        this.#counts.lent += 1;
      },
      landed: () => {
        this.#counts.lent -= 1;
      },
      released: (hold) => {
        this.#collected.unregister(hold);
      },
      returned: (hold) => this.#takeBack(hold),
      mutated: () => {
        this.#counts.mutated += 1;
        if (this.#counts.mutated > 1) return;
        const text =
          'the bytes of a lease changed while they were being sent; its pool counts such sends (stats().mutated)';
        emitWarning(text, 'ZerotxWarning', 'ZTX_MUTATED');
      },
    };
  }
}

/** Not a method: the sums of all pools ask, and must not keep the pool. */
function statsOf(slabs: SlabPool, counts: Counts, waiters: ReadonlySet<Waiter>): () => PoolStats {
  return () => {
    const { mappedBytes, usedBytes, usedBytesMax, usedUnits, hits, misses } = slabs.stats();
    return {
      mappedBytes,
      usedBytes,
      usedBytesMax,
      leases: usedUnits,
      hits,
      misses,
      waiting: waiters.size,
      ...counts,
    };
  };
}

function outOfMemory(bytes: number): ZerotxError {
  return new ZerotxError('ENOMEM', `mmap ENOMEM: a slab for ${bytes} bytes`, { syscall: 'mmap' });
}
