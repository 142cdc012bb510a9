/** Which addresses and interfaces are on this host: sends to its addresses always end in a copy, at local delivery. */
import { networkInterfaces } from 'node:os';
import { errnoOf } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { AF_INET6, SOCK_STREAM } from '../sys/constants.ts';
import { encodeSockaddr, formatIp, parseIp } from '../wire/sockaddr.ts';

const EAFNOSUPPORT = -errnoOf('EAFNOSUPPORT');
const EADDRNOTAVAIL = -errnoOf('EADDRNOTAVAIL');

/** 127/8 or ::1, without asking the system. */
export function isLoopback(address: string): boolean {
  const canonical = formatIp(parseIp(address));
  return canonical.startsWith('127.') || canonical === '::1';
}

export function isLocalAddress(address: string): boolean {
  if (isLoopback(address)) return true;
  const canonical = formatIp(parseIp(address));
  for (const list of Object.values(networkInterfaces())) {
    for (const entry of list ?? []) if (formatIp(parseIp(entry.address)) === canonical) return true;
  }
  return false;
}

/** The number of an IPv6 zone, which is given as a number or as the name of an interface; 0 for none or an unknown one. */
export function scopeIdOf(zone: string | undefined): number {
  if (zone === undefined) return 0;
  if (/^\d+$/.test(zone)) return Number(zone);
  const entry = networkInterfaces()[zone]?.find(({ family, scopeid }) => family === 'IPv6' && scopeid);
  return entry?.family === 'IPv6' ? entry.scopeid : 0;
}

const ZONES_MAX = 64;
const zoneNames = new Map<number, string>();

/** The name of the interface with this number; the number itself if none has an IPv6 address in that zone. */
export function zoneName(scopeId: number): string {
  const known = zoneNames.get(scopeId);
  if (known !== undefined) return known;
  const [name = `${scopeId}`] =
    Object.entries(networkInterfaces()).find(([, list]) =>
      list?.some((entry) => entry.family === 'IPv6' && entry.scopeid === scopeId),
    ) ?? [];
  if (zoneNames.size === ZONES_MAX) zoneNames.clear();
  zoneNames.set(scopeId, name);
  return name;
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
