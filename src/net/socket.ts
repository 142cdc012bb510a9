/**
 * TcpSocket: net.Socket with lent writes.
 *
 *   program ── write ──▶ stream.Duplex ── _write ──▶ Outgoing ── sendmsg ──▶ TcpChannel ── kernel
 *           ◀── data ──                ◀── push ──── Incoming ◀── readv ──┘
 *
 * It follows node:net in its events and their order, in back-pressure and in what end() and destroy() deliver; docs/net.md
 * lists the differences. The one that matters: a write's callback runs when the buffer may be used again. For a chunk that
 * was lent that is when the kernel lets go of it, later than the 'drain' and 'finish' of the stream, which follow
 * acceptance. Waiting for each callback before the next write therefore means one write per round trip.
 *
 * Here is the connection: how it comes about, what it carries either way, how it ends. How a chunk is written, lent or not, is
 * lending-duplex.ts.
 */
import { wrongType } from '../core/arguments.ts';
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import { endpointsOf, setEndpoints } from './addressed.ts';
import type { Batches, Chunks, WriteCallback } from './batches.ts';
import { type ConnectOptions, checkConnectOptions, normalizeArgs } from './connect-options.ts';
import { Connecting } from './connecting.ts';
import { zerocopyCounters } from './counters.ts';
import { type Endpoint, endpointText } from './endpoint.ts';
import { Incoming, type OnRead } from './incoming.ts';
import { borrow } from './lending.ts';
import { batchesOf, beginWrites, LendingDuplex } from './lending-duplex.ts';
import { Link } from './link.ts';
import { abortError, nodeError, nodeTypeError } from './node-errors.ts';
import { obey } from './obey.ts';
import { Outgoing, TAKEN } from './outgoing.ts';
import { PinDeadline } from './pin-deadline.ts';
import { TCP_THRESHOLD_BYTES } from './policy.ts';
import {
  refuseHandles,
  SocketTimeout,
  streamOptions,
  TcpSettings,
  type TcpSocketOptions,
} from './socket-settings.ts';
import { type SocketStats, snapshot, watchSocket } from './stats.ts';
import type { TcpChannel, TcpHandler, TcpOptions } from './tcp.ts';
import { type ResolvedZerocopy, resolveZerocopy } from './zerocopy-options.ts';

export class TcpSocket extends LendingDuplex {
  connecting = false;
  /** Milliseconds that setTimeout() was given. */
  timeout?: number;
  bytesRead = 0;
  /** The server that accepted the connection; node:http looks at it. */
  server: unknown;
  /** Addresses that were tried, as `address:port`, if autoSelectFamily found several. */
  autoSelectFamilyAttemptedAddresses!: string[];
  readonly #zerocopy: ResolvedZerocopy;
  readonly #onRead: OnRead | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #settings: TcpSettings;
  readonly #idle: SocketTimeout;
  readonly #pinned: PinDeadline;
  /** The present connection, or the last one. */
  #link: Link | null = null;
  /** Somebody wanted to read before there was a connection. */
  #readEarly = false;
  #refed = true;
  #resets = false;
  /** Tells the server that the connection is over. */
  #gone: () => void = () => {};

  constructor(options: TcpSocketOptions = {}) {
    const { allowHalfOpen = false, signal } = options;
    refuseHandles(options);
    const zerocopy = resolveZerocopy(options.zerocopy, TCP_THRESHOLD_BYTES);
    // 'close' is emitted here, with `hadError`.
    const stream = { ...streamOptions(options), allowHalfOpen, emitClose: false, autoDestroy: true };
    super(stream, zerocopy.thresholdBytes);
    this.#zerocopy = zerocopy;
    this.#onRead = options.onread;
    this.#settings = new TcpSettings(options);
    this.#signal = signal;
    beginWrites(this, (result) => this.#flushed(result));
    this.#idle = new SocketTimeout(() => this.emit('timeout'));
    const { pinTimeoutMs } = this.#zerocopy;
    this.#pinned = new PinDeadline(
      pinTimeoutMs,
      () => this.#link?.channel?.pinnedSinceMs,
      () => this.#pinExpired(),
    );
    this.#obeySignal();
  }

