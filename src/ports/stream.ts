/**
 * A port over a byte stream, TCP or Unix: frames behind their lengths, as QEMU's `-netdev stream` and passt speak them.
 *
 *   const port = new StreamPort({ name: 'up', address: '192.0.2.7', port: 9000 });
 *
 * It listens, or it connects, and connects again when that ends: at once, then after 100 ms, 200 ms, ... 5 s until a
 * connection lasts for a second. It has one
 * connection at a time, as QEMU has; while there is one, others are closed as they come. Without one there is no carrier, and
 * what is sent is dropped.
 *
 * Over TCP large frames are lent to the kernel (stream-tx.ts); to this host, and over Unix sockets, everything is copied. A connection
 * whose peer does not confirm what was lent is reset when that is called back (recall()).
 * With `vnet` both ends have a vnet header before each frame, and offloads go through; passt and QEMU have none.
 */
import { isIP } from 'node:net';
import type { Clock } from '../core/clock.ts';
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import type { FrameTable } from '../core/frames.ts';
import {
  type Capability,
  type FrameReceiver,
  OFFLOAD_ALL,
  type Port,
  type PortCounters,
  portCounters,
} from '../core/port.ts';
import { LINGER_MS } from '../net/closer.ts';
import { type ZerocopyCounters, zerocopyCounters } from '../net/counters.ts';
import { type ZerocopyMode, ZerocopyPolicy } from '../net/policy.ts';
import { type Listener, listenTcp } from '../net/tcp-listener.ts';
import { native } from '../sys/binding.ts';
import { encodeSockaddrUn } from '../wire/sockaddr.ts';
import { resolveHost } from './address.ts';
import { LEND_BYTES_MIN, LendChooser, STREAM_BEGINS_BYTES } from './chooser.ts';
import { processCpuMs, systemClock } from './clock.ts';
import { POLICY_BYTES_MIN } from './lending.ts';
import { offer } from './receiving.ts';
import { type ConnectionHandler, StreamConnection } from './stream-connection.ts';
import { configureStream, dialStream, isPeerLocal } from './stream-socket.ts';

export interface StreamOptions {
  readonly name: string;
  /** Host (a name, or an IP address; 127.0.0.1 if left out) and port of TCP, or the path of a Unix socket. */
  readonly address?: string;
  readonly port?: number;
  readonly path?: string;
  /** Waits for the peer at this address; otherwise connects to it. */
  readonly listen?: boolean;
  /** A vnet header of 12 bytes before each frame, agreed upon with the peer: offloads go through. */
  readonly vnet?: boolean;
  /** Bytes of the longest packet: 65,535 if left out, as a stream has no limit of its own. */
  readonly mtu?: number;
  /** `auto` if left out: lend what is cheaper to lend and not slower, by measurement, from 8 KiB on. `force`: lend all frames of 1 KiB or more. */
  readonly zerocopy?: ZerocopyMode;
  /** SO_SNDBUF; the kernel's own tuning if left out. */
  readonly sendBufferBytes?: number;
  /** How long what was sent may take to be delivered after close(): 30 s at most, which is the default. */
  readonly lingerMs?: number;
  readonly clock?: Clock;
}

const EPROTO = errnoOf('EPROTO');
/** The longest IP packet. */
const MTU_MAX = 65_535;
const BACKOFF_MS_MIN = 100;
const BACKOFF_MS_MAX = 5000;
/** A connection that lasted so long was one: the next is tried at once. */
const STEADY_MS = 1000;
const BACKLOG = 4;

