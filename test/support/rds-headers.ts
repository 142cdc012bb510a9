/**
 * Every field of an RDS header, with those that RDS over TCP leaves 0 and the library neither reads nor writes: for tests that compare whole
 * headers, and for what other transports put there. And which ports a congestion map has set.
 */
import { readU16, readU32, writeU16, writeU32 } from '../../src/wire/bytes.ts';
import * as rds from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES } from '../../src/wire/rds-congestion.ts';

/** A flag of InfiniBand; never on the wire over TCP. */
export const ACK_REQUIRED = 0x02;

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
    seqHi: rds.seqHi(buf, offset),
    seqLo: rds.seqLo(buf, offset),
    ackHi: readU32(buf, offset + 8),
    ackLo: readU32(buf, offset + 12),
    length: rds.payloadLength(buf, offset),
    sport: rds.sport(buf, offset),
    dport: rds.dport(buf, offset),
    flags: rds.flags(buf, offset),
    credit: buf[offset + 25] as number,
    padding: readU32(buf, offset + 26),
    checksum: readU16(buf, offset + 30),
    exthdr: Uint8Array.from(buf.subarray(offset + rds.EXTHDR_OFFSET, offset + rds.HEADER_BYTES)),
  };
}

/** The 48 bytes of `header`; the inverse of `decodeHeader`. */
export function encodeHeaderFull(header: RdsHeader): Uint8Array {
  const { seqHi, seqLo, length, sport, dport, flags } = header;
  const out = new Uint8Array(rds.HEADER_BYTES);
  rds.encodeHeader(out, 0, seqHi, seqLo, length, sport, dport, flags);
  writeU32(out, 8, header.ackHi);
  writeU32(out, 12, header.ackLo);
  out[25] = header.credit;
  writeU32(out, 26, header.padding);
  writeU16(out, 30, header.checksum);
  out.set(header.exthdr, rds.EXTHDR_OFFSET);
  return out;
}

/**
 * The checksum a header would carry where checksums are used (InfiniBand): the Internet checksum over its 48 bytes with
 * `h_csum` taken as zero. Over TCP the field is 0, which means "none".
 */
export function headerChecksum(buf: Uint8Array, offset: number): number {
  return ~foldedSum(buf, offset, readU16(buf, offset + 30)) & 0xffff;
}

/** True when the header carries no checksum, or the right one. */
export function verifyChecksum(buf: Uint8Array, offset: number): boolean {
  return readU16(buf, offset + 30) === 0 || foldedSum(buf, offset, 0) === 0xffff;
}

/** One's-complement sum of the 24 header words, less `exclude`. */
function foldedSum(buf: Uint8Array, offset: number, exclude: number): number {
  let sum = -exclude;
  for (let at = offset; at < offset + rds.HEADER_BYTES; at += 2) sum += readU16(buf, at);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return sum;
}

/** The ports that are set in a congestion map, in ascending order. */
export function* congestedPorts(map: Uint8Array): Generator<number, void, undefined> {
  for (let byte = 0; byte < CONG_MAP_BYTES; byte++) {
    const bits = map[byte] as number;
    if (bits === 0) continue;
    for (let bit = 0; bit < 8; bit++) if ((bits >> bit) & 1) yield byte * 8 + bit;
  }
}
