/**
 * Routing questions in the kernel's netlink format: which device would a packet to this address leave by, and what is
 * that device called (linux/netlink.h, linux/rtnetlink.h, linux/if_link.h).
 *
 *   message     length u32 | type u16 | flags u16 | sequence u32 | port u32 | body
 *   attribute   length u16 | type u16 | value | padding to 4
 *
 * Everything is in the byte order of this machine but addresses and ports. Lengths count their own header, not the padding.
 */
import { ZerotxError } from '../core/errors.ts';
import { formatIp, type Ip, isMapped, parseIp } from './sockaddr.ts';

export const NETLINK_ROUTE = 0;

const littleEndian = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

const HEADER_BYTES = 16;
const ROUTE_BYTES = 12;
const LINK_BYTES = 16;
const ATTRIBUTE_BYTES = 4;

const NLM_F_REQUEST = 1;
const NLMSG_ERROR = 2;
const RTM_NEWLINK = 16;
const RTM_GETLINK = 18;
const RTM_NEWROUTE = 24;
const RTM_GETROUTE = 26;

const RTA_DST = 1;
const RTA_OIF = 4;
const RTA_GATEWAY = 5;
const RTA_PREFSRC = 7;
const RTA_IP_PROTO = 27;
const RTA_DPORT = 29;

const IFLA_IFNAME = 3;
const IFLA_MTU = 4;
const IFLA_LINKINFO = 18;
const IFLA_EXT_MASK = 29;
const IFLA_INFO_KIND = 1;
/** Without it a device of many virtual functions answers with more than one message holds. */
const RTEXT_FILTER_SKIP_STATS = 8;
/** Nested attributes may be marked as such in their type. */
const TYPE_MASK = 0x3fff;

const AF_INET = 2;
const AF_INET6 = 10;
const IPPROTO_TCP = 6;

/** rtm_type, as far as it tells where a packet ends. */
const routeTypes: Readonly<Record<number, string>> = {
  1: 'unicast',
  2: 'local',
  3: 'broadcast',
  4: 'anycast',
  5: 'multicast',
  6: 'blackhole',
  7: 'unreachable',
  8: 'prohibit',
};

export interface RouteAnswer {
  readonly kind: 'route';
  /** `unicast`, `local` (this host), `blackhole`, ... */
  readonly type: string;
  /** Index of the device; 0 if the route has none. */
  readonly device: number;
  readonly gateway: Ip | undefined;
  /** The address that the packet would come from. */
  readonly source: Ip | undefined;
}

export interface LinkAnswer {
  readonly kind: 'link';
  readonly index: number;
  readonly name: string;
  /** IFF_... */
  readonly flags: number;
  readonly mtu: number;
  /** `veth`, `bridge`, `vlan`, ...; undefined for a device of a driver. */
  readonly type: string | undefined;
}

export interface ErrorAnswer {
  readonly kind: 'error';
  /** Negative. */
  readonly errno: number;
}

/** RTM_GETROUTE for one address; with a port for TCP to it, as rules of policy routing may ask for. */
export function encodeRouteQuery(address: Ip, port: number | undefined, sequence: number): Uint8Array {
  const ip = parseIp(address);
  const ipv4 = isMapped(ip);
  const destination = ipv4 ? ip.subarray(12) : ip;
  const attributes = [attribute(RTA_DST, destination)];
  if (port !== undefined) {
    attributes.push(attribute(RTA_IP_PROTO, Uint8Array.of(IPPROTO_TCP)));
    attributes.push(attribute(RTA_DPORT, Uint8Array.of(port >> 8, port & 0xff)));
  }
  const body = new Uint8Array(ROUTE_BYTES);
  body[0] = ipv4 ? AF_INET : AF_INET6;
  body[1] = destination.length * 8;
  return message(RTM_GETROUTE, sequence, [body, ...attributes]);
}

/** RTM_GETLINK for the device of this index. */
export function encodeLinkQuery(index: number, sequence: number): Uint8Array {
  const body = new Uint8Array(LINK_BYTES);
  new DataView(body.buffer).setInt32(4, index, littleEndian);
  const mask = new Uint8Array(4);
  new DataView(mask.buffer).setUint32(0, RTEXT_FILTER_SKIP_STATS, littleEndian);
  return message(RTM_GETLINK, sequence, [body, attribute(IFLA_EXT_MASK, mask)]);
}

