/**
 * Memory that may be lent to the kernel: page-aligned buffers cut from slabs that no allocator can take back.
 *
 * Sizes are rounded up to a class, a power of two of at least one page; a slab serves one class, and what is larger
 * than a slab gets a slab of its own. Freed units go to the end of their class's list and are taken from there again:
 * the last one used is the one most likely in cache.
 *
 *   class  4 KiB  [ slab 0: unit unit unit ... ]          free: [ (0,7) (0,2) ] ◀─ push, pop
 *   class 64 KiB  [ slab 1: unit ... ] [ slab 2: unit ]   free: [ (2,0) ]
 *
 * Slabs of 2 MiB or more are aligned to, and ask for, huge pages: the kernel then walks and holds one page where it
 * would have held 512.
 *
 * release() is the owner's word that the kernel is done. Nothing here knows what is lent: that is Ubuf's affair.
 */
import { assert } from '../core/assert.ts';
import { errnoError, errnoOf } from '../core/errors.ts';
import { type Native, native } from './binding.ts';

const HUGE_PAGE_BYTES = 2 * 1024 * 1024;
const ENOMEM = -errnoOf('ENOMEM');

export interface SlabPoolOptions {
  /** Size of a slab, rounded up to a power of two: 2 MiB, one huge page, if left out. */
  readonly slabBytes?: number;
  /** Most memory to map: 256 MiB if left out. */
  readonly maxBytes?: number;
}

export interface SlabPoolStats {
  /** Memory in slabs of this pool. */
  readonly mappedBytes: number;
  /** Memory in buffers that are out, rounded up to their class. */
  readonly usedBytes: number;
  readonly usedBytesMax: number;
  readonly usedBuffers: number;
  /** acquire() calls served from a free list, and those that mapped a slab. */
  readonly hits: number;
  readonly misses: number;
  /** acquire() calls that returned undefined. */
  readonly refused: number;
}

interface Slab {
  readonly memory: ArrayBuffer;
  readonly unitBytes: number;
  /** One flag per unit: out. */
  readonly out: Uint8Array;
  used: number;
}

interface Unit {
  readonly slab: Slab;
  readonly index: number;
}

/** Every slab's memory, of all pools. */
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
  readonly #free = new Map<number, Unit[]>();
  readonly #slabs = new Map<ArrayBufferLike, Slab>();
  #mappedBytes = 0;
  #usedBytes = 0;
  #usedBytesMax = 0;
  #usedBuffers = 0;
  #hits = 0;
  #misses = 0;
  #refused = 0;

  constructor(options: SlabPoolOptions = {}) {
    this.#sys = native();
    this.#pageBytes = this.#sys.pageSize();
    this.slabBytes = this.#classOf(options.slabBytes ?? HUGE_PAGE_BYTES);
    this.maxBytes = options.maxBytes ?? 256 * 1024 * 1024;
  }

  /**
   * A buffer of `bytes` at a page boundary, contents unspecified; undefined when the pool is at its limit or the system
   * is out of memory. Give it back with release().
   */
  acquire(bytes: number): Buffer | undefined {
    assert(Number.isSafeInteger(bytes) && bytes > 0, `acquire(${bytes})`);
    const unitBytes = this.#classOf(bytes);
    const unit = this.#take(unitBytes);
    if (unit === undefined) {
      this.#refused += 1;
      return undefined;
    }
    unit.slab.out[unit.index] = 1;
    unit.slab.used += 1;
    this.#usedBuffers += 1;
    this.#usedBytes += unitBytes;
    if (this.#usedBytes > this.#usedBytesMax) this.#usedBytesMax = this.#usedBytes;
    return Buffer.from(unit.slab.memory, unit.index * unitBytes, bytes);
  }

  /** Takes back what acquire() returned, or a view that starts where it starts. Twice, or a foreign one, is a bug. */
  release(buffer: Uint8Array): void {
    const slab = this.#slabs.get(buffer.buffer);
    assert(slab !== undefined, 'release() of memory of another pool');
    const index = buffer.byteOffset / slab.unitBytes;
    assert(slab.out[index] === 1, 'release() of a buffer that is not out');
    slab.out[index] = 0;
    slab.used -= 1;
    this.#usedBuffers -= 1;
    this.#usedBytes -= slab.unitBytes;
    this.#free.get(slab.unitBytes)?.push({ slab, index });
  }

  /** Lets go of slabs with nothing out; they are unmapped once collected. Returns the bytes given up. */
  trim(): number {
    const before = this.#mappedBytes;
    for (const [memory, slab] of this.#slabs) {
      if (slab.used > 0) continue;
      this.#slabs.delete(memory);
      this.#mappedBytes -= memory.byteLength;
    }
    for (const [unitBytes, units] of this.#free) {
      const kept = units.filter((unit) => this.#slabs.has(unit.slab.memory));
      this.#free.set(unitBytes, kept);
    }
    return before - this.#mappedBytes;
  }

  stats(): SlabPoolStats {
    return {
      mappedBytes: this.#mappedBytes,
      usedBytes: this.#usedBytes,
      usedBytesMax: this.#usedBytesMax,
      usedBuffers: this.#usedBuffers,
      hits: this.#hits,
      misses: this.#misses,
      refused: this.#refused,
    };
  }

  #classOf(bytes: number): number {
    let size = this.#pageBytes;
    while (size < bytes) size *= 2;
    return size;
  }

  #take(unitBytes: number): Unit | undefined {
    const unit = this.#free.get(unitBytes)?.pop();
    if (unit !== undefined) {
      this.#hits += 1;
      return unit;
    }
    if (!this.#map(unitBytes)) return undefined;
    this.#misses += 1;
    return this.#free.get(unitBytes)?.pop();
  }

  #map(unitBytes: number): boolean {
    const bytes = Math.max(this.slabBytes, unitBytes);
    if (this.#mappedBytes + bytes > this.maxBytes) return false;
    const memory = this.#sys.slabCreate(bytes, bytes >= HUGE_PAGE_BYTES);
    if (memory === ENOMEM) return false;
    if (typeof memory === 'number') throw errnoError(memory, 'mmap');
    const units = bytes / unitBytes;
    const slab: Slab = { memory, unitBytes, out: new Uint8Array(units), used: 0 };
    slabMemory.add(memory);
    this.#slabs.set(memory, slab);
    this.#mappedBytes += bytes;
    const free = this.#free.get(unitBytes) ?? [];
    // Backwards, so that units are taken in address order.
    for (let index = units - 1; index >= 0; index--) free.push({ slab, index });
    this.#free.set(unitBytes, free);
    return true;
  }
}
