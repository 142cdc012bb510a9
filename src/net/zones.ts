/**
 * Zones of IPv6 link-local addresses: the interface in `fe80::1%eth0`, which is a number to the kernel and a name to people.
 *
 * Both directions read /proc/net/if_inet6: the interfaces with an IPv6 address, up or not, of this process's network
 * namespace (/sys/class/net has those of whoever mounted it). No other interface has a link-local address to speak of.
 * Names that were seen are remembered: an address that was once given out as text still means the same after its
 * interface has gone or was renamed. An interface that is made anew under its old name has a new number, which counts.
 */
import { readFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';

const REMEMBERED_MAX = 256;
const INDEX_MAX = 0x7fff_ffff;
const nameByIndex = new Map<number, string>();

/** The number of a zone that is given as a number or as the name of an interface; 0 for none or an unknown one. */
export function scopeIdOf(zone: string | undefined): number {
  if (zone === undefined) return 0;
  if (/^\d+$/.test(zone)) return Number(zone) <= INDEX_MAX ? Number(zone) : 0;
  for (const [name, index] of interfaces()) if (name === zone) return index;
  for (const [index, name] of nameByIndex) if (name === zone) return index;
  return 0;
}

/** The name of the interface with this number; the number itself if none has an IPv6 address in that zone. */
export function zoneName(scopeId: number): string {
  const known = nameByIndex.get(scopeId);
  if (known !== undefined) return known;
  for (const [name, index] of interfaces()) {
    if (index !== scopeId) continue;
    if (nameByIndex.size >= REMEMBERED_MAX) nameByIndex.clear();
    nameByIndex.set(index, name);
    return name;
  }
  return `${scopeId}`;
}

/** Whether any interface of this host has an IPv6 address: none has where IPv6 is switched off. */
export function hasIpv6Address(): boolean {
  return interfaces().length > 0;
}

/** address ifindex prefixlen scope flags name, numbers in hexadecimal (if6_seq_show, net/ipv6/addrconf.c). */
export function parseIfInet6(text: string): [name: string, index: number][] {
  return text
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields.length >= 6)
    .map((fields) => [fields[5] as string, Number.parseInt(fields[1] as string, 16)]);
}

function interfaces(): [name: string, index: number][] {
  try {
    return parseIfInet6(readFileSync('/proc/net/if_inet6', 'utf8'));
  } catch {
    // No /proc, or no IPv6. This one knows interfaces that are up.
    return Object.entries(networkInterfaces()).flatMap(([name, list]) =>
      (list ?? []).flatMap((entry): [string, number][] =>
        entry.family === 'IPv6' && entry.scopeid > 0 ? [[name, entry.scopeid]] : [],
      ),
    );
  }
}
