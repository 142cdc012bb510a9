/**
 * TcpServer: net.Server whose connections are TcpSockets.
 *
 * Events as in node:net: 'listening', 'connection', 'drop' beyond maxConnections, 'close' when it was closed and the last
 * connection is gone, 'error' when the address cannot be had. Out of descriptors it waits and goes on.
 */
import { AsyncResource } from 'node:async_hooks';
import { ADDRCONFIG, lookup } from 'node:dns';
import { EventEmitter } from 'node:events';
import { type AddressInfo, BlockList, isIP } from 'node:net';
import { checkObject, wrongType } from '../core/arguments.ts';
import { errnoError, ZerotxError } from '../core/errors.ts';
import { normalizeArgs } from './connect-options.ts';
import { addressInfo, addressText, type Endpoint, familyText } from './endpoint.ts';
import { isIpv6Available } from './local.ts';
import { nodeError, nodeTypeError } from './node-errors.ts';
import { obey } from './obey.ts';
import { checkPort } from './port.ts';
import { TcpSocket } from './socket.ts';
import type { TcpSocketOptions } from './socket-settings.ts';
import { aboutToBegin } from './stats.ts';
import { TcpChannel } from './tcp.ts';
import { type Listener, type ListenerOptions, listenTcp, refuse } from './tcp-listener.ts';

export interface ServerOptions extends Omit<TcpSocketOptions, 'signal' | 'onread'> {
  /** Connections are handed out paused: nothing is read before resume(). */
  pauseOnConnect?: boolean | undefined;
  /** Connections from its addresses are closed at once ('drop'). */
  blockList?: BlockList | undefined;
}

export interface ListenOptions {
  port?: number | string | undefined;
  host?: string | undefined;
  /** Path of a Unix socket, instead of port and host. */
  path?: string | undefined;
  backlog?: number | undefined;
  /** Taken for Node's sake: there is no cluster here, and every server listens by itself. */
  exclusive?: boolean | undefined;
  ipv6Only?: boolean | undefined;
  reusePort?: boolean | undefined;
  /** Lets all users read from, and write to, a Unix socket. */
  readableAll?: boolean | undefined;
  writableAll?: boolean | undefined;
  /** Closes the server when it fires. */
  signal?: AbortSignal | undefined;
}

/** libuv's and Node's: net.core.somaxconn cuts it. */
const BACKLOG = 511;

export interface ServerEvents {
  listening: [];
  connection: [socket: TcpSocket];
  /** Undefined for a Unix socket, which has no addresses. */
  drop: [connection: DropData | undefined];
  error: [error: Error];
  close: [];
}

/** Addresses of a connection that was closed at once. */
export interface DropData {
  localAddress?: string;
  localPort?: number;
  localFamily?: string;
  remoteAddress: string;
  remotePort: number;
  remoteFamily: string;
}

export class TcpServer extends EventEmitter<ServerEvents> {
  /** Connections beyond it are closed at once ('drop'). */
  maxConnections: number | undefined;
  readonly #options: ServerOptions;
  #listener: Listener | null = null;
  #path: string | null = null;
  /** Between listen() and 'listening': which listen() it is, and the asynchronous context of its 'connection' listeners. */
  #starting: AsyncResource | null = null;
  #connections = 0;
  #closing = false;
  #refed = true;

