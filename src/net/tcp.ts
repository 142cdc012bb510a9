/**
 * One TCP connection with its zero-copy engine: the channel that message protocols run over.
 *
 * It owns the descriptor and answers three questions: can I write, can I read, how much has the peer acknowledged. It
 * keeps no bytes: what it does not take stays with the caller. Readiness is edge-triggered, so it is remembered here:
 * `readable` and `writable` stay true until a call meets EAGAIN.
 *
 * Acknowledged bytes are `written - SIOCOUTQ` (tcp_ioctl: write_seq - snd_una), with three traps: a FIN counts as one
 * unsent byte until it is acknowledged, connect(AF_UNSPEC) moves write_seq so that the count must be frozen before, and
 * the count must never go back.
 *
 * Data that arrived before a reset stays readable after it; so an error is only reported once reads have met it.
 */
import { assert } from '../core/assert.ts';
import type { MemlockBudget } from '../core/budget.ts';
import { errnoError, errnoOf, type ZerotxError } from '../core/errors.ts';
import type { Ubuf } from '../core/ubuf.ts';
import { type Native, native } from '../sys/binding.ts';
import {
  EPOLLERR,
  EPOLLHUP,
  EPOLLIN,
  EPOLLOUT,
  EPOLLPRI,
  EPOLLRDHUP,
  MSG_MORE,
  SHUT_WR,
  SO_ERROR,
  SOL_SOCKET,
} from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { decodeSockaddr, SOCKADDR_BYTES, type SocketAddress } from '../wire/sockaddr.ts';
import type { TcpKey } from '../wire/tcp-keys.ts';
import { LINGER_MS, lingerClosed } from './closer.ts';
import type { CopyCause, ZerocopyCounters } from './counters.ts';
import { isLocalAddress } from './local.ts';
import { forgetNaturalEnd, watchNaturalEnd } from './natural-end.ts';
import { TCP_THRESHOLD_BYTES, type ZerocopyMode, ZerocopyPolicy } from './policy.ts';
import { configureTcp, dialTcp } from './tcp-open.ts';
import { type Lenders, ZerocopyEngine } from './zerocopy.ts';

export interface TcpOptions {
  readonly mode: ZerocopyMode;
  readonly thresholdBytes?: number;
  readonly counters: ZerocopyCounters;
  /** Where pages are charged, if whoever lends has not charged them before. */
  readonly budget?: MemlockBudget;
  readonly noDelay?: boolean;
  readonly isUnix?: boolean;
  /**
   * Congestion control `reno` on 127/8 and ::1. A path inside this host has no bottleneck to find, and pacing it (bbr) costs
   * twice the CPU (docs/performance.md). Where the system does not allow reno, its default stays.
   */
  readonly unpacedLoopback?: boolean;
  /** Seconds idle, seconds between probes, and probes until a silent peer is dead. */
  readonly keepAlive?: { readonly idleS: number; readonly intervalS: number; readonly count: number };
  /** What signs the segments of connections that are dialled; accepted ones have the listener's. */
  readonly keys?: readonly TcpKey[];
  /** This side has closed the channel, in whatever way: it holds no connection any more. Once for each channel made. */
  readonly closed?: () => void;
}

export interface TcpHandler {
  /** The connection this side opened is established. */
  connected?(): void;
  /** Something may be read, or the end or an error is to be met by reading. */
  readable(): void;
  /** The send buffer has room again. */
  writable(): void;
  /** Zero-copy calls completed: acknowledgements came, too. */
  released(): void;
  /** Opening the connection failed. */
  failed?(error: ZerotxError): void;
}

const EAGAIN = -errnoOf('EAGAIN');
const EVENTS = EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLRDHUP;

export class TcpChannel {
  readonly remoteAddress: string;
  readonly remotePort: number;
  readable = false;
  writable = false;
  readonly #fd: number;
  readonly #sys: Native;
  readonly #engine: ZerocopyEngine;
  readonly #registration: Registration;
  readonly #onClosed: (() => void) | undefined;
  #handler: TcpHandler;
  #connecting: boolean;
  #closed = false;
  #finSent = false;
  #heldForExit = false;
  /** The peer's end, or an error, is to be met by reading on. */
  #ending = false;
  /** An event said error, and the error queue had nothing: reading tells. */
  #hasFailed = false;
  /** The connection was lost before anybody looked, by this: -errno, once what had come is read. */
  #lostBy = 0;
  /** A short read may leave something: TCP stops at urgent data, a Unix socket behind a message with descriptors. */
  #readsToEagain: boolean;
  #written = 0;
  #acked = 0;

