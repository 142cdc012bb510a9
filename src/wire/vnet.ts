/**
 * The virtio network header that taps, and streams by agreement, have before each frame: 12 bytes, little-endian
 * (virtio 1.2, section 5.1.6), to and from the words that a frame's record has for them.
 *
 *   byte   0       1          2         4          6            8             10
 *          flags   gso_type   hdr_len   gso_size   csum_start   csum_offset   num_buffers
 *   word   [ VNET_FLAGS              ]  [ VNET_GSO           ]  [ VNET_CSUM                ]
 */
import {
  FRAME_WORDS,
  type FrameTable,
  VNET_CSUM,
  VNET_DATA_VALID,
  VNET_FLAGS,
  VNET_GSO,
  VNET_NEEDS_CSUM,
} from '../core/frames.ts';

/**
 * Writes the header of `frame` at `at`. num_buffers is 1 from a device, as the whole frame follows (section 5.1.6.3), and 0 from a
 * driver (section 5.1.6.2).
 */
export function writeVnetHeader(
  out: Uint8Array,
  at: number,
  table: FrameTable,
  frame: number,
  numBuffers = 1,
): void {
  const record = frame * FRAME_WORDS;
  writeLittle(out, at, table.records[record + VNET_FLAGS] as number);
  writeLittle(out, at + 4, table.records[record + VNET_GSO] as number);
  writeLittle(out, at + 8, ((table.records[record + VNET_CSUM] as number) & 0xffff) | (numBuffers << 16));
}

/** Reads the header at `at` of the table's memory into the record of `frame`. Flags that nobody has defined are dropped. */
export function readVnetHeader(table: FrameTable, frame: number, at: number): void {
  const record = frame * FRAME_WORDS;
  const { bytes, records } = table;
  const flags = readLittle(bytes, at);
  records[record + VNET_FLAGS] = (flags & 0xffff_ff00) | (flags & (VNET_NEEDS_CSUM | VNET_DATA_VALID));
  records[record + VNET_GSO] = readLittle(bytes, at + 4);
  records[record + VNET_CSUM] = readLittle(bytes, at + 8);
}

function writeLittle(out: Uint8Array, at: number, value: number): void {
  out[at] = value;
  out[at + 1] = value >>> 8;
  out[at + 2] = value >>> 16;
  out[at + 3] = value >>> 24;
}

function readLittle(bytes: Uint8Array, at: number): number {
  return (
    (bytes[at] as number) |
    ((bytes[at + 1] as number) << 8) |
    ((bytes[at + 2] as number) << 16) |
    ((bytes[at + 3] as number) << 24)
  );
}