export class StreamPort implements Port, ConnectionHandler {
  readonly name: string;
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  /** Connections refused because there was one, or closed because of what the peer sent. */
  refusedConnections = 0;
  hostileConnections = 0;
  /** Why there is no connection: what connecting met last, or what the last connection ended with. Null: there is one, or no reason. */
  lastError: Error | null = null;
  readonly #options: StreamOptions;
  readonly #clock: Clock;
  readonly #counters: PortCounters = portCounters();
  readonly #zerocopy: ZerocopyCounters = zerocopyCounters();
  readonly #chooser: LendChooser | null;
  readonly #mode: ZerocopyMode;
  readonly #capability: Capability & { thresholdBytes: number };
  #listener: Listener | null = null;
  #connection: StreamConnection | null = null;
  /** With those that were closed, and do not have back yet all that they lent. */
  readonly #connections = new Set<StreamConnection>();
  #isUp = false;
  #isOpen = false;
  #isBlocked = false;
  #backoffMs = 0;
  #upSinceMs = 0;
  #cancelDial: (() => void) | null = null;

  /** Throws EINVAL without a port or a path, and ENAMETOOLONG. */
  constructor(options: StreamOptions) {
    const { path, port, zerocopy = 'auto', vnet, mtu } = options;
    if (path !== undefined) encodeSockaddrUn(path);
    else if (!(port !== undefined && port >= 0 && port <= 0xffff)) {
      throw new ZerotxError('EINVAL', `stream port ${options.name}: no port, and no path`);
    }
    this.name = options.name;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#mode = path === undefined ? zerocopy : 'off';
    this.#chooser = this.#mode === 'auto' ? new LendChooser(STREAM_BEGINS_BYTES, processCpuMs) : null;
    const lends = this.#mode !== 'off';
    this.#capability = {
      zeroCopy: lends ? 'large' : 'never',
      thresholdBytes: lends ? LEND_BYTES_MIN : Number.POSITIVE_INFINITY,
      offloads: vnet === true ? OFFLOAD_ALL : 0,
      mtu: mtu ?? MTU_MAX,
    };
  }

  get isUp(): boolean {
    return this.#isUp;
  }

  get capability(): Capability {
    if (this.#chooser !== null) this.#capability.thresholdBytes = this.#chooser.thresholdBytes;
    return this.#capability;
  }

  get counters(): PortCounters {
    this.#counters.txLentBytes = this.#zerocopy.lentBytes;
    this.#counters.txKernelCopiedBytes = this.#zerocopy.kernelCopiedBytes;
    return this.#counters;
  }

  /** What became of lent bytes, and why others were copied. */
  get zerocopy(): Readonly<ZerocopyCounters> {
    return this.#zerocopy;
  }

  /** The TCP port it listens on; 0 while it does not. */
  get listeningPort(): number {
    return this.#listener?.address?.port ?? 0;
  }

  /** Where it waits for its peer, as HOST:PORT or unix:PATH; null: it connects. */
  get listensAt(): string | null {
    const { listen, address = '127.0.0.1', port = 0, path } = this.#options;
    if (listen !== true) return null;
    if (path !== undefined) return `unix:${path}`;
    return `${isIP(address) === 6 ? `[${address}]` : address}:${this.listeningPort || port}`;
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (!this.#isUp) {
      this.#counters.txDropped += count - from;
      return count;
    }
    const taken = (this.#connection as StreamConnection).send(table, which, from, count);
    if (taken < count) this.#isBlocked = true;
    return taken;
  }

  resume(): void {
    this.#connection?.resume();
  }

  recall(): void {
    for (const connection of [...this.#connections]) connection.recall();
  }

  /** Listens, or begins to connect: a peer that is not there yet is no error. Throws what bind(2) and listen(2) refuse. */
  async open(): Promise<void> {
    if (this.#isOpen) return;
    this.#isOpen = true;
    const { listen, address = '127.0.0.1', port = 0, path } = this.#options;
    if (listen !== true) {
      this.#dial();
      return;
    }
    const where = path === undefined ? { address: await resolveHost(address), port } : { path };
    this.#listener = listenTcp({ ...where, backlog: BACKLOG }, (fd) => this.#accepted(fd));
  }

  async close(): Promise<void> {
    this.#isOpen = false;
    this.#listener?.close();
    this.#listener = null;
    this.#cancelDial?.();
    this.#cancelDial = null;
    this.#connection?.close();
    this.#gone();
  }

  // --- what a connection says ---

  up(): void {
    this.#isUp = true;
    this.lastError = null;
    this.#upSinceMs = this.#clock.now();
    this.onChange?.();
  }

  lost(connection: StreamConnection, errno: number): void {
    if (this.#connection !== connection) return;
    if (errno === EPROTO) {
      this.hostileConnections += 1;
      this.#counters.rxErrors += 1;
    }
    // A peer that accepts, and closes at once, is no better than one that is not there.
    const wasUp = this.#isUp;
    if (wasUp && this.#clock.now() - this.#upSinceMs >= STEADY_MS) this.#backoffMs = 0;
    this.lastError = errno === 0 ? null : errnoError(errno, wasUp ? 'recv' : 'connect');
    this.#gone();
    if (!wasUp) this.onChange?.();
    if (this.#isOpen && this.#listener === null) this.#dialLater();
  }

  ended(connection: StreamConnection): void {
    this.#connections.delete(connection);
  }

  deliver(table: FrameTable): number {
    return offer(this, this.#counters, table);
  }

  writable(): void {
    if (!this.#isBlocked) return;
    this.#isBlocked = false;
    this.onWritable?.();
  }

  // --- connections ---

  #gone(): void {
    this.#connection = null;
    if (!this.#isUp) return;
    this.#isUp = false;
    this.onChange?.();
    // Whoever waits for room hears that there is none to wait for.
    this.writable();
  }

  #accepted(fd: number): void {
    if (this.#connection !== null || !this.#isOpen) {
      this.refusedConnections += 1;
      native().close(fd);
      return;
    }
    this.#adopt(fd, false);
  }

  #dial(): void {
    this.#cancelDial = null;
    const { address = '127.0.0.1', port = 0, path } = this.#options;
    const dialled = (fd: number): void => {
      if (this.#isOpen && fd >= 0) this.#adopt(fd, true);
      else if (fd >= 0) native().close(fd);
      else later(errnoError(fd, 'connect'));
    };
    const later = (error: Error): void => {
      if (!this.#isOpen) return;
      this.lastError = error;
      this.onChange?.();
      this.#dialLater();
    };
    if (path !== undefined || isIP(address) !== 0) dialled(dialStream(path ?? null, address, port));
    else {
      resolveHost(address).then((ip) => dialled(dialStream(null, ip, port)), later);
    }
  }

  #dialLater(): void {
    if (!this.#isOpen) return;
    this.#cancelDial = this.#clock.after(this.#backoffMs, () => this.#dial());
    this.#backoffMs = Math.min(Math.max(2 * this.#backoffMs, BACKOFF_MS_MIN), BACKOFF_MS_MAX);
  }

  #adopt(fd: number, isConnecting: boolean): void {
    const { path, sendBufferBytes, vnet = false, lingerMs = LINGER_MS } = this.#options;
    const canLend = configureStream(fd, path !== undefined, sendBufferBytes);
    const policy = new ZerocopyPolicy({
      mode: canLend ? this.#mode : 'off',
      thresholdBytes: POLICY_BYTES_MIN,
      loopback: () => isPeerLocal(fd),
    });
    try {
      this.#connection = new StreamConnection({
        fd,
        isConnecting,
        vnet,
        policy,
        zerocopy: this.#zerocopy,
        chooser: this.#chooser,
        counters: this.#counters,
        clock: this.#clock,
        borrower: this,
        handler: this,
        lingerMs,
      });
    } catch {
      // Out of memory: the descriptor is closed.
      if (isConnecting) this.#dialLater();
      return;
    }
    this.#connections.add(this.#connection);
    if (!isConnecting) this.up();
  }
}
