/**
 * Blocks of addresses: `192.0.2.0/24`, `2001:db8::/32`, or a single address. Pure.
 *
 * A block is kept as the leading `bits` of the 16-byte form (sockaddr.ts), in which IPv4 begins behind 96 fixed bits.
 * IPv4 and IPv6 never mix: `::/0` has no IPv4 address in it, although the mapped form begins with zeros.
 */
import { ZerotxError } from '../core/errors.ts';
import { formatIp, IP_BYTES, isMapped, parseIp } from './sockaddr.ts';

export interface Cidr {
  readonly ip: Uint8Array;
  /** Leading bits of `ip` that count, 0 to 128; for IPv4 96 more than in the text. */
  readonly bits: number;
}

const ALL_BITS = 8 * IP_BYTES;
const MAPPED_BITS = 96;

/** Throws EINVAL, which says what is wrong: no address, a length out of range, or bits behind the length. */
export function parseCidr(text: string): Cidr {
  const [host = '', length, ...rest] = text.split('/');
  const ip = parsed(host, text);
  const offset = isMapped(ip) && !(length !== undefined && host.includes(':')) ? MAPPED_BITS : 0;
  if (length === undefined) return { ip, bits: ALL_BITS };
  const bits = /^\d{1,3}$/.test(length) && rest.length === 0 ? Number(length) + offset : Number.NaN;
  if (!(bits <= ALL_BITS)) {
    throw invalid(text, `the length of its prefix must be from 0 to ${ALL_BITS - offset}`);
  }
  const network = masked(ip, bits);
  // An address with a length is as often a slip as it is meant: the two would let in very different crowds.
  if (network.some((byte, i) => byte !== ip[i])) {
    const { ip: inside, text: block } = { ip: formatIp(ip), text: `${formatIp(network)}/${length}` };
    throw invalid(
      text,
      `bits are set behind its prefix; write ${block} for the block, ${inside} for the one`,
    );
  }
  return { ip, bits };
}

/** Canonical text; a block of one address is that address. */
export function formatCidr({ ip, bits }: Cidr): string {
  const text = formatIp(ip);
  if (bits === ALL_BITS) return text;
  return `${text}/${isIpv4Block({ ip, bits }) ? bits - MAPPED_BITS : bits}`;
}

/** Length of the prefix as IPv4 or IPv6 counts it. */
export function prefixLength(cidr: Cidr): number {
  return isIpv4Block(cidr) ? cidr.bits - MAPPED_BITS : cidr.bits;
}

/** All its addresses are IPv4; else none is. */
export function isIpv4Block({ ip, bits }: Cidr): boolean {
  return bits >= MAPPED_BITS && isMapped(ip);
}

/** Whether the 16-byte address `ip` is in the block. */
export function cidrHas(cidr: Cidr, ip: Uint8Array): boolean {
  const { bits } = cidr;
  const whole = bits >> 3;
  for (let i = 0; i < whole; i++) if (cidr.ip[i] !== ip[i]) return false;
  const rest = bits & 7;
  if (rest !== 0 && ((cidr.ip[whole] as number) ^ (ip[whole] as number)) >> (8 - rest) !== 0) return false;
  // Long prefixes have decided it by now.
  return bits >= MAPPED_BITS || !isMapped(ip);
}

function masked(ip: Uint8Array, bits: number): Uint8Array {
  return ip.map((byte, i) => byte & (0xff00 >> Math.min(8, Math.max(0, bits - 8 * i))));
}

function parsed(host: string, text: string): Uint8Array {
  try {
    return parseIp(host);
  } catch {
    const hint = host.includes('%')
      ? 'a zone has no place in a block'
      : `${JSON.stringify(host)} is not an IP address`;
    throw invalid(text, hint);
  }
}

function invalid(text: string, why: string): ZerotxError {
  return new ZerotxError('EINVAL', `${JSON.stringify(text)} is no block of addresses: ${why}`);
}
