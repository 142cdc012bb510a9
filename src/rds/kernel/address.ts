/**
 * Addresses of peers as the kernel wants them. A structure is made once for each text and kept: a socket sends many messages to
 * few of them.
 */
import { zoneName } from '../../net/zones.ts';
import { encodeSockaddr, formatIp, type SocketAddress } from '../../wire/sockaddr.ts';
import { peerHost, type RdsHost } from '../address.ts';

const KNOWN_MAX = 4096;
const PORT_OFFSET = 2;

/** A place to send to. */
export interface Target {
  /** Canonical. */
  readonly address: string;
  readonly port: number;
  /** sockaddr_in or sockaddr_in6, valid until the next one to this address is asked for. */
  readonly sockaddr: Uint8Array;
}

interface Known {
  readonly address: string;
  readonly sockaddr: Uint8Array;
}

export class AddressBook {
  readonly #own: RdsHost;
  readonly #known = new Map<string, Known>();

  constructor(own: RdsHost) {
    this.#own = own;
  }

  /** Throws what peerHost() throws. */
  target(text: string, port: number, syscall: string): Target {
    const { address, sockaddr } = this.#find(text, syscall);
    sockaddr[PORT_OFFSET] = port >> 8;
    sockaddr[PORT_OFFSET + 1] = port & 0xff;
    return { address, port, sockaddr };
  }

  #find(text: string, syscall: string): Known {
    const known = this.#known.get(text);
    if (known !== undefined) return known;
    const host = peerHost(this.#own, text, syscall);
    const made = { address: host.address, sockaddr: sockaddrOf(host, 0) };
    // Texts that name one host in many ways must not fill the table.
    if (this.#known.size >= KNOWN_MAX) this.#known.clear();
    this.#known.set(text, made);
    return made;
  }
}

export function sockaddrOf({ ip, scopeId }: RdsHost, port: number): Uint8Array {
  return encodeSockaddr(formatIp(ip), port, scopeId);
}

/** Canonical text of an address of the kernel's. */
export function addressText({ address, scopeId }: SocketAddress): string {
  return scopeId === 0 ? address : `${address}%${zoneName(scopeId)}`;
}

/** The kernel's tables show link-local addresses without their zone. */
export function withoutZone(address: string): string {
  const at = address.indexOf('%');
  return at < 0 ? address : address.slice(0, at);
}
