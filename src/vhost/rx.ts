/**
 * Receiving, in the guest's words: frames from elsewhere are put into the chains that the driver made available.
 *
 *   frames of `src`         | a            | b       |
 *   chains of the queue     | c0 | c1 | c2 | c3      | ...     with MRG_RXBUF a frame takes as many as it needs
 *   records of `table`      | 0            | 1       |         head: the virtio_net_hdr; tail: the pieces of its chains
 *
 * A batch of them is gathered without taking anything: only offsets from lastAvail. Then the native layer copies the whole batch once,
 * from wherever the frames are to the guest, and the chains are taken and put into the used ring with what was really
 * written. So a frame for which there are too few chains leaves the queue as it was.
 *
 * A driver who posts chains that nothing can be written to (none or too few bytes, for reading, outside of its memory) gets them back
 * with length 0. With MRG_RXBUF the used entries of a frame follow each other: if such a chain turns up in the middle of
 * one, what was gathered for the frame goes back too, and it starts again behind it. One call takes no more chains than the ring
 * has, however fast the driver posts them anew.
 *
 * What a guest did not negotiate never reaches it: a segment to be cut, a checksum to be filled in, a frame beyond its MTU. Whoever
 * forwards is expected to have seen to that (Port.capability); what comes nevertheless is dropped and counted.
 */
import { assert } from '../core/assert.ts';
import {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  HEAD_BYTES,
  TAIL_COUNT,
  TAIL_START,
} from '../core/frames.ts';
import { CHAIN_BROKEN, CHAIN_FULL, type ChainReader } from './chain.ts';
import type { SplitQueue } from './queue.ts';
import { HEADER_MADE, HEADER_REFUSED, HEADER_TOO_LONG, HEADER_WRONG, RxHeader } from './rx-header.ts';

export interface RxCounters {
  /** What was written to the guest, without headers. */
  frames: number;
  bytes: number;
  /** Chains that took them, and chains that went back empty. */
  chains: number;
  chainsUseless: number;
  /** Frames dropped: too long for the guest or for its chains; an offload that it lacks; a header that is wrong. */
  droppedSize: number;
  droppedOffload: number;
  droppedHeader: number;
  /** Frames dropped: the guest's chain, or the frame's own memory, could not be reached; the queue is broken. */
  droppedFault: number;
  droppedBroken: number;
}

export function rxCounters(): RxCounters {
  return {
    frames: 0,
    bytes: 0,
    chains: 0,
    chainsUseless: 0,
    droppedSize: 0,
    droppedOffload: 0,
    droppedHeader: 0,
    droppedFault: 0,
    droppedBroken: 0,
  };
}

export interface RxOptions {
  /** Of the virtio_net_hdr: 12, or 10 for a driver without VERSION_1 and MRG_RXBUF. */
  readonly headerBytes: number;
  /** MRG_RXBUF was negotiated. */
  readonly mergeable: boolean;
  /** OFFLOAD_ bits that the guest takes: its GUEST_ features. */
  readonly offloads: number;
  /** The longest frame that is not to be segmented: MTU, Ethernet header and a VLAN tag. */
  readonly frameBytesMax: number;
  /** Copies frames of `src` to the chains in the records [0, count) of `table`: sets FRAME_STATUS in each. */
  deliver(src: FrameTable, table: FrameTable, count: number): number;
}

/**
 * Descriptors that one call looks at: some hundred microseconds. 64 frames of 64 KiB in buffers of 1.5 KiB are 2816; but a driver may
 * post thousands of chains of a thousand descriptors each, with nothing or a byte in them, and whoever sends to it would
 * wait for the whole ring.
 */
const VISITED_MAX = 16_384;

/** What became of one frame. */
const PLACED = 0;
const DROPPED = 1;
/** Too few chains. */
const SHORT = 2;
/** The table is full. */
const FULL = 3;
/** Enough descriptors were looked at. */
const SPENT = 4;

