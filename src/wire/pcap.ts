/**
 * The classic capture file: what tcpdump, Wireshark and every replay tool read (draft-ietf-opsawg-pcap).
 *
 *   file     magic u32 | version u16 2, u16 4 | zone u32 0 | accuracy u32 0 | snapBytes u32 | link type u32
 *   record   seconds u32 | fraction u32 | captured u32 | original u32 | the first `captured` bytes of the frame
 *
 * The magic number tells byte order and unit of the fraction. Written: little-endian, nanoseconds unless told otherwise.
 * Read: all four kinds. Nothing here opens a file: a writer is given room, a reader is given bytes.
 */
import { ZerotxError } from '../core/errors.ts';

export const PCAP_HEADER_BYTES = 24;
export const PCAP_RECORD_BYTES = 16;
export const LINKTYPE_ETHERNET = 1;
/** What tcpdump takes for "whole frames" (MAXIMUM_SNAPLEN of libpcap): no record of a sane file is longer. */
export const PCAP_SNAP_BYTES_MAX = 262_144;

const MAGIC_MICROSECONDS = 0xa1b2c3d4;
const MAGIC_NANOSECONDS = 0xa1b23c4d;

export interface PcapFormat {
  readonly littleEndian: boolean;
  /** The fraction of a record's time counts nanoseconds; else microseconds. */
  readonly nanoseconds: boolean;
  readonly snapBytes: number;
  readonly linkType: number;
}

/** One record's header. A reader passes the same one again and again. */
export class PcapRecord {
  seconds = 0;
  nanoseconds = 0;
  /** Bytes of the frame that follow. */
  capturedBytes = 0;
  /** Bytes that the frame had. */
  frameBytes = 0;
}

/** Writes the head of a file at `offset`, and returns its length. */
export function writePcapHeader(
  out: Uint8Array,
  offset: number,
  snapBytes: number,
  nanoseconds = true,
): number {
  writeLittle(out, offset, nanoseconds ? MAGIC_NANOSECONDS : MAGIC_MICROSECONDS);
  writeLittle(out, offset + 4, 2 | (4 << 16));
  writeLittle(out, offset + 8, 0);
  writeLittle(out, offset + 12, 0);
  writeLittle(out, offset + 16, snapBytes);
  writeLittle(out, offset + 20, LINKTYPE_ETHERNET);
  return PCAP_HEADER_BYTES;
}

/**
 * Writes a record's header at `offset`, and returns its length. `fraction` is in the unit of the file; the first
 * `capturedBytes` of a frame of `frameBytes` follow.
 */
export function writePcapRecord(
  out: Uint8Array,
  offset: number,
  seconds: number,
  fraction: number,
  capturedBytes: number,
  frameBytes: number,
): number {
  writeLittle(out, offset, seconds);
  writeLittle(out, offset + 4, fraction);
  writeLittle(out, offset + 8, capturedBytes);
  writeLittle(out, offset + 12, frameBytes);
  return PCAP_RECORD_BYTES;
}

/** Throws ZerotxError `ZTX_BAD_PCAP` for what is not the head of a capture file. */
export function parsePcapHeader(bytes: Uint8Array): PcapFormat {
  if (bytes.length < PCAP_HEADER_BYTES) throw bad(`it has ${bytes.length} bytes`);
  const first = read(bytes, 0, true);
  const littleEndian = first === MAGIC_MICROSECONDS || first === MAGIC_NANOSECONDS;
  const magic = littleEndian ? first : read(bytes, 0, false);
  if (magic !== MAGIC_MICROSECONDS && magic !== MAGIC_NANOSECONDS) {
    throw bad(`it starts with ${first.toString(16).padStart(8, '0')} (pcapng is not supported)`);
  }
  const version = read(bytes, 4, littleEndian);
  const major = littleEndian ? version & 0xffff : version >>> 16;
  if (major !== 2) throw bad(`it is of version ${major}`);
  return {
    littleEndian,
    nanoseconds: magic === MAGIC_NANOSECONDS,
    snapBytes: read(bytes, 16, littleEndian),
    // The upper bits say whether frames carry a check sequence, and how long.
    linkType: read(bytes, 20, littleEndian) & 0xffff,
  };
}

/**
 * Reads the record at `offset` of bytes[..end). Returns the bytes of record and frame together: the frame starts
 * PCAP_RECORD_BYTES behind `offset`. 0: the record is not all there yet. -1: this is no record.
 */
export function readPcapRecord(
  format: PcapFormat,
  bytes: Uint8Array,
  offset: number,
  end: number,
  record: PcapRecord,
): number {
  if (end - offset < PCAP_RECORD_BYTES) return 0;
  const { littleEndian } = format;
  const fraction = read(bytes, offset + 4, littleEndian);
  record.seconds = read(bytes, offset, littleEndian);
  record.nanoseconds = format.nanoseconds ? fraction : fraction * 1000;
  record.capturedBytes = read(bytes, offset + 8, littleEndian);
  record.frameBytes = read(bytes, offset + 12, littleEndian);
  if (record.capturedBytes > PCAP_SNAP_BYTES_MAX) return -1;
  const total = PCAP_RECORD_BYTES + record.capturedBytes;
  return total <= end - offset ? total : 0;
}

function read(bytes: Uint8Array, at: number, littleEndian: boolean): number {
  const a = bytes[at]!;
  const b = bytes[at + 1]!;
  const c = bytes[at + 2]!;
  const d = bytes[at + 3]!;
  return (littleEndian ? a | (b << 8) | (c << 16) | (d << 24) : (a << 24) | (b << 16) | (c << 8) | d) >>> 0;
}

function writeLittle(out: Uint8Array, at: number, value: number): void {
  out[at] = value;
  out[at + 1] = value >>> 8;
  out[at + 2] = value >>> 16;
  out[at + 3] = value >>> 24;
}

function bad(why: string): ZerotxError {
  return new ZerotxError('ZTX_BAD_PCAP', `not a pcap capture: ${why}`);
}
