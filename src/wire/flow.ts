/**
 * Which flow a frame belongs to, by a cheap hash of its first bytes: frames of one flow must stay in order, others may
 * take another queue or socket.
 *
 * Addresses and, of TCP and UDP without fragments, ports; of everything else the Ethernet addresses alone. What a guest
 * writes there decides nothing but the queue, so the hash needs no key.
 */
import { FRAME_WORDS, type FrameTable, HEAD_AT, HEAD_BYTES } from '../core/frames.ts';
import { readU16 } from './bytes.ts';
import { ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6, TYPE_AT } from './ethernet.ts';

const TCP = 6;
const UDP = 17;

/** A number of 32 bits for the flow of `frame`. */
export function flowHash(table: FrameTable, frame: number): number {
  const { bytes, records } = table;
  const at = records[frame * FRAME_WORDS + HEAD_AT] as number;
  const end = at + (records[frame * FRAME_WORDS + HEAD_BYTES] as number);
  if (end - at < ETHERNET_BYTES) return 0;
  const type = readU16(bytes, at + TYPE_AT);
  const ip = at + ETHERNET_BYTES;
  if (type === ETHERTYPE_IPV4 && end - ip >= 20) return ipv4Hash(bytes, ip, end);
  if (type === ETHERTYPE_IPV6 && end - ip >= 40) return ipv6Hash(bytes, ip, end);
  return mix(bytes, at, 12, 0);
}

function ipv4Hash(bytes: Uint8Array, ip: number, end: number): number {
  const protocol = bytes[ip + 9] as number;
  const addresses = mix(bytes, ip + 12, 8, protocol);
  // Only the first fragment has ports: none of them is asked.
  const fragmented = (((bytes[ip + 6] as number) & 0x3f) | (bytes[ip + 7] as number)) !== 0;
  const l4 = ip + ((bytes[ip] as number) & 0x0f) * 4;
  return fragmented || !hasPorts(protocol) || l4 + 4 > end ? addresses : mix(bytes, l4, 4, addresses);
}

function ipv6Hash(bytes: Uint8Array, ip: number, end: number): number {
  const protocol = bytes[ip + 6] as number;
  const addresses = mix(bytes, ip + 8, 32, protocol);
  return hasPorts(protocol) && ip + 44 <= end ? mix(bytes, ip + 40, 4, addresses) : addresses;
}

function hasPorts(protocol: number): boolean {
  return protocol === TCP || protocol === UDP;
}

/** FNV-1a of `count` bytes, with its bits spread downwards: callers take the hash modulo small numbers. */
function mix(bytes: Uint8Array, at: number, count: number, seed: number): number {
  let hash = 0x811c9dc5 ^ seed;
  for (let i = 0; i < count; i++) hash = Math.imul(hash ^ (bytes[at + i] as number), 0x01000193);
  hash ^= hash >>> 15;
  return hash >>> 0;
}
