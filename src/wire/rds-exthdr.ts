/**
 * Extension headers: the last 16 bytes of an RDS header.
 *
 * `type (1 byte), payload` repeats until type 0 or the end of the area. No length travels with it: the type implies the
 * size, so a receiver that does not know a type cannot skip it. The kernel's parser (rds_message_next_extension) gives
 * types it has no size for the size 0 and carries on at the next byte; it stops at type 0, at types from 16 on, and at a
 * payload that would cross the end. That is why SPORT_IDX has a payload byte that must be 0, and why nothing may follow
 * it: a kernel that does not know type 8 reads that byte as the terminator.
 *
 * Over TCP only handshake probes carry extensions. Offsets here are those of the 16-byte area itself, which begins
 * `EXTHDR_OFFSET` bytes into the header.
 */
import { readU16, readU32, writeU16, writeU32 } from './bytes.ts';
import { EXTHDR_BYTES } from './rds.ts';

const EXTHDR_NONE = 0;
const EXTHDR_VERSION = 1;
const EXTHDR_RDMA = 2;
const EXTHDR_RDMA_DEST = 3;
const EXTHDR_RDMA_BYTES = 4;
const EXTHDR_NPATHS = 5;
const EXTHDR_GEN_NUM = 6;
/** Oracle's kernel (UEK) only: heart-beat capabilities. */
const EXTHDR_CAP_BITS = 7;
const EXTHDR_SPORT_IDX = 8;
/** Oracle's kernel (UEK) only: payload checksum. */
const EXTHDR_CSUM = 9;
/** Types from here on end the list (__RDS_EXTHDR_MAX). */
const EXTHDR_MAX = 16;

/** Payload bytes by type; types 10 to 15 have no meaning yet and no payload. */
const payloadBytes: readonly number[] = [0, 4, 4, 8, 8, 2, 4, 4, 1, 8, 0, 0, 0, 0, 0, 0];

/** What an extension area says. A type that is repeated counts with its last value, as in the kernel. */
export interface Extensions {
  version?: number;
  rdmaRkey?: number;
  rdmaDest?: { rkey: number; offset: number };
  /** `direction`: 1 write, 2 read. */
  rdmaBytes?: { bytes: number; direction: number };
  /** How many lanes the peer offers. */
  npaths?: number;
  /** Drawn once per boot or process; 0 means none. */
  genNum?: number;
  capBits?: number;
  /** The peer encodes the lane in its source port. */
  sportIdx?: true;
  payloadChecksum?: number;
  /** Types met that mean nothing here, in order. */
  unknownTypes: number[];
}

/** Reads the 16 bytes at `offset`; never fails. */
export function parseExtensions(buf: Uint8Array, offset: number): Extensions {
  const found: Extensions = { unknownTypes: [] };
  const end = offset + EXTHDR_BYTES;
  let at = offset;
  while (at < end) {
    const type = buf[at]!;
    if (type === EXTHDR_NONE || type >= EXTHDR_MAX) break;
    const payload = at + 1;
    at = payload + payloadBytes[type]!;
    if (at > end) break;
    take(found, type, buf, payload);
  }
  return found;
}

function take(found: Extensions, type: number, buf: Uint8Array, at: number): void {
  switch (type) {
    case EXTHDR_VERSION:
      found.version = readU32(buf, at);
      break;
    case EXTHDR_RDMA:
      found.rdmaRkey = readU32(buf, at);
      break;
    case EXTHDR_RDMA_DEST:
      found.rdmaDest = { rkey: readU32(buf, at), offset: readU32(buf, at + 4) };
      break;
    case EXTHDR_RDMA_BYTES:
      found.rdmaBytes = { bytes: readU32(buf, at), direction: buf[at + 4]! };
      break;
    case EXTHDR_NPATHS:
      found.npaths = readU16(buf, at);
      break;
    case EXTHDR_GEN_NUM:
      found.genNum = readU32(buf, at);
      break;
    case EXTHDR_CAP_BITS:
      found.capBits = readU32(buf, at);
      break;
    case EXTHDR_SPORT_IDX:
      found.sportIdx = true;
      break;
    case EXTHDR_CSUM:
      found.payloadChecksum = readU32(buf, at);
      break;
    default:
      found.unknownTypes.push(type);
  }
}

/** The extensions of a handshake probe; leave out what the probe must not carry. */
export interface ProbeExtensions {
  npaths?: number;
  genNum?: number;
  sportIdx?: boolean;
}

/** Writes all 16 bytes at `offset`: NPATHS, GEN_NUM and SPORT_IDX in that order, as kernels send them, then zeros. */
export function encodeExtensions(out: Uint8Array, offset: number, extensions: ProbeExtensions): void {
  out.fill(0, offset, offset + EXTHDR_BYTES);
  let at = offset;
  if (extensions.npaths !== undefined) {
    out[at] = EXTHDR_NPATHS;
    writeU16(out, at + 1, extensions.npaths);
    at += 3;
  }
  if (extensions.genNum !== undefined) {
    out[at] = EXTHDR_GEN_NUM;
    writeU32(out, at + 1, extensions.genNum);
    at += 5;
  }
  // The payload byte stays 0, and the rest of the area too: see the top of this file.
  if (extensions.sportIdx === true) out[at] = EXTHDR_SPORT_IDX;
}
