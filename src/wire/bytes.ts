/**
 * Big-endian integers in a `Uint8Array`.
 *
 * A `DataView` or Node's `Buffer` methods would do the same with an object or a range check per call; these are plain
 * index arithmetic so that the optimizer inlines them into the header codecs, which run millions of times a second.
 * Callers check the length once, before the first access. Results are unsigned.
 */

export function readU16(buf: Uint8Array, offset: number): number {
  return (buf[offset]! << 8) | buf[offset + 1]!;
}

export function readU32(buf: Uint8Array, offset: number): number {
  return ((buf[offset]! << 24) | (buf[offset + 1]! << 16) | (buf[offset + 2]! << 8) | buf[offset + 3]!) >>> 0;
}

/** Writes the low 16 bits of `value`. */
export function writeU16(buf: Uint8Array, offset: number, value: number): void {
  buf[offset] = value >>> 8;
  buf[offset + 1] = value;
}

/** Writes `value` modulo 2^32. */
export function writeU32(buf: Uint8Array, offset: number, value: number): void {
  buf[offset] = value >>> 24;
  buf[offset + 1] = value >>> 16;
  buf[offset + 2] = value >>> 8;
  buf[offset + 3] = value;
}