  private constructor(
    fd: number,
    remote: { address: string; port: number },
    connecting: boolean,
    options: TcpOptions,
    handler: TcpHandler,
  ) {
    this.#sys = native();
    this.#fd = fd;
    this.remoteAddress = remote.address;
    this.remotePort = remote.port;
    this.#connecting = connecting;
    this.#readsToEagain = options.isUnix === true;
    this.#handler = handler;
    this.#onClosed = options.closed;
    const canLend = configureTcp(fd, options, remote.address);
    const policy = new ZerocopyPolicy({
      mode: canLend ? options.mode : 'off',
      thresholdBytes: options.thresholdBytes ?? TCP_THRESHOLD_BYTES,
      loopback: () => isLocalAddress(remote.address),
    });
    this.#engine = new ZerocopyEngine({
      sys: this.#sys,
      fd,
      policy,
      counters: options.counters,
      now: monotonicMs,
      ...(options.budget === undefined ? {} : { budget: options.budget }),
    });
    this.#registration = reactor().add(fd, EVENTS, (events) => this.#onEvents(events));
  }

  /**
   * Opens a connection from `local` (port 0: any) to `remote`; connected() or failed() follows. Link-local addresses have their
   * zone with them. Throws on a local failure.
   */
  static dial(
    local: { address: string; port: number },
    remote: { address: string; port: number },
    options: TcpOptions,
    handler: TcpHandler,
  ): TcpChannel {
    const fd = dialTcp(local, remote, options.keys);
    try {
      return new TcpChannel(fd, remote, true, options, handler);
    } catch (error) {
      native().close(fd);
      throw error;
    }
  }

  /** Takes over a descriptor whose connect(2) has begun; connected() or failed() follows. */
  static connecting(
    fd: number,
    remote: { address: string; port: number },
    options: TcpOptions,
    handler: TcpHandler,
  ): TcpChannel {
    return new TcpChannel(fd, remote, true, options, handler);
  }

  /** Takes over a descriptor that accept() returned. */
  static adopt(
    fd: number,
    remote: { address: string; port: number },
    options: TcpOptions,
    handler: TcpHandler,
  ): TcpChannel {
    return new TcpChannel(fd, remote, false, options, handler);
  }

  set handler(handler: TcpHandler) {
    this.#handler = handler;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** Address of this end. */
  get localEndpoint(): SocketAddress {
    const out = new Uint8Array(SOCKADDR_BYTES);
    const length = this.#sys.getsockname(this.#fd, out);
    return decodeSockaddr(out, Math.max(0, length));
  }

  get localPort(): number {
    return this.#closed ? 0 : this.localEndpoint.port;
  }

  /** Whether a lent piece of this size should be sent by sendLent() now. */
  lends(bytes: number): boolean {
    return this.#engine.why(bytes) === null;
  }

  /** Why a piece of this size should be sent by send() now; null: by sendLent(), `callBytesMax` at most in a call. */
  why(bytes: number): CopyCause | null {
    return this.#engine.why(bytes);
  }

  get callBytesMax(): number {
    return this.#engine.callBytesMax;
  }

  get lending(): boolean {
    return this.#engine.policy.lending;
  }

  /** Since when the oldest lent call waits for its completion, in milliseconds of performance.now(); undefined: none does. */
  get pinnedSinceMs(): number | undefined {
    return this.#engine.oldestSinceMs;
  }

  /** setsockopt(2); 0 or `-errno`. */
  setOption(level: number, name: number, value: number): number {
    return this.#closed ? 0 : this.#sys.setsockoptInt(this.#fd, level, name, value);
  }

  /** Lets the connection keep the event loop alive, as it does to begin with. */
  ref(): void {
    this.#heldForExit = false;
    forgetNaturalEnd(this);
    this.#registration.ref();
  }

  /** What is lent is waited for all the same when the process ends by itself. */
  unref(): void {
    watchNaturalEnd(this);
    this.#registration.unref();
  }

  /** The process would end now, and with it what the kernel has accepted: it waits until that is acknowledged. */
  holdForExit(): void {
    if (this.#closed || this.#heldForExit || this.#engine.outstanding === 0) return;
    this.#heldForExit = true;
    this.#registration.ref();
    setTimeout(() => {
      if (this.#heldForExit) this.#registration.unref();
    }, LINGER_MS).unref();
  }

  /** Ordinary sendmsg of the first `count` views. Bytes taken; 0 when the buffer is full; -errno when the connection is gone. */
  send(views: readonly Uint8Array[], count: number, more: boolean): number {
    return this.#sent(this.#sys.sendv(this.#fd, views, count, more ? MSG_MORE : 0));
  }

  /** sendmsg of lent views, from the caller's pages if the kernel agrees. Result as send(). */
  sendLent(lenders: Lenders, views: readonly Uint8Array[], count: number): number {
    return this.#sent(this.#engine.send(lenders, views, count, 0));
  }

  /** Counts bytes that went through send(), and belong to `ubuf` if that is not null. */
  copied(ubuf: Ubuf | null, bytes: number, cause: CopyCause = this.#engine.why(bytes) ?? 'threshold'): void {
    this.#engine.copied(ubuf, bytes, cause);
  }

  /** Bytes read; 0 at the end of the stream; -EAGAIN when there is nothing; another -errno when the connection is gone. */
  readv(views: readonly Uint8Array[], count: number): number {
    const n = this.#sys.readv(this.#fd, views, count);
    if (n === 0) {
      // Behind a FIN reads meet no error any more (SOCK_DONE, tcp_recvmsg): a reset that came after it is only seen here.
      const error = this.#sys.getsockoptInt(this.#fd, SOL_SOCKET, SO_ERROR);
      return error > 0 ? -error : this.#lostBy;
    }
    if (n === EAGAIN) {
      this.readable = false;
      this.#hasFailed = false;
    } else if (n > 0 && !this.#ending && !this.#hasFailed && !this.#readsToEagain) {
      // A short read emptied the buffer, and what comes later raises an edge of its own: that spares a call for EAGAIN.
      let room = 0;
      for (let i = 0; i < count; i++) room += (views[i] as Uint8Array).byteLength;
      if (n < room) this.readable = false;
    }
    return n;
  }

  /** Bytes of this connection that the peer's TCP has acknowledged, never too many. */
  ackedBytes(): number {
    if (!this.#closed) {
      const queued = this.#sys.outq(this.#fd);
      if (queued >= 0) {
        const data = this.#finSent && queued > 0 ? queued - 1 : queued;
        const acked = this.#written - data;
        if (acked > this.#acked) this.#acked = acked;
      }
    }
    return this.#acked;
  }

  /** Bytes that arrived and were not read yet. */
  unreadBytes(): number {
    return this.#closed ? 0 : Math.max(0, this.#sys.inq(this.#fd));
  }

  get writtenBytes(): number {
    return this.#written;
  }

  /** Zero-copy calls that the kernel still holds. */
  get outstanding(): number {
    return this.#engine.outstanding;
  }

  /** Sends FIN behind what was written. */
  shutdownWrite(): void {
    if (this.#closed || this.#finSent) return;
    this.#finSent = this.#sys.shutdown(this.#fd, SHUT_WR) === 0;
  }

  /**
   * Closes: what was written is still delivered, and lent pages stay lent until the kernel lets go (the descriptor goes
   * to the lingering closer). No handler is called afterwards; `ended`, when the last byte is back.
   */
  close(ended?: () => void, lingerMs?: number): void {
    this.#end('linger', ended, lingerMs);
  }

  /** Stops the wire at once (RST), and gives back what the kernel then releases. */
  reset(ended?: () => void): void {
    this.#end('abort', ended);
  }

  #end(how: 'linger' | 'abort', ended?: () => void, lingerMs?: number): void {
    if (this.#closed) return;
    this.ackedBytes();
    this.#closed = true;
    this.#registration.remove();
    forgetNaturalEnd(this);
    lingerClosed(this.#sys, this.#fd, this.#engine, how, ended, lingerMs);
    this.#onClosed?.();
  }

  #sent(n: number): number {
    if (n > 0) {
      this.#written += n;
      return n;
    }
    assert(n !== 0, 'a call without bytes');
    if (n !== EAGAIN) return n;
    this.writable = false;
    return 0;
  }

  #onEvents(events: number): void {
    if (this.#connecting && !this.#isConnected(events)) return;
    // The error queue first: a pending record raises EPOLLERR, and a real error is met by reading.
    const drained = (events & EPOLLERR) === 0 ? 0 : this.#engine.drain();
    if ((events & EPOLLERR) !== 0 && drained === 0) this.#hasFailed = true;
    if ((events & (EPOLLRDHUP | EPOLLHUP)) !== 0) this.#ending = true;
    if ((events & EPOLLPRI) !== 0) this.#readsToEagain = true;
    const reads = (events & (EPOLLIN | EPOLLPRI)) !== 0 || this.#ending || this.#hasFailed;
    const writes = (events & EPOLLOUT) !== 0 && !this.writable;
    const connected = this.#connecting;
    this.#connecting = false;
    if (reads) this.readable = true;
    if (writes) this.writable = true;
    try {
      if (drained > 0) this.#released();
      if (connected) this.#handler.connected?.();
      else if (writes && !this.#closed) this.#handler.writable();
    } finally {
      // Also when a listener threw: the edge is used up.
      if (reads && !this.#closed) this.#handler.readable();
    }
  }

  #released(): void {
    this.#handler.released();
    if (!this.#heldForExit || this.#engine.outstanding > 0) return;
    this.#heldForExit = false;
    this.#registration.unref();
  }

  /** What became of connect(2), as soon as an event tells. */
  #isConnected(events: number): boolean {
    const error = this.#sys.getsockoptInt(this.#fd, SOL_SOCKET, SO_ERROR);
    if (error === 0) return (events & EPOLLOUT) !== 0;
    if (this.unreadBytes() > 0) {
      // It was established, and what the peer's TCP takes for delivered is here.
      this.#lostBy = -error;
      this.#hasFailed = true;
      return true;
    }
    const { remoteAddress: address, remotePort: port } = this;
    this.close();
    this.#handler.failed?.(errnoError(error, 'connect', { address, port }));
    return false;
  }
}

/** Never set back, unlike the time of day. */
const monotonicMs = (): number => performance.now();
