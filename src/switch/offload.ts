/**
 * TCP segmentation and checksums in software, for ports that have no such offload: what Linux does in skb_gso_segment() and
 * skb_checksum_help() before a device that cannot.
 *
 * A frame is gathered into this object's own memory once, so that nobody changes it while it is looked at, and is checked there.
 * Then fill() makes plain frames of it in `table`, which has room for many but not for the most that one frame can
 * become: fill() stops where it is full, and goes on after clear().
 *
 * Segments (tcp_gso_segment(), inet_gso_segment()): headers are repeated; IPv4 identification counts up, sequence number by the
 * payload; FIN and PSH stay in the last alone, CWR in the first alone. The guest has put the sum of the pseudo header over the
 * whole packet into the checksum field, as the offload wants; only the length in it is exchanged, so routing headers do not matter.
 * The payload of a segment is gso_size, or less where the port's MTU is smaller than the guest thought.
 */
import { assert } from '../core/assert.ts';
import {
  FRAME_BYTES,
  FRAME_VLAN,
  FRAME_WORDS,
  type FrameTable,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
  VNET_NEEDS_CSUM,
} from '../core/frames.ts';
import { HostBatch } from '../core/host-table.ts';
import { OFFLOAD_CSUM } from '../core/port.ts';
import { readU16, readU32, writeU16, writeU32 } from '../wire/bytes.ts';
import { addBytes, addWide, complement, fold } from '../wire/checksum.ts';
import { IPV6_BYTES, PacketShape } from '../wire/ip.ts';
import { describe, isSegmented, TCP_CHECKSUM_AT, tcpHeaderBytes } from './vnet.ts';

/** The longest frame with two tags; what a table may hold, and what fits into 16-bit lengths. */
const INPUT_BYTES = 65_536 + 64;
/**
 * Of one frame: 64 KiB in segments of 32 bytes. Linux goes down to 48 less the options in use (TCP_MIN_SND_MSS), which are 12
 * with timestamps. A guest that asks for smaller ones wants to keep us busy.
 */
const SEGMENTS_MAX = 2048;

const FIN = 0x01;
const PSH = 0x08;
const CWR = 0x80;

/** Why a frame was not taken. */
export type OffloadFault = 'badOffload' | 'tooLong' | 'unreadable';

export class SoftwareOffload {
  /** Frames made and not yet cleared. All head. */
  readonly table: FrameTable;
  readonly #batch = new HostBatch(INPUT_BYTES);
  readonly #words: Uint32Array;
  readonly #input: Uint8Array;
  readonly #inputAt: number;
  readonly #shape = new PacketShape();
  /** Of the frame in hand: its bytes, and of each segment's headers and payload. */
  #bytes = 0;
  #headerBytes = 0;
  #payloadBytes = 0;
  /** Next byte of its payload, from where the frame starts. */
  #next = 0;
  /** Sum of the pseudo header, without the length. */
  #pseudo = 0;
  #index = 0;
  #segments = 0;
  #partial = false;
  #vlan = 0;

  constructor() {
    this.table = this.#batch.table;
    const { bytes } = this.table;
    this.#words = new Uint32Array(bytes.buffer, 0, bytes.length >> 2);
    this.#inputAt = this.#batch.reservedAt;
    this.#input = bytes.subarray(this.#inputAt, this.#inputAt + INPUT_BYTES);
  }

  /** All frames of the one in hand have been made. */
  get isDone(): boolean {
    return this.#index === this.#segments;
  }

  /** Frames that the one in hand is still to become. */
  get unmade(): number {
    return this.#segments - this.#index;
  }

  /** Empties the output. */
  clear(): void {
    this.#batch.clear();
  }

  /** Gives up the frame in hand and what was made of it. */
  discard(): void {
    this.clear();
    this.#index = this.#segments;
  }

