/**
 * A transmit queue of the front-end: frames go out, chains come back.
 *
 *   send(bytes)            copied into buffers                ─┐
 *   sendBatch(set, n)      prepared frames, not copied         ├─▶ ring ──▶ back-end ──▶ poll(): completed
 *   reserve(), submit()    for the port, which copies natively ─┘
 *
 * What is known of a chain that is out is kept here by its head, in typed arrays: which buffers or which prepared frame it is, how
 * long, when it was given. No object is made per frame, but for those that wait for a promise.
 */
import { Deque } from '../core/deque.ts';
import { ZerotxError } from '../core/errors.ts';
import type { LatencyHistogram } from '../core/histogram.ts';
import { VNET_HEADER_BYTES } from '../wire/virtio.ts';
import type { FrontendBuffers } from './frontend-buffers.ts';
import type { FrameSet } from './frontend-frames.ts';
import type { FrontendRing } from './frontend-ring.ts';
import { type Vnet, writeVnet } from './frontend-vnet.ts';
import type { RingFeatures } from './queue.ts';

/** All count from the start. */
export interface TransmitCounters {
  /** Frames given to the back-end, and their bytes without header. */
  sent: number;
  sentBytes: number;
  /** Of these, come back. */
  completed: number;
  completedBytes: number;
}

/** Somebody waits for a chain to come back, or for room. */
interface Waiter {
  readonly bytes: Uint8Array;
  readonly vnet: Vnet | undefined;
  resolve(): void;
  reject(error: Error): void;
}

export interface TransmitOptions {
  readonly ring: FrontendRing;
  readonly buffers: FrontendBuffers;
  /** The shared memory. */
  readonly memory: Uint8Array;
  /** Pieces that an indirect table has room for. */
  readonly tableEntries: number;
  /** How long each frame was out, if that is to be known. */
  readonly latency: LatencyHistogram | null;
  /** Milliseconds with a fraction. */
  readonly now: () => number;
  /** The back-end broke the queue. */
  readonly onBroken: (reason: string) => void;
}

/** In place of a buffer: the chain is a prepared frame. */
const PREPARED = -1;
/** Of one copied frame: as many as a ring of any size may have. */
const PIECES_MAX = 1024;

export class TransmitQueue {
  readonly counters: TransmitCounters = { sent: 0, sentBytes: 0, completed: 0, completedBytes: 0 };
  readonly ring: FrontendRing;
  readonly latency: LatencyHistogram | null;
  /** Called by poll() when chains came back: there is room for those who send batches. */
  onCompleted: (() => void) | null = null;
  readonly #options: TransmitOptions;
  readonly #buffers: FrontendBuffers;
  readonly #memory: Uint8Array;
  /** By head: the first buffer or PREPARED; the frame's bytes; of prepared ones set and frame; when it was given. */
  readonly #first: Int32Array;
  readonly #bytes: Uint32Array;
  readonly #set: Uint16Array;
  readonly #frame: Uint32Array;
  readonly #sentMs: Float64Array;
  readonly #sets: FrameSet[] = [];
  readonly #addresses = new Float64Array(PIECES_MAX);
  readonly #lengths = new Uint32Array(PIECES_MAX);
  /** By head: those of sendFrame() that are out; and those that there is no room for yet. */
  readonly #awaited = new Map<number, Waiter>();
  readonly #waiting = new Deque<Waiter>();
  #piecesMax = 0;
  #indirect = false;
  /** Descriptors that reserve() has promised. */
  #promised = 0;
  #nowMs = 0;

  constructor(options: TransmitOptions) {
    const { size } = options.ring;
    this.#options = options;
    this.ring = options.ring;
    this.latency = options.latency;
    this.#buffers = options.buffers;
    this.#memory = options.memory;
    this.#first = new Int32Array(size);
    this.#bytes = new Uint32Array(size);
    this.#set = new Uint16Array(size);
    this.#frame = new Uint32Array(size);
    this.#sentMs = new Float64Array(size);
  }

  /** Before a back-end is told of a new ring. */
  begin(features: RingFeatures): void {
    const { tableEntries } = this.#options;
    this.#indirect = features.indirect && tableEntries > 1;
    this.#piecesMax = Math.min(PIECES_MAX, this.#indirect ? tableEntries : this.ring.size);
    this.ring.begin(features);
  }

  /** The back-end runs the ring. It may not know of what was in it before. */
  start(): void {
    this.ring.isRunning = true;
    if (this.outstanding > 0) this.ring.kick();
    this.#sendWaiting();
  }

