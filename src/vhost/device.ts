/**
 * A vhost-user network device: plug a QEMU guest, DPDK's virtio-user or another driver side into it at a Unix socket, and
 * a switch or a link at the other side. Front-ends come and go; the device, as a port, stays.
 *
 *   front-end ══ socket ══ VhostServer ── Session ── NetDevice (one a connection) ──┐
 *                                                                                   ├── VhostUserDevice: a Port
 *   guest memory ══════════ rings ═══════════════════════════════════════════════════┘
 */
import { EventEmitter } from 'node:events';
import { ZerotxError } from '../core/errors.ts';
import type { FrameTable } from '../core/frames.ts';
import { createHostTable } from '../core/host-table.ts';
import {
  type Capability,
  type FrameReceiver,
  OFFLOAD_ALL,
  type Port,
  type PortCounters,
  portCounters,
} from '../core/port.ts';
import { releases } from '../core/releases.ts';
import { native } from '../sys/binding.ts';
import { requireSignals } from '../sys/fds.ts';
import { reactor } from '../sys/reactor.ts';
import { RARP_BYTES, writeRarp } from '../wire/rarp.ts';
import { realTime } from './after.ts';
import { checkDeviceOptions, type VhostUserDeviceOptions } from './device-options.ts';
import { macOption } from './mac.ts';
import { type DeviceCounters, deviceCounters, NetDevice } from './net-device.ts';
import { type Poller, poller } from './poller.ts';
import { Borrowers } from './selector.ts';
import { type ServerCounters, type ServerState, VhostServer } from './server.ts';

export interface VhostUserDeviceEvents {
  /** Of the socket. */
  state: [state: ServerState];
  /** The guest's driver is ready, or no longer. */
  link: [up: boolean];
  /** A driver did what no driver does: its ring rests until it is reset. Even rings receive, odd ones transmit. */
  broken: [ring: number, reason: string];
  /** The connection was ended for what the front-end did: EPROTO, EMFILE, ZTX_GUEST_MEMORY. */
  failure: [error: Error];
}

/** A copy: it does not go on counting. */
export interface VhostUserDeviceStats extends PortCounters, ServerCounters {
  readonly state: ServerState;
  /** isUp. */
  readonly up: boolean;
  /** Frames of the guest that are lent now. */
  readonly lentNow: number;
  /** Of the parts: chains that were refused, what became of those that were lent, frames for the guest, signals. */
  readonly details: DeviceCounters;
}

export class VhostUserDevice extends EventEmitter<VhostUserDeviceEvents> implements Port {
  readonly name: string;
  readonly path: string;
  readonly counters: PortCounters = portCounters();
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  readonly #options: VhostUserDeviceOptions;
  readonly #details: DeviceCounters = deviceCounters();
  readonly #borrowers = new Borrowers();
  readonly #server: VhostServer;
  readonly #poller: Poller;
  readonly #mac: Uint8Array;
  readonly #detached: Capability;
  #net: NetDevice | null = null;
  #wasUp = false;
  #hasLink = true;

