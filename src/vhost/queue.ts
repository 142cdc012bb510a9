/**
 * The device's side of a split virtqueue (virtio 1.2, section 2.7): three areas of a guest's memory, as typed arrays.
 *
 *   avail ring, driver writes   ... | h7 | h3 | h9 |    |        lastAvail: next to take;  idx: next to be written
 *                                     ^lastAvail    ^idx
 *   used ring, we write         ... | e0 | e1 | e2 |    |        published: what the driver sees;  filled: what put() wrote
 *                                     ^published    ^filled
 *
 * All indices run free modulo 2^16; the entry is `index & (size - 1)`.
 *
 * The driver may be hostile and may write at any time. So each word of it is read once, into a local, and checked there; an
 * index that jumps further than the ring has entries, or a head that is none, marks the queue `broken`, after which it
 * takes and gives nothing. The used ring is not read, but once for what its last owner left there (aside.ts).
 *
 * Memory order: `idx` of either ring, and the words that decide about notifications, go through Atomics, which are sequentially consistent
 * in V8 on every kind of buffer. The loads of ring entries and descriptors behind the load of avail.idx, and the stores of used
 * entries before the store of used.idx, are then plain ones, which the two of them hold in place. A Uint16Array
 * makes each index one 16-bit access.
 *
 * The views may be detached under us when the guest's memory is taken away: then plain accesses do nothing, and the
 * Atomics, which would throw, are not reached.
 */
import { assert } from '../core/assert.ts';
import {
  availBytes,
  descBytes,
  isRingSize,
  usedBytes,
  VRING_AVAIL_F_NO_INTERRUPT,
  VRING_RING_AT,
  VRING_USED_ELEMENT_BYTES,
  VRING_USED_F_NO_NOTIFY,
} from '../wire/virtio.ts';
import { AsideNotes, type FoundNotes } from './aside.ts';

/** The three areas, each exactly as long as descBytes(), availBytes() and usedBytes() say, or longer. */
export interface RingMemory {
  readonly desc: ArrayBuffer;
  readonly avail: ArrayBuffer;
  readonly used: ArrayBuffer;
}

/** What was negotiated, as far as rings care. */
export interface RingFeatures {
  readonly eventIdx: boolean;
  readonly indirect: boolean;
  readonly inOrder: boolean;
}

/** Words of avail and of used, in 16 bits. */
const FLAGS = 0;
const IDX = 1;
const RING = 2;

/** Why a queue is broken whose driver has taken back what it had made available. */
export const SET_BACK = 'avail.idx was set back';

export class SplitQueue {
  readonly size: number;
  readonly features: RingFeatures;
  /** The descriptor table, four words a descriptor. */
  readonly desc: Uint32Array;
  /** Why the queue is of no more use, or null. */
  broken: string | null = null;
  readonly #avail: Uint16Array;
  readonly #used: Uint16Array;
  /** The used ring without flags and idx: id and length of each entry. */
  readonly #entries: Uint32Array;
  readonly #mask: number;
  #lastAvail: number;
  #filled: number;
  #published: number;
  /** Where `published` stood when a signal was last decided about. */
  #decided: number;
  /** Nothing has been decided yet: the first entries are always signalled, as nobody knows what the driver was told before. */
  #first = true;
  /** What used.flags says; undefined: what the last owner of the ring left there. */
  #quiet: boolean | undefined;
  /** Of chains that were overtaken, once there was one. */
  #notes: AsideNotes | null = null;

  /** `availBase`: first entry of avail to take; `usedIdx`: as it stands in the used ring. */
  constructor(memory: RingMemory, size: number, features: RingFeatures, availBase: number, usedIdx: number) {
    assert(isRingSize(size), 'ring size');
    assert(memory.desc.byteLength >= descBytes(size), 'descriptor table too short');
    assert(memory.avail.byteLength >= availBytes(size, features.eventIdx), 'avail ring too short');
    assert(memory.used.byteLength >= usedBytes(size, features.eventIdx), 'used ring too short');
    this.size = size;
    this.features = features;
    this.#mask = size - 1;
    this.desc = new Uint32Array(memory.desc, 0, descBytes(size) / 4);
    this.#avail = new Uint16Array(memory.avail, 0, availBytes(size, features.eventIdx) / 2);
    this.#used = new Uint16Array(memory.used, 0, usedBytes(size, features.eventIdx) / 2);
    this.#entries = new Uint32Array(memory.used, VRING_RING_AT, (size * VRING_USED_ELEMENT_BYTES) / 4);
    this.#lastAvail = availBase & 0xffff;
    this.#filled = usedIdx & 0xffff;
    this.#published = this.#filled;
    this.#decided = this.#filled;
  }

  /** Index of the next entry of avail to take. */
  get lastAvail(): number {
    return this.#lastAvail;
  }

  /** Index of the next used entry that the driver will see. */
  get usedIdx(): number {
    return this.#published;
  }

