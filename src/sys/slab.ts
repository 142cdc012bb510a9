/**
 * Memory that may be lent to the kernel: page-aligned units cut from slabs that no allocator can take back.
 *
 * Sizes are rounded up to a class, a power of two of at least one page; a slab serves one class, and what is larger
 * than a slab gets a slab of its own. A unit that comes back goes on top of its slab's list and is the next to be taken:
 * the last one used is the one most likely in cache. Units are taken from one slab until it has none left, so that
 * others can become empty, and empty slabs give way when another class needs the room.
 *
 *   class  4 KiB  [ slab 0: unit unit unit ... ]          slabs with free units: [ 0 ]      slab 0's free units: [ 7, 2 ]
 *   class 64 KiB  [ slab 1: unit ... ] [ slab 2: unit ]   slabs with free units: [ 1, 2 ]                       pop, push ▲
 *
 * Slabs of 2 MiB or more are aligned to, and ask for, huge pages: the kernel then walks and holds one page where it
 * would have held 512.
 *
 * give() is the owner's word that the kernel is done. Nothing here knows what is lent: that is Ubuf's affair.
 */
import { assert } from '../core/assert.ts';
import { errnoError, errnoOf } from '../core/errors.ts';
import { type Native, native } from './binding.ts';

const HUGE_PAGE_BYTES = 2 * 1024 * 1024;
/** What slabCreate() maps at most. */
const SLAB_BYTES_MAX = 2 ** 30;
const ENOMEM = -errnoOf('ENOMEM');

export interface SlabPoolOptions {
  /** Size of a slab, rounded up to a power of two, and at most maxBytes: 2 MiB, one huge page, if left out. */
  readonly slabBytes?: number;
  /** Most memory to map: 256 MiB if left out. */
  readonly maxBytes?: number;
}

export interface SlabPoolStats {
  /** Memory in slabs of this pool. */
  readonly mappedBytes: number;
  /** Memory in units that are out. */
  readonly usedBytes: number;
  readonly usedBytesMax: number;
  readonly usedUnits: number;
  /** take() calls served from a slab there was, and those that mapped one. */
  readonly hits: number;
  readonly misses: number;
}

/** A piece of a slab, at a page boundary. */
export interface Unit {
  readonly slab: Slab;
  readonly index: number;
  /** The slab's own ArrayBuffer. Whoever gives it to a program cannot take it away again: that is what windows are for. */
  readonly memory: ArrayBuffer;
  /** The unit, whole. */
  readonly bytes: Buffer;
  /** A window that no program has seen yet (see window.ts). */
  window: ArrayBuffer | undefined;
}

interface Slab {
  readonly memory: ArrayBuffer;
  readonly unitBytes: number;
  /** Those made so far; each is made when it is first taken. */
  readonly units: Unit[];
  /** Indexes of the units that can be taken. */
  readonly free: number[];
  /** One flag per unit: out. */
  readonly out: Uint8Array;
  used: number;
  /** Some of its units never come back. */
  spoiled: boolean;
}

/** Every slab's own memory, of all pools. */
const slabMemory = new WeakSet<ArrayBufferLike>();

/** Whether `memory` belongs to a slab: it lives until nothing refers to it, whatever the program does. */
export function isSlabMemory(memory: ArrayBufferLike): boolean {
  return slabMemory.has(memory);
}

export class SlabPool {
  readonly slabBytes: number;
  readonly maxBytes: number;
  readonly #sys: Native;
  readonly #pageBytes: number;
  /** Slabs with free units, by class. */
  readonly #open = new Map<number, Slab[]>();
  readonly #slabs = new Set<Slab>();
  #mappedBytes = 0;
  #usedBytes = 0;
  #usedBytesMax = 0;
  #usedUnits = 0;
  /** Slabs with nothing out. */
  #emptySlabs = 0;
  #hits = 0;
  #misses = 0;

  constructor(options: SlabPoolOptions = {}) {
    this.#sys = native();
    this.#pageBytes = this.#sys.pageSize();
    this.maxBytes = options.maxBytes ?? 256 * 1024 * 1024;
    const slabBytes = this.#classOf(options.slabBytes ?? HUGE_PAGE_BYTES);
    this.slabBytes = Math.min(slabBytes, 2 ** Math.floor(Math.log2(this.maxBytes)));
  }

  get usedUnits(): number {
    return this.#usedUnits;
  }

  /** Whether a unit of `bytes` can be had at all, with everything else given back. */
  fits(bytes: number): boolean {
    return this.#slabBytesFor(this.#classOf(bytes)) <= Math.min(this.maxBytes, SLAB_BYTES_MAX);
  }

