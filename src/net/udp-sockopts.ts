/**
 * Socket options of UDP sockets: their numbers, and the structures of multicast (ip(7), ipv6(7)).
 *
 * Each function names the call of the program that failed in its error, as node:dgram does.
 */
import { isIPv4, isIPv6 } from 'node:net';
import { errnoError, errnoOf } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { AF_INET6, IPPROTO_IP, IPPROTO_IPV6, SO_BROADCAST, SOL_SOCKET } from '../sys/constants.ts';
import { encodeSockaddr, IP_BYTES, parseIp } from '../wire/sockaddr.ts';
import type { UdpType } from './udp-target.ts';
import { scopeIdOf } from './zones.ts';

/** Options that exist once per family: linux/in.h and linux/in6.h. */
const numbers = {
  udp4: { level: IPPROTO_IP, ttl: 2, multicastIf: 32, multicastTtl: 33, multicastLoop: 34 },
  udp6: { level: IPPROTO_IPV6, ttl: 16, multicastIf: 17, multicastTtl: 18, multicastLoop: 19 },
} as const;
const IP_ADD_MEMBERSHIP = 35;
const IP_DROP_MEMBERSHIP = 36;
const IP_ADD_SOURCE_MEMBERSHIP = 39;
const IP_DROP_SOURCE_MEMBERSHIP = 40;
const IPV6_ADD_MEMBERSHIP = 20;
const IPV6_DROP_MEMBERSHIP = 21;
const MCAST_JOIN_SOURCE_GROUP = 46;
const MCAST_LEAVE_SOURCE_GROUP = 47;

/** struct group_source_req: an interface, and two sockaddr_storage of 128 bytes, aligned like a pointer. */
const SOCKADDR_STORAGE_BYTES = 128;
const GROUP_OFFSET = 8;

const EINVAL = -errnoOf('EINVAL');
const EBADF = -errnoOf('EBADF');
const EADDRNOTAVAIL = -errnoOf('EADDRNOTAVAIL');
const TTL_MAX = 255;

export type TtlOption = 'ttl' | 'multicastTtl';

export class UdpSockopts {
  readonly #type: UdpType;
  readonly #fd: () => number | undefined;

  /** `fd` is asked each time: a socket has none before it is bound, and then every call fails with EBADF. */
  constructor(type: UdpType, fd: () => number | undefined) {
    this.#type = type;
    this.#fd = fd;
  }

  setBroadcast(on: boolean): void {
    this.#set('setBroadcast', SOL_SOCKET, SO_BROADCAST, on ? 1 : 0);
  }

  setTtl(call: string, option: TtlOption, ttl: number): void {
    const { level, [option]: name } = numbers[this.#type];
    const min = option === 'ttl' ? 1 : 0;
    if (!Number.isInteger(ttl) || ttl < min || ttl > TTL_MAX) throw errnoError(EINVAL, call);
    this.#set(call, level, name, ttl);
  }

  setMulticastLoopback(on: boolean): void {
    const { level, multicastLoop } = numbers[this.#type];
    this.#set('setMulticastLoopback', level, multicastLoop, on ? 1 : 0);
  }

  setMulticastInterface(address: string): void {
    const call = 'setMulticastInterface';
    const { level, multicastIf } = numbers[this.#type];
    if (this.#type === 'udp4') {
      if (!isIPv4(address)) throw errnoError(EINVAL, call);
      this.#setBytes(call, level, multicastIf, ipv4(address));
      return;
    }
    const [ip = '', zone] = address.split('%');
    if (!isIPv6(ip)) throw errnoError(EINVAL, call);
    this.#set(call, level, multicastIf, scopeIdOf(zone));
  }

  /** Joins or leaves a group, on the interface with an address (IPv4) or in a zone (`::%eth0`), or on one the kernel picks. */
  membership(call: 'addMembership' | 'dropMembership', group: string, onInterface: string | undefined): void {
    const add = call === 'addMembership';
    if (this.#type === 'udp4') {
      const on = onInterface ?? '0.0.0.0';
      if (!isIPv4(group) || !isIPv4(on)) throw errnoError(EINVAL, call);
      const request = Buffer.concat([ipv4(group), ipv4(on)]);
      this.#setBytes(call, IPPROTO_IP, add ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP, request);
      return;
    }
    const [ip = ''] = group.split('%');
    if (!isIPv6(ip)) throw errnoError(EINVAL, call);
    const request = new Uint8Array(IP_BYTES + 4);
    request.set(parseIp(ip));
    new Uint32Array(request.buffer, IP_BYTES, 1)[0] = zoneOf(call, onInterface);
    this.#setBytes(call, IPPROTO_IPV6, add ? IPV6_ADD_MEMBERSHIP : IPV6_DROP_MEMBERSHIP, request);
  }

  sourceMembership(
    call: 'addSourceSpecificMembership' | 'dropSourceSpecificMembership',
    source: string,
    group: string,
    onInterface: string | undefined,
  ): void {
    const add = call === 'addSourceSpecificMembership';
    if (this.#type === 'udp4') {
      const on = onInterface ?? '0.0.0.0';
      if (![source, group, on].every(isIPv4)) throw errnoError(EINVAL, call);
      // struct ip_mreq_source, in the order that Linux gives it.
      const request = Buffer.concat([ipv4(group), ipv4(on), ipv4(source)]);
      this.#setBytes(call, IPPROTO_IP, add ? IP_ADD_SOURCE_MEMBERSHIP : IP_DROP_SOURCE_MEMBERSHIP, request);
      return;
    }
    if (![source, group].every(isIPv6)) throw errnoError(EINVAL, call);
    const request = new Uint8Array(GROUP_OFFSET + 2 * SOCKADDR_STORAGE_BYTES);
    new Uint32Array(request.buffer, 0, 1)[0] = zoneOf(call, onInterface);
    request.set(encodeSockaddr(group, 0, 0, AF_INET6), GROUP_OFFSET);
    request.set(encodeSockaddr(source, 0, 0, AF_INET6), GROUP_OFFSET + SOCKADDR_STORAGE_BYTES);
    this.#setBytes(call, IPPROTO_IPV6, add ? MCAST_JOIN_SOURCE_GROUP : MCAST_LEAVE_SOURCE_GROUP, request);
  }

  #set(call: string, level: number, name: number, value: number): void {
    const fd = this.#fd();
    check(call, fd === undefined ? EBADF : native().setsockoptInt(fd, level, name, value));
  }

  #setBytes(call: string, level: number, name: number, value: Uint8Array): void {
    const fd = this.#fd();
    check(call, fd === undefined ? EBADF : native().setsockopt(fd, level, name, value));
  }
}

function check(call: string, result: number): void {
  if (result < 0) throw errnoError(result, call);
}

function ipv4(address: string): Uint8Array {
  return parseIp(address).subarray(IP_BYTES - 4);
}

/** The zone in `::%eth0`; 0 when no interface is named. */
function zoneOf(call: string, onInterface: string | undefined): number {
  if (onInterface === undefined) return 0;
  const [ip = '', zone] = onInterface.split('%');
  if (!isIPv6(ip)) throw errnoError(EINVAL, call);
  const id = scopeIdOf(zone);
  if (zone !== undefined && id === 0) throw errnoError(EADDRNOTAVAIL, call);
  return id;
}