  /** Entries that the driver has made available and we have not taken; -1: the queue is broken. */
  available(): number {
    if (this.broken !== null) return -1;
    if (this.#avail.length === 0) return this.fail('the memory of the ring is gone');
    const count = (Atomics.load(this.#avail, IDX) - this.#lastAvail) & 0xffff;
    if (count <= this.size) return count;
    // A step back is a jump of nearly 2^16.
    const isBack = count >= 0x1_0000 - this.size;
    return this.fail(isBack ? SET_BACK : `avail.idx is ${count} ahead, the ring has ${this.size}`);
  }

  /** Head of the chain at lastAvail + `offset`, which must be below what available() said; -1: the queue is broken. */
  peekHead(offset: number): number {
    const head = this.#avail[RING + ((this.#lastAvail + offset) & this.#mask)] ?? 0;
    return head < this.size ? head : this.fail(`head ${head} in a ring of ${this.size}`);
  }

  /** Takes `count` entries. */
  advance(count: number): void {
    this.#lastAvail = (this.#lastAvail + count) & 0xffff;
  }

  /** Gives back the last `count` entries, which will be taken again. */
  rewind(count: number): void {
    this.#lastAvail = (this.#lastAvail - count) & 0xffff;
  }

  /** Fills the next used entry. The driver sees it after publish(). */
  put(head: number, bytes: number): void {
    if (this.#notes?.makeWay(head, this.#filled, this.#room()) === false) {
      this.#show();
      this.#notes.makeWay(head, this.#filled, this.#room());
    }
    const at = (this.#filled & this.#mask) << 1;
    // The length first: a note (aside.ts) that stood here must not become one of `head`.
    this.#entries[at + 1] = bytes;
    this.#entries[at] = head;
    this.#filled = (this.#filled + 1) & 0xffff;
  }

  /** Later chains will be given back before `head`, which was taken: whoever has the ring after us finds it noted (aside.ts). */
  setAside(head: number): void {
    this.#notes ??= new AsideNotes(this.#entries, this.size);
    this.#notes.write(head, this.#filled, this.#room());
  }

  /** Is the same ring as `old`, at another address. */
  follow(old: SplitQueue): void {
    this.#notes = old.#notes?.moved(this.#entries, this.#filled) ?? null;
  }

  /** Gives back what the last owner of the ring had overtaken, by his notes. */
  giveBack({ aside, over }: FoundNotes): void {
    for (const entry of over) this.#entries[2 * entry + 1] = 0;
    if (aside.size === 0) return;
    this.#notes ??= new AsideNotes(this.#entries, this.size);
    for (const [head, entry] of aside) this.#notes.found(head, entry);
    // One at a time, as the next crash may come at any moment, too.
    for (const head of aside.keys()) {
      this.put(head, 0);
      this.publish();
    }
  }

  #show(): void {
    if (this.#filled === this.#published || this.#used.length === 0) return;
    this.#published = this.#filled;
    Atomics.store(this.#used, IDX, this.#filled);
    this.#notes?.published();
  }

  /** Entries of used from `filled` on that the driver has read: as many as chains are out. */
  #room(): number {
    if (this.#avail.length === 0) return 0;
    return Math.min((Atomics.load(this.#avail, IDX) - this.#filled) & 0xffff, this.size);
  }

  /** Shows the driver what put() filled. True: it wants a signal. */
  publish(): boolean {
    const now = this.#filled;
    if (now === this.#decided || this.#used.length === 0) return false;
    this.#show();
    // The store in there and the loads below are one sequence for the driver too, who writes its wish and then looks at used.idx.
    const before = this.#decided;
    const first = this.#first;
    this.#decided = now;
    this.#first = false;
    if (!this.features.eventIdx) {
      return (Atomics.load(this.#avail, FLAGS) & VRING_AVAIL_F_NO_INTERRUPT) === 0;
    }
    const event = Atomics.load(this.#avail, RING + this.size);
    return first || needEvent(event, now, before);
  }

  /**
   * Asks the driver to notify when it adds more. True: it has done so meanwhile, perhaps without a notification, so
   * look again instead of waiting. A broken queue asks for nothing.
   */
  enableNotifications(): boolean {
    if (this.broken !== null || this.#used.length === 0) return false;
    if (this.features.eventIdx) {
      Atomics.store(this.#used, RING + this.size * 4, this.#lastAvail);
    } else if (this.#quiet !== false) {
      this.#quiet = false;
      Atomics.store(this.#used, FLAGS, 0);
    }
    return this.available() > 0;
  }

  /**
   * Tells the driver that it need not notify: a hint. With EVENT_IDX there is nothing to say: avail_event stays where it is, and the
   * driver notifies when it passes it.
   */
  disableNotifications(): void {
    if (this.features.eventIdx || this.#quiet === true) return;
    this.#quiet = true;
    this.#used[FLAGS] = VRING_USED_F_NO_NOTIFY;
  }

  /** Marks the queue broken, for the first reason that is given. Returns -1. */
  fail(reason: string): -1 {
    this.broken ??= reason;
    return -1;
  }
}

/** Whether an index that went from `before` to `now` has passed `event`: section 2.7.7.2, modulo 2^16. */
export function needEvent(event: number, now: number, before: number): boolean {
  return ((now - event - 1) & 0xffff) < ((now - before) & 0xffff);
}
