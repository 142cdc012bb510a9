/**
 * The driver's side of a split virtqueue (virtio 1.2, section 2.7): what a guest has, and what our own front-end needs to
 * talk to a vhost-user back-end, ours or anybody's.
 *
 *   add()     descriptors from the free list ──▶ avail ring, not yet seen
 *   publish() shows them; says whether the device is to be notified
 *   reap()    used ring ──▶ heads and lengths; descriptors go back to the free list
 *
 * A chain is known by its head. Descriptors are taken in the order in which they came back, so that with IN_ORDER, where
 * they come back as they went, they are used in the order of the table, as section 2.6.9 wants it.
 *
 * With INDIRECT a chain of several pieces takes one descriptor, and its table has a fixed place: entry `head` of the tables.
 *
 * The back-end may be hostile: its used.idx may jump, its entries name chains that it does not have, and more bytes
 * than there is room for. (Where there is none, the length says nothing.) Then the queue is `broken`. It cannot reach what this class knows: the free list and the
 * lengths of chains are kept here, not in the shared ring.
 */
import { assert } from '../core/assert.ts';
import {
  availBytes,
  descBytes,
  isRingSize,
  usedBytes,
  VRING_AVAIL_F_NO_INTERRUPT,
  VRING_DESC_BYTES,
  VRING_DESC_F_INDIRECT,
  VRING_DESC_F_NEXT,
  VRING_DESC_F_WRITE,
  VRING_RING_AT,
  VRING_USED_ELEMENT_BYTES,
  VRING_USED_F_NO_NOTIFY,
} from '../wire/virtio.ts';
import { needEvent, type RingFeatures, type RingMemory } from './queue.ts';

/** Where indirect tables are: `size` tables of `entries` descriptors each. */
export interface IndirectTables {
  readonly memory: ArrayBuffer;
  /** Address of the first byte, as the device knows it. */
  readonly address: number;
  readonly entries: number;
}

/** Words of avail and of used, in 16 bits. */
const FLAGS = 0;
const IDX = 1;
const RING = 2;

export class DriverQueue {
  readonly size: number;
  readonly features: RingFeatures;
  /** Why the queue is of no more use, or null. */
  broken: string | null = null;
  readonly #desc: Uint32Array;
  readonly #avail: Uint16Array;
  readonly #used: Uint16Array;
  readonly #entries: Uint32Array;
  readonly #tables: IndirectTables | null;
  readonly #tableWords: Uint32Array;
  readonly #mask: number;
  /** Free descriptors, from `firstFree` on. */
  readonly #free: Uint16Array;
  #firstFree = 0;
  #freeCount: number;
  /** By head of a chain that is out: its descriptors (0: it is not out), and the bytes that the device may write to it. */
  readonly #chain: Uint16Array;
  readonly #writable: Float64Array;
  /** The second and later descriptors of a chain. */
  readonly #next: Uint16Array;
  /** Heads in the order of avail: with IN_ORDER a used entry speaks for all before it too. */
  readonly #order: Uint16Array;
  #added = 0;
  #published = 0;
  #reaped = 0;
  #noInterrupts = false;
  /** With IN_ORDER: the last chain of a batch that one used entry stands for, and its bytes; -1: none. */
  #named = -1;
  #namedBytes = 0;
  /** Of the chain that was looked at last. */
  #bytes = 0;

