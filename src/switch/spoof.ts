/**
 * Which source addresses a port may send from. A guest that is held to the ones it was given can neither answer in another's name nor
 * draw another's frames to itself.
 */
import { wrongType } from '../core/arguments.ts';
import { readU16, readU32 } from '../wire/bytes.ts';
import { formatMac, parseMac } from '../wire/ethernet.ts';

/** More than a guest has; each frame looks through them one by one. */
const MACS_MAX = 64;

export class MacFilter {
  /** The upper 16 and the lower 32 bits of each address. */
  readonly upper: Int32Array;
  readonly lower: Int32Array;

  constructor(macs: readonly string[]) {
    if (!Array.isArray(macs) || macs.length === 0 || macs.length > MACS_MAX) {
      throw wrongType('macs', `an array of 1 to ${MACS_MAX} addresses`, macs);
    }
    this.upper = new Int32Array(macs.length);
    this.lower = new Int32Array(macs.length);
    for (const [i, text] of macs.entries()) {
      const bytes = typeof text === 'string' ? parseMac(text) : null;
      if (bytes === null || (bytes[0]! & 1) !== 0) {
        throw wrongType(`macs[${i}]`, 'the MAC address of one station, such as 52:54:00:12:34:56', text);
      }
      this.upper[i] = readU16(bytes, 0);
      this.lower[i] = readU32(bytes, 2);
    }
  }

  allows(upper: number, lower: number): boolean {
    const { upper: uppers, lower: lowers } = this;
    for (let i = 0; i < lowers.length; i++) {
      if (lowers[i] === lower && uppers[i] === upper) return true;
    }
    return false;
  }
}

/** The text of an address that is kept as two words. */
export function macText(upper: number, lower: number): string {
  return formatMac(Uint8Array.of(upper >>> 8, upper, lower >>> 24, lower >>> 16, lower >>> 8, lower));
}
