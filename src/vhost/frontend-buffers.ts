/**
 * Buffers of one size in the shared memory, for frames that are copied in: taken as lists, since a frame may need several.
 * No object per buffer: a buffer is its number, and knows the next one of its list.
 */
import type { FrontendMemory } from './frontend-memory.ts';
import { stride } from './frontend-memory.ts';

export class FrontendBuffers {
  readonly count: number;
  readonly bufferBytes: number;
  readonly #address: number;
  readonly #offset: number;
  readonly #stride: number;
  readonly #free: Uint32Array;
  #freeCount: number;
  /** The buffer after this one in a list; -1 for the last. */
  readonly #next: Int32Array;

  /** `count` buffers from `offset` of `memory` on. */
  constructor(memory: FrontendMemory, offset: number, count: number, bufferBytes: number) {
    this.count = count;
    this.bufferBytes = bufferBytes;
    this.#offset = offset;
    this.#address = memory.guestAddress(offset);
    this.#stride = stride(bufferBytes);
    // Backwards, so that the first to be taken is the first in memory.
    this.#free = new Uint32Array(count).map((_, i) => count - 1 - i);
    this.#freeCount = count;
    this.#next = new Int32Array(count);
  }

  get free(): number {
    return this.#freeCount;
  }

  countFor(bytes: number): number {
    return Math.ceil(bytes / this.bufferBytes);
  }

  /** A list of buffers for `bytes`: its first; -1 when there are not enough. */
  take(bytes: number): number {
    const count = this.countFor(bytes);
    if (count > this.#freeCount) return -1;
    let next = -1;
    for (let left = count; left > 0; left--) {
      const buffer = this.#free[--this.#freeCount] as number;
      this.#next[buffer] = next;
      next = buffer;
    }
    return next;
  }

  /** Gives a list back. */
  give(first: number): void {
    for (let buffer = first; buffer >= 0; buffer = this.#next[buffer] as number) {
      this.#free[this.#freeCount++] = buffer;
    }
  }

  /** Fills `addresses` and `lengths` from `from` on with the pieces of `bytes` in the list at `first`; how many. */
  pieces(first: number, bytes: number, addresses: Float64Array, lengths: Uint32Array, from: number): number {
    let left = bytes;
    let at = from;
    for (let buffer = first; buffer >= 0; buffer = this.#next[buffer] as number) {
      const length = Math.min(left, this.bufferBytes);
      addresses[at] = this.address(buffer);
      lengths[at] = length;
      left -= length;
      at += 1;
    }
    return at - from;
  }

  /** The same as segments of a frame table, in `space`. */
  segments(
    first: number,
    bytes: number,
    addresses: Float64Array,
    segments: Uint32Array,
    from: number,
    space: number,
  ): void {
    let left = bytes;
    let at = from;
    for (let buffer = first; buffer >= 0; buffer = this.#next[buffer] as number) {
      const length = Math.min(left, this.bufferBytes);
      addresses[at << 1] = this.address(buffer);
      segments[(at << 2) + 2] = length;
      segments[(at << 2) + 3] = space;
      left -= length;
      at += 1;
    }
  }

  /** Copies `bytes` into the list, from byte `skip` of it on, which is in the first buffer. */
  write(first: number, skip: number, bytes: Uint8Array, memory: Uint8Array): void {
    let done = 0;
    let inBuffer = skip;
    for (let buffer = first; buffer >= 0 && done < bytes.length; buffer = this.#next[buffer] as number) {
      const end = Math.min(bytes.length, done + this.bufferBytes - inBuffer);
      const piece = done === 0 && end === bytes.length ? bytes : bytes.subarray(done, end);
      memory.set(piece, this.offset(buffer) + inBuffer);
      done = end;
      inBuffer = 0;
    }
  }

  /** Where a buffer is, as the device knows it and as this side does. */
  address(buffer: number): number {
    return this.#address + buffer * this.#stride;
  }

  offset(buffer: number): number {
    return this.#offset + buffer * this.#stride;
  }
}