  /** The ring is new: its memory is zeroed here. */
  constructor(
    memory: RingMemory,
    size: number,
    features: RingFeatures,
    tables: IndirectTables | null = null,
  ) {
    assert(isRingSize(size), 'ring size');
    const tableBytes = tables === null ? 0 : size * tables.entries * VRING_DESC_BYTES;
    assert(tables === null || tables.memory.byteLength >= tableBytes, 'memory of indirect tables');
    this.size = size;
    this.features = features;
    this.#mask = size - 1;
    this.#desc = new Uint32Array(memory.desc, 0, descBytes(size) / 4).fill(0);
    this.#avail = new Uint16Array(memory.avail, 0, availBytes(size, features.eventIdx) / 2).fill(0);
    this.#used = new Uint16Array(memory.used, 0, usedBytes(size, features.eventIdx) / 2).fill(0);
    this.#entries = new Uint32Array(memory.used, VRING_RING_AT, (size * VRING_USED_ELEMENT_BYTES) / 4);
    this.#tables = features.indirect ? tables : null;
    this.#tableWords = new Uint32Array(tables?.memory ?? new ArrayBuffer(0), 0, tableBytes / 4);
    this.#free = new Uint16Array(size).map((_, i) => i);
    this.#freeCount = size;
    this.#chain = new Uint16Array(size);
    this.#writable = new Float64Array(size);
    this.#next = new Uint16Array(size);
    this.#order = new Uint16Array(size);
  }

  /** Descriptors that are free. */
  get free(): number {
    return this.#freeCount;
  }