  /**
   * Takes `frame` of `source`, which isDone, for a port with `offloads` (OFFLOAD_CSUM is all that matters) and `mtu`. A frame that is
   * not to be segmented must fit the MTU already. Null, or why it was refused.
   */
  begin(source: FrameTable, frame: number, offloads: number, mtu: number): OffloadFault | null {
    assert(this.isDone, 'one frame at a time');
    const record = frame * FRAME_WORDS;
    const bytes = source.records[record + FRAME_BYTES]!;
    if (bytes > INPUT_BYTES || source.owner.gather(frame, this.#input) !== bytes) return 'unreadable';
    const from = this.#inputAt;
    if (!describe(source, frame, this.table.bytes, from, from + bytes, this.#shape)) return 'badOffload';
    this.#bytes = bytes;
    this.#vlan = source.records[record + FRAME_VLAN]!;
    const fault = isSegmented(source.records[record + VNET_FLAGS]!)
      ? this.#planSegments(source.records[record + VNET_GSO]! & 0xffff, mtu)
      : this.#planChecksum(source.records, record);
    if (fault !== null) return fault;
    this.#partial = this.#headerBytes > 0 && (offloads & OFFLOAD_CSUM) !== 0;
    this.#index = 0;
    return null;
  }

  /** Makes frames until there is no room. True: all have been made. */
  fill(): boolean {
    while (this.#index < this.#segments) {
      if (!(this.#headerBytes === 0 ? this.#whole() : this.#segment())) return false;
      this.#index += 1;
    }
    return true;
  }

  #planSegments(gsoSize: number, mtu: number): OffloadFault | null {
    const { networkAt, transportAt } = this.#shape;
    const { bytes } = this.table;
    const headersEnd = transportAt + tcpHeaderBytes(bytes, transportAt);
    const headerBytes = headersEnd - this.#inputAt;
    const payloadBytes = Math.min(gsoSize, mtu - (headersEnd - networkAt));
    if (payloadBytes <= 0) return 'tooLong';
    const segments = Math.max(1, Math.ceil((this.#bytes - headerBytes) / payloadBytes));
    if (segments > SEGMENTS_MAX) return 'badOffload';
    const transportBytes = this.#inputAt + this.#bytes - transportAt;
    // One's complement: taking away is adding the complement. The length's carry beyond 16 bits goes as fold() does it.
    this.#pseudo = readU16(bytes, transportAt + TCP_CHECKSUM_AT) + (~fold(transportBytes) & 0xffff);
    this.#headerBytes = headerBytes;
    this.#payloadBytes = payloadBytes;
    this.#next = headerBytes;
    this.#segments = segments;
    return null;
  }

  /** Completes the checksum where it is; the frame is then copied as it stands. */
  #planChecksum(records: Uint32Array, record: number): OffloadFault | null {
    if ((records[record + VNET_FLAGS]! & VNET_NEEDS_CSUM) !== 0) {
      const start = records[record + VNET_GSO]! >>> 16;
      const offset = records[record + VNET_CSUM]! & 0xffff;
      const { bytes } = this.table;
      const from = this.#inputAt + start;
      const sum = complement(addWide(bytes, this.#words, from, this.#inputAt + this.#bytes));
      // UDP says "no checksum" with zero, and 0xffff is the same number (RFC 768; CSUM_MANGLED_0).
      writeU16(bytes, from + offset, sum === 0 ? 0xffff : sum);
    }
    this.#headerBytes = 0;
    this.#segments = 1;
    return null;
  }

  /** Room for the next frame, in the same VLAN. -1: none. */
  #place(frameBytes: number): number {
    const at = this.#batch.place(frameBytes);
    if (at >= 0) this.table.records[(this.table.count - 1) * FRAME_WORDS + FRAME_VLAN] = this.#vlan;
    return at;
  }

  #whole(): boolean {
    const at = this.#place(this.#bytes);
    if (at < 0) return false;
    this.table.bytes.copyWithin(at, this.#inputAt, this.#inputAt + this.#bytes);
    return true;
  }

  #segment(): boolean {
    const headerBytes = this.#headerBytes;
    const payloadBytes = Math.min(this.#payloadBytes, this.#bytes - this.#next);
    const at = this.#place(headerBytes + payloadBytes);
    if (at < 0) return false;
    const { bytes } = this.table;
    const from = this.#inputAt;
    bytes.copyWithin(at, from, from + headerBytes);
    bytes.copyWithin(at + headerBytes, from + this.#next, from + this.#next + payloadBytes);
    const end = at + headerBytes + payloadBytes;
    const { version, networkAt, transportAt } = this.#shape;
    if (version === 4) numberIpv4(bytes, at + networkAt - from, at + transportAt - from, end, this.#index);
    else writeU16(bytes, at + networkAt - from + 4, end - (at + networkAt - from) - IPV6_BYTES);
    this.#numberTcp(at + transportAt - from, end);
    if (this.#partial) this.#askForChecksum(transportAt - from);
    this.#next += payloadBytes;
    return true;
  }

  #numberTcp(at: number, end: number): void {
    const { bytes } = this.table;
    writeU32(bytes, at + 4, readU32(bytes, at + 4) + this.#index * this.#payloadBytes);
    if (this.#index > 0) bytes[at + 13]! &= ~CWR;
    if (this.#index < this.#segments - 1) bytes[at + 13]! &= ~(FIN | PSH);
    writeU16(bytes, at + TCP_CHECKSUM_AT, fold(this.#pseudo + end - at));
    if (!this.#partial) {
      writeU16(bytes, at + TCP_CHECKSUM_AT, complement(addWide(bytes, this.#words, at, end)));
    }
  }

  /** The header of the frame just placed: the sum of the pseudo header is in the field, the port does the rest. */
  #askForChecksum(csumStart: number): void {
    const { records, count } = this.table;
    const record = (count - 1) * FRAME_WORDS;
    records[record + VNET_FLAGS] = VNET_NEEDS_CSUM;
    records[record + VNET_GSO] = csumStart << 16;
    records[record + VNET_CSUM] = TCP_CHECKSUM_AT;
  }
}

/** Length, identification and header checksum of segment `index`. */
function numberIpv4(bytes: Uint8Array, at: number, transportAt: number, end: number, index: number): void {
  writeU16(bytes, at + 2, end - at);
  writeU16(bytes, at + 4, readU16(bytes, at + 4) + index);
  writeU16(bytes, at + 10, 0);
  writeU16(bytes, at + 10, complement(addBytes(bytes, at, transportAt)));
}
