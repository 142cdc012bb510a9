/** Addresses of sockets, as the kernel has them and in the form of node:net. */
import { AF_INET6 } from '../sys/constants.ts';
import { zoneName } from './zones.ts';

/** One end of a socket: wire/sockaddr.ts decodes to these. */
export interface Endpoint {
  readonly address: string;
  readonly port: number;
  readonly family: number;
  /** Number of the zone that a link-local address is of. */
  readonly scopeId?: number;
}

/** What node:net and node:dgram have for an endpoint. */
export interface AddressInfo {
  address: string;
  family: 'IPv4' | 'IPv6';
  port: number;
}

/** As Node spells it: the IPv4 peer of an IPv6 socket in its mapped form, a link-local address with its zone. */
export function addressText({ address, family, scopeId = 0 }: Endpoint): string {
  if (family !== AF_INET6) return address;
  if (!address.includes(':')) return `::ffff:${address}`;
  return scopeId === 0 ? address : `${address}%${zoneName(scopeId)}`;
}

export function familyText({ family }: Endpoint): 'IPv4' | 'IPv6' {
  return family === AF_INET6 ? 'IPv6' : 'IPv4';
}

export function addressInfo(endpoint: Endpoint): AddressInfo {
  return { address: addressText(endpoint), family: familyText(endpoint), port: endpoint.port };
}

/** `address:port`, with brackets around IPv6. */
export function endpointText(endpoint: Endpoint | null): string {
  if (endpoint === null) return '';
  const address = addressText(endpoint);
  return `${address.includes(':') ? `[${address}]` : address}:${endpoint.port}`;
}
