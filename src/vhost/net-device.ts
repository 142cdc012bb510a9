/**
 * A virtio network device behind a vhost-user session: rings that run, the frames between them and whoever receives them, and
 * what was negotiated. The session's host to one side; to the other it does the work of a port (device.ts).
 *
 *   session ── startRing, stopRing, setKick, ... ──▶ NetDevice ── TxQueue ──▶ receiver: a switch, a link
 *                                                         └────── RxQueue ◀── send()
 *
 * Even rings receive, odd ones transmit; pair p has rings 2p and 2p + 1 (virtio 1.2, section 5.1.2). Frames to the guest go to the
 * pairs whose ring is enabled, by flow.
 */
import type { FrameTable } from '../core/frames.ts';
import { FRAME_BYTES, FRAME_WORDS } from '../core/frames.ts';
import type { Capability, Port } from '../core/port.ts';
import type { Native } from '../sys/binding.ts';
import type { Reactor } from '../sys/reactor.ts';
import { flowHash } from '../wire/flow.ts';
import {
  type Features,
  has,
  NO_FEATURES,
  VIRTIO_NET_CONFIG_BYTES,
  VIRTIO_NET_CONFIG_MAC_AT,
  VIRTIO_NET_CONFIG_MAX_PAIRS_AT,
  VIRTIO_NET_CONFIG_MTU_AT,
  VIRTIO_NET_CONFIG_STATUS_AT,
  VIRTIO_NET_F_MRG_RXBUF,
  VIRTIO_NET_S_LINK_UP,
} from '../wire/virtio.ts';
import type { After } from './after.ts';
import { type ChainCounters, chainCounters } from './chain.ts';
import { type Frontend, guestOffloads, ringFeatures, vnetHeaderBytes } from './features.ts';
import type { MemoryLease } from './lease.ts';
import { type LedgerCounters, ledgerCounters } from './ledger-counters.ts';
import type { Poller } from './poller.ts';
import { type RingMemory, SET_BACK } from './queue.ts';
import { RingFds, type SignalCounters } from './ring-fds.ts';
import { type RxCounters, rxCounters } from './rx.ts';
import { RxQueue } from './rx-queue.ts';
import type { Borrowers } from './selector.ts';
import type { Answer, RingStart, SessionHost } from './session-host.ts';
import { TxRing } from './tx-ring.ts';

/** How often a receive ring without kick descriptor is looked at while frames wait for it. */
const POLL_MS = 1;
/** The longest frame that is not segmented: its packet, the Ethernet header and a VLAN tag. */
const FRAME_OVERHEAD_BYTES = 18;

export interface NetDeviceOptions {
  /** What it is to whoever joins ports: has the receiver, the counters, and is told of changes. */
  readonly port: Port;
  readonly sys: Native;
  readonly reactor: Reactor;
  readonly poller: Poller;
  /** User-Mode Linux has sockets or pipes for call descriptors, and drivers that reset without a word. */
  readonly frontend: Frontend;
  /** Kept from one connection to the next. */
  readonly details: DeviceCounters;
  readonly borrowers: Borrowers;
  readonly pairs: number;
  readonly mtu: number;
  /** Six bytes, for front-ends that take it from us. */
  readonly mac: Uint8Array;
  readonly lends: boolean;
  readonly holdMs?: number;
  readonly lentMax?: number;
  readonly copiesFirst?: boolean;
  /** How long a ring that stops waits for what is lent. */
  readonly drainMs: number;
  readonly now: () => number;
  readonly after: After;
  /** What the configuration says of the link, to front-ends that read it. */
  readonly hasLink: () => boolean;
  /** Offloads, MTU, or whether frames can be given to the guest have changed. */
  readonly onLink: () => void;
  /** A ring is broken: by its index, and why. */
  readonly onBroken: (index: number, reason: string) => void;
  /** A file of the guest's memory was truncated: the front-end is to be closed. */
  readonly onPoisoned: () => void;
  /** SEND_RARP: announce this address. */
  readonly onRarp: (mac: Uint8Array) => void;
  /** The connection is over. */
  readonly onClosed: (error: Error | null) => void;
}

export interface DeviceCounters extends SignalCounters {
  readonly chains: ChainCounters;
  readonly ledger: LedgerCounters;
  readonly rx: RxCounters;
  ringsBroken: number;
}

export function deviceCounters(): DeviceCounters {
  return {
    signals: 0,
    kicks: 0,
    signalErrors: 0,
    ringsBroken: 0,
    chains: chainCounters(),
    ledger: ledgerCounters(),
    rx: rxCounters(),
  };
}

export class NetDevice implements SessionHost {
  readonly details: DeviceCounters;
  readonly #options: NetDeviceOptions;
  readonly #fds: readonly RingFds[];
  readonly #tx: (TxRing | null)[];
  readonly #rx: (RxQueue | null)[];
  /** Those of #rx that frames may go to. */
  #open: RxQueue[] = [];
  /** Of the timer that looks after receive rings that nobody kicks. */
  #cancelPoll: (() => void) | null = null;
  #features: Features = NO_FEATURES;
  #capability: Capability;
  #mtu: number;

