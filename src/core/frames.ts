/**
 * A batch of Ethernet frames, as a table that JavaScript and the native layer both read: no object, no copy and no allocation per
 * frame.
 *
 * A frame is a *head*, the first bytes of it, copied once into the table's own memory, where everybody may look at them,
 * and a *tail*, the rest, which stays where its owner has it: pieces of a guest's memory, by guest address. A frame from
 * the host, or a short one, is all head.
 *
 *   memory   [ layout words | frame records | segments | heads: slot 0, slot 1, ... ]
 *   slot     [ headroom: a VLAN tag may be put in | vnet header's room and head ]
 *
 * Who fills a table owns it; whoever is handed it looks at it until the call returns, and keeps nothing of it but a Ubuf
 * that lend() gave out, which keeps the frame's tail (and never its head, nor its record).
 */
import { assert } from './assert.ts';
import type { Ubuf } from './ubuf.ts';

/** Words of one frame's record, and what they are. */
export const FRAME_WORDS = 12;
/** Offset of the head in the table's memory. */
export const HEAD_AT = 0;
export const HEAD_BYTES = 1;
/** First segment of the tail, and how many. */
export const TAIL_START = 2;
export const TAIL_COUNT = 3;
/** The frame from its destination address to its end, head and tail; without vnet header and check sequence. */
export const FRAME_BYTES = 4;
/** virtio_net_hdr: flags | gso_type << 8 | hdr_len << 16. */
export const VNET_FLAGS = 5;
/** virtio_net_hdr: gso_size | csum_start << 16. */
export const VNET_GSO = 6;
/** virtio_net_hdr: csum_offset | num_buffers << 16. */
export const VNET_CSUM = 7;
/** What the native layer found: 0, or an errno. */
export const FRAME_STATUS = 8;
/** The owner's own: a ledger keeps its slot here. */
export const FRAME_SLOT = 9;
/** The VLAN that the frame belongs to inside a switch, which takes tags off and puts them on. */
export const FRAME_VLAN = 10;
// Word 11 is spare: 48 bytes a record.

/** A segment: its address (a float64, exact below 2^53), bytes, space. */
const SEGMENT_BYTES = 16;
/** Words that say how the memory is laid out: frames, segments, offset of the segments, of the heads, bytes of a head slot. */
export const LAYOUT_BYTES = 64;
/** Room before each head. */
export const HEADROOM_BYTES = 64;

/** virtio_net_hdr.flags and gso_type, as the wire has them. */
export const VNET_NEEDS_CSUM = 1;
export const VNET_DATA_VALID = 2;
export const GSO_NONE = 0;
export const GSO_TCPV4 = 1;
export const GSO_TCPV6 = 4;
export const GSO_ECN = 0x80;

/** What the owner of a batch does for those who are handed it. */
export interface FrameOwner {
  /**
   * Lends the tail of a frame to `borrower` (a port, or whatever its destinations are told apart by): the Ubuf comes with a
   * reference that is the borrower's. Null: the tail must be copied before the call returns.
   */
  lend(frame: number, borrower: object): Ubuf | null;
  /** Copies frame `frame`, head and tail, to `out`, which has FRAME_BYTES of room. Bytes copied, or `-errno`. */
  gather(frame: number, out: Uint8Array): number;
}

/** Of a table that nobody is handed, or whose frames are all head: there is nothing to lend. */
export const NOBODY: FrameOwner = { lend: () => null, gather: () => 0 };

export interface FrameTableOptions {
  readonly frames: number;
  readonly segments: number;
  /** Of a head, without headroom: the frame record's HEAD_AT starts at HEADROOM_BYTES in its slot. */
  readonly headBytes: number;
}

/** Bytes of memory that a table of these dimensions takes. */
export function frameTableBytes(options: FrameTableOptions): number {
  return headsAt(options) + options.frames * slotBytes(options);
}

function segmentsAt({ frames }: FrameTableOptions): number {
  return align16(LAYOUT_BYTES + frames * FRAME_WORDS * 4);
}

function headsAt(options: FrameTableOptions): number {
  return (segmentsAt(options) + options.segments * SEGMENT_BYTES + 63) & ~63;
}

function slotBytes({ headBytes }: FrameTableOptions): number {
  return HEADROOM_BYTES + align16(headBytes);
}

function align16(bytes: number): number {
  return (bytes + 15) & ~15;
}

export class FrameTable {
  readonly options: FrameTableOptions;
  /** All of the memory: what native calls take. */
  readonly bytes: Uint8Array;
  /** Frame records: word `w` of frame `i` is `records[i * FRAME_WORDS + w]`. */
  readonly records: Uint32Array;
  /** Addresses: segment `s` is `addresses[2 * s]`. */
  readonly addresses: Float64Array;
  /** Bytes and space of segment `s`: `segments[4 * s + 2]` and `segments[4 * s + 3]`. */
  readonly segments: Uint32Array;
  /** Frames in it now, from the first. */
  count = 0;
  /** Segments in use. */
  segmentCount = 0;
  readonly owner: FrameOwner;
  readonly #headsAt: number;
  readonly #slotBytes: number;

  /** `memory` has frameTableBytes(options), on an 8-byte boundary. */
  constructor(memory: ArrayBuffer, options: FrameTableOptions, owner: FrameOwner) {
    assert(memory.byteLength >= frameTableBytes(options), 'memory too small for the frame table');
    this.options = options;
    this.owner = owner;
    const at = segmentsAt(options);
    this.#headsAt = headsAt(options);
    this.#slotBytes = slotBytes(options);
    this.bytes = new Uint8Array(memory, 0, frameTableBytes(options));
    this.records = new Uint32Array(memory, LAYOUT_BYTES, options.frames * FRAME_WORDS);
    this.addresses = new Float64Array(memory, at, options.segments * 2);
    this.segments = new Uint32Array(memory, at, options.segments * 4);
    new Uint32Array(memory, 0, LAYOUT_BYTES / 4).set([
      options.frames,
      options.segments,
      at,
      this.#headsAt,
      this.#slotBytes,
    ]);
  }

  /** Where the head of frame `i` goes. */
  headAt(frame: number): number {
    return this.#headsAt + frame * this.#slotBytes + HEADROOM_BYTES;
  }

  /** Empties it. Records keep what they had: whoever adds a frame writes all its words. */
  clear(): void {
    this.count = 0;
    this.segmentCount = 0;
  }

  /** Adds a frame that is all head, `bytes` long, to be filled at headAt(). The index, or -1 when the table is full. */
  addHead(bytes: number): number {
    const frame = this.count;
    if (frame === this.options.frames || bytes > this.#slotBytes - HEADROOM_BYTES) return -1;
    const at = frame * FRAME_WORDS;
    this.records.fill(0, at, at + FRAME_WORDS);
    this.records[at + HEAD_AT] = this.headAt(frame);
    this.records[at + HEAD_BYTES] = bytes;
    this.records[at + FRAME_BYTES] = bytes;
    this.count = frame + 1;
    return frame;
  }
}
