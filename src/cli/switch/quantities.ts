/**
 * Values of a lab file as they are written: `20ms`, `1%`, `100Mbit/s`, `64KiB`, `192.0.2.7:9000`. A unit is part of the value where
 * there is a choice of them, so that nobody has to remember which one a number is in.
 */
import { isIP } from 'node:net';

/** How a value is written, and what it is then; undefined: it is none. */
export interface Quantity<T> {
  /** What would be right: `an integer from 1 to 16`. */
  readonly expected: string;
  /** `value`: as YAML has it. `source`: as it stands in the file. */
  parse(value: unknown, source: string): T | undefined;
}

export function integer(min: number, max: number): Quantity<number> {
  return {
    expected: `an integer from ${min} to ${max}`,
    parse: (value) =>
      typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max
        ? value
        : undefined,
  };
}

export function number(min: number, max: number): Quantity<number> {
  return {
    expected: `a number from ${min} to ${max}`,
    parse: (value) => (typeof value === 'number' && value >= min && value <= max ? value : undefined),
  };
}

export const flag: Quantity<boolean> = {
  expected: 'true or false',
  parse: (value) => (typeof value === 'boolean' ? value : undefined),
};

export function choice<T extends string>(...names: readonly T[]): Quantity<T> {
  return {
    expected: orList(names),
    // `off` is a word in YAML 1.2, and false in what many know.
    parse: (value) => names.find((name) => name === value),
  };
}

export function orList(names: readonly string[]): string {
  return names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} or ${names.at(-1)}`;
}

/** A name or a path; numbers are as good as others. */
export function text(expected: string, bytesMax: number): Quantity<string> {
  return {
    expected: `${expected} of at most ${bytesMax} bytes`,
    parse(value, source) {
      const words = typeof value === 'string' ? value : typeof value === 'number' ? source : '';
      return words !== '' && Buffer.byteLength(words) <= bytesMax && !words.includes('\0')
        ? words
        : undefined;
    },
  };
}

/** `units`: what each is worth. */
function withUnit(
  expected: string,
  units: Readonly<Record<string, number>>,
  min: number,
  max: number,
): Quantity<number> {
  return {
    expected,
    parse(value) {
      const [, digits, unit] = (typeof value === 'string' && /^(\d+(?:\.\d+)?) ?(.+)$/.exec(value)) || [];
      const factor = unit === undefined ? undefined : units[unit];
      if (factor === undefined) return undefined;
      const result = Number(digits) * factor;
      return result >= min && result <= max ? result : undefined;
    },
  };
}

const TIMES = { us: 0.001, ms: 1, s: 1000, min: 60_000, h: 3_600_000 };

/** Milliseconds. */
export function time(min: string, max: string): Quantity<number> {
  const any = withUnit('', TIMES, 0, Number.POSITIVE_INFINITY);
  const [from = 0, to = 0] = [any.parse(min, min), any.parse(max, max)];
  return withUnit(`a time from ${min} to ${max}, such as 20ms or 1.5s`, TIMES, from, to);
}

const BYTES = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };

/** Whole bytes. */
export function bytes(min: string, max: string): Quantity<number> {
  const any = withUnit('', BYTES, 0, Number.POSITIVE_INFINITY);
  const [from = 0, to = 0] = [any.parse(min, min), any.parse(max, max)];
  const example = ['64KiB', '64MiB'].find((one) => {
    const size = any.parse(one, one);
    return size !== undefined && size >= from && size <= to;
  });
  const sized = withUnit(`a size from ${min} to ${max}, such as ${example ?? max}`, BYTES, from, to);
  return {
    expected: sized.expected,
    parse(value, source) {
      const result = sized.parse(value, source);
      return result !== undefined && Number.isInteger(result) ? result : undefined;
    },
  };
}

const RATES = { bit: 1, kbit: 1e3, Mbit: 1e6, Gbit: 1e9 };
const RATES_PER_SECOND = Object.fromEntries(Object.entries(RATES).map(([unit, n]) => [`${unit}/s`, n]));

/** Bytes in a second. */
export const rate: Quantity<number> = {
  expected: 'a rate from 8kbit/s to 1000Gbit/s, such as 100Mbit/s',
  parse(value, source) {
    const bits = withUnit('', { ...RATES, ...RATES_PER_SECOND }, 8e3, 1e12).parse(value, source);
    return bits === undefined ? undefined : Math.round(bits / 8);
  },
};

export const percent: Quantity<number> = withUnit(
  'a share from 0% to 100%, such as 0.5%',
  { '%': 1 },
  0,
  100,
);

const STATION = /^[0-9a-f][02468ace]([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}$/i;

/** Of a single card, in small letters with colons. */
export const mac: Quantity<string> = {
  expected: 'the address of one card, such as 52:54:00:12:34:56',
  parse(value) {
    if (typeof value !== 'string' || !STATION.test(value) || /^00([:-]00){5}$/.test(value)) return undefined;
    return value.toLowerCase().replaceAll('-', ':');
  },
};

/** Access rights, as chmod(1) takes them. */
export const accessRights: Quantity<number> = {
  expected: 'access rights such as 0660',
  // In YAML 1.2 a leading zero means nothing, so what stands there is read.
  parse(_value, source) {
    const [, octal] = /^["']?(?:0o|0)?([0-7]{3})["']?$/.exec(source) ?? [];
    return octal === undefined ? undefined : Number.parseInt(octal, 8);
  },
};

export const ipAddress: Quantity<string> = {
  expected: 'an IP address',
  parse: (value) => (typeof value === 'string' && isIP(value) !== 0 ? value : undefined),
};

export type Address = { readonly address: string; readonly port: number } | { readonly path: string };

/** Of a peer, or to listen at. */
export const address: Quantity<Address> = {
  expected: 'HOST:PORT, [IPv6]:PORT or unix:PATH',
  parse(value) {
    if (typeof value !== 'string') return undefined;
    if (value.startsWith('unix:')) return value.length > 5 ? { path: value.slice(5) } : undefined;
    const [, bracketed, plain, port] = /^(?:\[([^\]]+)\]|([^:[\]\s]+)):(\d{1,5})$/.exec(value) ?? [];
    const host = bracketed ?? plain;
    if (host === undefined || Number(port) > 0xffff || Number(port) === 0) return undefined;
    return bracketed !== undefined && isIP(bracketed) !== 6
      ? undefined
      : { address: host, port: Number(port) };
  },
};
