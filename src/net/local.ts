/** Which addresses are on this host: sends to them always end in a copy (the kernel copies at local delivery). */
import { networkInterfaces } from 'node:os';
import { formatIp, parseIp } from '../wire/sockaddr.ts';

export function isLocalAddress(address: string): boolean {
  const canonical = formatIp(parseIp(address));
  if (canonical.startsWith('127.') || canonical === '::1') return true;
  for (const list of Object.values(networkInterfaces())) {
    for (const entry of list ?? []) if (formatIp(parseIp(entry.address)) === canonical) return true;
  }
  return false;
}
