/**
 * A lease: memory of a pool that a program fills and a socket sends from, without a copy and without a race.
 *
 *             lease.buffer read                    sent: buffer is detached              the kernel is done
 *   held ──▶ held, program writes ──▶ lent ──────────────────────────────────────▶ held, or back in the pool
 *                                      the kernel reads                                        if release() was called
 *
 * Lending moves: the Buffer that the program has goes to length 0, through all its views, so that nothing can change what
 * is being sent. When the kernel is done, `buffer` gives a new one over the same bytes. It is made when it is read, so a
 * lease that is sent again and again unchanged never makes one. Several sends of one lease may be in flight at once.
 *
 * What is sent is read through the slab's own ArrayBuffer, which no program sees. So moving needs no new view for the
 * socket, and whatever the program does to its Buffer's memory, the kernel reads memory of ours.
 *
 * A program can still spoil the move: markAsUntransferable() on the ArrayBuffer of its Buffer (Node 24), or transfer() of it
 * to another. Then it may write while the kernel reads, as with any other lent buffer. Such memory is not used for another
 * lease.
 *
 * `Hold` is what outlives the lease: the pool's registry of collected leases has it, so it must never refer to the lease.
 */
import { crc32 } from 'node:zlib';
import { checkInteger } from '../core/arguments.ts';
import { assert } from '../core/assert.ts';
import { ZerotxError } from '../core/errors.ts';
import type { Unit } from '../sys/slab.ts';
import { closeWindow, openWindow, windowHolder } from '../sys/window.ts';
import type { Pool } from './pool.ts';

/** A unit in the hands of a lease. */
export interface Hold {
  readonly unit: Unit;
  /** Sends that read it now. */
  flights: number;
  /** The program may still write to it: it must not be used again. */
  spoiled: boolean;
}

/** What a lease tells its pool. */
export interface LeaseOwner {
  readonly debug: boolean;
  /** The first send began, or the last one ended. */
  departed(): void;
  landed(): void;
  /** The program gave the lease up: a collected one is no leak any more. */
  released(hold: Hold): void;
  /** Released, and the kernel is done. */
  returned(hold: Hold): void;
  /** Bytes changed while they were lent. */
  mutated(): void;
}

/** Memory of the program's that may be lent now. */
export interface Borrowed {
  /** What to send from. Of a lease it is the same bytes in memory that the program cannot take away. */
  readonly view: Uint8Array;
  /** Once, when the kernel is done. */
  giveBack(): void;
}

let create: (pool: Pool, owner: LeaseOwner, hold: Hold, bytes: number) => Lease;
let lend: (lease: Lease) => Uint8Array;
let land: (lease: Lease) => void;
let share: (lease: Lease, view: Uint8Array) => Borrowed | null;

export class Lease {
  /** Where it came from. */
  readonly pool: Pool;
  /** Bytes that were asked for: the length of `buffer`. */
  readonly capacity: number;
  readonly #owner: LeaseOwner;
  readonly #hold: Hold;
  #length: number;
  /** The first `#length` bytes, for sockets. */
  #payload: Uint8Array | undefined;
  #buffer: Buffer | undefined;
  /** Sends of the whole lease in flight; `#hold.flights` has those of views of it, too. */
  #moves = 0;
  #released = false;
  #checksum = 0;

  /** Leases come from pools. */
  private constructor(pool: Pool, owner: LeaseOwner, hold: Hold, bytes: number) {
    this.pool = pool;
    this.capacity = bytes;
    this.#owner = owner;
    this.#hold = hold;
    this.#length = bytes;
  }

  static {
    create = (pool, owner, hold, bytes) => new Lease(pool, owner, hold, bytes);
    lend = (lease) => lease.#lend();
    land = (lease) => lease.#land();
    share = (lease, view) => lease.#share(view);
  }

