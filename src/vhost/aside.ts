/**
 * Which chains of a transmit queue were overtaken and are not back yet, written down where the next owner of the ring finds it.
 *
 * Whoever takes a ring over after a crash knows used.idx, and no more. That says all as long as chains are given back in the order of
 * avail; when some were overtaken, the entries of avail from used.idx on are not those that are out:
 *
 *   avail   ... | c | d | e  | f | g |         c is lent for too long, d and e were given back before it:
 *   used    ... | d | e | c+ |   |   |         used.idx stands at e, which is back; c is out, and so are f and g
 *                       ^used.idx
 *
 * So a note of each is kept in the used ring: an entry behind used.idx, of the chain's head and a length that no frame has (c+). Drivers
 * do not look there before used.idx has passed (virtio 1.2, section 2.7.8), and there is room: entries behind used.idx that the driver
 * has still to read are of chains whose descriptors it has not got back, so as many as chains are out are free at least.
 *
 * A crash may come between any two stores. So a note is there before anything that overtakes is published, and it stays, in one place
 * or another, until its own chain is. A note that is out of date by then is known as such: it bears the index of used at which it was written
 * and, as soon as its chain is about to be given back, the index at which that is. One moment is not covered: when all that is out was
 * overtaken, and the driver has made nothing else available, the last free entry is at once the note and the place where its chain is
 * given back, for two stores.
 */
import { VRING_RING_AT } from '../wire/virtio.ts';
import type { RingMemory } from './queue.ts';

/** The upper half of a note's length; the lower is an index of used. */
const NOTE = 0x5a54;
/** No head. */
const NOBODY = 0xffff_ffff;
/** Words of avail, in 16 bits, and of an index in it. */
const IDX = 1;
const RING = 2;

export class AsideNotes {
  /** The used ring without flags and idx, two words an entry. */
  readonly #entries: Uint32Array;
  readonly #mask: number;
  /** By entry: 1 and the head of the chain that has a note there; 0: none. By head: 1 and the entry of its note. */
  readonly #head: Uint16Array;
  readonly #entry: Uint16Array;
  /** Heads with a note that are given back, but not published, each with the index of its entry. */
  readonly #ending = new Map<number, number>();

  constructor(entries: Uint32Array, size: number) {
    this.#entries = entries;
    this.#mask = size - 1;
    this.#head = new Uint16Array(size);
    this.#entry = new Uint16Array(size);
  }

  /** Writes a note of `head` at one of the `room` entries from index `filled` on, but not at the first `skip` of them. */
  write(head: number, filled: number, room: number, skip = 0): boolean {
    // From the end, which used.idx reaches last.
    for (let i = room - 1; i >= skip; i--) {
      const entry = (filled + i) & this.#mask;
      if (this.#head[entry] !== 0) continue;
      this.#put(entry, head, filled);
      return true;
    }
    return false;
  }

  /** The same notes, at the same entries, where the ring is seen now; all is published. */
  moved(entries: Uint32Array, filled: number): AsideNotes {
    const notes = new AsideNotes(entries, this.#head.length);
    for (const [entry, noted] of this.#head.entries()) {
      if (noted === 0) continue;
      // They are there already, as a rule.
      entries[2 * entry + 1] = markOf(filled);
      entries[2 * entry] = noted - 1;
      notes.found(noted - 1, entry);
    }
    return notes;
  }

  /** The note that was found at `entry`. */
  found(head: number, entry: number): void {
    this.#head[entry] = head + 1;
    this.#entry[head] = entry + 1;
  }

  /**
   * The entry of index `filled` is about to be that of `head`: a note that is there goes elsewhere. False: that needs the place of one
   * whose chain was given back and is not published, so publish it, and ask again.
   */
  makeWay(head: number, filled: number, room: number): boolean {
    const entry = filled & this.#mask;
    const noted = (this.#head[entry] as number) - 1;
    if (noted >= 0 && !this.write(noted, filled, room, 1)) {
      if (this.#ending.size > 0) return false;
      // All that is out was overtaken: the place of the chain that goes is the only one.
      const own = (this.#entry[head] as number) - 1;
      if (own >= 0 && own !== entry) this.#put(own, noted, filled);
    }
    this.#head[entry] = 0;
    const own = (this.#entry[head] as number) - 1;
    if (own >= 0) {
      this.#entries[2 * own + 1] = markOf(filled);
      this.#ending.set(head, filled);
    }
    return true;
  }

  /** What was given back is published: its notes end. */
  published(): void {
    for (const head of this.#ending.keys()) {
      const entry = (this.#entry[head] as number) - 1;
      this.#entry[head] = 0;
      if (entry < 0 || this.#head[entry] !== head + 1) continue;
      this.#head[entry] = 0;
      this.#entries[2 * entry + 1] = 0;
    }
    this.#ending.clear();
  }

  /** In three stores, so that what is half done is neither a note nor a used entry of anybody's. */
  #put(entry: number, head: number, filled: number): void {
    const at = 2 * entry;
    this.#entries[at] = NOBODY;
    this.#entries[at + 1] = markOf(this.#ending.get(head) ?? filled);
    this.#entries[at] = head;
    this.found(head, entry);
  }
}

/** What the last owner of a ring has left there. */
export interface FoundNotes {
  /** Chains that were overtaken: heads, and the entries of their notes. */
  readonly aside: Map<number, number>;
  /** Entries of notes that mean nothing any more. */
  readonly over: readonly number[];
}

/**
 * Reads the notes in a ring whose avail.idx is `out` ahead of used.idx. A guest can write here what it likes, and have its own
 * chains back without their being sent.
 */
export function readNotes(
  { avail, used }: RingMemory,
  size: number,
  usedIdx: number,
  out: number,
): FoundNotes {
  const aside = new Map<number, number>();
  const all: number[] = [];
  const entries = new Uint32Array(used, VRING_RING_AT, 2 * size);
  const mask = size - 1;
  for (let i = 0; i < out && out <= size; i++) {
    const entry = (usedIdx + i) & mask;
    const mark = entries[2 * entry + 1] as number;
    if (mark >>> 16 !== NOTE) continue;
    all.push(entry);
    const head = entries[2 * entry] as number;
    // Ahead of used.idx, nearly 2^16: behind entries that were filled and not published any more.
    const age = (usedIdx - mark) & 0xffff;
    if (head >= size || (age > size && age < 0x1_0000 - size)) continue;
    const there = 2 * (mark & mask);
    const isBack = age > 0 && age <= size && entries[there] === head && entries[there + 1] === 0;
    if (!isBack) aside.set(head, entry);
  }
  // A crash between a note and the entries that overtake its chain: the chain still stands among those to be taken.
  const heads = new Uint16Array(avail, 0, RING + size);
  for (let i = out - 1; i >= aside.size && aside.size > 0; i--) {
    aside.delete(heads[RING + ((usedIdx + i) & mask)] as number);
  }
  return { aside, over: all.filter((entry) => aside.get(entries[2 * entry] as number) !== entry) };
}

/** The length of a note. */
function markOf(index: number): number {
  return NOTE * 0x1_0000 + (index & 0xffff);
}

/** avail.idx or used.idx. */
export function indexOf(memory: RingMemory, ring: 'avail' | 'used'): number {
  return Atomics.load(new Uint16Array(memory[ring], 0, 2), IDX);
}
