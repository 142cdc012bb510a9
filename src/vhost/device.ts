/**
 * A vhost-user network device: plug a QEMU guest, DPDK's virtio-user or another driver side into it at a Unix socket, and
 * a switch or a link at the other side. Front-ends come and go; the device, as a port, stays.
 *
 *   front-end ══ socket ══ VhostServer ── Session ── NetDevice (one a connection) ──┐
 *                                                                                   ├── VhostUserDevice: a Port
 *   guest memory ══════════ rings ═══════════════════════════════════════════════════┘
 */
import { EventEmitter } from 'node:events';
import { checkInteger, wrongRange } from '../core/arguments.ts';
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
import type { Frontend } from './features.ts';
import { type DeviceCounters, deviceCounters, NetDevice } from './net-device.ts';
import { type Poller, poller } from './poller.ts';
import { Borrowers } from './selector.ts';
import { type ServerCounters, type ServerState, VhostServer } from './server.ts';

export interface VhostUserDeviceOptions {
  /** The Unix socket. */
  readonly path: string;
  /** `listen` (the default): QEMU connects, `-chardev socket,path=...`; `connect`: QEMU listens, `server=on`. */
  readonly role?: 'listen' | 'connect';
  /** Access rights of the socket file, 0o600 if left out. */
  readonly socketMode?: number;
  /** What the switch, logs and counters call it; the path if left out. */
  readonly name?: string;
  /** `qemu` (also for DPDK), or `uml` for User-Mode Linux, which reads its configuration from the device. */
  readonly frontend?: Frontend;
  /** Queue pairs, 1 if left out, at most 16; for User-Mode Linux 1, as its driver uses more only with a control queue. */
  readonly queues?: number;
  /** Longest packet without Ethernet header, 1500 if left out, 68 to 65,535. */
  readonly mtu?: number;
  /** For front-ends that take it from us: `02:00:00:00:00:01`, or a random one. */
  readonly mac?: string;
  /** OFFLOAD_ bits that are offered to the guest: all if left out, as switches and links do in software what a port lacks. */
  readonly offloads?: number;
  /** `auto`: lend to ports that take it. `off`: copy everything. */
  readonly zeroCopy?: 'auto' | 'off';
  /** A frame that is lent for longer is overtaken, and its borrower gets nothing more for a while: 5 ms. */
  readonly holdMs?: number;
  /** Frames of a ring that are lent at once: 128, and a quarter of the ring at most. */
  readonly lentMax?: number;
  /** Whether copied frames are returned to the guest before lent ones that came earlier. */
  readonly completion?: 'in-order' | 'copies-first';
  /** How long a ring that stops waits for what is lent: 1000 ms. */
  readonly drainMs?: number;
  /** Guest memory that one front-end may have us map: 64 GiB. */
  readonly regionBytesMax?: number;
}

/** What a device tells: `state` of its socket; `broken`, a ring whose driver did what no driver does; `failure` of a front-end. */
export interface VhostUserDeviceEvents {
  state: [state: ServerState];
  /** The guest's driver is ready, or no longer. */
  link: [up: boolean];
  broken: [ring: number, reason: string];
  failure: [error: Error];
}

export interface VhostUserDeviceStats extends PortCounters, ServerCounters {
  readonly state: ServerState;
  readonly up: boolean;
  /** Frames of the guest that are lent now. */
  readonly lentNow: number;
  readonly details: DeviceCounters;
}

const QUEUES_MAX = 16;

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
    const { queues = 1, mtu = 1500, frontend = 'qemu', offloads = OFFLOAD_ALL } = options;
    checkInteger('queues', queues, 1, QUEUES_MAX);
    if (frontend === 'uml' && queues > 1) throw wrongRange('queues', '1 for User-Mode Linux', queues);
    checkInteger('mtu', mtu, 68, 65_535);
    this.#options = options;
    this.path = options.path;
    this.name = options.name ?? options.path;
    this.#mac = options.mac === undefined ? randomMac() : parseMac(options.mac);
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
    const { zeroCopy, holdMs, lentMax, completion, drainMs = 1000 } = this.#options;
    const net: NetDevice = new NetDevice({
      port: this,
      sys: native(),
      reactor: reactor(),
      poller: this.#poller,
      details: this.#details,
      borrowers: this.#borrowers,
      takesPipes: this.#options.frontend === 'uml',
      pairs,
      mtu,
      mac: this.#mac,
      lends: zeroCopy !== 'off',
      copiesFirst: completion === 'copies-first',
      drainMs,
      ...(holdMs === undefined ? {} : { holdMs }),
      ...(lentMax === undefined ? {} : { lentMax }),
      now: () => performance.now(),
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

function randomMac(): Uint8Array {
  const mac = crypto.getRandomValues(new Uint8Array(6));
  // Locally administered, unicast.
  mac[0] = ((mac[0] as number) & 0xfc) | 0x02;
  return mac;
}

function parseMac(text: string): Uint8Array {
  if (!/^([0-9a-f]{2}:){5}[0-9a-f]{2}$/i.test(text))
    throw wrongRange('mac', 'six hexadecimal bytes with colons', text);
  return Uint8Array.from(text.split(':'), (byte) => Number.parseInt(byte, 16));
}
