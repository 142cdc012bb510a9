/** The address fields of sockets, in the form of node:net. */
import { AF_INET6 } from '../sys/constants.ts';

export interface Endpoint {
  readonly address: string;
  readonly port: number;
  readonly family: number;
}

/** An IPv4 peer of an IPv6 socket shows as mapped, as in Node. */
export function addressText({ address, family }: Endpoint): string {
  return family === AF_INET6 && !address.includes(':') ? `::ffff:${address}` : address;
}

export function familyText({ family }: Endpoint): 'IPv4' | 'IPv6' {
  return family === AF_INET6 ? 'IPv6' : 'IPv4';
}

/** `address:port`, with brackets around IPv6. */
export function endpointText(endpoint: Endpoint | null): string {
  if (endpoint === null) return '';
  const address = addressText(endpoint);
  return `${address.includes(':') ? `[${address}]` : address}:${endpoint.port}`;
}
