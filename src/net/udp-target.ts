/**
 * Where datagrams go: the structure for the kernel, and what is known about the way there.
 *
 * A UDP socket sends to many destinations, and its zero-copy policy watches the socket as a whole. What belongs to one
 * destination is kept here: whether it is on this host, where the kernel copies lent pages at delivery, and whether the way
 * there takes segmented calls. Few are remembered; forgetting one costs a look at the interfaces.
 */
import { isIPv4, isIPv6 } from 'node:net';
import { networkInterfaces } from 'node:os';
import { AF_INET, AF_INET6 } from '../sys/constants.ts';
import { encodeSockaddr, isUnspecified, parseIp, type SocketAddress } from '../wire/sockaddr.ts';
import { isLocalAddress, scopeIdOf } from './local.ts';

export type UdpType = 'udp4' | 'udp6';

const TARGETS_MAX = 256;
const ZONES_MAX = 64;

export class Target {
  /** Null: whoever the socket is connected to. */
  readonly sockaddr: Uint8Array | null;
  readonly address: string;
  readonly port: number;
  /** The kernel or the device on the way refused to cut: datagrams go one by one. */
  uncut = false;
  #local: boolean | undefined;

  constructor(address: string, port: number, sockaddr: Uint8Array | null) {
    this.address = address;
    this.port = port;
    this.sockaddr = sockaddr;
  }

  /** Whether it is on this host; asked of the system once. */
  get local(): boolean {
    if (this.#local === undefined) {
      const ip = this.address.split('%')[0] as string;
      // 0.0.0.0 and :: as a destination mean this host (ip_route_output_key_hash_rcu).
      this.#local = isUnspecified(parseIp(ip)) || isLocalAddress(ip);
    }
    return this.#local;
  }
}

/** The targets of one socket that were used last. */
export class Targets {
  readonly #type: UdpType;
  readonly #byName = new Map<string, Target>();

  constructor(type: UdpType) {
    this.#type = type;
  }

  /** Undefined: `ip` is no address of the socket's family. */
  of(ip: string, port: number): Target | undefined {
    const name = `${port} ${ip}`;
    const known = this.#byName.get(name);
    if (known !== undefined) return known;
    const sockaddr = sockaddrOf(this.#type, ip, port);
    if (sockaddr === undefined) return undefined;
    const target = new Target(ip, port, sockaddr);
    if (this.#byName.size === TARGETS_MAX) {
      for (const oldest of this.#byName.keys()) {
        this.#byName.delete(oldest);
        break;
      }
    }
    this.#byName.set(name, target);
    return target;
  }
}

/** The structure for an address, IPv6 perhaps with a zone; undefined if it is not of the family that `type` wants. */
export function sockaddrOf(type: UdpType, ip: string, port: number): Uint8Array | undefined {
  if (type === 'udp4') return isIPv4(ip) ? encodeSockaddr(ip, port) : undefined;
  const [address = '', zone] = ip.split('%');
  return isIPv6(address) ? encodeSockaddr(address, port, scopeIdOf(zone), AF_INET6) : undefined;
}

export interface Endpoint {
  address: string;
  family: 'IPv4' | 'IPv6';
  port: number;
}

/** An address as node:dgram spells it: mapped ones in their IPv6 form, link-local ones with their zone. */
export function endpointOf({ address, family, port, scopeId }: SocketAddress): Endpoint {
  if (family === AF_INET) return { address, family: 'IPv4', port };
  if (isIPv4(address)) return { address: `::ffff:${address}`, family: 'IPv6', port };
  const zone = scopeId === 0 ? '' : `%${zoneName(scopeId)}`;
  return { address: `${address}${zone}`, family: 'IPv6', port };
}

const zoneNames = new Map<number, string>();

/** The name of the interface with this number; the number itself if none has an IPv6 address in that zone. */
function zoneName(scopeId: number): string {
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