export class RxFiller {
  readonly counters: RxCounters;
  readonly #queue: SplitQueue;
  readonly #chains: ChainReader;
  readonly #table: FrameTable;
  /** The same memory, for headers: a head is at a multiple of 16. */
  readonly #words: Uint32Array;
  readonly #options: RxOptions;
  /** Of the frame that is being placed. */
  readonly #header: RxHeader;
  /** The batch: used entries to be put, and of each frame, the first of its own, and the one behind the last. */
  readonly #heads: Uint16Array;
  readonly #lengths: Uint32Array;
  readonly #firstEntry: Uint16Array;
  readonly #endEntry: Uint16Array;
  #entries = 0;
  #tableFull = false;
  /** Chains that this batch may take. */
  #limit = 0;

  /** `table` is the filler's own: nobody else has frames in it. */
  constructor(
    queue: SplitQueue,
    chains: ChainReader,
    table: FrameTable,
    options: RxOptions,
    counters: RxCounters = rxCounters(),
  ) {
    assert(table.options.headBytes >= options.headerBytes, 'no room for a virtio_net_hdr');
    this.#queue = queue;
    this.#chains = chains;
    this.#table = table;
    this.#words = new Uint32Array(table.bytes.buffer, table.bytes.byteOffset, table.bytes.byteLength >> 2);
    this.#options = options;
    this.#header = new RxHeader(options.offloads, options.frameBytesMax);
    this.#heads = new Uint16Array(queue.size);
    this.#lengths = new Uint32Array(queue.size);
    this.#firstEntry = new Uint16Array(table.options.frames);
    this.#endEntry = new Uint16Array(table.options.frames);
    this.counters = counters;
  }

