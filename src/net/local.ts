/** Which addresses are on this host: sends to them always end in a copy (the kernel copies at local delivery). */
import { networkInterfaces } from 'node:os';
import { formatIp, parseIp } from '../wire/sockaddr.ts';

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
