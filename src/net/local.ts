/** Which addresses and interfaces are on this host: sends to its addresses always end in a copy, at local delivery. */
import { networkInterfaces } from 'node:os';
import { errnoOf } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { AF_INET6, SOCK_STREAM } from '../sys/constants.ts';
import { encodeSockaddr, formatIp, parseIp, splitZone } from '../wire/sockaddr.ts';

const EAFNOSUPPORT = -errnoOf('EAFNOSUPPORT');
const EADDRNOTAVAIL = -errnoOf('EADDRNOTAVAIL');

/** 127/8 or ::1, without asking the system. */
export function isLoopback(address: string): boolean {
  const canonical = formatIp(parseIp(splitZone(address).host));
  return canonical.startsWith('127.') || canonical === '::1';
}

/** Zones do not count: at worst a send to the neighbour that has our address in another zone is copied. */
export function isLocalAddress(address: string): boolean {
  if (isLoopback(address)) return true;
  const canonical = formatIp(parseIp(splitZone(address).host));
  for (const list of Object.values(networkInterfaces())) {
    for (const entry of list ?? []) if (formatIp(parseIp(entry.address)) === canonical) return true;
  }
  return false;
}

let ipv6: boolean | undefined;

/** Whether sockets of IPv6 can be had at all: a host may have been started without it. */
export function isIpv6Available(): boolean {
  if (ipv6 !== undefined) return ipv6;
  const fd = native().socket(AF_INET6, SOCK_STREAM, 0);
  const result = fd < 0 ? fd : native().bind(fd, encodeSockaddr('::', 0));
  if (fd >= 0) native().close(fd);
  // Out of descriptors says nothing: it is asked again.
  if (result >= 0 || result === EAFNOSUPPORT || result === EADDRNOTAVAIL) ipv6 = result >= 0;
  return result >= 0;
}
