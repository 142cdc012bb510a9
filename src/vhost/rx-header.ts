/**
 * The virtio_net_hdr (virtio 1.2, section 5.1.6.4) that a frame gets on its way into a guest: what its sender said of it, as far
 * as the guest negotiated it, and as far as it can be true.
 *
 * The sender may be another guest. So unknown flags go, a checksum or segments that lie outside of the frame drop it, and what is only a
 * hint (hdr_len) is cut down to the frame.
 */
import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameTable,
  GSO_ECN,
  GSO_NONE,
  GSO_TCPV4,
  GSO_TCPV6,
  VNET_CSUM,
  VNET_DATA_VALID,
  VNET_FLAGS,
  VNET_GSO,
  VNET_NEEDS_CSUM,
} from '../core/frames.ts';
import { OFFLOAD_CSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../core/port.ts';

/** A bit that nobody has. */
const OFFLOAD_UNKNOWN = 0x8000;

/** What became of a header. */
export const HEADER_MADE = 0;
/** The guest did not negotiate it. */
export const HEADER_REFUSED = 1;
/** It cannot be. */
export const HEADER_WRONG = 2;
/** Longer than `frameBytesMax`, and nothing that the guest cuts. */
export const HEADER_TOO_LONG = 3;

export class RxHeader {
  /** The three words, little-endian as in a frame's record; num_buffers is not in them. */
  flags = 0;
  gso = 0;
  csum = 0;
  readonly #offloads: number;
  readonly #frameBytesMax: number;

  /** `offloads`: OFFLOAD_ bits that the guest takes; `frameBytesMax`: the longest frame that is not to be segmented. */
  constructor(offloads: number, frameBytesMax: number) {
    this.#offloads = offloads;
    this.#frameBytesMax = frameBytesMax;
  }

  /** Makes the header of frame `frame` of `src`. */
  make(src: FrameTable, frame: number): number {
    const at = frame * FRAME_WORDS;
    const first = src.records[at + VNET_FLAGS] as number;
    const bytes = src.records[at + FRAME_BYTES] as number;
    const type = (first >>> 8) & 0xff;
    this.flags = 0;
    this.gso = 0;
    this.csum = 0;
    if (type === GSO_NONE && bytes > this.#frameBytesMax) return HEADER_TOO_LONG;
    if ((first & 0xffff) === 0) return HEADER_MADE;
    const gso = src.records[at + VNET_GSO] as number;
    const offset = (src.records[at + VNET_CSUM] as number) & 0xffff;
    const partial = (first & VNET_NEEDS_CSUM) !== 0;
    const needed = offloadsOf(type) | (partial ? OFFLOAD_CSUM : 0);
    if ((needed & ~this.#offloads) !== 0) return HEADER_REFUSED;
    if (partial && (gso >>> 16) + offset + 2 > bytes) return HEADER_WRONG;
    if (type !== GSO_NONE && (gso & 0xffff) === 0) return HEADER_WRONG;
    const valid = !partial && (this.#offloads & OFFLOAD_CSUM) !== 0 ? first & VNET_DATA_VALID : 0;
    const headers = partial || type !== GSO_NONE ? Math.min(first >>> 16, bytes) : 0;
    this.flags = ((partial ? VNET_NEEDS_CSUM : valid) | (type << 8) | (headers << 16)) >>> 0;
    if (type !== GSO_NONE) this.gso = gso & 0xffff;
    if (partial) {
      this.gso = (this.gso | (gso & 0xffff_0000)) >>> 0;
      this.csum = offset;
    }
    return HEADER_MADE;
  }
}

/** What a receiver must be able to do for a gso_type. */
function offloadsOf(type: number): number {
  if (type === GSO_NONE) return 0;
  const ecn = (type & GSO_ECN) === 0 ? 0 : OFFLOAD_ECN;
  switch (type & ~GSO_ECN) {
    case GSO_TCPV4:
      return OFFLOAD_TSO4 | ecn;
    case GSO_TCPV6:
      return OFFLOAD_TSO6 | ecn;
    default:
      return OFFLOAD_UNKNOWN;
  }
}
