/**
 * The way out through one port, for switches and links: hands frames on as they are where the port takes them, and reworks those
 * that ask for an offload it does not have.
 *
 * Runs of frames that can go as they are go in one send(), by reference. One that cannot is made into plain frames in memory of our
 * own (offload.ts), and order is kept by sending what has been made before the next run:
 *
 *   which     a b c   T   d e       T is to be segmented
 *   send()    a b c | T1 T2 T3 .. | d e
 *
 * A frame that is being reworked counts as taken, since its bytes are ours by then; when the port is full in the middle of it, the rest
 * waits here. A link lets it wait for flush(); a switch, which cannot wait, calls discard().
 */
import { FRAME_BYTES, FRAME_WORDS, type FrameTable, HEAD_AT, VNET_FLAGS } from '../core/frames.ts';
import { everyFrame } from '../core/host-table.ts';
import type { Port } from '../core/port.ts';
import { readU16 } from '../wire/bytes.ts';
import { ETHERNET_BYTES, isTagType, TYPE_AT, VLAN_TAG_BYTES } from '../wire/ethernet.ts';
import { SoftwareOffload } from './offload.ts';
import { isSegmented, neededOffloads, VNET_ASKS } from './vnet.ts';

export interface EgressCounters {
  /** Frames that the port took, or that were taken to be reworked for it. */
  frames: number;
  bytes: number;
  /** Of these: given a checksum here, and cut into segments here. */
  checksummed: number;
  segmented: number;
  /** What these became: frames that the port took, and that it had no room for. */
  reworkedSent: number;
  reworkedDropped: number;
  dropped: {
    /** The port had no room. */
    full: number;
    /** Longer than the port's MTU. */
    tooLong: number;
    /** The vnet header contradicts the frame, or asks for what nobody does. */
    badOffload: number;
    /** The frame could not be read: its owner's memory is gone. */
    unreadable: number;
    /** The port has no carrier. */
    down: number;
    /** It would have left its VLAN, or there is no room for its tag. */
    vlan: number;
  };
}

function egressCounters(): EgressCounters {
  return {
    frames: 0,
    bytes: 0,
    checksummed: 0,
    segmented: 0,
    reworkedSent: 0,
    reworkedDropped: 0,
    dropped: { full: 0, tooLong: 0, badOffload: 0, unreadable: 0, down: 0, vlan: 0 },
  };
}

export class Egress {
  readonly port: Port;
  readonly counters: EgressCounters = egressCounters();
  #offloads = 0;
  #mtu = 0;
  #software: SoftwareOffload | null = null;
  /** Of the frames made: the first not sent. */
  #next = 0;
  #isBusy = false;

  constructor(port: Port) {
    this.port = port;
    this.refresh();
  }

  /** Reads the port's capability again, which frames are not asked about one by one. */
  refresh(): void {
    const { offloads, mtu } = this.port.capability;
    this.#offloads = offloads;
    this.#mtu = mtu;
  }

  /**
   * Sends which[from..count) of `table`. Returns the index in `which` where the port was full; what is before it is taken or dropped.
   * A call from within the port's send() takes nothing.
   */
  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (this.#isBusy) return from;
    this.#isBusy = true;
    try {
      if (this.port.isUp) return this.#flush() ? this.#forward(table, which, from, count) : from;
      this.counters.dropped.down += count - from;
      this.discard();
      return count;
    } finally {
      this.#isBusy = false;
    }
  }

  /** Sends what waits here. False: the port is still full. */
  flush(): boolean {
    if (this.#isBusy) return false;
    this.#isBusy = true;
    try {
      return this.#flush();
    } finally {
      this.#isBusy = false;
    }
  }

  /** Drops what waits here. */
  discard(): void {
    const software = this.#software;
    if (software === null) return;
    this.counters.reworkedDropped += software.table.count - this.#next + software.unmade;
    software.discard();
    this.#next = 0;
  }

  #forward(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const { records } = table;
    const offloads = this.#offloads;
    const longest = this.#mtu + ETHERNET_BYTES;
    let start = from;
    let runBytes = 0;
    for (let i = from; i < count; i++) {
      const frame = which[i]!;
      const word = records[frame * FRAME_WORDS + VNET_FLAGS]!;
      const bytes = records[frame * FRAME_WORDS + FRAME_BYTES]!;
      const isShort = bytes <= longest || isSegmented(word) || this.#fitsWithTags(table, frame);
      if (isShort && ((word & VNET_ASKS) === 0 || (neededOffloads(word) & ~offloads) === 0)) {
        runBytes += bytes;
        continue;
      }
      if (start < i) {
        const stop = this.#pass(table, which, start, i, runBytes);
        if (stop < i) return stop;
      }
      start = i + 1;
      runBytes = 0;
      if (!isShort) this.counters.dropped.tooLong += 1;
      else if (!this.#rework(table, frame, word)) return start;
    }
    if (start < count) {
      const stop = this.#pass(table, which, start, count, runBytes);
      if (stop < count) return stop;
    }
    // What is left of it waits: all of `which` is taken.
    this.#flush();
    return count;
  }

  /** Gives the port frames as they are. */
  #pass(table: FrameTable, which: Uint32Array, from: number, count: number, bytes: number): number {
    if (!this.#flush()) return from;
    const stop = this.port.send(table, which, from, count);
    const { counters } = this;
    counters.frames += stop - from;
    counters.bytes += bytes;
    for (let i = stop; i < count; i++)
      counters.bytes -= table.records[which[i]! * FRAME_WORDS + FRAME_BYTES]!;
    return stop;
  }

  /** Makes plain frames of one. False: the port is full, and the rest waits. */
  #rework(table: FrameTable, frame: number, word: number): boolean {
    this.#software ??= new SoftwareOffload();
    const software = this.#software;
    const { counters } = this;
    const fault = software.begin(table, frame, this.#offloads, this.#mtu);
    if (fault !== null) {
      counters.dropped[fault] += 1;
      return true;
    }
    counters.frames += 1;
    counters.bytes += table.records[frame * FRAME_WORDS + FRAME_BYTES]!;
    if (isSegmented(word)) counters.segmented += 1;
    else counters.checksummed += 1;
    // Those of several frames are gathered, for one send().
    return software.fill() || this.#flush();
  }

  #flush(): boolean {
    const software = this.#software;
    if (software === null) return true;
    const { table } = software;
    while (table.count > 0) {
      const stop = this.port.send(table, everyFrame, this.#next, table.count);
      this.counters.reworkedSent += stop - this.#next;
      this.#next = stop;
      if (stop < table.count) return false;
      software.clear();
      this.#next = 0;
      software.fill();
    }
    return true;
  }

  /** A tag, or two, do not count for the MTU (as in Linux, is_skb_forwardable()). */
  #fitsWithTags(table: FrameTable, frame: number): boolean {
    const record = frame * FRAME_WORDS;
    let at = table.records[record + HEAD_AT]! + TYPE_AT;
    let longest = this.#mtu + ETHERNET_BYTES;
    for (let tags = 0; tags < 2 && isTagType(readU16(table.bytes, at)); tags++) {
      at += VLAN_TAG_BYTES;
      longest += VLAN_TAG_BYTES;
    }
    return table.records[record + FRAME_BYTES]! <= longest;
  }
}
