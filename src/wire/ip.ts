/**
 * Finds the transport header of a frame: behind VLAN tags, behind IPv4 options (RFC 791) or IPv6 extension headers (RFC
 * 8200, section 4). The frame may be anybody's; every length is checked before it is used, and nothing behind the end is read.
 */

import { readU16 } from './bytes.ts';
import {
  ETHERNET_BYTES,
  ETHERTYPE_IPV4,
  ETHERTYPE_IPV6,
  isTagType,
  TYPE_AT,
  VLAN_TAG_BYTES,
} from './ethernet.ts';

export const IPPROTO_TCP = 6;

const IPV4_BYTES_MIN = 20;
export const IPV6_BYTES = 40;
export const TCP_BYTES_MIN = 20;

const HOP_BY_HOP = 0;
const ROUTING = 43;
const FRAGMENT = 44;
const AUTHENTICATION = 51;
const DESTINATION_OPTIONS = 60;

/** More than any stack sends: each kind once, destination options twice. */
const EXTENSIONS_MAX = 8;
/** An outer and an inner tag. */
const TAGS_MAX = 2;

/** Where things are in a frame: offsets from where bytes[0] is. One is filled again and again. */
export class PacketShape {
  /** 4 or 6. */
  version = 0;
  /** Of the IP header. */
  networkAt = 0;
  /** Of what the IP packet carries, behind options and extension headers. */
  transportAt = 0;
  /** IPPROTO_ of that. */
  protocol = 0;
  /** It is a part of a datagram: the transport header is another's, or not all there. */
  fragment = false;
}

/** Describes the frame at bytes[from..end). False when it is no IP packet, or its headers do not fit into it. */
export function findTransport(bytes: Uint8Array, from: number, end: number, shape: PacketShape): boolean {
  if (end - from < ETHERNET_BYTES) return false;
  let at = from + TYPE_AT;
  let type = readU16(bytes, at);
  for (let tags = 0; isTagType(type); tags++) {
    at += VLAN_TAG_BYTES;
    if (tags === TAGS_MAX || at + 2 > end) return false;
    type = readU16(bytes, at);
  }
  shape.networkAt = at + 2;
  if (type === ETHERTYPE_IPV4) return findIpv4(bytes, end, shape);
  return type === ETHERTYPE_IPV6 && findIpv6(bytes, end, shape);
}

function findIpv4(bytes: Uint8Array, end: number, shape: PacketShape): boolean {
  const at = shape.networkAt;
  if (at + IPV4_BYTES_MIN > end) return false;
  const headerBytes = (bytes[at]! & 0x0f) * 4;
  if (bytes[at]! >> 4 !== 4 || headerBytes < IPV4_BYTES_MIN || at + headerBytes > end) return false;
  shape.version = 4;
  shape.protocol = bytes[at + 9]!;
  // More fragments, or an offset (RFC 791, section 3.1).
  shape.fragment = (readU16(bytes, at + 6) & 0x3fff) !== 0;
  shape.transportAt = at + headerBytes;
  return true;
}

function findIpv6(bytes: Uint8Array, end: number, shape: PacketShape): boolean {
  const start = shape.networkAt;
  if (start + IPV6_BYTES > end || bytes[start]! >> 4 !== 6) return false;
  shape.version = 6;
  shape.fragment = false;
  let protocol = bytes[start + 6]!;
  let at = start + IPV6_BYTES;
  for (let extensions = 0; isExtension(protocol); extensions++) {
    if (extensions === EXTENSIONS_MAX || at + 8 > end) return false;
    const length = bytes[at + 1]!;
    if (protocol === FRAGMENT) shape.fragment = true;
    const headerBytes =
      // The fragment header's second byte is reserved (RFC 8200, section 4.5); RFC 4302, section 2.2 counts in words.
      protocol === FRAGMENT ? 8 : protocol === AUTHENTICATION ? (length + 2) * 4 : (length + 1) * 8;
    protocol = bytes[at]!;
    at += headerBytes;
    if (at > end) return false;
  }
  shape.protocol = protocol;
  shape.transportAt = at;
  return true;
}

function isExtension(protocol: number): boolean {
  return (
    protocol === HOP_BY_HOP ||
    protocol === ROUTING ||
    protocol === FRAGMENT ||
    protocol === AUTHENTICATION ||
    protocol === DESTINATION_OPTIONS
  );
}
