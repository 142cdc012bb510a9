/**
 * UdpSocket: node:dgram's socket, with memory that is lent instead of copied and with many datagrams per call.
 *
 * Methods, events, their order and their errors are those of dgram.Socket; what differs:
 *
 * - sendSegments() sends a payload as many datagrams, up to 64 per call (UDP_SEGMENT), and resolves when the memory is the
 *   program's again. The callback of send() comes at that moment, too.
 * - 'batch' hands over runs of datagrams as the kernel put them together (UDP_GRO).
 * - A socket is never shared among the workers of a cluster (`reusePort` spreads load instead), nor made from a descriptor.
 * - After close() a port that the program chose stays taken for as long as the kernel reads lent memory: with its descriptor
 *   closed, nobody would ever learn of the end.
 *
 *   unbound ── bind(), or the first send() or connect() ──▶ binding ──▶ bound: 'listening'
 *                                                              └──▶ unbound again: 'error'
 */
import { lookup as dnsLookup } from 'node:dns';
import { isIP } from 'node:net';
import { checkInteger, checkObject, checkSignal, checkString, wrongType } from '../core/arguments.ts';
import { errnoError, errnoOf } from '../core/errors.ts';
import { releases } from '../core/releases.ts';
import type { Outcome } from '../core/ubuf.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { zerocopyCounters } from './counters.ts';
import { type AddressInfo, addressInfo, addressText, endpointText } from './endpoint.ts';
import { Lease, lendLease, returnLease } from './lease.ts';
import { abortError } from './node-errors.ts';
import { obey } from './obey.ts';
import { checkTargetPort } from './port.ts';
import { UDP4_BYTES_MAX, UDP6_BYTES_MAX } from './segments.ts';
import { nextSocketId, type SocketStats, snapshot, watchSocket } from './stats.ts';
import {
  type BindOptions,
  bindArguments,
  type SendCallback,
  sendArguments,
  type UdpPayload,
} from './udp-arguments.ts';
import { UdpChannel, type UdpCounters } from './udp-channel.ts';
import { attachDescriptor, UdpOptionMethods } from './udp-methods.ts';
import { connectUdp, disconnectUdp, openUdp } from './udp-open.ts';
import {
  dgramError,
  type ResolvedUdpOptions,
  resolveUdpOptions,
  type UdpLookup,
  type UdpSocketOptions,
} from './udp-options.ts';
import type { RemoteInfo } from './udp-receiver.ts';
import { Target, Targets, type UdpType } from './udp-target.ts';
import { Transmission } from './udp-transmission.ts';

export interface SegmentsOptions {
  /** Where to; left out on a connected socket. */
  readonly port?: number | undefined;
  /** This host if left out. */
  readonly address?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}

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
const STILL_LENT = 'the kernel still reads the memory of a UDP send';

function ignore(): void {}

export class UdpSocket extends UdpOptionMethods {
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

  // --- the life of a socket ---

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
    const run = (): void => this.#resolve(address, (error, ip) => this.#connect(error, ip, to, failed));
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

  // --- sending ---

