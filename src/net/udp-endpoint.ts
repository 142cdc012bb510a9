/**
 * UdpEndpoint: all of a UDP socket but what it sends: its address, its peer, its life, and what comes in.
 *
 *   unbound ── bind(), or the first send() or connect() ──▶ binding ──▶ bound: 'listening'
 *                                                              └──▶ unbound again: 'error'
 *
 * What comes before the socket is bound waits: sends, connect() and close(), in their order. A send that does not wait
 * asks for its target and goes to the channel at once. UdpSocket (udp.ts) makes the sends.
 */
import { checkString } from '../core/arguments.ts';
import { errnoError, errnoOf } from '../core/errors.ts';
import { releases } from '../core/releases.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { zerocopyCounters } from './counters.ts';
import { type AddressInfo, addressInfo, addressText, endpointText } from './endpoint.ts';
import { obey } from './obey.ts';
import { checkTargetPort } from './port.ts';
import { nextSocketId, type SocketStats, snapshot, watchSocket } from './stats.ts';
import { type BindOptions, bindArguments } from './udp-arguments.ts';
import { UdpChannel, type UdpCounters } from './udp-channel.ts';
import { resolveName } from './udp-lookup.ts';
import { attachDescriptor, UdpOptionMethods } from './udp-methods.ts';
import { connectUdp, disconnectUdp, openUdp } from './udp-open.ts';
import {
  dgramError,
  type ResolvedUdpOptions,
  resolveUdpOptions,
  type UdpSocketOptions,
} from './udp-options.ts';
import type { RemoteInfo } from './udp-receiver.ts';
import { Target, Targets, type UdpType } from './udp-target.ts';
import type { Transmission } from './udp-transmission.ts';

export interface UdpStats extends SocketStats {
  readonly datagramsRead: number;
  readonly datagramsWritten: number;
  readonly failedSends: number;
  /** Sends that wait for room in the send buffer, and their bytes. */
  readonly queuedSends: number;
  readonly queuedBytes: number;
}

/** What waits for the socket to be bound. */
interface Deferred {
  run(): void;
  fail(error: Error): void;
}

const EINVAL = -errnoOf('EINVAL');
const EBADF = -errnoOf('EBADF');
const ECANCELED = -errnoOf('ECANCELED');

/** Whether the socket has a peer, which all that it sends goes to. */
export let isConnected: (socket: UdpEndpoint) => boolean;

/** Throws ERR_SOCKET_DGRAM_NOT_RUNNING if the socket is closed. */
export let checkRunning: (socket: UdpEndpoint) => void;

/**
 * Has the socket send, as soon as it is bound, which this sees to, and the address is found. `port` undefined: to the peer.
 * `lost`: the address was not found.
 */
export let dispatch: (
  socket: UdpEndpoint,
  transmission: Transmission,
  port: number | undefined,
  address: string | undefined,
  lost: (error: Error) => void,
) => void;

