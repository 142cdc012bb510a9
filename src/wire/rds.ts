/**
 * The 48-byte RDS header as it travels over TCP, and what kind of message a header announces.
 *
 * A TCP connection carries `{header, h_len payload bytes}*` with nothing in between. All integers are big-endian; the
 * layout is `struct rds_header` of the kernel's net/rds/rds.h:
 *
 *     0        8        16    20      22      24      25       26        30       32       48
 *     h_sequence h_ack  h_len h_sport h_dport h_flags h_credit (padding) h_csum   h_exthdr
 *
 * Kernels on TCP send ack, credit, padding and checksum as 0 and ignore them when they receive; so does zerotx. The
 * hot path writes headers with `writeHeader` and reads single fields with the accessors, which allocate nothing.
 * `decodeHeader` and `encodeHeaderFull` keep every bit and are for tools and tests.
 *
 * Every function takes the offset of the header (not of the field) and trusts that 48 bytes are there: the receiver
 * checks that once. Sequence numbers are two u32 halves, because a time-based start is above 2^53 and a BigInt per
 * message would be garbage on the hot path.
 */
import { readU16, readU32, writeU16, writeU32 } from './bytes.ts';

export const RDS_TCP_PORT = 16385;
export const HEADER_BYTES = 48;
/** The largest payload a sender may use (RDS_MAX_MSG_SIZE). Kernel receivers have no bound; ours is this one. */
export const MAX_PAYLOAD = 1_048_576;

export const CONG_BITMAP = 0x01;
/** InfiniBand only; never on the wire over TCP. */
export const ACK_REQUIRED = 0x02;
/** The message was already picked for transmission on an earlier TCP connection. */
export const RETRANSMITTED = 0x04;

/** Destination of pings; source of pongs and congestion maps. */
export const PING_PORT = 0;
/** Reserved for handshake probes (RDS_FLAG_PROBE_PORT). */
export const PROBE_PORT = 1;

/** Where h_flags lies inside the header. */
export const FLAGS_OFFSET = 24;

/** Where the 16 bytes of extension headers begin inside the header, see `rds-exthdr.ts`. */
export const EXTHDR_OFFSET = 32;
export const EXTHDR_BYTES = 16;

/**
 * Writes all 48 bytes: the given fields, and zero in ack, credit, padding, checksum and extension headers. Takes a DataView
 * because a dozen of its stores cost a third of 48 byte stores (12 against 36 ns, measured).
 */
export function writeHeader(
  out: DataView,
  offset: number,
  seqHi: number,
  seqLo: number,
  length: number,
  sport: number,
  dport: number,
  flags: number,
): void {
  out.setUint32(offset, seqHi);
  out.setUint32(offset + 4, seqLo);
  out.setUint32(offset + 8, 0);
  out.setUint32(offset + 12, 0);
  out.setUint32(offset + 16, length);
  out.setUint16(offset + 20, sport);
  out.setUint16(offset + 22, dport);
  out.setUint32(offset + 24, flags << 24);
  for (let at = offset + 28; at < offset + HEADER_BYTES; at += 4) out.setUint32(at, 0);
}

/** writeHeader() for bytes without a view at hand. */
export function encodeHeader(
  out: Uint8Array,
  offset: number,
  seqHi: number,
  seqLo: number,
  length: number,
  sport: number,
  dport: number,
  flags: number,
): void {
  const view = new DataView(out.buffer, out.byteOffset, out.byteLength);
  writeHeader(view, offset, seqHi, seqLo, length, sport, dport, flags);
}

export function seqHi(buf: Uint8Array, offset: number): number {
  return readU32(buf, offset);
}

export function seqLo(buf: Uint8Array, offset: number): number {
  return readU32(buf, offset + 4);
}

export function ackHi(buf: Uint8Array, offset: number): number {
  return readU32(buf, offset + 8);
}

export function ackLo(buf: Uint8Array, offset: number): number {
  return readU32(buf, offset + 12);
}

/** `h_len`, as the peer claims it: up to 2^32 - 1. */
export function payloadLength(buf: Uint8Array, offset: number): number {
  return readU32(buf, offset + 16);
}

export function sport(buf: Uint8Array, offset: number): number {
  return readU16(buf, offset + 20);
}

export function dport(buf: Uint8Array, offset: number): number {
  return readU16(buf, offset + 22);
}

export function flags(buf: Uint8Array, offset: number): number {
  return buf[offset + 24]!;
}

export function credit(buf: Uint8Array, offset: number): number {
  return buf[offset + 25]!;
}

export function checksum(buf: Uint8Array, offset: number): number {
  return readU16(buf, offset + 30);
}

