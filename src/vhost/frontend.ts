/**
 * VhostUserFrontend: a network card for a Node program, made by whatever vhost-user back-end is at the other end of a Unix
 * socket: a switch, a packet processor, or the device of this package. What QEMU is for a guest, it is for the program,
 * as DPDK's virtio-user is for DPDK.
 *
 *   const nic = await VhostUserFrontend.connect({ path: '/run/switch.sock' });
 *   nic.on('frame', (frame) => console.log(frame.length));
 *   nic.send(frame);                               // false: no room
 *   await nic.sendFrame(frame);                    // waits for room; resolves when the back-end is done with it
 *   new Link(nic.port, otherPort, { clock });      // or as a port of a switch
 *
 * For measurements: nic.prepare() writes frames once, nic.tx.sendBatch(set, n) sends them again and again without a
 * copy, nic.poll() takes back what is done and what was received, and counters tell.
 *
 * Rings and frames are in memory of ours (frontend-memory.ts) that outlives the back-end: with `reconnect`, the next one
 * goes on where the last one stopped. A back-end that does not keep to the protocol, or writes nonsense into the rings, is
 * disconnected with an error that says what it did; it can harm nothing else.
 */
import { EventEmitter } from 'node:events';
import { wrongRange, wrongType } from '../core/arguments.ts';
import { errnoError, ZerotxError } from '../core/errors.ts';
import { FRAME_BYTES, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
import type { HistogramSnapshot } from '../core/histogram.ts';
import type { FrameReceiver, Port } from '../core/port.ts';
import { native } from '../sys/binding.ts';
import { requireSignals } from '../sys/fds.ts';
import { ETHERNET_BYTES } from '../wire/ethernet.ts';
import { has, NO_FEATURES, VHOST_USER_F_PROTOCOL_FEATURES } from '../wire/virtio.ts';
import { hostOffloads } from './features.ts';
import { FrameSet, type PrepareOptions } from './frontend-frames.ts';
import type { RequestLine } from './frontend-line.ts';
import { FrontendLink } from './frontend-link.ts';
import { FrontendMemory } from './frontend-memory.ts';
import {
  type FrontendSettings,
  frontendSettings,
  type VhostUserFrontendOptions,
} from './frontend-options.ts';
import { FrontendPort, MTU_DEFAULT } from './frontend-port.ts';
import {
  type Agreement,
  announce,
  bringUp,
  enableRings,
  leave,
  negotiate,
  restart,
  stop,
} from './frontend-protocol.ts';
import { FrontendQueues } from './frontend-queues.ts';
import type { ReceiveCounters, ReceiveQueue } from './frontend-receive.ts';
import type { RingCounters } from './frontend-ring.ts';
import type { TransmitCounters, TransmitQueue } from './frontend-transmit.ts';
import { readVnet, type Vnet } from './frontend-vnet.ts';

export interface VhostUserFrontendEvents {
  /** It listens at its socket. */
  listening: [];
  /** A back-end runs the rings; again after each reconnection. */
  connect: [];
  /** The back-end is gone, for this reason, and another one is waited for. */
  disconnect: [error: Error];
  /** A frame came: a copy of it, from the destination address on, and its header. */
  frame: [frame: Buffer, vnet: Required<Vnet>];
  /** It is over, for this reason; 'close' follows. */
  error: [error: Error];
  close: [];
}

/** One of each for every queue pair. */
export interface VhostUserFrontendStats {
  readonly connected: boolean;
  readonly transmit: readonly (TransmitCounters &
    RingCounters & {
      /** Frames that are out now. */
      readonly outstanding: number;
      /** How long they were out, with the option `latency`. */
      readonly latency: HistogramSnapshot | null;
    })[];
  readonly receive: readonly (ReceiveCounters & RingCounters)[];
}

export interface SendOptions {
  /** What is left for the back-end to do: a checksum, segmentation. */
  readonly vnet?: Vnet;
}

const NOT_AGREED: Agreement = {
  features: NO_FEATURES,
  protocolFeatures: NO_FEATURES,
  queuePairs: 0,
  mac: null,
  mtu: null,
};

export class VhostUserFrontend extends EventEmitter<VhostUserFrontendEvents> {
  /** As a port of a switch. Frames go out on the first queue pair. */
  readonly port: Port;
  readonly #settings: FrontendSettings;
  readonly #memory: FrontendMemory;
  readonly #queues: FrontendQueues;
  readonly #link: FrontendLink;
  readonly #port: FrontendPort;
  readonly #onAbort = (): void => this.destroy(new ZerotxError('ABORT_ERR', 'the front-end was aborted'));
  #agreement: Agreement = NOT_AGREED;
  #opening: { resolve(): void; reject(error: Error): void } | null = null;
  #isClosing = false;
  #isOver = false;

  /** A front-end that is connected. Rejects with what open() does, and then is closed. */
  static async connect(options: VhostUserFrontendOptions): Promise<VhostUserFrontend> {
    const frontend = new VhostUserFrontend(options);
    await frontend.open();
    return frontend;
  }

  /** Makes memory and rings, and connects to nobody yet. Throws ERR_... for wrong options, ENOMEM, EMFILE. */
  constructor(options: VhostUserFrontendOptions) {
    super();
    const settings = frontendSettings(options);
    const { queuePairs, queueSize, tableEntries, buffers, bufferBytes } = settings;
    requireSignals();
    const plan = { rings: 2 * queuePairs, size: queueSize, tableEntries, buffers, bufferBytes };
    const memory = new FrontendMemory({ ...plan, extraBytes: settings.memoryBytes });
    this.#settings = settings;
    this.#memory = memory;
    try {
      this.#queues = this.#makeQueues();
    } catch (error) {
      memory.close();
      throw error;
    }
    this.#port = this.#makePort();
    this.port = this.#port;
    this.#link = this.#makeLink();
    // They are events of every emitter, which its type does not say.
    const emitter = this as unknown as EventEmitter;
    emitter.on('newListener', (name) => name === 'frame' && this.#wire(true));
    emitter.on('removeListener', () => this.#wire(this.listenerCount('frame') > 0));
  }

  /** Queue pairs in use. */
  get queuePairs(): number {
    return this.#agreement.queuePairs;
  }

  /** What was agreed on with the back-end, the last one if none is there now. */
  get agreement(): Agreement {
    return this.#agreement;
  }

  /** One per queue pair that was asked for; those beyond `queuePairs` are idle. */
  get transmit(): readonly TransmitQueue[] {
    return this.#queues.transmit;
  }

  get receive(): readonly ReceiveQueue[] {
    return this.#queues.receive;
  }

  /** Of the first pair. */
  get tx(): TransmitQueue {
    return this.#queues.transmit[0] as TransmitQueue;
  }

  get rx(): ReceiveQueue {
    return this.#queues.receive[0] as ReceiveQueue;
  }

  /** Our address: the back-end's idea of it if it has one. */
  get mac(): Uint8Array {
    return this.#agreement.mac ?? this.#settings.mac;
  }

  get mtu(): number {
    return this.#agreement.mtu ?? MTU_DEFAULT;
  }

  /** Counters of all queues, as they stand. */
  stats(): VhostUserFrontendStats {
    return {
      connected: this.isConnected,
      transmit: this.transmit.map(({ counters, ring, outstanding, latency }) => ({
        ...counters,
        ...ring.counters,
        outstanding,
        latency: latency?.snapshot() ?? null,
      })),
      receive: this.receive.map(({ counters, ring }) => ({ ...counters, ...ring.counters })),
    };
  }

  /** A back-end runs the rings. */
  get isConnected(): boolean {
    return this.#link.isUp;
  }

  /**
   * Connects, or listens and waits for a back-end. Rejects with what the system says (ECONNREFUSED, ENOENT, EADDRINUSE), ETIMEDOUT
   * when the back-end does not answer, EPROTO when it answers nonsense, ECONNRESET when it hangs up, ZTX_REFUSED when it
   * refuses a request, ZTX_FEATURES when it lacks what is needed. With `reconnect` only the last ends it, and what listening
   * meets; everything else is tried again.
   */
  open(): Promise<void> {
    if (this.#isOver) return Promise.reject(new ZerotxError('ENOTCONN', 'the front-end is closed'));
    if (this.isConnected) return Promise.resolve();
    const { signal } = this.#settings;
    return new Promise((resolve, reject) => {
      const before = this.#opening;
      this.#opening = before === null ? { resolve, reject } : both(before, { resolve, reject });
      if (!this.#link.isClosed) return;
      signal?.addEventListener('abort', this.#onAbort, { once: true });
      if (signal?.aborted === true) return this.#onAbort();
      try {
        this.#link.open();
      } catch (error) {
        this.destroy(error as Error);
      }
    });
  }

  /** Writes frames into the shared memory (option memoryBytes), to be sent with tx.sendBatch(). They stay there. */
  prepare(options: PrepareOptions): FrameSet {
    return new FrameSet(this.#memory, options);
  }

  /**
   * Copies and sends a frame, from its destination address on, on the first pair. False: no room, no back-end, or too long for both.
   * Throws ERR_INVALID_ARG_TYPE for what is no Uint8Array, ERR_OUT_OF_RANGE for less than an Ethernet header.
   */
  send(frame: Uint8Array, options: SendOptions = {}): boolean {
    checkFrame(frame);
    return this.tx.send(frame, options.vnet);
  }

  /**
   * The same, waiting for room, and for a back-end; resolves when the back-end is done with the frame. `frame` is
   * copied then, and not to be changed before. Rejects when the front-end is closed; EMSGSIZE when it can never be sent; and with
   * what send() throws.
   */
  async sendFrame(frame: Uint8Array, options: SendOptions = {}): Promise<void> {
    checkFrame(frame);
    if (this.#isOver) throw new ZerotxError('ENOTCONN', 'the front-end is closed');
    await this.tx.sendFrame(frame, options.vnet);
  }

  /** Takes back what is done and what came; how many frames. Needed with `polled` alone, and harmless without. */
  poll(): number {
    return this.#queues.poll();
  }

  /**
   * GET_VRING_BASE for all rings, as when a virtual machine is paused: the indexes where they stopped. Rejects with ENOTCONN without a
   * back-end, and with ETIMEDOUT, EPROTO, ECONNRESET; so do the three requests that follow, and with ZTX_REFUSED.
   */
  async stopRings(): Promise<number[]> {
    const bases = await this.#link.run(stop(this.#queues.indexes));
    this.#queues.interrupt();
    return bases;
  }

  /** Starts them again, where they stopped. */
  async startRings(): Promise<void> {
    await this.#link.run(restart(this.#agreement, this.#queues.setUp(this.#agreement, false)));
    this.#queues.start();
    this.#port.madeRoom();
  }

  /**
   * SET_VRING_ENABLE for the rings of these pairs, all if left out: rings that are off lose what is sent, and get nothing.
   * Rejects with ENOTCONN without a back-end, and with EOPNOTSUPP where it has no protocol features.
   */
  async enableRings(on: boolean, pairs?: readonly number[]): Promise<void> {
    const { indexes } = this.#queues;
    if (!this.isConnected) throw new ZerotxError('ENOTCONN', 'no back-end runs the rings');
    if (!has(this.#agreement.features, VHOST_USER_F_PROTOCOL_FEATURES)) {
      throw new ZerotxError('EOPNOTSUPP', 'the back-end has no protocol features: its rings are always on');
    }
    const wanted = pairs === undefined ? indexes : indexes.filter((index) => pairs.includes(index >> 1));
    await this.#link.run(enableRings(this.#agreement, wanted, on));
  }

  /** Has the back-end announce our address, as after a migration. False: it cannot. */
  async announce(): Promise<boolean> {
    return await this.#link.run(announce(this.#agreement, this.mac));
  }

  /** Stops the rings, says goodbye and gives everything back. Frames that are not done are lost. */
  async close(): Promise<void> {
    if (this.#isOver) return;
    this.#isClosing = true;
    try {
      if (this.isConnected) await this.#link.run(leave(this.#agreement, this.#queues.indexes));
    } catch {
      // It is closed in any case.
    }
    this.destroy();
  }

  /** The same at once, without a word to the back-end. */
  destroy(error: Error | null = null): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#settings.signal?.removeEventListener('abort', this.#onAbort);
    this.#queues.interrupt();
    const reason = error ?? new ZerotxError('ECONNABORTED', 'the front-end was closed');
    this.#link.close(reason);
    this.#queues.end(reason);
    this.#memory.close();
    const opening = this.#opening;
    this.#opening = null;
    opening?.reject(reason);
    if (error !== null && opening === null) this.emit('error', error);
    this.emit('close');
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #makeQueues(): FrontendQueues {
    return new FrontendQueues({
      settings: this.#settings,
      memory: this.#memory,
      now: () => performance.now(),
      onBroken: (reason) => this.#link.fail(new ZerotxError('ZTX_RING', reason)),
      onCompleted: () => this.#port.madeRoom(),
    });
  }

  #makePort(): FrontendPort {
    const { transmit, receive, buffers } = this.#queues;
    return new FrontendPort({
      name: this.#settings.name,
      sys: native(),
      transmit: transmit[0] as TransmitQueue,
      receive,
      buffers: buffers[0] as (typeof buffers)[number],
      space: this.#memory.space.id,
      isUp: () => this.isConnected,
      onReceiver: () => this.#wire(this.listenerCount('frame') > 0),
      open: () => this.open(),
      close: () => this.close(),
    });
  }

  #makeLink(): FrontendLink {
    const { path, listen, socketMode, reconnect, retryMinMs, retryMaxMs, timeoutMs } = this.#settings;
    return new FrontendLink({
      path,
      listen,
      socketMode,
      reconnect,
      retryMinMs,
      retryMaxMs,
      timeoutMs,
      greet: (line) => this.#greet(line),
      listening: () => this.emit('listening'),
      up: () => this.#up(),
      lost: (error) => this.#lost(error),
      // What happens while saying goodbye is of no interest.
      failed: (error) => this.destroy(this.#isClosing ? null : error),
    });
  }

  async #greet(line: RequestLine): Promise<void> {
    const { features, protocolFeatures, queuePairs, bufferBytes, mtu } = this.#settings;
    const again = this.#agreement === NOT_AGREED ? null : this.#agreement;
    const wishes = { features, protocolFeatures, queuePairs, bufferBytes, mtu, again };
    const agreement = await line.run(negotiate(wishes));
    const { regions, fds } = this.#memory;
    await line.run(bringUp(agreement, { regions, fds }, this.#queues.setUp(agreement, again === null)));
    this.#agreement = agreement;
  }

  #up(): void {
    this.#queues.start();
    this.#opening?.resolve();
    this.#opening = null;
    this.emit('connect');
    this.#port.changed(hostOffloads(this.#agreement.features), this.mtu);
  }

  #lost(error: Error): void {
    this.#queues.interrupt();
    if (!this.#settings.reconnect || this.#isClosing) return;
    this.emit('disconnect', error);
    this.#port.changed(0, this.mtu);
  }

  /** Sends received frames to whoever is there: the port's receiver, listeners, both, or nobody. */
  #wire(hasListeners: boolean): void {
    const { receiver } = this.#port;
    const to = hasListeners
      ? (table: FrameTable, from: Port) => this.#emitFrames(table, from, receiver)
      : receiver;
    for (const queue of this.#queues.receive) queue.receiver = to;
  }

  #emitFrames(table: FrameTable, from: Port, receiver: FrameReceiver | null): number {
    const taken = receiver === null ? table.count : receiver(table, from);
    for (let i = 0; i < taken && !this.#isOver; i++) {
      const frame = Buffer.allocUnsafe(table.records[i * FRAME_WORDS + FRAME_BYTES] as number);
      const copied = table.owner.gather(i, frame);
      if (copied < 0) throw errnoError(copied, 'framesGather');
      this.emit('frame', frame, readVnet(table, i));
    }
    return taken;
  }
}

function checkFrame(frame: Uint8Array): void {
  if (!(frame instanceof Uint8Array)) throw wrongType('frame', 'an instance of Uint8Array', frame);
  const { length } = frame;
  if (length < ETHERNET_BYTES) throw wrongRange('frame.length', `>= ${ETHERNET_BYTES}`, length);
}

interface Settling {
  resolve(): void;
  reject(error: Error): void;
}

function both(a: Settling, b: Settling): Settling {
  return {
    resolve() {
      a.resolve();
      b.resolve();
    },
    reject(error) {
      a.reject(error);
      b.reject(error);
    },
  };
}
