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
  /** Chunks that nobody uses, with what belongs to them, so that a lane that wakes up makes no objects. */
  readonly cleanChunks: ReceiveBuffer[] = [];
  readonly cleanStages: StageChunk[] = [];
  readonly cleanFirstStages: StageChunk[] = [];
  /** Those with a chunk, the one used last at the end. */
  readonly shelves: Set<ChunkShelf> = new Set();
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

/** Small messages are received into chunks of this size, and staged in such: those up to INLINE_BYTES_MAX whole. */
export const CHUNK_BYTES: number = 64 * 1024;
export const INLINE_BYTES_MAX: number = 8 * 1024;
/** Smaller reads are not worth a call: begin a new chunk. */
export const READ_BYTES_MIN = 4096;
/** Clean chunks of either kind that are kept as they are: as many lanes can be busy in one turn, and more need none. */
const CLEAN_MAX = 8;
/** Peers whose last chunk has messages in it, or was never given back by the program, and is filled up further. */
const SHELVES_MAX = 16;
/** The first chunk of a lane that had nothing to send: most never need another. */
const FIRST_CHUNK_BYTES = 1024;

/**
 * The receive chunk of one peer. A lane takes it for a turn of reading and puts it back, so that lanes with nothing to read have
 * none; while messages in it wait it fills up with those of all lanes, and when there are none it goes to the pool.
 */
export class ChunkShelf {
  readonly #pool: BufferPool;
  readonly #releases: ReleaseQueue;
  #chunk: ReceiveBuffer | null = null;
  /** Where the free part of the chunk on the shelf, or of the one taken last, begins. */
  fill = 0;

  constructor(pool: BufferPool, releases: ReleaseQueue) {
    this.#pool = pool;
    this.#releases = releases;
  }

  take(): ReceiveBuffer {
    const chunk = this.#chunk;
    if (chunk !== null) this.#pool.shelves.delete(this);
    this.#chunk = null;
    if (chunk === null || chunk.refs === 1) this.fill = 0;
    return chunk ?? this.fresh();
  }

  /** One that is empty. */
  fresh(): ReceiveBuffer {
    const { cleanChunks } = this.#pool;
    return (
      cleanChunks.pop() ?? new ReceiveBuffer(this.#pool.acquire(CHUNK_BYTES), this.#pool, this.#releases)
    );
  }

  /** Its first `fill` bytes are used, perhaps by messages. */
  put(chunk: ReceiveBuffer, fill: number): void {
    const { cleanChunks } = this.#pool;
    if (chunk.refs === 1) {
      if (cleanChunks.length < CLEAN_MAX) cleanChunks.push(chunk);
      else chunk.unref();
    } else if (this.#chunk !== null || CHUNK_BYTES - fill < READ_BYTES_MIN) chunk.unref();
    else {
      this.#chunk = chunk;
      this.fill = fill;
      const { shelves } = this.#pool;
      shelves.add(this);
      // The one that was not used for longest: its chunk is only for what is in it from now on.
      const [oldest] = shelves.size > SHELVES_MAX ? shelves : [];
      oldest?.close();
    }
  }

  close(): void {
    if (this.#chunk === null) return;
    this.#pool.shelves.delete(this);
    this.#chunk.unref();
    this.#chunk = null;
  }
}

/** Where headers and small messages are written, as the three ways to look at it. */
interface StageChunk {
  readonly ubuf: Ubuf;
  readonly bytes: Buffer;
  readonly view: DataView;
}

const noBytes: Buffer = Buffer.alloc(0);
const noView: DataView = new DataView(noBytes.buffer);

/**
 * Where headers and small messages are written back to back, ready to send. Each chunk is a Ubuf: the staging area
 * holds one reference while it fills the chunk, every run of messages in it another.
 */
export class Staging {
  readonly #pool: BufferPool;
  readonly #releases: ReleaseQueue;
  #chunk: StageChunk | null = null;
  #bytes: Buffer = noBytes;
  #view: DataView = noView;
  #used = 0;

  constructor(pool: BufferPool, releases: ReleaseQueue) {
    this.#pool = pool;
    this.#releases = releases;
  }

  /** The chunk that reserve() last wrote to. */
  get chunk(): Ubuf {
    return (this.#chunk as StageChunk).ubuf;
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
    return this.#used + bytes <= this.#bytes.byteLength;
  }

  /** Offset of `bytes` fresh bytes in `this.bytes`, in a new chunk if need be. */
  reserve(bytes: number): number {
    if (!this.fits(bytes)) this.#open(bytes);
    const offset = this.#used;
    this.#used += bytes;
    return offset;
  }

  /** Nothing is queued: if nobody else holds the chunk either, it goes to the pool as it is. */
  rest(): void {
    const chunk = this.#chunk;
    if (chunk === null) return;
    const clean = this.#cleanOnes(chunk.bytes.byteLength);
    if (chunk.ubuf.refs === 1 && clean.length < CLEAN_MAX) clean.push(chunk);
    else chunk.ubuf.unref();
    this.#forget();
  }

  close(): void {
    this.#chunk?.ubuf.unref();
    this.#forget();
  }

  #forget(): void {
    this.#chunk = null;
    this.#bytes = noBytes;
    this.#view = noView;
    this.#used = 0;
  }

  #open(bytes: number): void {
    const size = this.#chunk === null && bytes <= FIRST_CHUNK_BYTES ? FIRST_CHUNK_BYTES : CHUNK_BYTES;
    this.#chunk?.ubuf.unref();
    this.#chunk = this.#cleanOnes(size).pop() ?? this.#newChunk(size);
    this.#bytes = this.#chunk.bytes;
    this.#view = this.#chunk.view;
    this.#used = 0;
  }

  #cleanOnes(size: number): StageChunk[] {
    return size === CHUNK_BYTES ? this.#pool.cleanStages : this.#pool.cleanFirstStages;
  }

  #newChunk(size: number): StageChunk {
    // Small ones are not worth the pool's attention, which drops them when they come back.
    const bytes = size === CHUNK_BYTES ? this.#pool.acquire(size) : Buffer.allocUnsafeSlow(size);
    const ubuf = new Ubuf([bytes], () => this.#pool.release(bytes), this.#releases);
    return { ubuf, bytes, view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength) };
  }
}
