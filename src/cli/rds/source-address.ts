/** Names and addresses of the command line, and which address of this host reaches another one. */
import { createSocket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { once } from 'node:events';
import { isIP, isIPv6 } from 'node:net';

/** Any port: connect(2) of a datagram socket looks up the route and sends nothing. */
const ANY_PORT = 16385;

/** The IP address of a host's name; an address stays what it is, its zone included. Rejects with ENOTFOUND. */
export async function resolveHost(host: string): Promise<string> {
  const [plain = ''] = host.split('%');
  return isIP(plain) !== 0 ? host : (await lookup(host)).address;
}

/** The source address of the route to `address`. Rejects with ENETUNREACH, EHOSTUNREACH. */
export async function sourceFor(address: string): Promise<string> {
  const socket = createSocket(isIPv6(address.split('%')[0] ?? '') ? 'udp6' : 'udp4');
  try {
    const connected = once(socket, 'connect');
    socket.connect(ANY_PORT, address);
    await connected;
    const zone = address.includes('%') ? address.slice(address.indexOf('%')) : '';
    const source = socket.address().address;
    return source.includes('%') ? source : `${source}${zone}`;
  } finally {
    socket.close();
  }
}
