/**
 * The Internet checksum (RFC 1071): the one's complement of the one's complement sum of 16-bit words.
 *
 * Sums are kept unfolded, so that parts can be added in any order; only where a part starts on an odd byte of the whole do
 * its halves change places (RFC 1071, section 2 (B)). The same rule lets a machine add words in its own byte order, four
 * bytes at a time, and turn the result around at the end: what addWide() does, as whole frames are summed here.
 */

const littleEndian = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** Below this addWide() costs more than it saves. */
const WIDE_BYTES_MIN = 48;

/** Adds up the big-endian 16-bit words of bytes[from..to); a last odd byte is the upper half of a word. Unfolded. */
export function addBytes(bytes: Uint8Array, from: number, to: number): number {
  let sum = 0;
  const even = to - ((to - from) & 1);
  for (let at = from; at < even; at += 2) sum += (bytes[at]! << 8) | bytes[at + 1]!;
  return even === to ? sum : sum + (bytes[even]! << 8);
}

/** As addBytes(). `words` are the same memory from the same start, which is on a 4-byte boundary. At most 128 KiB. */
export function addWide(bytes: Uint8Array, words: Uint32Array, from: number, to: number): number {
  if (to - from < WIDE_BYTES_MIN) return addBytes(bytes, from, to);
  //   from        first * 4                      last * 4       to
  //   | 0..3 bytes | words                          | 0..3 bytes |
  const first = (from + 3) >> 2;
  const last = to >> 2;
  // Two sums, so that neither passes 31 bits: 2^15 words of at most 2^16 - 1.
  let lower = 0;
  let upper = 0;
  for (let i = first; i < last; i++) {
    const word = words[i]!;
    lower += word & 0xffff;
    upper += word >>> 16;
  }
  const middle = fold(lower + upper);
  const rest = (littleEndian ? swap(middle) : middle) + addBytes(bytes, last * 4, to);
  const head = first * 4 - from;
  return addBytes(bytes, from, first * 4) + ((head & 1) === 0 ? rest : swap(fold(rest)));
}

/** Folds the carries of an unfolded sum into 16 bits. */
export function fold(sum: number): number {
  // A sum may have more than 32 bits, which shifts would lose.
  let folded = sum > 0xffff_ffff ? (sum % 0x1_0000) + Math.floor(sum / 0x1_0000) : sum;
  while (folded > 0xffff) folded = (folded & 0xffff) + (folded >>> 16);
  return folded;
}

/** The checksum that belongs into the field, of an unfolded sum over everything else (with the field as zero). */
export function complement(sum: number): number {
  return ~fold(sum) & 0xffff;
}

function swap(half: number): number {
  return ((half & 0xff) << 8) | (half >>> 8);
}