  /**
   * The memory, `capacity` bytes long; its contents are whatever the last user left. The same Buffer until the lease is sent;
   * from then on that one has length 0. Throws `ZTX_LENT` while a send of the lease is in flight, `ZTX_RELEASED` after
   * release().
   */
  get buffer(): Buffer {
    if (this.#buffer !== undefined) return this.#buffer;
    this.#checkHeld();
    const window = openWindow(this.#hold.unit, this);
    this.#buffer = Buffer.from(window, 0, this.capacity);
    return this.#buffer;
  }

  /** How many bytes a send takes, from the start: 0 to `capacity`, which it is at first. Setting throws as `buffer` does. */
  get length(): number {
    return this.#length;
  }

  set length(bytes: number) {
    checkInteger('length', bytes, 0, this.capacity);
    this.#checkHeld();
    this.#length = bytes;
    this.#payload = undefined;
  }

  /** `lent` while a send of the lease is in flight, and `released` from release() on, whatever is in flight. */
  get state(): 'held' | 'lent' | 'released' {
    if (this.#released) return 'released';
    return this.#moves > 0 ? 'lent' : 'held';
  }

  /**
   * Gives the memory back: to the pool at once, or when the last send in flight is done. `buffer` has length 0 from now on. Does
   * nothing the second time.
   */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    this.#closeBuffer();
    this.#owner.released(this.#hold);
    if (this.#hold.flights === 0) this.#owner.returned(this.#hold);
  }

  [Symbol.dispose](): void {
    this.release();
  }

  #checkHeld(): void {
    if (this.#released) throw new ZerotxError('ZTX_RELEASED', 'the lease was released');
    if (this.#moves > 0) throw new ZerotxError('ZTX_LENT', 'the lease is being sent', { next: 'retry' });
  }

  #closeBuffer(): void {
    if (this.#buffer === undefined) return;
    if (!closeWindow(this.#hold.unit, this.#buffer.buffer as ArrayBuffer)) this.#hold.spoiled = true;
    this.#buffer = undefined;
  }

  #lend(): Uint8Array {
    if (this.#released) throw new ZerotxError('ZTX_RELEASED', 'the lease was released');
    this.#closeBuffer();
    this.#payload ??= this.#hold.unit.bytes.subarray(0, this.#length);
    if (this.#moves === 0 && this.#owner.debug) this.#checksum = crc32(this.#payload);
    this.#moves += 1;
    this.#depart();
    return this.#payload;
  }

  #land(): void {
    assert(this.#moves > 0, 'a lease that is not lent came back');
    this.#moves -= 1;
    if (this.#moves === 0 && this.#owner.debug && crc32(this.#payload as Uint8Array) !== this.#checksum) {
      this.#owner.mutated();
    }
    this.#arrive();
  }

  #share(view: Uint8Array): Borrowed | null {
    if (this.#released || view.byteLength === 0) return null;
    // A window begins where its unit does.
    const bytes = this.#hold.unit.bytes.subarray(view.byteOffset, view.byteOffset + view.byteLength);
    const checksum = this.#owner.debug ? crc32(bytes) : 0;
    let lent = true;
    this.#depart();
    return {
      view: bytes,
      giveBack: () => {
        assert(lent, 'a shared view came back twice');
        lent = false;
        if (this.#owner.debug && crc32(bytes) !== checksum) this.#owner.mutated();
        this.#arrive();
      },
    };
  }

  #depart(): void {
    this.#hold.flights += 1;
    if (this.#hold.flights === 1) this.#owner.departed();
  }

  #arrive(): void {
    this.#hold.flights -= 1;
    if (this.#hold.flights > 0) return;
    this.#owner.landed();
    if (this.#released) this.#owner.returned(this.#hold);
  }
}

/** A lease over the unit in `hold`. For pools. */
export function createLease(pool: Pool, owner: LeaseOwner, hold: Hold, bytes: number): Lease {
  return create(pool, owner, hold, bytes);
}

/**
 * Begins a send of the whole lease: detaches the program's Buffer and returns the bytes to send, in memory that no program
 * reaches. returnLease() once for each call. Throws `ZTX_RELEASED`.
 */
export function lendLease(lease: Lease): Uint8Array {
  return lend(lease);
}

/** Ends one send: the kernel, and whoever else may have to send the bytes again, is done with them. */
export function returnLease(lease: Lease): void {
  land(lease);
}

/**
 * Lends a view of a lease's Buffer: the lease keeps its memory until that is given back, but the program may go on writing, as
 * with any other buffer. Null when `view` belongs to no lease, or to one that is released; whether it does is leaseOf()'s.
 */
export function shareLease(lease: Lease, view: Uint8Array): Borrowed | null {
  return share(lease, view);
}

/** The lease whose Buffer `memory` belongs to. */
export function leaseOf(memory: ArrayBufferLike): Lease | undefined {
  const holder = windowHolder(memory);
  return holder instanceof Lease ? holder : undefined;
}