  /**
   * Sends one datagram: `send(message[, offset, length][, port][, address][, callback])`, port and address on unconnected
   * sockets only. The message is a string, a view, or an array of them. The callback runs when the memory is the
   * program's again, with an error or the number of bytes; without one, a failed lookup is an 'error' event, and other
   * errors of the send are not reported.
   */
  send(message: UdpPayload, port?: number, address?: string, callback?: SendCallback): void;
  send(message: UdpPayload, port: number, callback?: SendCallback): void;
  send(message: UdpPayload, callback: SendCallback): void;
  send(
    message: string | NodeJS.ArrayBufferView,
    offset: number,
    length: number,
    port?: number,
    address?: string,
    callback?: SendCallback,
  ): void;
  send(
    message: string | NodeJS.ArrayBufferView,
    offset: number,
    length: number,
    port: number,
    callback?: SendCallback,
  ): void;
  send(
    message: string | NodeJS.ArrayBufferView,
    offset: number,
    length: number,
    callback: SendCallback,
  ): void;
  send(...args: readonly unknown[]): void {
    const { pieces, port, address, callback } = sendArguments(args, this.#peer !== null);
    this.#checkRunning();
    const tell =
      callback === undefined
        ? null
        : (error: Error | null, { bytes }: Outcome): void => {
            if (error === null) callback(null, bytes);
            else (callback as (error: Error) => void)(error);
          };
    const transmission = new Transmission(pieces, { segmentBytes: 0, tell });
    this.#dispatch(transmission, port, address, (error) => {
      if (callback !== undefined) transmission.end(error);
      else releases.run(() => this.emit('error', error));
    });
  }

  /**
   * Sends the payload as datagrams of `segmentBytes`, the last one shorter, in as few system calls as the kernel allows, and
   * resolves when the memory is the program's again, with how much of it was copied. Pieces are one payload, whatever
   * their sizes; a payload without bytes is no datagram. Where the kernel or a device cannot cut, datagrams go one by one.
   *
   * Rejects with the first error: what was sent before it is out. EMSGSIZE (EINVAL before Linux 6.14): a datagram does not fit
   * the MTU of the path. `ABORT_ERR` when `signal` fires before all is handed over, and `ZTX_STILL_LENT` (whose `released`
   * tells the end) when the kernel still reads the memory then. Throws ERR_INVALID_ARG_TYPE, ERR_OUT_OF_RANGE,
   * ERR_SOCKET_BAD_PORT, ERR_SOCKET_DGRAM_IS_CONNECTED, ERR_SOCKET_DGRAM_NOT_RUNNING, and ZTX_RELEASED for a lease.
   */
  sendSegments(
    payload: Uint8Array | readonly Uint8Array[] | Lease,
    segmentBytes: number,
    options: SegmentsOptions = {},
  ): Promise<Outcome> {
    checkInteger('segmentBytes', segmentBytes, 1, this.type === 'udp4' ? UDP4_BYTES_MAX : UDP6_BYTES_MAX);
    checkObject('options', options as unknown);
    const { signal, address } = options;
    checkSignal('options.signal', signal);
    if (address !== undefined) checkString('options.address', address);
    const connected = this.#peer !== null;
    if (connected && (options.port !== undefined || address !== undefined)) {
      throw dgramError('ERR_SOCKET_DGRAM_IS_CONNECTED');
    }
    const port = connected ? undefined : checkTargetPort(options.port);
    const lease = payload instanceof Lease ? payload : null;
    const parts = Array.isArray(payload) ? (payload as readonly Uint8Array[]) : [payload as Uint8Array];
    if (lease === null && !parts.every((part) => part instanceof Uint8Array)) {
      throw wrongType('payload', 'an instance of Uint8Array or Lease, or an array of Uint8Array', payload);
    }
    this.#checkRunning();
    if (signal?.aborted === true) return Promise.reject(abortError(signal));
    const pieces = lease === null ? parts : [lendLease(lease)];
    return new Promise<Outcome>((resolve, reject) => {
      const onAbort = (): void => transmission.giveUp(abortError(signal as AbortSignal), STILL_LENT);
      const transmission = new Transmission(pieces, {
        segmentBytes,
        tell: (error, outcome) => {
          signal?.removeEventListener('abort', onAbort);
          if (error === null) resolve(outcome);
          else reject(error);
        },
        giveBack: lease === null ? undefined : () => returnLease(lease),
      });
      signal?.addEventListener('abort', onAbort, { once: true });
      if (transmission.cursor.remaining === 0) transmission.end(null);
      else this.#dispatch(transmission, port, address, (error) => transmission.end(error));
    });
  }

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
    this.#resolve(address || any, (error, ip) => {
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
    let ended: () => void = ignore;
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

  /** An address of the socket's family, or whatever the lookup of the program makes of it. */
  #resolve(name: string, done: (error: Error | null, ip: string) => void): void {
    const family = this.type === 'udp4' ? 4 : 6;
    const host = name || (family === 4 ? '127.0.0.1' : '::1');
    const { lookup } = this.#options;
    if (lookup !== undefined) ask(lookup, host, family, done);
    else if (isIP(host.split('%')[0] as string) === 0) dnsLookup(host, family, done);
    else if (this.#state === 'bound') done(null, host);
    else releases.run(() => done(null, host)); // the program has not had the time to listen for 'listening'
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

  /** `port` undefined: to the peer. `lost`: the address was not found. */
  #dispatch(
    transmission: Transmission,
    port: number | undefined,
    address: string | undefined,
    lost: (error: Error) => void,
  ): void {
    const submit = (target: Target | null | undefined): void => {
      if (this.#channel === null || target === null) transmission.end(errnoError(ECANCELED, 'send'));
      else if (target !== undefined) this.#channel.submit(transmission, target);
      else transmission.end(errnoError(EINVAL, 'send', { address: address ?? '', port: port ?? 0 }));
    };
    const run = (): void => {
      if (port === undefined) {
        submit(this.#peer);
        return;
      }
      this.#resolve(address ?? '', (error, ip) => {
        if (error !== null) lost(error);
        else submit(this.#targets.of(ip, port));
      });
    };
    this.#whenBound(run, (error) => transmission.end(error));
  }
}

/** What a lookup throws is its answer, too: whoever waits for one, and has lent memory for it, hears of it. Only the first counts. */
function ask(
  lookup: UdpLookup,
  host: string,
  family: 4 | 6,
  done: (error: Error | null, ip: string) => void,
): void {
  let answered = false;
  const answer = (error: Error | null, ip: string): void => {
    if (answered) return;
    answered = true;
    done(error ?? null, ip);
  };
  try {
    lookup(host, family, answer);
  } catch (error) {
    // A listener of the program's may have thrown inside of the answer: that is not ours to keep.
    if (answered) throw error;
    releases.run(() => answer(error as Error, ''));
  }
}

/** As dgram.createSocket(). */
export function createUdpSocket(
  options: UdpType | UdpSocketOptions,
  listener?: (message: Buffer, from: RemoteInfo) => void,
): UdpSocket {
  return new UdpSocket(options, listener);
}