  /**
   * A unit of at least `bytes`, contents unspecified; undefined when the pool is at its limit or the system is out of
   * memory. Give it back with give() or retire().
   */
  take(bytes: number): Unit | undefined {
    assert(Number.isSafeInteger(bytes) && bytes > 0, `take(${bytes})`);
    const unitBytes = this.#classOf(bytes);
    let slab = this.#open.get(unitBytes)?.at(-1);
    if (slab !== undefined) {
      this.#hits += 1;
    } else {
      slab = this.#map(unitBytes);
      if (slab === undefined) return undefined;
      this.#misses += 1;
    }
    return this.#takeFrom(slab);
  }

  /** Takes back what take() returned. Twice is a bug. */
  give(unit: Unit): void {
    const { slab, index } = unit;
    this.#back(unit);
    slab.free.push(index);
    if (slab.free.length === 1) this.#open.get(slab.unitBytes)?.push(slab);
    if (slab.used === 0 && slab.spoiled) this.#drop(slab);
  }

  /** Takes back a unit that must not be used again: somebody may still write to it. Its slab goes when nothing else is out. */
  retire(unit: Unit): void {
    this.#back(unit);
    unit.slab.spoiled = true;
    if (unit.slab.used === 0) this.#drop(unit.slab);
  }

  /** Unmaps slabs with nothing out until `wantedBytes` are given up, or all. Returns the bytes given up. */
  trim(wantedBytes: number = Number.POSITIVE_INFINITY): number {
    const before = this.#mappedBytes;
    for (const slab of this.#slabs) {
      if (this.#emptySlabs === 0 || before - this.#mappedBytes >= wantedBytes) break;
      if (slab.used === 0) this.#drop(slab);
    }
    return before - this.#mappedBytes;
  }

  stats(): SlabPoolStats {
    return {
      mappedBytes: this.#mappedBytes,
      usedBytes: this.#usedBytes,
      usedBytesMax: this.#usedBytesMax,
      usedUnits: this.#usedUnits,
      hits: this.#hits,
      misses: this.#misses,
    };
  }

  #classOf(bytes: number): number {
    let size = this.#pageBytes;
    while (size < bytes) size *= 2;
    return size;
  }

  #slabBytesFor(unitBytes: number): number {
    return Math.max(this.slabBytes, unitBytes);
  }

  #takeFrom(slab: Slab): Unit {
    const { memory, unitBytes } = slab;
    const index = slab.free.pop() as number;
    if (slab.free.length === 0) this.#open.get(unitBytes)?.pop();
    slab.units[index] ??= {
      slab,
      index,
      memory,
      bytes: Buffer.from(memory, index * unitBytes, unitBytes),
      window: undefined,
    };
    slab.out[index] = 1;
    if (slab.used === 0) this.#emptySlabs -= 1;
    slab.used += 1;
    this.#usedUnits += 1;
    this.#usedBytes += unitBytes;
    if (this.#usedBytes > this.#usedBytesMax) this.#usedBytesMax = this.#usedBytes;
    return slab.units[index];
  }

  #back(unit: Unit): void {
    const { slab, index } = unit;
    assert(this.#slabs.has(slab), 'a unit of another pool');
    assert(slab.out[index] === 1, 'a unit that is not out');
    slab.out[index] = 0;
    slab.used -= 1;
    if (slab.used === 0) this.#emptySlabs += 1;
    this.#usedUnits -= 1;
    this.#usedBytes -= slab.unitBytes;
  }

  #map(unitBytes: number): Slab | undefined {
    const bytes = this.#slabBytesFor(unitBytes);
    const excess = this.#mappedBytes + bytes - this.maxBytes;
    if (excess > 0 && this.trim(excess) < excess) return undefined;
    const memory = this.#sys.slabCreate(bytes, bytes >= HUGE_PAGE_BYTES);
    if (memory === ENOMEM) return undefined;
    if (typeof memory === 'number') throw errnoError(memory, 'mmap');
    const count = bytes / unitBytes;
    const slab: Slab = {
      memory,
      unitBytes,
      units: [],
      // Backwards, so that units are taken in address order.
      free: Array.from({ length: count }, (_, i) => count - 1 - i),
      out: new Uint8Array(count),
      used: 0,
      spoiled: false,
    };
    slabMemory.add(memory);
    this.#slabs.add(slab);
    this.#emptySlabs += 1;
    this.#mappedBytes += bytes;
    const open = this.#open.get(unitBytes);
    if (open === undefined) this.#open.set(unitBytes, [slab]);
    else open.push(slab);
    return slab;
  }

  /** Forgets a slab with nothing out. It is unmapped soon, unless a window of it lives on. */
  #drop(slab: Slab): void {
    this.#slabs.delete(slab);
    this.#emptySlabs -= 1;
    this.#mappedBytes -= slab.memory.byteLength;
    const open = this.#open.get(slab.unitBytes);
    const index = open?.indexOf(slab) ?? -1;
    if (index >= 0) open?.splice(index, 1);
    for (const unit of slab.units) {
      if (unit?.window !== undefined) this.#sys.slabDetach(slab.memory, unit.window);
    }
    // Not left to the collector, which knows nothing of our limit.
    this.#sys.slabDetach(slab.memory, slab.memory);
  }
}