  /** Throws ERR_OUT_OF_RANGE and ERR_INVALID_ARG_TYPE for options that are none. */
  constructor(options: VhostUserDeviceOptions) {
    super();
    checkDeviceOptions(options);
    const { queues = 1, mtu = 1500, frontend = 'qemu', offloads = OFFLOAD_ALL } = options;
    this.#options = options;
    this.path = options.path;
    this.name = options.name ?? options.path;
    this.#mac = macOption(options.mac);
    this.#poller = poller;
    this.#detached = { zeroCopy: 'never', thresholdBytes: Number.POSITIVE_INFINITY, offloads: 0, mtu };
    this.#server = new VhostServer({
      path: options.path,
      role: options.role ?? 'listen',
      offer: { frontend, pairs: queues, offloads },
      ...(options.socketMode === undefined ? {} : { socketMode: options.socketMode }),
      ...(options.regionBytesMax === undefined ? {} : { regionBytesMax: options.regionBytesMax }),
      connected: () => this.#connected(queues, mtu),
    });
    this.#server.onState = (state) => this.emit('state', state);
  }

  get state(): ServerState {
    return this.#server.state;
  }

  get isUp(): boolean {
    return this.#hasLink && this.#net?.isUp === true;
  }

  get capability(): Capability {
    return this.#net?.capability ?? this.#detached;
  }

  /**
   * Listens, or begins to connect. Rejects with what listening meets (EADDRINUSE, EACCES, ENOENT), and where guests cannot
   * be signalled (no asynchronous I/O in this kernel, or fs.aio-max-nr is used up).
   */
  open(): Promise<void> {
    try {
      requireSignals();
      this.#server.open();
      return Promise.resolve();
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Ends the connection and removes the socket. Guests of QEMU see their link go down, and come back to a device at the same path. */
  close(): Promise<void> {
    this.#server.close();
    return Promise.resolve();
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (this.#net !== null && this.#hasLink) return this.#net.send(table, which, from, count);
    this.counters.txDropped += count - from;
    return count;
  }

  resume(): void {
    this.#net?.resume();
  }

  /**
   * Pulls the cable, or puts it in. Only guests whose front-end reads the device's configuration see it (User-Mode Linux; QEMU keeps
   * its own, `set_link`); to the others frames just stop. Frames of the guest are dropped meanwhile, and so are those for it.
   */
  setLink(up: boolean): void {
    if (up === this.#hasLink) return;
    this.#hasLink = up;
    this.#server.session?.configChanged();
    this.#linkChanged();
  }

  stats(): VhostUserDeviceStats {
    return {
      ...this.counters,
      ...this.#server.counters,
      state: this.state,
      up: this.isUp,
      lentNow: this.#net?.lent ?? 0,
      details: structuredClone(this.#details),
    };
  }

  #connected(pairs: number, mtu: number): NetDevice {
    const { zerocopy, holdMs, lentMax, completion, drainMs = 1000 } = this.#options;
    const net: NetDevice = new NetDevice({
      port: this,
      sys: native(),
      reactor: reactor(),
      poller: this.#poller,
      details: this.#details,
      borrowers: this.#borrowers,
      frontend: this.#options.frontend ?? 'qemu',
      pairs,
      mtu,
      mac: this.#mac,
      lends: zerocopy !== 'off',
      copiesFirst: completion === 'copies-first',
      drainMs,
      ...(holdMs === undefined ? {} : { holdMs }),
      ...(lentMax === undefined ? {} : { lentMax }),
      now: () => performance.now(),
      after: realTime,
      hasLink: () => this.#hasLink,
      onLink: () => this.#linkChanged(),
      onBroken: (ring, reason) => this.emit('broken', ring, reason),
      onPoisoned: () => this.#poisoned(net),
      onRarp: (mac) => this.#announce(mac),
      onClosed: (error) => this.#gone(net, error),
    });
    this.#net = net;
    return net;
  }

  #gone(net: NetDevice, error: Error | null): void {
    if (this.#net !== net) return;
    this.#net = null;
    this.#linkChanged();
    if (error !== null) this.emit('failure', error);
  }

  #linkChanged(): void {
    const up = this.isUp;
    if (up !== this.#wasUp) {
      this.#wasUp = up;
      this.emit('link', up);
    }
    this.onChange?.();
    if (up) this.onWritable?.();
  }

  /** From within a turn: the connection is ended behind it. */
  #poisoned(net: NetDevice): void {
    releases.run(() => {
      const error = new ZerotxError('ZTX_GUEST_MEMORY', 'a file of guest memory was truncated under us');
      if (this.#net === net) this.#server.disconnect(error);
    });
  }

  #announce(mac: Uint8Array): void {
    const table = createHostTable(1, RARP_BYTES);
    table.addHead(RARP_BYTES);
    writeRarp(table.bytes, table.headAt(0), mac);
    this.receiver?.(table, this);
  }
}
