/**
 * Descriptor chains (virtio 1.2, section 2.7.5) become segments of a frame table: addresses in the guest, which the native layer
 * resolves. Nothing of a frame's content is looked at here.
 *
 * Everything in a chain was written by the guest, who may go on writing. So:
 * - each descriptor is read once, into locals, and an indirect table is copied once before it is looked at;
 * - a chain visits at most as many descriptors as its table has (and at most CHAIN_DESCRIPTORS_MAX), so a loop ends, whatever the
 *   lengths are;
 * - what a compliant driver cannot have written by mistake of content (a head or next outside of the table, a loop, a
 *   malformed indirect descriptor) breaks the queue: there is no telling where the chain ends, and a part of it is never sent;
 * - what concerns this chain alone (a direction that makes no sense, an address outside of memory, too many pieces)
 *   skips the chain: it goes back to the driver as used, with length 0.
 *
 * Descriptors without bytes are tolerated, and leave nothing behind.
 */
import { assert } from '../core/assert.ts';
import type { FrameTable } from '../core/frames.ts';
import {
  VRING_DESC_BYTES,
  VRING_DESC_F_INDIRECT,
  VRING_DESC_F_NEXT,
  VRING_DESC_F_WRITE,
} from '../wire/virtio.ts';
import type { SplitQueue } from './queue.ts';

/** The queue is broken; `queue.broken` says why. */
export const CHAIN_BROKEN = -1;
/** To be returned as used, with length 0. */
export const CHAIN_SKIP = -2;
/** The table has no room for it beside what is in it: hand that over, and read it again. */
export const CHAIN_FULL = -3;

/**
 * Descriptors of the longest chain, and entries of the longest indirect table: UIO_MAXIOV, as in vhost. A Linux network
 * driver needs 19. What a ring of 32,768 could hold besides is time that one guest takes from the others.
 */
export const CHAIN_DESCRIPTORS_MAX = 1024;

/** Addresses of a guest have at most 52 bits: the largest high word. Beyond 2^53 they would be rounded as a double, perhaps into memory. */
const ADDRESS_HIGH_MAX = 0xfffff;

/** How many chains were refused, and for what. The first six broke their queue. */
export interface ChainCounters {
  /** `next` is outside of the table. */
  next: number;
  /** More descriptors than the table has, or than CHAIN_DESCRIPTORS_MAX. */
  loop: number;
  /** An indirect descriptor where none was negotiated. */
  indirectFeature: number;
  /** An indirect descriptor in an indirect table. */
  indirectNested: number;
  /** An indirect descriptor that has NEXT too. */
  indirectNext: number;
  /** An indirect table of no bytes, of a part of an entry, or of more than CHAIN_DESCRIPTORS_MAX. */
  indirectLength: number;
  /** For the device to write where it should read, or the other way round. */
  direction: number;
  /** Beyond 2^52, or an indirect table that is not in the guest's memory. */
  address: number;
  /** More bytes than bytesMax. */
  length: number;
  /** More pieces than a frame table has room for. */
  segments: number;
  /** No bytes at all. */
  empty: number;
}

export function chainCounters(): ChainCounters {
  return {
    next: 0,
    loop: 0,
    indirectFeature: 0,
    indirectNested: 0,
    indirectNext: 0,
    indirectLength: 0,
    direction: 0,
    address: 0,
    length: 0,
    segments: 0,
    empty: 0,
  };
}

export interface ChainOptions {
  /** Whether the chains are for the device to write (receiving) or to read (transmitting). */
  readonly writable: boolean;
  /** Which space the addresses are in. */
  readonly space: number;
  /** Longer chains are skipped. Below 2^32. */
  readonly bytesMax: number;
  /** Copies out.byteLength bytes at `address` of the guest to `out`; anything but that number is a failure. */
  readIndirect(address: number, out: Uint8Array): number;
}

export class ChainReader {
  readonly counters: ChainCounters;
  /** Bytes of the chain that was read last. */
  bytes = 0;
  /**
   * Descriptors that were looked at since somebody set it to 0, and a quarter for each that was copied: what reading costs,
   * whatever is in them. A chain of nothing, or one that is refused at its end, takes as long as one that is full.
   */
  visited = 0;
  readonly #queue: SplitQueue;
  readonly #options: ChainOptions;
  /** Segments that were in the table before this chain. */
  #start = 0;
  /** WRITE or 0: what each descriptor must have. */
  readonly #direction: number;
  /** Copies of indirect tables. */
  readonly #scratch: Uint8Array;
  readonly #scratchWords: Uint32Array;
  /** Views of the first entries of it, by how many. */
  readonly #copies: Uint8Array[] = [];

  constructor(queue: SplitQueue, options: ChainOptions, counters: ChainCounters = chainCounters()) {
    assert(options.bytesMax < 2 ** 32, 'bytesMax');
    this.#queue = queue;
    this.#options = options;
    this.#direction = options.writable ? VRING_DESC_F_WRITE : 0;
    this.counters = counters;
    const scratch = new ArrayBuffer(queue.features.indirect ? CHAIN_DESCRIPTORS_MAX * VRING_DESC_BYTES : 0);
    this.#scratch = new Uint8Array(scratch);
    this.#scratchWords = new Uint32Array(scratch);
  }