  /**
   * Gives the guest the frames `which[from..count)` of `src`. Returns where it stopped: less than `count` means that there are too few
   * chains for the frame there, now, or that they took too long to read. The used entries are put; publish() is the caller's.
   */
  fill(src: FrameTable, which: Uint32Array, from: number, count: number): number {
    const queue = this.#queue;
    this.#chains.visited = 0;
    let at = from;
    for (let budget = queue.size; at < count; budget -= this.#entries) {
      const available = queue.available();
      if (available < 0) break;
      this.#limit = Math.min(available, budget);
      at = this.#gather(src, which, at, count);
      this.#commit(src);
      if (queue.broken !== null) break;
      if (!this.#tableFull) return at;
    }
    if (queue.broken !== null) this.counters.droppedBroken += count - at;
    return count;
  }

  /** Makes a batch of frames, from `from` on. Where it stopped: there are too few chains, or the table is full. */
  #gather(src: FrameTable, which: Uint32Array, from: number, count: number): number {
    const table = this.#table;
    table.clear();
    this.#entries = 0;
    this.#tableFull = false;
    for (let at = from; at < count; at++) {
      const frame = which[at] as number;
      if (!this.#isFit(src, frame)) continue;
      const { visited } = this.#chains;
      const verdict = table.count === table.options.frames ? FULL : this.#place(src, frame);
      if (verdict === PLACED || verdict === DROPPED) continue;
      if (verdict === FULL && table.count > 0) {
        this.#tableFull = true;
        return at;
      }
      // It will never fit: into a table, into all that the driver can post, or into what may be looked at for it.
      const never =
        verdict === FULL ||
        (verdict === SPENT && visited === 0) ||
        (this.#entries === 0 && this.#limit === this.#queue.size);
      if (!never || this.#queue.broken !== null) return at;
      this.counters.droppedSize += 1;
    }
    return count;
  }

  /** Makes the header of a frame as this guest may see it; false: the frame is dropped. */
  #isFit(src: FrameTable, frame: number): boolean {
    const verdict = this.#header.make(src, frame);
    if (verdict === HEADER_REFUSED) this.counters.droppedOffload += 1;
    else if (verdict === HEADER_WRONG) this.counters.droppedHeader += 1;
    else if (verdict === HEADER_TOO_LONG) this.counters.droppedSize += 1;
    return verdict === HEADER_MADE;
  }

  /** Finds chains for a frame, and adds it to the batch. Whatever the outcome but PLACED, the table is as it was. */
  #place(src: FrameTable, frame: number): number {
    const { headerBytes, mergeable } = this.#options;
    const table = this.#table;
    const start = table.segmentCount;
    const need = headerBytes + (src.records[frame * FRAME_WORDS + FRAME_BYTES] as number);
    let first = this.#entries;
    let entries = first;
    for (let got = 0; got < need; ) {
      if (this.#chains.visited >= VISITED_MAX) {
        table.segmentCount = start;
        return SPENT;
      }
      const head = entries < this.#limit ? this.#queue.peekHead(entries) : -1;
      const read = head < 0 ? CHAIN_BROKEN : this.#chains.read(head, table);
      if (read === CHAIN_BROKEN || read === CHAIN_FULL) {
        table.segmentCount = start;
        return read === CHAIN_FULL ? FULL : SHORT;
      }
      const { bytes } = this.#chains;
      this.#heads[entries] = head;
      entries += 1;
      if (read < 0 || (got === 0 && bytes < headerBytes)) {
        table.segmentCount = start;
        this.#lengths.fill(0, first, entries);
        this.counters.chainsUseless += entries - first;
        first = entries;
        this.#entries = entries;
        got = 0;
        continue;
      }
      this.#lengths[entries - 1] = Math.min(bytes, need - got);
      got += bytes;
      if (got < need && !mergeable) {
        table.segmentCount = start;
        this.counters.droppedSize += 1;
        return DROPPED;
      }
    }
    this.#entries = entries;
    this.#add(frame, start, first, need);
    return PLACED;
  }

  /** Adds a frame whose chains are entries from `first` on, with segments from `start` on. */
  #add(frame: number, start: number, first: number, bytes: number): void {
    const { headerBytes, mergeable } = this.#options;
    const table = this.#table;
    const index = table.count;
    const at = index * FRAME_WORDS;
    const { records } = table;
    const head = table.headAt(index);
    const buffers = mergeable ? this.#entries - first : 1;
    // All that deliver() reads; a fill() of the record would take longer than the rest.
    records[at + HEAD_AT] = head;
    records[at + HEAD_BYTES] = headerBytes;
    records[at + TAIL_START] = start;
    records[at + TAIL_COUNT] = table.segmentCount - start;
    records[at + FRAME_BYTES] = bytes - headerBytes;
    records[at + FRAME_SLOT] = frame;
    records[at + FRAME_STATUS] = 0;
    const word = head >> 2;
    this.#words[word] = this.#header.flags;
    this.#words[word + 1] = this.#header.gso;
    this.#words[word + 2] = (this.#header.csum | (buffers << 16)) >>> 0;
    this.#firstEntry[index] = first;
    this.#endEntry[index] = this.#entries;
    table.count = index + 1;
  }

  /** Copies the batch, takes its chains, and puts them into the used ring. */
  #commit(src: FrameTable): void {
    const { counters } = this;
    const { count, records } = this.#table;
    if (count > 0) this.#options.deliver(src, this.#table, count);
    for (let i = 0; i < count; i++) {
      const from = this.#firstEntry[i] as number;
      const to = this.#endEntry[i] as number;
      if (records[i * FRAME_WORDS + FRAME_STATUS] === 0) {
        counters.frames += 1;
        counters.bytes += records[i * FRAME_WORDS + FRAME_BYTES] as number;
        counters.chains += to - from;
      } else {
        // Neither can the frame be taken back, as those behind it are placed, nor may the chains stay.
        this.#lengths.fill(0, from, to);
        counters.droppedFault += 1;
        counters.chainsUseless += to - from;
      }
    }
    for (let i = 0; i < this.#entries; i++) {
      this.#queue.put(this.#heads[i] as number, this.#lengths[i] as number);
    }
    this.#queue.advance(this.#entries);
  }
}
