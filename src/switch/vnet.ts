/**
 * What a frame's virtio_net_hdr asks for, and whether the frame is what the header says (virtio 1.2, section 5.1.6.2).
 *
 * A guest writes this header, so everything in it is a claim. Frames whose header leads outside of the frame, or asks for the
 * segmentation of what is not a TCP packet of that kind, are dropped by whoever forwards, whether the checksum is then
 * computed here, by the kernel or by another guest: a frame that passes may be handed to anybody. Linux refuses the same
 * (virtio_net_hdr_to_skb()). The header length is a hint and not used, but one beyond the frame is refused, as by a tap.
 */
import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameTable,
  GSO_ECN,
  GSO_NONE,
  GSO_TCPV4,
  GSO_TCPV6,
  HEAD_AT,
  HEAD_BYTES,
  VNET_CSUM,
  VNET_DATA_VALID,
  VNET_FLAGS,
  VNET_GSO,
  VNET_NEEDS_CSUM,
} from '../core/frames.ts';
import { OFFLOAD_CSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../core/port.ts';
import { ETHERNET_BYTES } from '../wire/ethernet.ts';
import { findTransport, IPPROTO_TCP, PacketShape, TCP_BYTES_MIN } from '../wire/ip.ts';

/** Where TCP has its checksum. */
export const TCP_CHECKSUM_AT = 16;

/** Of the word VNET_FLAGS: flags and gso_type. Zero: the frame asks for nothing. */
export const VNET_ASKS = 0xffff;

const KNOWN_FLAGS = VNET_NEEDS_CSUM | VNET_DATA_VALID;

const shape = new PacketShape();

/** OFFLOAD_ bits that a port needs for a frame with this VNET_FLAGS word. 0x80000000 for a segmentation that no port has. */
export function neededOffloads(word: number): number {
  const type = (word >>> 8) & 0xff;
  let needed = (word & VNET_NEEDS_CSUM) === 0 ? 0 : OFFLOAD_CSUM;
  if (type === GSO_NONE) return needed;
  if ((type & GSO_ECN) !== 0) needed |= OFFLOAD_ECN;
  const kind = type & ~GSO_ECN;
  if (kind === GSO_TCPV4) return needed | OFFLOAD_TSO4;
  if (kind === GSO_TCPV6) return needed | OFFLOAD_TSO6;
  return needed | 0x8000_0000;
}

/** Whether the frame is to be cut. */
export function isSegmented(word: number): boolean {
  return (word & 0xff00) !== 0;
}

/** Takes away flags that say nothing about a frame that is sent, and that receivers may read something into. */
export function maskFlags(records: Uint32Array, record: number): void {
  const word = records[record + VNET_FLAGS]!;
  if ((word & 0xff & ~KNOWN_FLAGS) !== 0)
    records[record + VNET_FLAGS] = (word & 0xffff_ff00) | (word & KNOWN_FLAGS);
}

/** Whether the vnet header of a frame in a table is sound, as far as head and lengths tell: headers beyond the head are not. */
export function isSound(table: FrameTable, frame: number): boolean {
  const record = frame * FRAME_WORDS;
  const at = table.records[record + HEAD_AT]!;
  const end = at + table.records[record + HEAD_BYTES]!;
  return describe(table, frame, table.bytes, at, end, shape);
}

/**
 * The same for the frame of that record whose bytes are at bytes[from..end), or only begin there. For one that is to be segmented,
 * `shape` says where its headers are, and they are inside.
 */
export function describe(
  table: FrameTable,
  frame: number,
  bytes: Uint8Array,
  from: number,
  end: number,
  shape: PacketShape,
): boolean {
  const { records } = table;
  const record = frame * FRAME_WORDS;
  const flags = records[record + VNET_FLAGS]!;
  const gso = records[record + VNET_GSO]!;
  const frameBytes = records[record + FRAME_BYTES]!;
  const csumStart = gso >>> 16;
  const csumOffset = records[record + VNET_CSUM]! & 0xffff;
  const needsCsum = (flags & VNET_NEEDS_CSUM) !== 0;
  if (flags >>> 16 > frameBytes) return false;
  // These are sums of 16-bit numbers, which do not wrap here.
  if (needsCsum && (csumStart < ETHERNET_BYTES || csumStart + csumOffset + 2 > frameBytes)) return false;
  const type = (flags >>> 8) & 0xff;
  if (type === GSO_NONE) return true;
  const version = versionOf(type & ~GSO_ECN);
  // Section 5.1.6.2.1: whoever asks for segmentation asks for the checksum too.
  if (version === 0 || !needsCsum || (gso & 0xffff) === 0) return false;
  if (!findTransport(bytes, from, end, shape)) return false;
  const at = shape.transportAt;
  if (shape.version !== version || shape.protocol !== IPPROTO_TCP || shape.fragment) return false;
  if (at - from !== csumStart || csumOffset !== TCP_CHECKSUM_AT || at + TCP_BYTES_MIN > end) return false;
  const headerBytes = tcpHeaderBytes(bytes, at);
  return headerBytes >= TCP_BYTES_MIN && at + headerBytes <= end;
}

export function tcpHeaderBytes(bytes: Uint8Array, at: number): number {
  return (bytes[at + 12]! >> 4) * 4;
}

function versionOf(kind: number): number {
  return kind === GSO_TCPV4 ? 4 : kind === GSO_TCPV6 ? 6 : 0;
}
