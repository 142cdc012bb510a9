/**
 * The header before each frame (virtio 1.2, section 5.1.6), as the driver writes it: 12 bytes, little-endian, with VERSION_1
 * always.
 *
 *   byte   0       1          2         4          6            8             10
 *          flags   gso_type   hdr_len   gso_size   csum_start   csum_offset   num_buffers
 */
import { FRAME_WORDS, type FrameTable, GSO_NONE, VNET_CSUM, VNET_FLAGS, VNET_GSO } from '../core/frames.ts';

/** What is left for the device to do, or was left by it; all 0 if left out. */
export interface Vnet {
  /** VNET_NEEDS_CSUM, VNET_DATA_VALID. */
  readonly flags?: number;
  /** GSO_TCPV4, GSO_TCPV6, perhaps with GSO_ECN. */
  readonly gsoType?: number;
  /** Bytes of all headers up to the payload. */
  readonly hdrLen?: number;
  /** Payload of each segment. */
  readonly gsoSize?: number;
  /** The checksum covers the frame from here, and is stored csumOffset bytes further. */
  readonly csumStart?: number;
  readonly csumOffset?: number;
}

/** Writes the header at `at`. */
export function writeVnet(out: Uint8Array, at: number, vnet: Vnet | undefined): void {
  if (vnet === undefined) {
    out.fill(0, at, at + 12);
    return;
  }
  out[at] = vnet.flags ?? 0;
  out[at + 1] = vnet.gsoType ?? GSO_NONE;
  put16(out, at + 2, vnet.hdrLen ?? 0);
  put16(out, at + 4, vnet.gsoSize ?? 0);
  put16(out, at + 6, vnet.csumStart ?? 0);
  put16(out, at + 8, vnet.csumOffset ?? 0);
  put16(out, at + 10, 0);
}

/** The header that came with a received frame. */
export function readVnet(table: FrameTable, frame: number): Required<Vnet> {
  const word = frame * FRAME_WORDS;
  const flags = table.records[word + VNET_FLAGS] as number;
  const gso = table.records[word + VNET_GSO] as number;
  const csum = table.records[word + VNET_CSUM] as number;
  return {
    flags: flags & 0xff,
    gsoType: (flags >>> 8) & 0xff,
    hdrLen: flags >>> 16,
    gsoSize: gso & 0xffff,
    csumStart: gso >>> 16,
    csumOffset: csum & 0xffff,
  };
}

function put16(out: Uint8Array, at: number, value: number): void {
  out[at] = value;
  out[at + 1] = value >>> 8;
}