export type MessageKind = 'congestion' | 'ignored' | 'ping' | 'probe-ping' | 'pong' | 'probe-pong' | 'data';

/**
 * What the receiver must do with a message, in the kernel's order of tests (rds_tcp_data_recv, rds_recv_incoming).
 *
 * A congestion map is recognized by the flags byte being *exactly* CONG_BITMAP: with any other bit set the header is
 * an ordinary one. Whether a map has the right length is the receiver's business. `ignored` is port 0 to port 0; such
 * headers are also what the surplus bytes of a host with large pages look like (CVE-2026-97954), so they must not
 * touch the sequence state. A `pong` (0 to P) is delivered to the socket bound to P.
 */
export function classify(buf: Uint8Array, offset: number): MessageKind {
  if (flags(buf, offset) === CONG_BITMAP) return 'congestion';
  const from = sport(buf, offset);
  const to = dport(buf, offset);
  if (to === PING_PORT) {
    if (from === PING_PORT) return 'ignored';
    return from === PROBE_PORT ? 'probe-ping' : 'ping';
  }
  if (from !== PING_PORT) return 'data';
  return to === PROBE_PORT ? 'probe-pong' : 'pong';
}

/** Negative, zero or positive as A is before, equal to or after B. Sequence numbers never wrap. */
export function compareSeq(hiA: number, loA: number, hiB: number, loB: number): number {
  return hiA === hiB ? loA - loB : hiA - hiB;
}

/**
 * Where a process starts numbering: milliseconds since the epoch, shifted left by 20 bits. A later process thus starts
 * above every number an earlier one can have used (2^20 messages per millisecond), so a peer that remembers the earlier
 * one does not take our resent messages for duplicates.
 */
export function sequenceBase(nowMs: number): { hi: number; lo: number } {
  const ms = Math.floor(nowMs);
  return { hi: Math.floor(ms / 4096), lo: (ms % 4096) * 0x100000 };
}

/** Every field of a header, for tools and tests. */
export interface RdsHeader {
  seqHi: number;
  seqLo: number;
  ackHi: number;
  ackLo: number;
  length: number;
  sport: number;
  dport: number;
  flags: number;
  credit: number;
  /** The four unused bytes, as a big-endian number. */
  padding: number;
  checksum: number;
  /** A copy of the 16 extension header bytes. */
  exthdr: Uint8Array;
}

export function decodeHeader(buf: Uint8Array, offset: number): RdsHeader {
  return {
    seqHi: seqHi(buf, offset),
    seqLo: seqLo(buf, offset),
    ackHi: ackHi(buf, offset),
    ackLo: ackLo(buf, offset),
    length: payloadLength(buf, offset),
    sport: sport(buf, offset),
    dport: dport(buf, offset),
    flags: flags(buf, offset),
    credit: credit(buf, offset),
    padding: readU32(buf, offset + 26),
    checksum: checksum(buf, offset),
    exthdr: Uint8Array.from(buf.subarray(offset + EXTHDR_OFFSET, offset + HEADER_BYTES)),
  };
}

/** The 48 bytes of `header`; the inverse of `decodeHeader`. */
export function encodeHeaderFull(header: RdsHeader): Uint8Array {
  const out = new Uint8Array(HEADER_BYTES);
  encodeHeader(out, 0, header.seqHi, header.seqLo, header.length, header.sport, header.dport, header.flags);
  writeU32(out, 8, header.ackHi);
  writeU32(out, 12, header.ackLo);
  out[25] = header.credit;
  writeU32(out, 26, header.padding);
  writeU16(out, 30, header.checksum);
  out.set(header.exthdr, EXTHDR_OFFSET);
  return out;
}

/**
 * The checksum a header would carry where checksums are used (InfiniBand): the Internet checksum over its 48 bytes with
 * `h_csum` taken as zero. Over TCP the field is 0, which means "none".
 */
export function headerChecksum(buf: Uint8Array, offset: number): number {
  return ~foldedSum(buf, offset, checksum(buf, offset)) & 0xffff;
}

/** True when the header carries no checksum, or the right one. */
export function verifyChecksum(buf: Uint8Array, offset: number): boolean {
  return checksum(buf, offset) === 0 || foldedSum(buf, offset, 0) === 0xffff;
}

/** One's-complement sum of the 24 header words, less `exclude`. */
function foldedSum(buf: Uint8Array, offset: number, exclude: number): number {
  let sum = -exclude;
  for (let at = offset; at < offset + HEADER_BYTES; at += 2) sum += readU16(buf, at);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return sum;
}