  /**
   * Adds the pieces of the chain at `head` to the segments of `table`. Returns how many there are, and `bytes` how long they are
   * together; or CHAIN_BROKEN, CHAIN_SKIP or CHAIN_FULL, with the table as it was.
   */
  read(head: number, table: FrameTable): number {
    const start = table.segmentCount;
    this.#start = start;
    this.bytes = 0;
    const result = this.#walk(this.#queue.desc, this.#queue.size, head, table, false);
    if (result < 0) table.segmentCount = start;
    else if (result === start) return this.#skip('empty');
    return result < 0 ? result : result - start;
  }

  /** Follows a chain in a table of `entries` descriptors. Segments that are then in use, or why not. */
  #walk(desc: Uint32Array, entries: number, head: number, table: FrameTable, nested: boolean): number {
    const { addresses, segments, options } = table;
    const { space, bytesMax } = this.#options;
    let segment = table.segmentCount;
    let bytes = this.bytes;
    let index = head;
    const most = Math.min(entries, CHAIN_DESCRIPTORS_MAX);
    for (let left = most; left > 0; left--) {
      // The only loads of this descriptor.
      const at = index << 2;
      const low = desc[at] ?? 0;
      const high = desc[at + 1] ?? 0;
      const length = desc[at + 2] ?? 0;
      const word = desc[at + 3] ?? 0;
      if ((word & (VRING_DESC_F_INDIRECT | VRING_DESC_F_WRITE)) !== this.#direction) {
        if ((word & VRING_DESC_F_INDIRECT) === 0) return this.#skip('direction', most - left);
        table.segmentCount = segment;
        this.bytes = bytes;
        this.visited += most - left;
        return this.#indirect(low, high, length, word, table, nested);
      }
      if (length !== 0) {
        if (high > ADDRESS_HIGH_MAX) return this.#skip('address', most - left);
        bytes += length;
        if (bytes > bytesMax) return this.#skip('length', most - left);
        if (segment === options.segments) return this.#full(most - left);
        addresses[segment << 1] = high * 0x1_0000_0000 + low;
        segments[(segment << 2) + 2] = length;
        segments[(segment << 2) + 3] = space;
        segment++;
      }
      if ((word & VRING_DESC_F_NEXT) === 0) {
        table.segmentCount = segment;
        this.bytes = bytes;
        this.visited += most - left + 1;
        return segment;
      }
      index = word >>> 16;
      if (index >= entries) return this.#break('next', `next ${index} in a table of ${entries}`);
    }
    return this.#break('loop', `a chain of more than ${most} descriptors`);
  }

  /**
   * An indirect descriptor ends a chain, section 2.7.5.3; direct ones may come before it. Its WRITE flag says nothing, and a
   * table that is longer than its chain is no harm.
   */
  #indirect(
    low: number,
    high: number,
    length: number,
    word: number,
    table: FrameTable,
    nested: boolean,
  ): number {
    if (nested) return this.#break('indirectNested', 'an indirect descriptor in an indirect table');
    if (!this.#queue.features.indirect) {
      return this.#break('indirectFeature', 'an indirect descriptor was not negotiated');
    }
    if ((word & VRING_DESC_F_NEXT) !== 0) {
      return this.#break('indirectNext', 'an indirect descriptor with a next one');
    }
    if (length === 0 || length % VRING_DESC_BYTES !== 0 || length > this.#scratch.byteLength) {
      return this.#break('indirectLength', `an indirect table of ${length} bytes`);
    }
    if (high > ADDRESS_HIGH_MAX) return this.#skip('address');
    const entries = length / VRING_DESC_BYTES;
    this.visited += 1 + (entries >> 2);
    const read = this.#options.readIndirect(high * 0x1_0000_0000 + low, this.#copy(length));
    if (read !== length) return this.#skip('address');
    return this.#walk(this.#scratchWords, entries, 0, table, true);
  }

  /** The first bytes of the scratch memory. The views are kept: making one costs more than reading the chain. */
  #copy(length: number): Uint8Array {
    const entries = length / VRING_DESC_BYTES;
    const kept = this.#copies[entries];
    if (kept !== undefined) return kept;
    const copy = this.#scratch.subarray(0, length);
    this.#copies[entries] = copy;
    return copy;
  }

  /** The table is full: of other chains, or of this one, which no table can then hold. */
  #full(visited: number): number {
    return this.#start > 0 ? CHAIN_FULL : this.#skip('segments', visited);
  }

  #skip(reason: keyof ChainCounters, visited = 0): number {
    this.visited += visited;
    this.counters[reason] += 1;
    return CHAIN_SKIP;
  }

  #break(reason: keyof ChainCounters, text: string): number {
    this.counters[reason] += 1;
    this.#queue.fail(text);
    return CHAIN_BROKEN;
  }
}
