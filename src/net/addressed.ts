/** The address fields of a stream socket: `remoteAddress` and its kin, as in net.Socket. */
import type { AddressInfo } from 'node:net';
import { Duplex } from 'node:stream';
import { addressInfo, addressText, type Endpoint, familyText } from './endpoint.ts';

let place: (socket: AddressedDuplex, remote: Endpoint | null, local: (() => Endpoint) | null) => void;
let endpoints: (socket: AddressedDuplex) => { remote: Endpoint | null; local: Endpoint | null };

/** A Duplex between two endpoints; a Unix socket, and one that is not connected yet, has none. */
export class AddressedDuplex extends Duplex {
  #remote: Endpoint | null = null;
  #local: Endpoint | null = null;
  /** Asks the kernel, once and when the first wants to know. */
  #askLocal: (() => Endpoint) | null = null;

  static {
    place = (socket, remote, local) => {
      socket.#remote = remote;
      socket.#local = null;
      socket.#askLocal = local;
    };
    endpoints = (socket) => ({ remote: socket.#remote, local: socket.#localEndpoint() });
  }

  get remoteAddress(): string | undefined {
    return this.#remote === null ? undefined : addressText(this.#remote);
  }

  get remotePort(): number | undefined {
    return this.#remote?.port;
  }

  get remoteFamily(): 'IPv4' | 'IPv6' | undefined {
    return this.#remote === null ? undefined : familyText(this.#remote);
  }

  get localAddress(): string | undefined {
    const local = this.#localEndpoint();
    return local === null ? undefined : addressText(local);
  }

  get localPort(): number | undefined {
    return this.#localEndpoint()?.port;
  }

  get localFamily(): 'IPv4' | 'IPv6' | undefined {
    const local = this.#localEndpoint();
    return local === null ? undefined : familyText(local);
  }

  address(): AddressInfo | Record<string, never> {
    const local = this.#localEndpoint();
    return local === null ? {} : addressInfo(local);
  }

  #localEndpoint(): Endpoint | null {
    if (this.#local === null && this.#askLocal !== null) this.#local = this.#askLocal();
    return this.#local;
  }
}

/** Says where a socket is connected; null for a Unix one, and for one that is not connected any more. */
export function setEndpoints(
  socket: AddressedDuplex,
  remote: Endpoint | null,
  local: (() => Endpoint) | null,
): void {
  place(socket, remote, local);
}

/** Both ends as they are known now. */
export function endpointsOf(socket: AddressedDuplex): { remote: Endpoint | null; local: Endpoint | null } {
  return endpoints(socket);
}