  /** Free descriptors: frames of one piece that there is room for now. 0 while no back-end is there. */
  get room(): number {
    return this.ring.isRunning ? this.ring.queue.free - this.#promised : 0;
  }

  /** Frames that are out. */
  get outstanding(): number {
    return this.ring.queue.outstanding;
  }

  /** Copies a frame (from its destination address on) and sends it. False: no room, or no back-end. */
  send(bytes: Uint8Array, vnet?: Vnet): boolean {
    return this.#waiting.length === 0 && this.#sendNow(bytes, vnet) >= 0;
  }

  /** The same, waiting for room; resolves when the back-end has returned the frame's buffers, so is done with it. */
  sendFrame(bytes: Uint8Array, vnet?: Vnet): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ bytes, vnet, resolve, reject });
      if (this.#waiting.length === 1) this.#sendWaiting();
    });
  }

  /** Sends the next `count` frames of the set, which begins anew at its end; how many there was room for. */
  sendBatch(set: FrameSet, count: number): number {
    if (!this.ring.isRunning) return 0;
    const { ring } = this;
    const { addresses, lengths, pieces } = set;
    const index = this.#indexOf(set);
    if (this.latency !== null) this.#nowMs = this.#options.now();
    let frame = set.next;
    let sent = 0;
    while (sent < count) {
      const head = ring.add(addresses, lengths, frame * pieces, pieces, 0);
      if (head < 0) break;
      this.#first[head] = PREPARED;
      this.#bytes[head] = set.frameBytes;
      this.#set[head] = index;
      this.#frame[head] = frame;
      this.#sentMs[head] = this.#nowMs;
      frame += 1;
      if (frame === set.count) frame = 0;
      sent += 1;
    }
    set.next = frame;
    if (sent === 0) return 0;
    this.counters.sent += sent;
    this.counters.sentBytes += sent * set.frameBytes;
    ring.flush();
    return sent;
  }

  /** Takes back what the back-end is done with; how many. Those who wait for room have their turn. */
  poll(): number {
    const count = this.ring.isRunning ? this.#reap() : 0;
    if (count > 0) this.onCompleted?.();
    return count;
  }

  /** Buffers and descriptors for a frame of this size: the first buffer, or -1. To be submitted or given back. */
  reserve(frameBytes: number): number {
    const total = VNET_HEADER_BYTES + frameBytes;
    const pieces = this.#buffers.countFor(total);
    if (pieces > this.#piecesMax || this.#descriptors(pieces) > this.room) return -1;
    const first = this.#buffers.take(total);
    if (first >= 0) this.#promised += this.#descriptors(pieces);
    return first;
  }

  /** Whether a frame of this size can ever be sent. */
  fits(frameBytes: number): boolean {
    const pieces = this.#buffers.countFor(VNET_HEADER_BYTES + frameBytes);
    return pieces <= this.#piecesMax && pieces <= this.#buffers.count;
  }

  /** Gives back what reserve() took. */
  unreserve(first: number, frameBytes: number): void {
    this.#promised -= this.#descriptors(this.#buffers.countFor(VNET_HEADER_BYTES + frameBytes));
    this.#buffers.give(first);
  }

  /** Sends the frame in the buffers that reserve() took, with flush(). Its head. */
  submit(first: number, frameBytes: number): number {
    const total = VNET_HEADER_BYTES + frameBytes;
    const pieces = this.#buffers.pieces(first, total, this.#addresses, this.#lengths, 0);
    this.#promised -= this.#descriptors(pieces);
    const head = this.ring.add(this.#addresses, this.#lengths, 0, pieces, 0);
    if (head < 0) {
      this.#buffers.give(first);
      return -1;
    }
    this.#first[head] = first;
    this.#bytes[head] = frameBytes;
    if (this.latency !== null) this.#sentMs[head] = this.#options.now();
    this.counters.sent += 1;
    this.counters.sentBytes += frameBytes;
    return head;
  }

  flush(): void {
    this.ring.flush();
  }

  /** The back-end is gone: takes what it had returned. The rest is for the next one. */
  interrupt(): void {
    this.ring.isRunning = false;
    if (this.ring.queue.broken === null) this.#reap();
  }

  /** Before a new back-end is told of the ring: makes it say what is still to be sent. */
  resume(features: RingFeatures): void {
    const { ring } = this;
    if (ring.isIntact) {
      ring.counters.resubmitted += ring.queue.outstanding;
      return;
    }
    const heads = ring.outstanding();
    const chains = heads.map((head) => ({
      first: this.#first[head] as number,
      bytes: this.#bytes[head] as number,
      set: this.#sets[this.#set[head] as number],
      frame: this.#frame[head] as number,
      sentMs: this.#sentMs[head] as number,
      waiter: this.#awaited.get(head),
    }));
    this.#awaited.clear();
    ring.begin(features);
    for (const { first, bytes, set, frame, sentMs, waiter } of chains) {
      const head =
        first === PREPARED && set !== undefined
          ? ring.add(set.addresses, set.lengths, frame * set.pieces, set.pieces, 0)
          : this.#addCopy(first, bytes);
      this.#first[head] = first;
      this.#bytes[head] = bytes;
      this.#set[head] = set === undefined ? 0 : this.#sets.indexOf(set);
      this.#frame[head] = frame;
      this.#sentMs[head] = sentMs;
      if (waiter !== undefined) this.#awaited.set(head, waiter);
      ring.counters.resubmitted += 1;
    }
    ring.queue.publish();
  }

  /** Nothing comes back any more: whoever waits hears `error`. */
  end(error: Error): void {
    for (const { reject } of this.#awaited.values()) reject(error);
    this.#awaited.clear();
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift())
      next.reject(error);
  }

  #reap(): number {
    const { ring } = this;
    const count = ring.reap();
    if (count < 0) {
      this.#options.onBroken(ring.queue.broken as string);
      return 0;
    }
    if (count === 0) return 0;
    const { heads } = ring;
    let bytes = 0;
    for (let i = 0; i < count; i++) {
      const head = heads[i] as number;
      const first = this.#first[head] as number;
      if (first !== PREPARED) this.#buffers.give(first);
      bytes += this.#bytes[head] as number;
    }
    this.counters.completed += count;
    this.counters.completedBytes += bytes;
    if (this.latency !== null) this.#measure(this.latency, count);
    if (this.#awaited.size > 0) this.#resolve(count);
    if (this.#waiting.length > 0) this.#sendWaiting();
    return count;
  }

  #addCopy(first: number, frameBytes: number): number {
    const total = VNET_HEADER_BYTES + frameBytes;
    const pieces = this.#buffers.pieces(first, total, this.#addresses, this.#lengths, 0);
    return this.ring.add(this.#addresses, this.#lengths, 0, pieces, 0);
  }

  #sendNow(bytes: Uint8Array, vnet: Vnet | undefined): number {
    const first = this.reserve(bytes.length);
    if (first < 0) return -1;
    writeVnet(this.#memory, this.#buffers.offset(first), vnet);
    this.#buffers.write(first, VNET_HEADER_BYTES, bytes, this.#memory);
    const head = this.submit(first, bytes.length);
    this.flush();
    return head;
  }

  #sendWaiting(): void {
    // Before the first back-end nobody knows what fits.
    if (!this.ring.isRunning) return;
    for (let waiter = this.#waiting.shift(); waiter !== undefined; waiter = this.#waiting.shift()) {
      if (!this.fits(waiter.bytes.length)) {
        waiter.reject(tooLong(waiter.bytes.length));
        continue;
      }
      const head = this.#sendNow(waiter.bytes, waiter.vnet);
      if (head < 0) {
        this.#waiting.unshift(waiter);
        return;
      }
      this.#awaited.set(head, waiter);
    }
  }

  #resolve(count: number): void {
    const { heads } = this.ring;
    for (let i = 0; i < count; i++) {
      const head = heads[i] as number;
      const waiter = this.#awaited.get(head);
      if (waiter === undefined) continue;
      this.#awaited.delete(head);
      waiter.resolve();
    }
  }

  #measure(latency: LatencyHistogram, count: number): void {
    const nowMs = this.#options.now();
    const { heads } = this.ring;
    for (let i = 0; i < count; i++) {
      latency.record((nowMs - (this.#sentMs[heads[i] as number] as number)) * 1000);
    }
  }

  #indexOf(set: FrameSet): number {
    const { length } = this.#sets;
    if (length > 0 && this.#sets[length - 1] === set) return length - 1;
    const index = this.#sets.indexOf(set);
    return index >= 0 ? index : this.#sets.push(set) - 1;
  }

  #descriptors(pieces: number): number {
    return this.#indirect && pieces > 1 ? 1 : pieces;
  }
}

function tooLong(bytes: number): ZerotxError {
  return new ZerotxError('EMSGSIZE', `a frame of ${bytes} bytes is more than buffers and ring can hold`);
}