export class UdpEndpoint extends UdpOptionMethods {
  readonly #id = nextSocketId();
  readonly #options: ResolvedUdpOptions;
  readonly #targets: Targets;
  readonly #counters: UdpCounters = {
    zerocopy: zerocopyCounters(),
    sentDatagrams: 0,
    sentBytes: 0,
    failedSends: 0,
    receivedDatagrams: 0,
    receivedBytes: 0,
    cutDatagrams: 0,
  };
  #state: 'unbound' | 'binding' | 'bound' | 'closed' = 'unbound';
  #channel: UdpChannel | null = null;
  #queue: Deferred[] = [];
  #connecting = false;
  #peer: Target | null = null;
  #lastEnds = { local: '', remote: '' };
  #refed = true;

  static {
    isConnected = (socket) => socket.#peer !== null;
    checkRunning = (socket) => socket.#checkRunning();
    dispatch = (socket, transmission, port, address, lost) => {
      const submit = (target: Target | null | undefined): void => {
        if (socket.#channel === null || target === null) transmission.end(errnoError(ECANCELED, 'send'));
        else if (target !== undefined) socket.#channel.submit(transmission, target);
        else transmission.end(errnoError(EINVAL, 'send', { address: address ?? '', port: port ?? 0 }));
      };
      const run = (): void => {
        if (port === undefined) {
          submit(socket.#peer);
          return;
        }
        resolveName(socket.#options, address ?? '', socket.#state === 'bound', (error, ip) => {
          if (error !== null) lost(error);
          else submit(socket.#targets.of(ip, port));
        });
      };
      socket.#whenBound(run, (error) => transmission.end(error));
    };
  }

  /** `listener` is for 'message'. Throws ERR_SOCKET_BAD_TYPE, ERR_INVALID_ARG_TYPE or ERR_OUT_OF_RANGE. */
  constructor(options: UdpType | UdpSocketOptions, listener?: (message: Buffer, from: RemoteInfo) => void) {
    const resolved = resolveUdpOptions(options);
    super(resolved.type);
    this.#options = resolved;
    this.#targets = new Targets(this.type);
    attachDescriptor(this, {
      fd: () => this.#channel?.fd,
      checkRunning: () => this.#checkRunning(),
      bindNow: () => this.#bindNow(),
    });
    if (typeof listener === 'function') this.on('message', listener);
    obey(this.#options.signal, this, () => {
      if (this.#state !== 'closed') this.close();
    });
  }

  /**
   * Takes an address: `bind([port][, address][, callback])` or `bind({ port, address }[, callback])`. 'listening' or
   * 'error' follows. Throws ERR_SOCKET_ALREADY_BOUND, ERR_SOCKET_DGRAM_NOT_RUNNING or ERR_SOCKET_BAD_PORT.
   */
  bind(port?: number, address?: string, callback?: () => void): this;
  bind(port: number, callback?: () => void): this;
  bind(callback: () => void): this;
  bind(options: BindOptions, callback?: () => void): this;
  bind(...args: readonly unknown[]): this {
    this.#checkRunning();
    if (this.#state !== 'unbound') throw dgramError('ERR_SOCKET_ALREADY_BOUND');
    const { port, address, callback } = bindArguments(args);
    if (callback !== undefined) this.#onListening(callback);
    this.#bind(port, address);
    return this;
  }

  /** Fixes the peer: only its datagrams come in, and its ICMP errors are reported. 'connect' or 'error' follows. */
  connect(port: number, address?: string, callback?: (error?: Error) => void): void;
  connect(port: number, callback: (error?: Error) => void): void;
  connect(port: number, second?: unknown, third?: unknown): void {
    const to = checkTargetPort(port);
    const callback = typeof second === 'function' ? second : third;
    const address = typeof second === 'function' || second === undefined ? '' : second;
    checkString('address', address);
    this.#checkRunning();
    if (this.#connecting || this.#peer !== null) throw dgramError('ERR_SOCKET_DGRAM_IS_CONNECTED');
    this.#connecting = true;
    const known = typeof callback === 'function' ? (callback as (error?: Error) => void) : undefined;
    if (known !== undefined) this.once('connect', known);
    const failed = (error: Error): void => {
      this.#connecting = false;
      if (known === undefined) {
        this.emit('error', error);
        return;
      }
      this.removeListener('connect', known);
      known(error);
    };
    const run = (): void =>
      resolveName(this.#options, address, this.#state === 'bound', (error, ip) =>
        this.#connect(error, ip, to, failed),
      );
    this.#whenBound(run, () => {
      // 'error' tells of the failed bind; the callback is none of its listeners.
      this.#connecting = false;
      if (known !== undefined) this.removeListener('connect', known);
    });
  }

  disconnect(): void {
    const fd = this.#peer === null ? undefined : this.#channel?.fd;
    if (fd === undefined) throw dgramError('ERR_SOCKET_DGRAM_NOT_CONNECTED');
    disconnectUdp(fd);
    this.#peer = null;
    (this.#channel as UdpChannel).connected = false;
  }

  /** What the kernel has taken is still sent; sends that wait fail with ECANCELED. 'close' follows. */
  close(callback?: () => void): this {
    if (typeof callback === 'function') this.on('close', callback);
    if (this.#queue.length > 0) {
      const close = (): void => {
        if (this.#state !== 'closed') this.close();
      };
      this.#queue.push({ run: close, fail: close });
      return this;
    }
    this.#checkRunning();
    this.#ends();
    this.#state = 'closed';
    const channel = this.#channel;
    this.#channel = null;
    this.#peer = null;
    channel?.close(errnoError(ECANCELED, 'send'));
    releases.run(() => this.emit('close'));
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#state === 'closed') return;
    await new Promise<void>((resolve) => {
      this.close(resolve);
    });
  }

  ref(): this {
    this.#refed = true;
    this.#channel?.ref();
    return this;
  }

  unref(): this {
    this.#refed = false;
    this.#channel?.unref();
    return this;
  }

  /** Throws EBADF before the socket is bound. */
  address(): AddressInfo {
    this.#checkRunning();
    if (this.#channel === null) throw errnoError(EBADF, 'getsockname');
    return addressInfo(calls.localAddress(this.#channel.fd));
  }

  remoteAddress(): AddressInfo {
    this.#checkRunning();
    if (this.#peer === null) throw dgramError('ERR_SOCKET_DGRAM_NOT_CONNECTED');
    return addressInfo(calls.peerAddress((this.#channel as UdpChannel).fd));
  }

  // --- facts ---

  /** Sends, and their bytes, that wait for room in the kernel's send buffer. */
  getSendQueueCount(): number {
    return this.#channel?.queuedCount ?? 0;
  }

  getSendQueueSize(): number {
    return this.#channel?.queuedBytes ?? 0;
  }

  stats(): UdpStats {
    const { zerocopy, thresholdBytes, mode } = { ...this.#options.zerocopy, ...this.#counters };
    const counters = this.#counters;
    return {
      id: this.#id,
      kind: 'udp',
      ...this.#ends(),
      mode,
      thresholdBytes,
      lending: this.#channel?.lending ?? mode !== 'off',
      bytesRead: counters.receivedBytes,
      bytesWritten: counters.sentBytes,
      datagramsRead: counters.receivedDatagrams,
      datagramsWritten: counters.sentDatagrams,
      failedSends: counters.failedSends,
      queuedSends: this.getSendQueueCount(),
      queuedBytes: this.getSendQueueSize(),
      zerocopy: snapshot(zerocopy),
    };
  }

  // --- inside ---

  /** Both addresses; those it had last, once it is closed. */
  #ends(): { local: string; remote: string } {
    if (this.#channel !== null) {
      const { fd } = this.#channel;
      const local = endpointText(calls.localAddress(fd));
      this.#lastEnds = { local, remote: this.#peer === null ? '' : endpointText(calls.peerAddress(fd)) };
    }
    return this.#lastEnds;
  }

  #checkRunning(): void {
    if (this.#state === 'closed') throw dgramError('ERR_SOCKET_DGRAM_NOT_RUNNING');
  }

  /** Once: whichever of 'listening' and 'error' comes first ends the wait. */
  #onListening(callback: () => void): void {
    const stop = (): void => {
      this.removeListener('error', stop);
      this.removeListener('listening', onListening);
    };
    const onListening = (): void => {
      stop();
      callback.call(this);
    };
    this.on('error', stop);
    this.on('listening', onListening);
  }

  #bind(port: number, address: string): void {
    this.#state = 'binding';
    const any = this.type === 'udp4' ? '0.0.0.0' : '::';
    resolveName(this.#options, address || any, false, (error, ip) => {
      if (this.#state !== 'binding') return;
      try {
        if (error !== null) throw error;
        this.#open(ip, port);
      } catch (failure) {
        this.#state = 'unbound';
        const queue = this.#queue;
        this.#queue = [];
        for (const deferred of queue) deferred.fail(failure as Error);
        this.emit('error', failure as Error);
        return;
      }
      this.#listening();
    });
  }

  /** For calls that need a descriptor at once, as in node:dgram. */
  #bindNow(): void {
    if (this.#state !== 'unbound') return;
    this.#open(this.type === 'udp4' ? '0.0.0.0' : '::', 0);
    releases.run(() => {
      if (this.#state === 'bound') this.#listening();
    });
  }

  #open(ip: string, port: number): void {
    const fd = openUdp(this.#options, ip, port);
    const { zerocopy, gro } = this.#options;
    const counters = this.#counters;
    let ended: () => void = () => {};
    try {
      this.#channel = new UdpChannel(
        fd,
        { type: this.type, zerocopy, gro, counters },
        {
          wantsBatches: () => this.listenerCount('batch') > 0,
          deliver: ({ buffer, segmentBytes, from }, batch) => {
            const remote = { ...from, size: buffer.byteLength };
            if (batch) this.emit('batch', buffer, segmentBytes, remote);
            else this.emit('message', buffer, remote);
          },
          receiveFailed: (errno) => this.emit('error', errnoError(errno, 'recvmsg')),
          ended: () => ended(),
        },
      );
    } catch (error) {
      native().close(fd);
      throw error;
    }
    ended = watchSocket(this.#id, { counters: counters.zerocopy, stats: () => this.stats() });
    if (!this.#refed) this.#channel.unref();
    this.#state = 'bound';
  }

  #listening(): void {
    const queue = this.#queue;
    this.#queue = [];
    this.emit('listening');
    for (const deferred of queue) {
      // A listener may have closed the socket.
      if (this.#state === 'bound') deferred.run();
      else deferred.fail(errnoError(ECANCELED, 'send'));
    }
  }

  /** Binds if need be, and runs `run` when that is done; at once if it is. */
  #whenBound(run: () => void, fail: (error: Error) => void): void {
    if (this.#state === 'unbound') this.#bind(0, '');
    if (this.#state === 'bound') run();
    else this.#queue.push({ run, fail });
  }

  #connect(lookupError: Error | null, ip: string, port: number, failed: (error: Error) => void): void {
    if (this.#state !== 'bound') return;
    const channel = this.#channel as UdpChannel;
    try {
      if (lookupError !== null) throw lookupError;
      connectUdp(channel.fd, this.type, ip, port);
      // As the kernel spells it: 0.0.0.0 has become 127.0.0.1.
      const peer = calls.peerAddress(channel.fd);
      this.#peer = new Target(addressText(peer), peer.port, null);
      channel.connected = true;
      this.#connecting = false;
    } catch (error) {
      releases.run(() => failed(error as Error));
      return;
    }
    releases.run(() => this.emit('connect'));
  }
}
