/** Names of hosts, as ports are given them. */
import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';

/** The IP address that a name stands for now; throws what the resolver says (ENOTFOUND). */
export async function resolveHost(address: string): Promise<string> {
  return isIP(address) !== 0 ? address : (await lookup(address)).address;
}