  constructor(options: NetDeviceOptions) {
    this.#options = options;
    this.details = options.details;
    this.#mtu = options.mtu;
    this.#capability = this.#capable(0);
    const { sys, reactor, pairs } = options;
    this.#fds = Array.from({ length: 2 * pairs }, (_, index) => {
      return new RingFds(sys, reactor, this.details, options.frontend === 'uml', () => this.#kicked(index));
    });
    this.#tx = Array.from({ length: pairs }, () => null);
    this.#rx = Array.from({ length: pairs }, () => null);
  }

  // --- the port ---

  get capability(): Capability {
    return this.#capability;
  }

  /** A driver is there that frames can be given to. */
  get isUp(): boolean {
    return this.#open.length > 0;
  }

  get features(): Features {
    return this.#features;
  }

  /** Chains of the guest that are lent now. */
  get lent(): number {
    return this.#tx.reduce((sum, ring) => sum + (ring?.queue.ledger.lent ?? 0), 0);
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const open = this.#open;
    const only = open[0];
    if (only === undefined) {
      this.#options.port.counters.txDropped += count - from;
      return count;
    }
    const stopped =
      open.length === 1 ? only.send(table, which, from, count) : this.#spread(table, which, from, count);
    const { records } = table;
    let bytes = 0;
    for (let i = from; i < stopped; i++)
      bytes += records[(which[i] as number) * FRAME_WORDS + FRAME_BYTES] as number;
    this.#options.port.counters.txFrames += stopped - from;
    this.#options.port.counters.txBytes += bytes;
    this.#pollWaiting();
    return stopped;
  }

  /** Frames that wait for a driver that does not kick are offered again by the clock. */
  #pollWaiting(): void {
    if (this.#cancelPoll !== null) return;
    for (const rx of this.#open) {
      if (rx.waiting === 0 || !this.#ringFds(rx.index).isPolled) continue;
      this.#cancelPoll = this.#options.after(POLL_MS, () => this.#poll());
      return;
    }
  }

  #poll(): void {
    this.#cancelPoll = null;
    for (const rx of [...this.#open]) {
      if (rx.waiting > 0 && this.#ringFds(rx.index).isPolled) this.#kicked(rx.index);
    }
    this.#pollWaiting();
  }

  resume(): void {
    for (const ring of this.#tx) ring?.wake();
  }

  /** Frames of one flow go to one queue, in runs. */
  #spread(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const open = this.#open;
    let at = from;
    while (at < count) {
      const queue = flowHash(table, which[at] as number) % open.length;
      let end = at + 1;
      while (end < count && flowHash(table, which[end] as number) % open.length === queue) end += 1;
      const stopped = (open[queue] as RxQueue).send(table, which, at, end);
      if (stopped < end) return stopped;
      at = end;
    }
    return at;
  }

  // --- the session's host ---

  setFeatures(features: Features): number {
    this.#features = features;
    this.#changed();
    return 0;
  }

  startRing(ring: RingStart): void {
    const pair = ring.index >> 1;
    if ((ring.index & 1) === 1) this.#tx[pair] = this.#startTx(ring);
    else this.#rx[pair] = this.#startRx(ring);
    // The driver may have missed an interrupt of whoever had the ring before.
    this.#ringFds(ring.index).call();
    this.#reopen();
  }

  ringMoved(index: number, memory: RingMemory, lease: MemoryLease): void {
    const pair = index >> 1;
    if ((index & 1) === 1) this.#tx[pair]?.moved(memory, lease);
    else this.#rx[pair]?.moved(memory, lease);
  }

  stopRing(index: number): number | Promise<number> {
    const pair = index >> 1;
    if ((index & 1) === 0) {
      const rx = this.#rx[pair];
      this.#rx[pair] = null;
      this.#reopen();
      return rx?.queue.lastAvail ?? 0;
    }
    const tx = this.#tx[pair];
    if (tx === null || tx === undefined) return 0;
    const stopped = tx.stop();
    if (typeof stopped !== 'number') return stopped.then((base) => this.#stopped(pair, base));
    return this.#stopped(pair, stopped);
  }

  enableRing(index: number, on: boolean): Answer {
    const pair = index >> 1;
    if ((index & 1) === 1) return this.#tx[pair]?.enable(on) ?? 0;
    const rx = this.#rx[pair];
    if (rx !== null && rx !== undefined) rx.enabled = on;
    this.#reopen();
    return 0;
  }

  setKick(index: number, fd: number): number {
    const error = this.#ringFds(index).setKick(fd);
    if (error === 0) this.#kicked(index);
    return error;
  }

  setCall(index: number, fd: number): number {
    const fds = this.#ringFds(index);
    const error = fds.setCall(fd);
    if (error === 0 && this.#isRunning(index)) fds.call();
    return error;
  }

  setErr(index: number, fd: number): number {
    return this.#ringFds(index).setErr(fd);
  }

  setStatus(): void {
    // The rings say all there is to know: a driver that is ready starts them, one that resets stops them.
  }

  reset(): void {
    this.#features = NO_FEATURES;
    this.#changed();
  }

  sendRarp(mac: Uint8Array): number {
    this.#options.onRarp(mac);
    return 0;
  }

  setMtu(mtu: number): number {
    this.#mtu = mtu;
    this.#changed();
    return 0;
  }

  config(): Uint8Array {
    const config = new Uint8Array(VIRTIO_NET_CONFIG_BYTES);
    const view = new DataView(config.buffer);
    config.set(this.#options.mac, VIRTIO_NET_CONFIG_MAC_AT);
    view.setUint16(VIRTIO_NET_CONFIG_STATUS_AT, this.#options.hasLink() ? VIRTIO_NET_S_LINK_UP : 0, true);
    view.setUint16(VIRTIO_NET_CONFIG_MAX_PAIRS_AT, this.#options.pairs, true);
    view.setUint16(VIRTIO_NET_CONFIG_MTU_AT, this.#mtu, true);
    return config;
  }

  closed(error: Error | null): void {
    for (const [pair, tx] of this.#tx.entries()) {
      tx?.abandon();
      this.#tx[pair] = null;
      this.#rx[pair] = null;
    }
    for (const fds of this.#fds) fds.close();
    this.#open = [];
    this.#cancelPoll?.();
    this.#cancelPoll = null;
    this.#options.onClosed(error);
  }

  // --- inside ---

  #startTx(ring: RingStart): TxRing {
    const { sys, poller, lends, holdMs, lentMax, copiesFirst, drainMs, now } = this.#options;
    const fds = this.#ringFds(ring.index);
    return new TxRing(ring, {
      sys,
      poller,
      drainMs,
      now,
      lends,
      hasLink: this.#options.hasLink,
      ...(holdMs === undefined ? {} : { holdMs }),
      ...(lentMax === undefined ? {} : { lentMax }),
      ...(copiesFirst === undefined ? {} : { copiesFirst }),
      features: ringFeatures(this.#features),
      headerBytes: vnetHeaderBytes(this.#features),
      borrowers: this.#options.borrowers,
      counters: this.#options.port.counters,
      chainCounters: this.details.chains,
      ledgerCounters: this.details.ledger,
      fds,
      port: this.#options.port,
      onBroken: (reason) => this.#broken(ring.index, reason),
      onPoisoned: this.#options.onPoisoned,
    });
  }

  #startRx(ring: RingStart): RxQueue {
    const fds = this.#ringFds(ring.index);
    return new RxQueue(ring, {
      sys: this.#options.sys,
      features: ringFeatures(this.#features),
      headerBytes: vnetHeaderBytes(this.#features),
      mergeable: has(this.#features, VIRTIO_NET_F_MRG_RXBUF),
      offloads: guestOffloads(this.#features),
      frameBytesMax: this.#mtu + FRAME_OVERHEAD_BYTES,
      now: this.#options.now,
      counters: this.details.rx,
      chainCounters: this.details.chains,
      signal: () => fds.call(),
      onBroken: (reason) => this.#broken(ring.index, reason),
      onPoisoned: this.#options.onPoisoned,
    });
  }

  #stopped(pair: number, base: number): number {
    this.#tx[pair] = null;
    return base;
  }

  #kicked(index: number): void {
    const pair = index >> 1;
    if ((index & 1) === 1) {
      this.#tx[pair]?.wake();
      return;
    }
    if (this.#rx[pair]?.kicked() === true) this.#options.port.onWritable?.();
    else this.#pollWaiting();
  }

  #isRunning(index: number): boolean {
    return ((index & 1) === 1 ? this.#tx : this.#rx)[index >> 1] != null;
  }

  #ringFds(index: number): RingFds {
    const fds = this.#fds[index];
    if (fds === undefined) throw new RangeError(`ring ${index} of ${this.#fds.length}`);
    return fds;
  }

  #broken(index: number, reason: string): void {
    // A driver that goes away takes its buffers back (virtqueue_detach_unused_buf()); under User-Mode Linux before we hear of it: the
    // rings are disabled right after.
    if (reason === SET_BACK && this.#options.frontend === 'uml') return;
    this.details.ringsBroken += 1;
    this.#ringFds(index).broken();
    this.#options.onBroken(index, reason);
  }

  #reopen(): void {
    this.#open = this.#rx.filter((queue): queue is RxQueue => queue?.enabled === true);
    this.#options.onLink();
  }

  #changed(): void {
    this.#capability = this.#capable(guestOffloads(this.#features));
    this.#options.onLink();
  }

  /** A guest's memory takes a copy: nothing is ever lent to it. */
  #capable(offloads: number): Capability {
    return { zeroCopy: 'never', thresholdBytes: Number.POSITIVE_INFINITY, offloads, mtu: this.#mtu };
  }
}