  /** Chains that the device has, or will have with publish(). */
  get outstanding(): number {
    return (this.#added - this.#reaped) & 0xffff;
  }

  /** Index in avail of the next chain: what SET_VRING_BASE names when the device has taken all before it. */
  get availIdx(): number {
    return this.#added;
  }

  /**
   * Adds a chain of `readable` pieces for the device to read and `writable` ones behind them for it to write: pieces
   * `from` and on of the arrays. Its head; -1: too few free descriptors. The device sees it after publish().
   */
  add(
    addresses: Float64Array,
    lengths: Uint32Array,
    from: number,
    readable: number,
    writable: number,
  ): number {
    const pieces = readable + writable;
    assert(pieces > 0 && pieces <= this.size, 'pieces of a chain');
    if (this.broken !== null) return -1;
    const tables =
      pieces > 1 && this.#tables !== null && pieces <= this.#tables.entries ? this.#tables : null;
    const descriptors = tables === null ? pieces : 1;
    if (descriptors > this.#freeCount) return -1;
    const head = this.#free[this.#firstFree & this.#mask] as number;
    let room = 0;
    for (let i = 0; i < pieces; i++) {
      const write = i >= readable ? VRING_DESC_F_WRITE : 0;
      const flags = write | (i + 1 < pieces ? VRING_DESC_F_NEXT : 0);
      const address = addresses[from + i] as number;
      const length = lengths[from + i] as number;
      if (write !== 0) room += length;
      if (tables === null) this.#descriptor(i, address, length, flags);
      else put(this.#tableWords, head * tables.entries + i, address, length, flags, i + 1);
    }
    if (tables !== null) {
      const at = tables.address + head * tables.entries * VRING_DESC_BYTES;
      this.#descriptor(0, at, pieces * VRING_DESC_BYTES, VRING_DESC_F_INDIRECT);
    }
    this.#firstFree = (this.#firstFree + descriptors) & this.#mask;
    this.#freeCount -= descriptors;
    this.#chain[head] = descriptors;
    this.#writable[head] = room;
    this.#order[this.#added & this.#mask] = head;
    this.#avail[RING + (this.#added & this.#mask)] = head;
    this.#added = (this.#added + 1) & 0xffff;
    return head;
  }

  /** Shows the device what add() added. True: it wants to be notified. */
  publish(): boolean {
    const before = this.#published;
    const now = this.#added;
    if (now === before || this.broken !== null) return false;
    this.#published = now;
    Atomics.store(this.#avail, IDX, now);
    if (!this.features.eventIdx) return (Atomics.load(this.#used, FLAGS) & VRING_USED_F_NO_NOTIFY) === 0;
    return needEvent(Atomics.load(this.#used, RING + this.size * 4), now, before);
  }

  /**
   * Takes what the device has used, as many as `heads` has room for: heads, and the bytes that it wrote to each. How
   * many; -1: the queue is broken.
   */
  reap(heads: Uint32Array, lengths: Uint32Array): number {
    if (this.broken !== null) return -1;
    const used = (Atomics.load(this.#used, IDX) - this.#reaped) & 0xffff;
    if (used > ((this.#published - this.#reaped) & 0xffff)) {
      return this.#fail(`used.idx is ${used} ahead, fewer chains are out`);
    }
    const count = Math.min(used, heads.length);
    for (let i = 0; i < count; i++) {
      const head = this.#named < 0 ? this.#entry(used - i) : this.#namedNext();
      if (head < 0) return -1;
      heads[i] = head;
      lengths[i] = this.#bytes;
      this.#release(head);
    }
    return count;
  }

  /** Asks the device for signals. True: it has used more meanwhile, so look again instead of waiting. */
  enableInterrupts(): boolean {
    if (this.broken !== null) return false;
    if (this.features.eventIdx) Atomics.store(this.#avail, RING + this.size, this.#reaped);
    else if (this.#noInterrupts) Atomics.store(this.#avail, FLAGS, 0);
    this.#noInterrupts = false;
    return Atomics.load(this.#used, IDX) !== this.#reaped;
  }

  /** Tells the device that it need not signal: a hint. With EVENT_IDX used_event stays behind, which says the same. */
  disableInterrupts(): void {
    if (this.features.eventIdx || this.#noInterrupts) return;
    this.#noInterrupts = true;
    this.#avail[FLAGS] = VRING_AVAIL_F_NO_INTERRUPT;
  }

  /** Reads the next used entry, each word once; `ahead` are there. The chain that is done, its bytes in `#bytes`; -1: broken. */
  #entry(ahead: number): number {
    const at = (this.#reaped & this.#mask) << 1;
    const head = this.#entries[at] as number;
    const length = this.#entries[at + 1] as number;
    if (head >= this.size || this.#chain[head] === 0) return this.#fail(`a used entry for chain ${head}`);
    const room = this.#writable[head] as number;
    // Older devices say of a chain that is only read how long it is, or anything else (section 2.7.8.1).
    const bytes = room === 0 ? 0 : length;
    if (bytes > room) return this.#fail(`${bytes} bytes in chain ${head}`);
    this.#bytes = bytes;
    if (!this.features.inOrder || this.#order[this.#reaped & this.#mask] === head) return head;
    // Section 2.7.9: one entry for a batch, that of its last chain; the others were used completely.
    for (let i = 1; i < ahead; i++) {
      if (this.#order[(this.#reaped + i) & this.#mask] !== head) continue;
      this.#named = head;
      this.#namedBytes = bytes;
      return this.#namedNext();
    }
    return this.#fail(`a used entry for chain ${head} out of order`);
  }

  /** The next chain of a batch whose last one has been named. */
  #namedNext(): number {
    const head = this.#order[this.#reaped & this.#mask] as number;
    const last = head === this.#named;
    this.#bytes = last ? this.#namedBytes : (this.#writable[head] as number);
    if (last) this.#named = -1;
    return head;
  }

  /** Writes the descriptor that is the i-th free one. */
  #descriptor(i: number, address: number, length: number, flags: number): void {
    const index = this.#free[(this.#firstFree + i) & this.#mask] as number;
    const next = this.#free[(this.#firstFree + i + 1) & this.#mask] as number;
    this.#next[index] = next;
    put(this.#desc, index, address, length, flags, next);
  }

  /** A chain is back: its descriptors go to the end of the free list, in their order. */
  #release(head: number): void {
    let index = head;
    for (let left = this.#chain[head] as number; left > 0; left--) {
      this.#free[(this.#firstFree + this.#freeCount) & this.#mask] = index;
      this.#freeCount += 1;
      index = this.#next[index] as number;
    }
    this.#chain[head] = 0;
    this.#reaped = (this.#reaped + 1) & 0xffff;
  }

  #fail(reason: string): -1 {
    this.broken ??= reason;
    return -1;
  }
}

function put(
  words: Uint32Array,
  index: number,
  address: number,
  length: number,
  flags: number,
  next: number,
): void {
  const at = index << 2;
  words[at] = address;
  words[at + 1] = address / 0x1_0000_0000;
  words[at + 2] = length;
  words[at + 3] = (flags & VRING_DESC_F_NEXT) === 0 ? flags : flags | (next << 16);
}