  #obeySignal(): void {
    const signal = this.#signal;
    obey(signal, this, () => this.destroy(abortError(signal as AbortSignal)));
  }

  /** Serves an accepted connection, whose `remote` is null for a Unix socket; for TcpServer, which hears when it is `gone`. */
  static accepted(
    open: (tcp: TcpOptions, handler: TcpHandler) => TcpChannel,
    remote: Endpoint | null,
    options: TcpSocketOptions & { readonly paused: boolean },
    gone: () => void,
  ): TcpSocket {
    const socket = new TcpSocket(options);
    const { paused } = options;
    if (paused) socket.pause();
    const link = new Link(remote === null ? '' : null);
    socket.#link = link;
    socket.#establish(link, open(link.tcpOptions(socket.#zerocopy), socket.#handler(link)), remote);
    socket.#gone = gone;
    if (!paused) socket.read(0);
    return socket;
  }

  /**
   * As net.Socket.connect(): (options | port[, host] | path)[, callback]. Throws ERR_MISSING_ARGS, ERR_SOCKET_BAD_PORT,
   * ERR_INVALID_IP_ADDRESS or ERR_INVALID_ARG_TYPE for arguments; all else is an 'error'.
   */
  connect(options: ConnectOptions, listener?: () => void): this;
  connect(port: number, host: string, listener?: () => void): this;
  connect(port: number, listener?: () => void): this;
  connect(path: string, listener?: () => void): this;
  connect(...args: readonly unknown[]): this {
    const { options, callback } = normalizeArgs<ConnectOptions>(args);
    checkConnectOptions(options);
    if (callback !== null) this.once('connect', callback);
    if (this.connecting || this.#channel !== null || this.#signal?.aborted === true) return this;
    if (this.destroyed) this.#restart();
    this.connecting = true;
    const link = new Link(options.path ?? null);
    this.#link = link;
    link.connecting = new Connecting(options, link.tcpOptions(this.#zerocopy), {
      lookup: (error, address, family, host) => this.emit('lookup', error, address, family, host),
      attempt: (address, port, family) => {
        this.autoSelectFamilyAttemptedAddresses ??= [];
        this.autoSelectFamilyAttemptedAddresses.push(`${address}:${port}`);
        this.emit('connectionAttempt', address, port, family);
      },
      attemptFailed: (...what) => this.emit('connectionAttemptFailed', ...what),
      attemptTimeout: (...what) => this.emit('connectionAttemptTimeout', ...what),
      established: (channel, remote) =>
        link.scope.runInAsyncScope(() => this.#connected(link, channel, remote)),
      failed: (error) => link.scope.runInAsyncScope(() => this.destroy(error)),
    });
    link.connecting.ref(this.#refed);
    this.#idle.refresh();
    try {
      link.connecting.start();
    } catch (error) {
      link.connecting.cancel();
      link.connecting = null;
      this.connecting = false;
      throw error;
    }
    return this;
  }

  /** A socket that was closed connects again: with a stream as new, as in Node. */
  #restart(): void {
    (this as unknown as { _undestroy(): void })._undestroy();
    this.bytesRead = 0;
    beginWrites(this, (result) => this.#flushed(result));
    this.#resets = false;
    this.#readEarly = false;
    setEndpoints(this, null, null);
    this.#obeySignal();
  }

  get #channel(): TcpChannel | null {
    return this.#link?.channel ?? null;
  }

  get #batches(): Batches {
    return batchesOf(this);
  }

  // --- writing ---

  override _write(chunk: Buffer, _encoding: string, callback: WriteCallback): void {
    this.#idle.refresh();
    this.#batches.write(chunk, this.writableLength, this.connecting, callback);
  }

  override _writev(chunks: Chunks, callback: WriteCallback): void {
    this.#idle.refresh();
    this.#batches.write(chunks, this.writableLength, this.connecting, callback);
  }

  #flushed(result: number): void {
    if (result < 0) {
      const taken = 'the buffer was detached or resized before it was sent';
      const error =
        result === TAKEN ? new ZerotxError('ZTX_MEMORY_TAKEN', taken) : errnoError(result, 'write');
      this.#link?.outgoing?.abandon(error);
    } else this.#pinned.watch();
  }

  override _final(callback: WriteCallback): void {
    if (this.connecting) {
      this.once('connect', () => this._final(callback));
      return;
    }
    this.#channel?.shutdownWrite();
    callback();
  }

  // --- reading ---

  override _read(): void {
    const incoming = this.#link?.incoming;
    if (incoming) incoming.resume();
    else this.#readEarly = true;
  }

  override pause(): this {
    if (this.#onRead !== undefined) this.#link?.incoming?.pause();
    return super.pause();
  }

  override resume(): this {
    if (this.#onRead !== undefined) this.#link?.incoming?.resume();
    return super.resume();
  }

  // --- the connection ---

  #handler(link: Link): TcpHandler {
    const { scope } = link;
    const readable = (): void => link.incoming?.readable();
    const writable = (): void => {
      if (link.outgoing === null || !link.outgoing.busy) return;
      this.#idle.refresh();
      this.#flushed(link.outgoing.flush());
    };
    return {
      readable: () => scope.runInAsyncScope(readable),
      writable: () => scope.runInAsyncScope(writable),
      released: () => this.#idle.refresh(),
    };
  }

  #connected(link: Link, channel: TcpChannel, remote: Endpoint | null): void {
    if (this.destroyed) {
      channel.close();
      return;
    }
    this.connecting = false;
    link.connecting = null;
    channel.handler = this.#handler(link);
    this.#establish(link, channel, remote);
    try {
      this.emit('connect');
      this.emit('ready');
    } finally {
      // Also when a listener threw: what was written before waits for nothing else.
      this.#batches.startEarly();
      if (!this.destroyed && !this.isPaused()) this.read(0);
    }
  }

  #establish(link: Link, channel: TcpChannel, remote: Endpoint | null): void {
    link.channel = channel;
    setEndpoints(this, remote, remote === null ? null : () => channel.localEndpoint);
    link.outgoing = new Outgoing(channel, (view) => borrow(view, this.#zerocopy.pin));
    this.#batches.connected(link.outgoing);
    link.incoming = new Incoming(
      channel,
      {
        data: (chunk) => {
          this.#received(chunk.byteLength);
          return this.push(chunk);
        },
        end: () => {
          this.push(null);
          this.read(0);
        },
        failed: (errno) => this.destroy(errnoError(errno, 'read')),
      },
      (turn) => link.scope.runInAsyncScope(turn),
      this.#onRead === undefined ? undefined : this.#readInto(this.#onRead),
    );
    if (remote !== null) this.#settings.apply(channel);
    if (!this.#refed) channel.unref();
    const { id, counters } = link;
    link.unwatch = watchSocket(id, { counters, stats: () => this.#statsOf(link) });
    if (this.#readEarly) link.incoming.resume();
  }

  #readInto(onRead: OnRead): OnRead {
    return {
      buffer: onRead.buffer,
      callback: (bytes, buffer) => {
        this.#received(bytes);
        return onRead.callback(bytes, buffer);
      },
    };
  }

  #received(bytes: number): void {
    this.bytesRead += bytes;
    this.#idle.refresh();
  }

  override destroy(error?: Error): this {
    // What was written in this turn is on its way, as with net.Socket.
    this.#batches.finishTurn();
    return super.destroy(error);
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.connecting = false;
    this.#idle.stop();
    this.#pinned.stop();
    this.#batches.closed();
    const link = this.#link;
    if (link !== null) {
      // Asked now: there will be nobody to ask.
      if (link.channel !== null) endpointsOf(this);
      const how = this.#resets ? 'reset' : 'close';
      link.end(how, error ?? nodeError('ERR_STREAM_DESTROYED'), this.#zerocopy.pinTimeoutMs);
    }
    callback(error);
    const gone = this.#gone;
    // Once: what connects again later is not the server's.
    this.#gone = () => {};
    gone();
    // As libuv closes handles: behind everything that this turn still has to say.
    setImmediate(() => this.emit('close', error !== null && error !== undefined));
  }

  /** Ends, and destroys once all is accepted. */
  destroySoon(): void {
    if (this.writable) this.end();
    if (this.writableFinished) this.destroy();
    else this.once('finish', () => this.destroy());
  }

  /** Closes with RST: nothing more goes on the wire, and lent memory comes back at once. */
  resetAndDestroy(): this {
    if (this.connecting) this.once('connect', () => this.#reset());
    else if (this.#channel === null) this.destroy(nodeError('ERR_SOCKET_CLOSED'));
    else if (this.#link?.isUnix === true) {
      throw nodeTypeError('ERR_INVALID_HANDLE_TYPE', 'This handle type cannot be sent');
    } else this.#reset();
    return this;
  }

  #reset(error?: Error): void {
    this.#resets = true;
    this.destroy(error);
  }

  #pinExpired(): void {
    this.#reset(errnoError(errnoOf('ETIMEDOUT'), 'write', { hint: 'lent memory was not released in time' }));
  }

  /** Destroys the socket when all that was written is accepted, and resolves when it is closed. */
  override async [Symbol.asyncDispose](): Promise<void> {
    if (this.closed) return;
    const closed = new Promise<void>((resolve) => this.once('close', () => resolve()));
    this.destroySoon();
    await closed;
  }

  // --- settings ---

  /** Emits 'timeout' after so many milliseconds without activity, once until there is activity again; 0 switches it off. */
  setTimeout(ms: number, callback?: () => void): this {
    if (callback !== undefined && typeof callback !== 'function') {
      throw wrongType('callback', 'of type function', callback);
    }
    this.timeout = ms;
    if (!this.destroyed) this.#idle.set(ms);
    if (callback === undefined) return this;
    if (ms === 0) this.removeListener('timeout', callback);
    else this.once('timeout', callback);
    return this;
  }

  setNoDelay(on = true): this {
    this.#settings.setNoDelay(Boolean(on), this.#link?.tcpChannel ?? null);
    return this;
  }

  setKeepAlive(on = false, initialDelayMs = 0): this {
    this.#settings.setKeepAlive(Boolean(on), initialDelayMs, this.#link?.tcpChannel ?? null);
    return this;
  }

  ref(): this {
    this.#setRef(true);
    return this;
  }

  unref(): this {
    this.#setRef(false);
    return this;
  }

  #setRef(on: boolean): void {
    this.#refed = on;
    this.#link?.ref(on);
  }

  // --- facts ---

  get pending(): boolean {
    return this.#channel === null || this.connecting;
  }

  get readyState(): 'opening' | 'open' | 'readOnly' | 'writeOnly' | 'closed' {
    if (this.connecting) return 'opening';
    if (this.readable) return this.writable ? 'open' : 'readOnly';
    return this.writable ? 'writeOnly' : 'closed';
  }

  /** Bytes that were written, whether or not they are on their way yet. */
  get bytesWritten(): number {
    return this.#batches.acceptedBytes + this.writableLength;
  }

  /** Undefined without a connection, which Node's types do not say either. */
  get bufferSize(): number {
    return this.#channel === null && !this.connecting
      ? (undefined as unknown as number)
      : this.writableLength;
  }

  stats(): SocketStats {
    return this.#statsOf(this.#link);
  }

  #statsOf(link: Link | null): SocketStats {
    const { mode, thresholdBytes } = this.#zerocopy;
    const { remote, local } = endpointsOf(this);
    const isUnix = link?.isUnix === true;
    return {
      id: link?.id ?? 0,
      kind: isUnix ? 'unix' : 'tcp',
      local: endpointText(local),
      remote: link?.path ?? endpointText(remote),
      mode: isUnix ? 'off' : mode,
      thresholdBytes,
      lending: link?.channel?.lending ?? false,
      bytesRead: this.bytesRead,
      bytesWritten: this.bytesWritten,
      zerocopy: snapshot(link?.counters ?? zerocopyCounters()),
    };
  }
}
