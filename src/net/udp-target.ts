/**
 * Where datagrams go: the structure for the kernel, and what is known about the way there.
 *
 * A UDP socket sends to many destinations, and its zero-copy policy watches the socket as a whole. What belongs to one
 * destination is kept here: whether it is on this host, where the kernel copies lent pages at delivery, and whether the way
 * there takes segmented calls. Few are remembered; forgetting one costs a look at the interfaces, and perhaps a call that is
 * refused once more.
 */
import { isIPv4, isIPv6 } from 'node:net';
import { AF_INET6 } from '../sys/constants.ts';
import { encodeSockaddr, isUnspecified, parseIp } from '../wire/sockaddr.ts';
import { isLocalAddress } from './local.ts';
import { scopeIdOf } from './zones.ts';

export type UdpType = 'udp4' | 'udp6';

const TARGETS_MAX = 256;

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

/** Those targets of one socket that were used last. */
export class Targets {
  readonly #type: UdpType;
  /** The first one was not used for the longest time. */
  readonly #byName = new Map<string, Target>();
  /** The one used last: sends in a row often have the same. */
  #last: Target | undefined;

  constructor(type: UdpType) {
    this.#type = type;
  }

  /** Undefined: `ip` is no address of the socket's family. */
  of(ip: string, port: number): Target | undefined {
    if (this.#last?.address === ip && this.#last.port === port) return this.#last;
    const name = `${port} ${ip}`;
    const target = this.#byName.get(name) ?? this.#make(ip, port);
    if (target === undefined) return undefined;
    if (!this.#byName.delete(name) && this.#byName.size === TARGETS_MAX) this.#forgetOldest();
    this.#byName.set(name, target);
    this.#last = target;
    return target;
  }

  #make(ip: string, port: number): Target | undefined {
    const sockaddr = sockaddrOf(this.#type, ip, port);
    return sockaddr === undefined ? undefined : new Target(ip, port, sockaddr);
  }

  #forgetOldest(): void {
    for (const oldest of this.#byName.keys()) {
      this.#byName.delete(oldest);
      return;
    }
  }
}

/** The structure for an address, IPv6 perhaps with a zone; undefined if it is not of the family that `type` wants. */
export function sockaddrOf(type: UdpType, ip: string, port: number): Uint8Array | undefined {
  if (type === 'udp4') return isIPv4(ip) ? encodeSockaddr(ip, port) : undefined;
  const [address = '', zone] = ip.split('%');
  return isIPv6(address) ? encodeSockaddr(address, port, scopeIdOf(zone), AF_INET6) : undefined;
}
