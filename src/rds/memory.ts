/**
 * Memory for payloads that RDS copies or receives, reused so that a stream of messages touches warm pages.
 *
 * Buffers come in power-of-two sizes; a free one goes on top of its list and is the next to be used. What exceeds
 * `idleBytesMax` is left to the garbage collector, as is every received buffer that the program does not recycle.
 */

import type { ReleaseQueue } from '../core/releases.ts';
import { Ubuf } from '../core/ubuf.ts';

const SMALLEST_SHIFT = 12;
/** Smaller buffers are not worth keeping. */
export const POOLED_BYTES_MIN: number = 2 ** SMALLEST_SHIFT;
const LARGEST_SHIFT = 20;

export class BufferPool {
  readonly idleBytesMax: number;
  readonly #free: Buffer[][] = Array.from({ length: LARGEST_SHIFT + 1 }, () => []);
  #idleBytes = 0;

  constructor(idleBytesMax: number) {
    this.idleBytesMax = idleBytesMax;
  }

  get idleBytes(): number {
    return this.#idleBytes;
  }

  /** A buffer of at least `bytes` (at most 1 MiB), contents undefined. */
  acquire(bytes: number): Buffer {
    const shift = Math.max(SMALLEST_SHIFT, 32 - Math.clz32(bytes - 1));
    const buffer = this.#free[shift]?.pop();
    if (buffer === undefined) return Buffer.allocUnsafeSlow(2 ** shift);
    this.#idleBytes -= buffer.byteLength;
    return buffer;
  }

  /** Gives back a whole buffer from acquire() (or a small one of your own, which is dropped). The caller keeps no view of it. */
  release(buffer: Buffer): void {
    if (buffer.byteLength < POOLED_BYTES_MIN || this.#idleBytes + buffer.byteLength > this.idleBytesMax)
      return;
    const shift = 31 - Math.clz32(buffer.byteLength);
    this.#free[shift]?.push(buffer);
    this.#idleBytes += buffer.byteLength;
  }
}

/**
 * Memory that received messages lie in: a chunk of many small ones, or a buffer of one. It is accounted as a whole for as
 * long as one of its messages waits to be read, because it is kept as a whole: else a peer could make one small message
 * hold on to a chunk of bytes that went nowhere.
 */
export class ReceiveBuffer extends Ubuf {
  /** Messages in it that wait in some receive queue. */
  queuedMessages = 0;
  readonly bytes: Buffer;

  constructor(bytes: Buffer, pool: BufferPool, releases: ReleaseQueue) {
    super([bytes], () => pool.release(bytes), releases);
    this.bytes = bytes;
  }
}

/** Staged wire bytes live in chunks of this size; messages up to INLINE_BYTES_MAX are copied into them whole. */
export const CHUNK_BYTES: number = 64 * 1024;
export const INLINE_BYTES_MAX: number = 8 * 1024;

/**
 * Where headers and small messages are written back to back, ready to send. Each chunk is a Ubuf: the staging area
 * holds one reference while it fills the chunk, every run of messages in it another.
 */
export class Staging {
  readonly #pool: BufferPool;
  readonly #releases: ReleaseQueue;
  #chunk: Ubuf | null = null;
  #bytes: Buffer = Buffer.alloc(0);
  #view: DataView = new DataView(this.#bytes.buffer);
  #used = 0;

  constructor(pool: BufferPool, releases: ReleaseQueue) {
    this.#pool = pool;
    this.#releases = releases;
  }

  /** The chunk that reserve() last wrote to. */
  get chunk(): Ubuf {
    return this.#chunk as Ubuf;
  }

  /** Where the next reservation in this chunk would begin. */
  get used(): number {
    return this.#used;
  }

  /** The same memory as `bytes`, for writing headers. */
  get view(): DataView {
    return this.#view;
  }

  get bytes(): Buffer {
    return this.#bytes;
  }

  /** Room left in the current chunk. */
  fits(bytes: number): boolean {
    return this.#chunk !== null && this.#used + bytes <= CHUNK_BYTES;
  }

  /** Offset of `bytes` fresh bytes in `this.bytes`, in a new chunk if need be. */
  reserve(bytes: number): number {
    if (!this.fits(bytes)) this.#open();
    const offset = this.#used;
    this.#used += bytes;
    return offset;
  }

  close(): void {
    this.#chunk?.unref();
    this.#chunk = null;
  }

  #open(): void {
    this.#chunk?.unref();
    const bytes = this.#pool.acquire(CHUNK_BYTES);
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#chunk = new Ubuf([bytes], () => this.#pool.release(bytes), this.#releases);
    this.#used = 0;
  }
}
