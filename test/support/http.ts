/** HTTP over zerotx/net: node:http is given the connections of a TcpServer, and makes its own by connect(). */
import {
  Agent,
  type AgentOptions,
  createServer,
  type IncomingMessage,
  type RequestListener,
  type RequestOptions,
  request,
  type Server,
} from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex, Readable } from 'node:stream';
import * as net from '../../src/net/index.ts';

export const HOST = '127.0.0.1';

/** Over loopback 'auto' copies; this lends all that a call can carry, also where Node 22 could take it away. */
export const LEND: net.ZerocopyOptions = { mode: 'force', thresholdBytes: 16 * 1024, pin: true };
export const COPY: net.ZerocopyOptions = { mode: 'off' };

export interface Site {
  readonly http: Server;
  readonly port: number;
  /** Connections that were accepted, in their order. */
  readonly connections: net.TcpSocket[];
  /** Their ends: whether by an error. */
  readonly closings: Promise<boolean>[];
  readonly zerocopy: net.ZerocopyOptions;
  close(): Promise<void>;
}

/** Serves HTTP on a port that the kernel chooses. */
export async function serve(zerocopy: net.ZerocopyOptions, listener?: RequestListener): Promise<Site> {
  const http = createServer(listener);
  const connections: net.TcpSocket[] = [];
  const closings: Promise<boolean>[] = [];
  const tcp = net.createServer({ zerocopy, noDelay: true }, (socket) => {
    connections.push(socket);
    closings.push(new Promise((resolve) => socket.on('close', resolve)));
    http.emit('connection', asSocket(socket));
  });
  await new Promise<void>((resolve, reject) => {
    tcp.on('error', reject);
    tcp.listen(0, HOST, resolve);
  });
  // From here on it knows its connections, and ends those that are idle or slow (setupConnectionsTracking of _http_server).
  http.emit('listening');
  const { port } = tcp.address() as { port: number };
  return {
    http,
    port,
    connections,
    closings,
    zerocopy,
    async close() {
      const closed = new Promise((resolve) => tcp.close(resolve));
      for (const socket of connections) socket.destroy();
      http.close();
      await closed;
    },
  };
}

/** A connection to the site. */
export function dial({ port, zerocopy }: Site): Socket {
  return asSocket(net.connect({ port, host: HOST, zerocopy, noDelay: true }));
}

/** An agent whose connections are ours. */
export class TcpAgent extends Agent {
  readonly #site: Site;

  constructor(site: Site, options: AgentOptions = {}) {
    super(options);
    this.#site = site;
  }

  override createConnection(): Duplex {
    return dial(this.#site);
  }
}

/** Sends a request, with a body unless it is undefined, and resolves with the head of the answer. */
export function ask(site: Site, options: RequestOptions, body?: Buffer | Readable): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const over = options.agent === undefined ? { createConnection: () => dial(site) } : {};
    const asked = request({ host: HOST, port: site.port, ...over, ...options }, resolve);
    asked.on('error', reject);
    if (body === undefined || Buffer.isBuffer(body)) asked.end(body);
    else body.pipe(asked);
  });
}

export async function readAll(message: AsyncIterable<Buffer>): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of message) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** For libraries whose types name the class of node:net. */
export function asSocket(socket: net.TcpSocket): Socket {
  return socket as unknown as Socket;
}
