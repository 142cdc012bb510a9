/** Connected TcpSockets on loopback, with a server that reads and drops what arrives. */
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { connect, createServer, type TcpSocket, type TcpSocketOptions } from '../../src/net/index.ts';

export interface Connected {
  readonly sockets: readonly TcpSocket[];
  readonly port: number;
  end(): Promise<void>;
}

export async function connectedSockets(options: TcpSocketOptions, count: number): Promise<Connected> {
  const accepted = new Set<TcpSocket>();
  const server = createServer((socket) => {
    accepted.add(socket);
    socket.resume();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const sockets = Array.from({ length: count }, () => connect({ ...options, port, host: '127.0.0.1' }));
  await Promise.all(sockets.map((socket) => once(socket, 'connect')));
  return {
    sockets,
    port,
    end: async () => {
      for (const socket of sockets) socket.destroy();
      await Promise.all([...accepted].map((socket) => socket[Symbol.asyncDispose]()));
      await server[Symbol.asyncDispose]();
    },
  };
}
