/**
 * IP addresses and the kernel's socket address structures.
 *
 * Inside, an address is 16 bytes in network order; IPv4 is the mapped form ::ffff:a.b.c.d (RFC 4291 section 2.5.5.2),
 * as in the kernel's RDS code. As text it is canonical: IPv4 dotted, IPv6 by RFC 5952, mapped addresses as IPv4.
 *
 *   sockaddr_in   (16)  family u16 host | port u16 network | address 4 | zero 8
 *   sockaddr_in6  (28)  family u16 host | port u16 network | flowinfo u32 | address 16 | scope id u32 host
 */
import { isIPv4, isIPv6 } from 'node:net';
import { ZerotxError } from '../core/errors.ts';

/** Canonical text, as formatIp() makes it. */
export type Ip = string;

export const IP_BYTES = 16;
/** Room for either structure. */
export const SOCKADDR_BYTES = 28;

const AF_UNIX = 1;
const AF_INET = 2;
const AF_INET6 = 10;
const SOCKADDR_IN_BYTES = 16;
const MAPPED_OFFSET = 12;

/** sa_family and sin6_scope_id are the only fields in the byte order of this machine. */
const hostIsLittleEndian = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** sizeof(struct sockaddr_un): a family and 108 bytes of path. */
export const SOCKADDR_UN_BYTES = 110;

export interface SocketAddress {
  readonly address: Ip;
  readonly port: number;
  /** AF_INET (2) or AF_INET6 (10). */
  readonly family: number;
  readonly scopeId: number;
}

/** The 16 bytes of an IPv4 or IPv6 address without zone; throws EINVAL on anything else. */
export function parseIp(text: string): Uint8Array {
  const bytes = new Uint8Array(IP_BYTES);
  if (isIPv4(text)) {
    bytes[10] = 0xff;
    bytes[11] = 0xff;
    putIpv4(bytes, text);
    return bytes;
  }
  if (!isIPv6(text) || text.includes('%')) {
    throw new ZerotxError('EINVAL', `not an IP address: ${JSON.stringify(text)}`);
  }
  const lastColon = text.lastIndexOf(':');
  const tail = text.slice(lastColon + 1);
  const dotted = tail.includes('.');
  // A dotted tail stands for two groups; they are filled in afterwards.
  const [head = '', rest] = (dotted ? `${text.slice(0, lastColon + 1)}0:0` : text).split('::');
  const left = groups(head);
  const right = rest === undefined ? [] : groups(rest);
  left.forEach((group, i) => {
    putGroup(bytes, i, group);
  });
  right.forEach((group, i) => {
    putGroup(bytes, 8 - right.length + i, group);
  });
  if (dotted) putIpv4(bytes, tail);
  return bytes;
}

/**
 * An address and its zone (RFC 4007 section 11), the name or the number of an interface: `fe80::1%eth0`. Without one `zone` is
 * undefined. Only splits: neither part is looked at.
 */
export function splitZone(text: string): { host: string; zone: string | undefined } {
  const at = text.indexOf('%');
  return at < 0 ? { host: text, zone: undefined } : { host: text.slice(0, at), zone: text.slice(at + 1) };
}

/** Canonical text of the 16-byte form. */
export function formatIp(bytes: Uint8Array): Ip {
  if (bytes.length !== IP_BYTES)
    throw new RangeError(`an IP address has ${IP_BYTES} bytes, not ${bytes.length}`);
  if (isMapped(bytes)) return bytes.subarray(MAPPED_OFFSET).join('.');
  const view = new DataView(bytes.buffer, bytes.byteOffset, IP_BYTES);
  const words = Array.from({ length: 8 }, (_, i) => view.getUint16(2 * i));
  const [start, length] = longestZeroRun(words);
  const text = (part: number[]): string => part.map((word) => word.toString(16)).join(':');
  // RFC 5952 section 4.2.2: a single zero group is not shortened.
  if (length < 2) return text(words);
  return `${text(words.slice(0, start))}::${text(words.slice(start + length))}`;
}