/** The first message in `bytes`; throws EPROTO on one that is cut short or of another kind. */
export function decodeAnswer(bytes: Uint8Array): RouteAnswer | LinkAnswer | ErrorAnswer {
  const whole = viewOf(bytes);
  if (whole.byteLength < HEADER_BYTES) throw broken('a header');
  const length = whole.getUint32(0, littleEndian);
  const type = whole.getUint16(4, littleEndian);
  if (length < HEADER_BYTES || length > whole.byteLength) throw broken(`a message of ${length} bytes`);
  const body = bytes.subarray(HEADER_BYTES, length);
  switch (type) {
    case NLMSG_ERROR:
      if (body.length < 4) throw broken('an error');
      return { kind: 'error', errno: viewOf(body).getInt32(0, littleEndian) };
    case RTM_NEWROUTE:
      return decodeRoute(body);
    case RTM_NEWLINK:
      return decodeLink(body);
    default:
      throw broken(`a message of type ${type}`);
  }
}

function decodeRoute(body: Uint8Array): RouteAnswer {
  if (body.length < ROUTE_BYTES) throw broken('a route');
  const found = attributesOf(body.subarray(ROUTE_BYTES));
  const typeNumber = body[7]!;
  return {
    kind: 'route',
    type: routeTypes[typeNumber] ?? `type ${typeNumber}`,
    device: u32(found.get(RTA_OIF)) ?? 0,
    gateway: ipOf(found.get(RTA_GATEWAY)),
    source: ipOf(found.get(RTA_PREFSRC)),
  };
}

function decodeLink(body: Uint8Array): LinkAnswer {
  if (body.length < LINK_BYTES) throw broken('a device');
  const view = viewOf(body);
  const found = attributesOf(body.subarray(LINK_BYTES));
  const info = found.get(IFLA_LINKINFO);
  const kind = info === undefined ? undefined : attributesOf(info).get(IFLA_INFO_KIND);
  return {
    kind: 'link',
    index: view.getInt32(4, littleEndian),
    name: text(found.get(IFLA_IFNAME)) ?? '',
    flags: view.getUint32(8, littleEndian),
    mtu: u32(found.get(IFLA_MTU)) ?? 0,
    type: text(kind),
  };
}

function message(type: number, sequence: number, parts: readonly Uint8Array[]): Uint8Array {
  const bytes = new Uint8Array(HEADER_BYTES + parts.reduce((sum, part) => sum + part.length, 0));
  const view = viewOf(bytes);
  view.setUint32(0, bytes.length, littleEndian);
  view.setUint16(4, type, littleEndian);
  view.setUint16(6, NLM_F_REQUEST, littleEndian);
  view.setUint32(8, sequence, littleEndian);
  let offset = HEADER_BYTES;
  for (const part of parts) {
    bytes.set(part, offset);
    offset += part.length;
  }
  return bytes;
}

/** With its padding. */
function attribute(type: number, value: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(padded(ATTRIBUTE_BYTES + value.length));
  const view = viewOf(bytes);
  view.setUint16(0, ATTRIBUTE_BYTES + value.length, littleEndian);
  view.setUint16(2, type, littleEndian);
  bytes.set(value, ATTRIBUTE_BYTES);
  return bytes;
}

function attributesOf(bytes: Uint8Array): Map<number, Uint8Array> {
  const found = new Map<number, Uint8Array>();
  const view = viewOf(bytes);
  for (let offset = 0; offset + ATTRIBUTE_BYTES <= bytes.length; ) {
    const length = view.getUint16(offset, littleEndian);
    if (length < ATTRIBUTE_BYTES || length > bytes.length - offset) throw broken('an attribute');
    const type = view.getUint16(offset + 2, littleEndian) & TYPE_MASK;
    found.set(type, bytes.subarray(offset + ATTRIBUTE_BYTES, offset + length));
    offset += padded(length);
  }
  return found;
}

function padded(length: number): number {
  return (length + 3) & ~3;
}

function u32(value: Uint8Array | undefined): number | undefined {
  return value === undefined || value.length < 4 ? undefined : viewOf(value).getUint32(0, littleEndian);
}

function text(value: Uint8Array | undefined): string | undefined {
  if (value === undefined) return undefined;
  const end = value.indexOf(0);
  return String.fromCharCode(...value.subarray(0, end < 0 ? value.length : end));
}

function ipOf(value: Uint8Array | undefined): Ip | undefined {
  if (value?.length === 4) return value.join('.');
  return value?.length === 16 ? formatIp(value) : undefined;
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function broken(what: string): ZerotxError {
  return new ZerotxError('EPROTO', `netlink: ${what} that cannot be read`);
}
