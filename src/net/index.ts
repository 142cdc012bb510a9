/**
 * `zerotx/net`: TCP and UDP sockets for Node programs whose large writes are lent to the kernel instead of copied.
 *
 *   import { connect, createServer, Pool } from 'zerotx/net';
 *
 *   const socket = connect(8080, 'media.example');
 *   const { copiedBytes } = await socket.send(buffer);   // the buffer is yours again, and so much of it was copied
 *
 * The TCP half has the names and the behaviour of node:net, so that a program changes its import (docs/net.md lists the
 * differences). Nothing is loaded before the first socket is made.
 */
import { BlockList, isIP, isIPv4, isIPv6 } from 'node:net';
import { type ConnectOptions, normalizeArgs } from './connect-options.ts';
import { type ServerOptions, TcpServer } from './server.ts';
import { TcpSocket } from './socket.ts';

export { type Next, ZerotxError } from '../core/errors.ts';
export type { HistogramSnapshot } from '../core/histogram.ts';
export { StillLentError } from '../core/still-lent.ts';
export type { Outcome } from '../core/ubuf.ts';
export { channels, type FallbackMessage, type ReleaseMessage, type SocketMessage } from './channels.ts';
export type { ConnectOptions, TcpConnectOptions } from './connect-options.ts';
export { type Control, type ControlOptions, openControl } from './control.ts';
export {
  askSockets,
  askStats,
  type ControlAnswer,
  type SocketsAnswer,
  type StatsAnswer,
} from './control-client.ts';
export { type ControlFolder, type ControlSocket, controlFolders, controlSockets } from './control-folder.ts';
export { COPY_CAUSES, type CopyCause } from './counters.ts';
export { Lease } from './lease.ts';
export type { WritableChunk } from './lending-duplex.ts';
export { collectMetrics, type MetricsOptions, type PromClient } from './metrics.ts';
export type { ZerocopyMode } from './policy.ts';
export { Pool, type PoolOptions } from './pool.ts';
export type { PoolStats, PoolSums } from './pool-stats.ts';
export type { Sendable } from './sending.ts';
export {
  type DropData,
  type ListenOptions,
  type ServerEvents,
  type ServerOptions,
  TcpServer,
  TcpServer as Server,
} from './server.ts';
export { TcpSocket, TcpSocket as Socket } from './socket.ts';
export type { TcpSocketOptions } from './socket-settings.ts';
export { type NetStats, type SocketStats, socketStats, stats, type ZerocopyStats } from './stats.ts';
export { createUdpSocket, type SegmentsOptions, UdpSocket } from './udp.ts';
export type { BindOptions, SendCallback, UdpPayload } from './udp-arguments.ts';
export type { UdpStats } from './udp-endpoint.ts';
export type { UdpLookup, UdpSocketEvents, UdpSocketOptions } from './udp-options.ts';
export type { RemoteInfo } from './udp-receiver.ts';
export type { ZerocopyOptions } from './zerocopy-options.ts';
export { BlockList, isIP, isIPv4, isIPv6 };

/** As net.createServer(): ([options][, connectionListener]). */
export function createServer(
  options?: ServerOptions | ((socket: TcpSocket) => void),
  listener?: (socket: TcpSocket) => void,
): TcpServer {
  return new TcpServer(options, listener);
}

/** As net.connect(): (options | port[, host] | path)[, connectListener]. */
export function connect(options: ConnectOptions, listener?: () => void): TcpSocket;
export function connect(port: number, host: string, listener?: () => void): TcpSocket;
export function connect(port: number, listener?: () => void): TcpSocket;
export function connect(path: string, listener?: () => void): TcpSocket;
export function connect(...args: readonly unknown[]): TcpSocket {
  const { options, callback } = normalizeArgs<ConnectOptions>(args);
  const socket = new TcpSocket(options);
  if (options.timeout) socket.setTimeout(options.timeout);
  return socket.connect(options, callback ?? undefined);
}

export { connect as createConnection };

/** What `import net from 'node:net'` gives, as far as it is here. */
const net: {
  readonly BlockList: typeof BlockList;
  readonly Server: typeof TcpServer;
  readonly Socket: typeof TcpSocket;
  readonly connect: typeof connect;
  readonly createConnection: typeof connect;
  readonly createServer: typeof createServer;
  readonly isIP: typeof isIP;
  readonly isIPv4: typeof isIPv4;
  readonly isIPv6: typeof isIPv6;
} = {
  BlockList,
  Server: TcpServer,
  Socket: TcpSocket,
  connect,
  createConnection: connect,
  createServer,
  isIP,
  isIPv4,
  isIPv6,
};
export default net;