/** Numeric order of two 16-byte addresses, most significant byte first: negative, 0 or positive. */
export function compareIp(a: Uint8Array, b: Uint8Array): number {
  for (let i = 0; i < IP_BYTES; i++) {
    const difference = (a[i] ?? 0) - (b[i] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}

/** True for ::ffff:a.b.c.d, which is how IPv4 is kept. */
export function isMapped(bytes: Uint8Array): boolean {
  for (let i = 0; i < 10; i++) if (bytes[i] !== 0) return false;
  return bytes[10] === 0xff && bytes[11] === 0xff;
}

/**
 * The structure for bind(2), connect(2) and sendmsg(2). IPv4 text gives a sockaddr_in unless `family` asks for AF_INET6,
 * as an IPv6 socket that talks to IPv4 peers needs. Throws EINVAL on a bad address, RangeError on a bad port.
 */
export function encodeSockaddr(address: string, port: number, scopeId = 0, family?: number): Uint8Array {
  if (!Number.isInteger(port) || port < 0 || port > 0xffff) throw new RangeError(`bad port ${port}`);
  const ip = parseIp(address);
  const asIpv4 = family === undefined ? isIPv4(address) : family === AF_INET;
  if (asIpv4 && !isMapped(ip)) throw new ZerotxError('EINVAL', `${address} is not an IPv4 address`);
  const bytes = new Uint8Array(asIpv4 ? SOCKADDR_IN_BYTES : SOCKADDR_BYTES);
  const view = new DataView(bytes.buffer);
  view.setUint16(0, asIpv4 ? AF_INET : AF_INET6, hostIsLittleEndian);
  view.setUint16(2, port);
  if (asIpv4) {
    bytes.set(ip.subarray(MAPPED_OFFSET), 4);
  } else {
    bytes.set(ip, 8);
    view.setUint32(24, scopeId, hostIsLittleEndian);
  }
  return bytes;
}

/**
 * Reads the first `length` bytes, as the kernel wrote them. A mapped address comes out as IPv4 text with family AF_INET6.
 * Throws EAFNOSUPPORT on another family and EINVAL on a structure that is too short.
 */
export function decodeSockaddr(bytes: Uint8Array, length: number): SocketAddress {
  const view = new DataView(bytes.buffer, bytes.byteOffset, Math.min(bytes.byteLength, length));
  if (view.byteLength < 2) throw new ZerotxError('EINVAL', `socket address of ${view.byteLength} bytes`);
  const family = view.getUint16(0, hostIsLittleEndian);
  if (family !== AF_INET && family !== AF_INET6) {
    throw new ZerotxError('EAFNOSUPPORT', `socket address of family ${family}`);
  }
  const needed = family === AF_INET ? SOCKADDR_IN_BYTES : SOCKADDR_BYTES;
  if (view.byteLength < needed) throw new ZerotxError('EINVAL', `socket address of ${view.byteLength} bytes`);
  const port = view.getUint16(2);
  if (family === AF_INET) return { address: bytes.subarray(4, 8).join('.'), port, family, scopeId: 0 };
  const address = formatIp(bytes.subarray(8, 24));
  return { address, port, family, scopeId: view.getUint32(24, hostIsLittleEndian) };
}

/**
 * The structure for a Unix socket: a path of the file system, or an abstract name if it begins with a zero byte (unix(7)).
 * Throws ENAMETOOLONG as Node does for a path that does not fit.
 */
export function encodeSockaddrUn(path: string): Uint8Array {
  const name = new TextEncoder().encode(path);
  const abstract = name[0] === 0;
  // A path ends with a zero byte; an abstract name is as long as the structure says.
  const length = 2 + name.length + (abstract ? 0 : 1);
  if (!abstract && name.includes(0)) {
    throw new ZerotxError('EINVAL', `Unix socket path ${JSON.stringify(path)} with a zero byte in it`);
  }
  if (length > SOCKADDR_UN_BYTES || name.length === 0) {
    throw new ZerotxError(
      name.length === 0 ? 'EINVAL' : 'ENAMETOOLONG',
      `Unix socket path ${JSON.stringify(path)}`,
    );
  }
  const bytes = new Uint8Array(length);
  new DataView(bytes.buffer).setUint16(0, AF_UNIX, hostIsLittleEndian);
  bytes.set(name, 2);
  return bytes;
}

function putIpv4(bytes: Uint8Array, text: string): void {
  bytes.set(text.split('.').map(Number), MAPPED_OFFSET);
}

function putGroup(bytes: Uint8Array, index: number, group: number): void {
  bytes[2 * index] = group >> 8;
  bytes[2 * index + 1] = group & 0xff;
}

function groups(text: string): number[] {
  return text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16));
}

/** RFC 5952 section 4.2.3: the longest run of zero groups, the first of equals. */
function longestZeroRun(words: readonly number[]): [start: number, length: number] {
  let best: [number, number] = [0, 0];
  let start = 0;
  words.forEach((word, i) => {
    if (word !== 0) start = i + 1;
    else if (i + 1 - start > best[1]) best = [start, i + 1 - start];
  });
  return best;
}

/** 0.0.0.0 or ::. */
export function isUnspecified(ip: Uint8Array): boolean {
  return ip.subarray(isMapped(ip) ? 12 : 0).every((byte) => byte === 0);
}

/** Neither unspecified, multicast nor the IPv4 broadcast address. */
export function isUnicast(ip: Uint8Array): boolean {
  return !isUnspecified(ip) && (isMapped(ip) ? ip[12]! < 224 : ip[0] !== 0xff);
}

/** fe80::/10: means an address only together with a zone (RFC 4291 section 2.5.6). */
export function isLinkLocal(ip: Uint8Array): boolean {
  return ip[0] === 0xfe && ((ip[1] as number) & 0xc0) === 0x80;
}
