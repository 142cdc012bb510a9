/**
 * Keys with which TCP signs its segments: the structures that setsockopt(2) takes (linux/tcp.h). Pure.
 *
 *   struct tcp_md5sig (216)   sockaddr_storage 128 | flags u8 128 | prefix u8 129 | keylen u16 130 | ifindex s32 132 | key 80 136
 *   struct tcp_ao_add (288)   sockaddr_storage 128 | algorithm 64 128 | ifindex s32 192 | bits u32 196 | reserved u16 200
 *                             prefix u8 202 | send id u8 203 | receive id u8 204 | MAC length u8 205 | flags u8 206
 *                             keylen u8 207 | key 80 208
 *
 * MD5 is RFC 2385 and has one key for a peer; TCP-AO is RFC 5925 and may have several, told apart by their ids. Both say for
 * which peers a key is: a block of addresses. Of several MD5 keys that fit the kernel takes that of the longest prefix.
 */
import { ZerotxError } from '../core/errors.ts';
import { type Cidr, formatCidr, isIpv4Block, prefixLength } from './cidr.ts';
import { encodeSockaddr, formatIp } from './sockaddr.ts';

export type TcpKey = TcpMd5Key | TcpAoKey;

export interface TcpMd5Key {
  readonly kind: 'md5';
  readonly peer: Cidr;
  readonly key: Uint8Array;
}

export interface TcpAoKey {
  readonly kind: 'ao';
  readonly peer: Cidr;
  /** As the kernel's crypto names it: `hmac(sha1)`, `cmac(aes128)`, `hmac(sha256)`. */
  readonly algorithm: string;
  readonly key: Uint8Array;
  readonly sendId: number;
  readonly receiveId: number;
}

/** TCP_MD5SIG_MAXKEYLEN and TCP_AO_MAXKEYLEN. */
export const TCP_KEY_BYTES_MAX = 80;
/** alg_name, with the zero byte behind it. */
const ALGORITHM_BYTES_MAX = 63;

const MD5SIG_BYTES = 216;
const AO_ADD_BYTES = 288;
const MD5SIG_FLAG_PREFIX = 1;

/** keylen and ifindex have the byte order of this machine. */
const hostIsLittleEndian = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1;

/** struct tcp_md5sig for TCP_MD5SIG_EXT. */
export function encodeMd5Key({ peer, key }: TcpMd5Key): Uint8Array {
  const bytes = new Uint8Array(MD5SIG_BYTES);
  bytes.set(peerSockaddr(peer), 0);
  bytes[128] = MD5SIG_FLAG_PREFIX;
  bytes[129] = prefixLength(peer);
  new DataView(bytes.buffer).setUint16(130, checkedLength(key, peer), hostIsLittleEndian);
  bytes.set(key, 136);
  return bytes;
}

/** struct tcp_ao_add for TCP_AO_ADD_KEY. The length of the MAC is the kernel's default, 12 bytes (RFC 5926). */
export function encodeAoKey({ peer, algorithm, key, sendId, receiveId }: TcpAoKey): Uint8Array {
  const bytes = new Uint8Array(AO_ADD_BYTES);
  const name = new TextEncoder().encode(algorithm);
  if (name.length === 0 || name.length > ALGORITHM_BYTES_MAX || name.includes(0)) {
    throw new ZerotxError('EINVAL', `bad algorithm ${JSON.stringify(algorithm)} of a TCP-AO key`);
  }
  bytes.set(peerSockaddr(peer), 0);
  bytes.set(name, 128);
  bytes[202] = prefixLength(peer);
  bytes[203] = sendId;
  bytes[204] = receiveId;
  bytes[207] = checkedLength(key, peer);
  bytes.set(key, 208);
  return bytes;
}

/** The first address of the block, without port: keys hold for all of them. */
function peerSockaddr(peer: Cidr): Uint8Array {
  // What is no block of IPv4 is IPv6, and must not be written as a mapped address.
  return encodeSockaddr(formatIp(peer.ip), 0, 0, isIpv4Block(peer) ? 2 : 10);
}

/** The kernel takes an empty MD5 key for the wish to delete one. */
function checkedLength(key: Uint8Array, peer: Cidr): number {
  if (key.length > 0 && key.length <= TCP_KEY_BYTES_MAX) return key.length;
  throw new ZerotxError(
    'EINVAL',
    `the key for ${formatCidr(peer)} has ${key.length} bytes: 1 to ${TCP_KEY_BYTES_MAX} are possible`,
  );
}