  constructor(
    options?: ServerOptions | ((socket: TcpSocket) => void) | null,
    listener?: (socket: TcpSocket) => void,
  ) {
    super();
    const onConnection = typeof options === 'function' ? options : listener;
    if (options !== undefined && options !== null && typeof options !== 'function') {
      checkObject('options', options);
      this.#options = { ...options };
      // A mistake in them shows here, and not at the first connection.
      new TcpSocket(socketOptions(this.#options));
      const { blockList } = this.#options;
      if (blockList !== undefined && !(blockList instanceof BlockList)) {
        throw wrongType('options.blockList', 'an instance of net.BlockList', blockList);
      }
    } else this.#options = {};
    if (onConnection !== undefined) this.on('connection', onConnection);
  }

  get listening(): boolean {
    return this.#listener !== null;
  }

  /**
   * As net.Server.listen(): (options | port[, host] | path)[, backlog][, callback]. Throws ERR_SERVER_ALREADY_LISTEN and what
   * wrong arguments deserve; an address that cannot be had is an 'error'.
   */
  listen(port?: number, host?: string, backlog?: number, listener?: () => void): this;
  listen(port?: number, host?: string, listener?: () => void): this;
  listen(port?: number, backlog?: number, listener?: () => void): this;
  listen(port?: number, listener?: () => void): this;
  listen(path: string, backlog?: number, listener?: () => void): this;
  listen(path: string, listener?: () => void): this;
  listen(options: ListenOptions, listener?: () => void): this;
  listen(listener?: () => void): this;
  listen(...args: readonly unknown[]): this {
    const { options, callback } = normalizeArgs<ListenOptions>(args);
    const backlog = options.backlog ?? args.slice(1).find((arg) => typeof arg === 'number') ?? BACKLOG;
    if (this.#listener !== null || this.#starting !== null) throw nodeError('ERR_SERVER_ALREADY_LISTEN');
    const { path, signal, ipv6Only, reusePort, readableAll, writableAll } = options;
    const port = path === undefined ? checkListenPort(args, options) : 0;
    if (callback !== null) this.once('listening', callback);
    obey(signal, this, () => process.nextTick(() => this.close()));
    this.#closing = false;
    const token = new AsyncResource('ZTXSERVER');
    this.#starting = token;
    const flags = {
      ipv6Only: ipv6Only === true,
      reusePort: reusePort === true,
      readableAll: readableAll === true,
      writableAll: writableAll === true,
    };
    const start = (where: Partial<ListenerOptions>): void => {
      process.nextTick(() => this.#start(token, { backlog: backlog as number, ...flags, ...where }));
    };
    const host = options.host;
    if (typeof path === 'string') start({ path });
    else if (!host) start({ address: isIpv6Available() ? '::' : '0.0.0.0', port });
    else if (isIP(host.split('%')[0] as string) !== 0) start({ address: host, port });
    else this.#lookup(token, host, (address) => start({ address, port }));
    return this;
  }

  /** Stops accepting; 'close', and the callback, come when the last connection is gone. */
  close(callback?: (error?: Error) => void): this {
    if (typeof callback === 'function') {
      if (this.#listener === null && this.#starting === null) {
        this.once('close', () => callback(nodeError('ERR_SERVER_NOT_RUNNING')));
      } else this.once('close', () => callback());
    }
    this.#listener?.close();
    this.#listener = null;
    this.#starting = null;
    this.#closing = true;
    this.#closeIfDrained();
    return this;
  }

  address(): AddressInfo | string | null {
    if (this.#listener === null) return null;
    if (this.#path !== null) return this.#path;
    return addressInfo(this.#listener.address as Endpoint);
  }

  getConnections(callback: (error: Error | null, count: number) => void): this {
    process.nextTick(() => callback(null, this.#connections));
    return this;
  }

  ref(): this {
    this.#refed = true;
    this.#listener?.ref();
    return this;
  }

  unref(): this {
    this.#refed = false;
    this.#listener?.unref();
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#listener === null && this.#starting === null) return;
    await new Promise<void>((resolve) => this.close(() => resolve()));
  }

  #lookup(token: AsyncResource, host: string, found: (address: string) => void): void {
    lookup(host, { hints: ADDRCONFIG }, (error, address) => {
      if (this.#starting !== token) return;
      if (error === null) return found(address);
      this.#starting = null;
      this.emit('error', error);
    });
  }

  #start(token: AsyncResource, options: ListenerOptions): void {
    // Closed meanwhile, and perhaps listening elsewhere.
    if (this.#starting !== token) return;
    this.#starting = null;
    aboutToBegin();
    try {
      this.#listener = listenTcp(options, (fd, peer) =>
        token.runInAsyncScope(() => this.#accepted(fd, options.path === undefined ? peer : null)),
      );
    } catch (error) {
      this.emit('error', listenError(error, options) as Error);
      return;
    }
    this.#path = options.path ?? null;
    if (!this.#refed) this.#listener.unref();
    this.emit('listening');
  }

  #accepted(fd: number, remote: Endpoint | null): void {
    const full = this.maxConnections !== undefined && this.#connections >= this.maxConnections;
    if (full || (remote !== null && isBlocked(this.#options.blockList, remote))) {
      const local = refuse(fd, remote !== null);
      this.emit('drop', remote === null ? undefined : dropData(local, remote));
      return;
    }
    const { pauseOnConnect = false } = this.#options;
    const where = remote ?? { address: '', port: 0 };
    let channel: TcpChannel | null = null;
    let socket: TcpSocket;
    try {
      socket = TcpSocket.accepted(
        (tcp, handler) => {
          channel = TcpChannel.adopt(fd, where, tcp, handler);
          return channel;
        },
        remote,
        { ...socketOptions(this.#options), paused: pauseOnConnect },
        () => {
          this.#connections -= 1;
          this.#closeIfDrained();
        },
      );
    } catch (error) {
      // The system has no room for one more (epoll_ctl): the connection is dropped, and the server goes on.
      if (channel !== null) (channel as TcpChannel).reset();
      else refuse(fd, false);
      if (!(error instanceof ZerotxError)) throw error;
      this.emit('drop', remote === null ? undefined : dropData(null, remote));
      return;
    }
    this.#connections += 1;
    socket.server = this;
    this.emit('connection', socket);
  }

  #closeIfDrained(): void {
    if (!this.#closing || this.#connections > 0) return;
    this.#closing = false;
    process.nextTick(() => this.emit('close'));
  }
}

/** The port of a listen() without a path; none at all means any. */
function checkListenPort(args: readonly unknown[], options: ListenOptions): number {
  const { port } = options;
  if (port !== undefined && port !== null) return checkPort('options.port', port);
  const [first] = args;
  if (typeof first !== 'object' || first === null || 'port' in first) return 0;
  if (options.path !== undefined) throw wrongType('options.path', 'of type string', options.path);
  const text = 'The argument \'options\' must have the property "port" or "path".';
  throw nodeTypeError('ERR_INVALID_ARG_VALUE', text);
}

/** A connection has no signal and no buffer of the server's. */
function socketOptions(options: ServerOptions & TcpSocketOptions): TcpSocketOptions {
  return { ...options, signal: undefined, onread: undefined };
}

function isBlocked(blockList: BlockList | undefined, remote: Endpoint): boolean {
  const family = remote.address.includes(':') ? 'ipv6' : 'ipv4';
  return blockList?.check(remote.address, family) === true;
}

function dropData(local: Endpoint | null, remote: Endpoint): DropData {
  const here =
    local === null
      ? {}
      : { localAddress: addressText(local), localPort: local.port, localFamily: familyText(local) };
  return {
    ...here,
    remoteAddress: addressText(remote),
    remotePort: remote.port,
    remoteFamily: familyText(remote),
  };
}

/** The error as Node words it, whichever call of bind(2) and listen(2) was refused. */
function listenError(error: unknown, { address, port, path }: ListenerOptions): unknown {
  if (!(error instanceof ZerotxError) || error.errno === 0) return error;
  const where = path === undefined ? { address: address as string, port: port as number } : { address: path };
  const known: Record<string, string> = {
    EADDRINUSE: 'address already in use',
    EACCES: 'permission denied',
    EADDRNOTAVAIL: 'address not available',
  };
  const text = known[error.code] ?? 'failed';
  const place = path ?? `${address}${port ? `:${port}` : ''}`;
  return Object.assign(errnoError(error.errno, 'listen', where), {
    message: `listen ${error.code}: ${text} ${place}`,
  });
}
