/**
 * The messages rds-stress sends over RDS: a 63-byte header and filler up to the request or acknowledgement size.
 *
 *      0    4          8        12         14       16     18  19                          60     63
 *      seq  from_addr  to_addr  from_port  to_port  index  op  RDMA fields (0 over TCP)    retry, …  filler
 *
 * Each child of one side talks to every child of the other. `seq` counts per pair of children from 0 and is shared by
 * requests and acknowledgements; `index` is a request's slot (number of requests modulo the depth), which its
 * acknowledgement repeats. The receiver knows every one of the first 19 bytes beforehand and ends the run when one
 * differs. With `-v` it also compares the filler with a fixed pattern.
 *
 * The options that the two sides exchange before over plain TCP are in `rds-stress-options.ts`.
 */
import { readU16, readU32, writeU16, writeU32 } from './bytes.ts';

/** Also the smallest request and acknowledgement size. */
export const STRESS_HEADER_BYTES = 63;
/** How much of the header the receiver compares. */
const STRESS_CHECKED_BYTES = 19;

export const OP_REQ = 1;
export const OP_ACK = 2;

/** The part of a header that is used over TCP. A sender can keep one and change `seq`, `index` and `op`. */
export interface StressHeader {
  seq: number;
  /** IPv4 address as a number, the first octet highest. */
  fromAddr: number;
  toAddr: number;
  fromPort: number;
  toPort: number;
  index: number;
  op: number;
}

/** Writes 63 bytes; all RDMA fields and the three trailing flags are zero. */
export function encodeStressHeader(out: Uint8Array, offset: number, header: StressHeader): void {
  writeU32(out, offset, header.seq);
  writeU32(out, offset + 4, header.fromAddr);
  writeU32(out, offset + 8, header.toAddr);
  writeU16(out, offset + 12, header.fromPort);
  writeU16(out, offset + 14, header.toPort);
  writeU16(out, offset + 16, header.index);
  out[offset + 18] = header.op;
  out.fill(0, offset + STRESS_CHECKED_BYTES, offset + STRESS_HEADER_BYTES);
}

export function decodeStressHeader(buf: Uint8Array, offset: number): StressHeader {
  return {
    seq: readU32(buf, offset),
    fromAddr: readU32(buf, offset + 4),
    toAddr: readU32(buf, offset + 8),
    fromPort: readU16(buf, offset + 12),
    toPort: readU16(buf, offset + 14),
    index: readU16(buf, offset + 16),
    op: buf[offset + 18]!,
  };
}

/** Compares bytes 0 to 18 with what is due; returns the first difference in words, or undefined when all is well. */
export function checkStressHeader(
  buf: Uint8Array,
  offset: number,
  expected: StressHeader,
): string | undefined {
  if (readU32(buf, offset) !== expected.seq) return differs('seq', readU32(buf, offset), expected.seq);
  if (readU32(buf, offset + 4) !== expected.fromAddr)
    return differs('from_addr', readU32(buf, offset + 4), expected.fromAddr, dotted);
  if (readU32(buf, offset + 8) !== expected.toAddr)
    return differs('to_addr', readU32(buf, offset + 8), expected.toAddr, dotted);
  if (readU16(buf, offset + 12) !== expected.fromPort)
    return differs('from_port', readU16(buf, offset + 12), expected.fromPort);
  if (readU16(buf, offset + 14) !== expected.toPort)
    return differs('to_port', readU16(buf, offset + 14), expected.toPort);
  if (readU16(buf, offset + 16) !== expected.index)
    return differs('index', readU16(buf, offset + 16), expected.index);
  if (buf[offset + 18]! !== expected.op) return differs('op', buf[offset + 18]!, expected.op);
  return undefined;
}

/** True for a message its sender marked as sent again, with a number already passed: it is skipped, not an error. */
export function isOldRetry(buf: Uint8Array, offset: number, expectedSeq: number): boolean {
  return buf[offset + 60]! !== 0 && readU32(buf, offset) < expectedSeq;
}

function differs(
  field: string,
  got: number,
  expected: number,
  show: (value: number) => string = String,
): string {
  return `${field} is ${show(got)}, expected ${show(expected)}`;
}

function dotted(addr: number): string {
  return `${addr >>> 24}.${(addr >>> 16) & 0xff}.${(addr >>> 8) & 0xff}.${addr & 0xff}`;
}

const PATTERN_BYTES = 1_048_576;
let patternTable: Uint8Array | undefined;

/**
 * The verification pattern: byte i is the low byte of k, where k starts at 11 and becomes 41 (k + 3) + (i >> 8) modulo
 * 2^32 at each step. One table of 1 MiB, made at the first call and shared; do not write to it.
 */
export function verifyPattern(): Uint8Array {
  if (patternTable !== undefined) return patternTable;
  const table = new Uint8Array(PATTERN_BYTES);
  let k = 11;
  table[0] = k;
  for (let i = 1; i < PATTERN_BYTES; i++) {
    k = (Math.imul(41, k + 3) + (i >> 8)) | 0;
    table[i] = k;
  }
  patternTable = table;
  return table;
}

/** Fills a message of `size` bytes at `offset` behind its header with the pattern's beginning. */
export function fillPattern(out: Uint8Array, offset: number, size: number): void {
  out.set(verifyPattern().subarray(0, size - STRESS_HEADER_BYTES), offset + STRESS_HEADER_BYTES);
}

/**
 * Where the filler of a message of `size` bytes at `offset` first differs from the pattern, counted from the message's
 * start, or -1. The usual case, no difference, is one memory compare; only a bad message is searched.
 */
export function checkPattern(buf: Uint8Array, offset: number, size: number): number {
  const bytes = size - STRESS_HEADER_BYTES;
  const start = offset + STRESS_HEADER_BYTES;
  const filler = buf.subarray(start, start + bytes);
  const pattern = verifyPattern().subarray(0, bytes);
  if (Buffer.compare(filler, pattern) === 0) return -1;
  for (let i = 0; i < bytes; i++) if (filler[i] !== pattern[i]) return STRESS_HEADER_BYTES + i;
  return -1;
}
