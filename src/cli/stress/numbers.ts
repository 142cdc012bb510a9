/**
 * Numbers and addresses as rds-stress takes them: decimal, 0x or 0 prefix, and K, M or G for powers of 1024; an IPv4
 * address on the wire is a number, the first octet highest.
 */

/** The value of `text`, or undefined when it is not a number between 0 and `max`. */
export function parseNumber(text: string, max: number): number | undefined {
  const match = /^(0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*)([kmg]?)$/i.exec(text);
  if (match === null) return undefined;
  const digits = match[1]!;
  const octal = digits.length > 1 && /^0[0-7]/.test(digits);
  const value = (octal ? Number.parseInt(digits, 8) : Number(digits)) * suffixFactor(match[2]!);
  return value <= max ? value : undefined;
}

function suffixFactor(suffix: string): number {
  switch (suffix.toLowerCase()) {
    case 'k':
      return 2 ** 10;
    case 'm':
      return 2 ** 20;
    case 'g':
      return 2 ** 30;
    default:
      return 1;
  }
}

/** `10.0.0.1` for 0x0a000001. */
export function dotted(address: number): string {
  return `${address >>> 24}.${(address >>> 16) & 0xff}.${(address >>> 8) & 0xff}.${address & 0xff}`;
}

/** The reverse, also of the `::ffff:10.0.0.1` that a dual-stack socket shows; undefined for anything else. */
export function addressNumber(text: string): number | undefined {
  const match = /^(?:::ffff:)?(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/i.exec(text);
  if (match === null) return undefined;
  let value = 0;
  for (let i = 1; i <= 4; i++) {
    const octet = Number(match[i]);
    if (octet > 255) return undefined;
    value = value * 256 + octet;
  }
  return value;
}
