/**
 * A front-end as a port: whatever is at the other end of the vhost-user socket becomes a port of a switch.
 *
 * Frames are copied into the shared memory, by one native call for a batch; frames that come are handed on where they
 * are. They go out on the first queue pair, so that they stay in order.
 */
import {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameTable,
  NOBODY,
  TAIL_COUNT,
  TAIL_START,
} from '../core/frames.ts';
import {
  type Capability,
  type FrameReceiver,
  type Port,
  type PortCounters,
  portCounters,
} from '../core/port.ts';
import type { Native } from '../sys/binding.ts';
import { createFrameTable } from '../sys/frame-table.ts';
import { VNET_HEADER_BYTES } from '../wire/virtio.ts';
import { writeVnetHeader } from '../wire/vnet.ts';
import type { FrontendBuffers } from './frontend-buffers.ts';
import type { ReceiveQueue } from './frontend-receive.ts';
import type { TransmitQueue } from './frontend-transmit.ts';

export interface FrontendPortOptions {
  readonly name: string;
  readonly sys: Native;
  readonly transmit: TransmitQueue;
  readonly receive: readonly ReceiveQueue[];
  readonly buffers: FrontendBuffers;
  readonly space: number;
  readonly isUp: () => boolean;
  /** `receiver` was set. */
  readonly onReceiver: () => void;
  readonly open: () => Promise<void>;
  readonly close: () => Promise<void>;
}

/** Before a back-end or the program says otherwise. */
export const MTU_DEFAULT = 1500;
/** Frames of one native call, and pieces of them. */
const BATCH_FRAMES = 64;
const BATCH_PIECES = 1024;

export class FrontendPort implements Port {
  readonly name: string;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  readonly #options: FrontendPortOptions;
  readonly #table: FrameTable;
  /** First buffer of each frame of the batch, and its bytes. */
  readonly #first = new Int32Array(BATCH_FRAMES);
  readonly #sent = portCounters();
  #capability: Capability;
  #receiver: FrameReceiver | null = null;
  /** send() took fewer than it was given. */
  #isFull = false;

  constructor(options: FrontendPortOptions) {
    this.name = options.name;
    this.#capability = capable(0, MTU_DEFAULT);
    this.#options = options;
    const dimensions = { frames: BATCH_FRAMES, segments: BATCH_PIECES, headBytes: VNET_HEADER_BYTES };
    this.#table = createFrameTable(dimensions, NOBODY);
    for (const queue of options.receive) queue.from = this;
  }

  get capability(): Capability {
    return this.#capability;
  }

  get counters(): PortCounters {
    const sum = { ...this.#sent };
    for (const { counters } of this.#options.receive) {
      sum.rxFrames += counters.frames - counters.dropped;
      sum.rxBytes += counters.bytes;
      sum.rxDropped += counters.dropped;
      sum.rxErrors += counters.errors;
    }
    return sum;
  }

  get receiver(): FrameReceiver | null {
    return this.#receiver;
  }

  set receiver(receiver: FrameReceiver | null) {
    this.#receiver = receiver;
    this.#options.onReceiver();
  }

  get isUp(): boolean {
    return this.#options.isUp();
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    let at = from;
    if (!this.isUp) {
      // As a cable without the other end.
      this.#sent.txDropped += count - at;
      return count;
    }
    while (at < count) {
      const stopped = this.#sendSome(table, which, at, count);
      if (stopped === at) {
        this.#isFull = true;
        break;
      }
      at = stopped;
    }
    this.#options.transmit.flush();
    return at;
  }

  resume(): void {
    for (const queue of this.#options.receive) queue.unblock();
  }

  open(): Promise<void> {
    return this.#options.open();
  }

  close(): Promise<void> {
    return this.#options.close();
  }

  /** A back-end came, that leaves these offloads (OFFLOAD_ bits) to be done by it; or it went. */
  changed(offloads: number, mtu: number): void {
    this.#capability = capable(offloads, mtu);
    this.onChange?.();
    if (this.isUp) this.madeRoom();
  }

  /** There is room again. */
  madeRoom(): void {
    if (!this.#isFull) return;
    this.#isFull = false;
    this.onWritable?.();
  }

  /** As many frames as one native call takes, and as there is room for; the position of the first that was not. */
  #sendSome(source: FrameTable, which: Uint32Array, from: number, count: number): number {
    const { transmit, sys } = this.#options;
    const target = this.#table;
    target.clear();
    let at = from;
    for (; at < count && target.count < BATCH_FRAMES; at++) {
      const frame = which[at] as number;
      const bytes = source.records[frame * FRAME_WORDS + FRAME_BYTES] as number;
      if (!transmit.fits(bytes)) {
        this.#sent.txErrors += 1;
        continue;
      }
      if (!this.#place(source, frame, bytes)) break;
    }
    if (target.count > 0) sys.framesDeliver(source.bytes, target.bytes, target.count);
    this.#submit(source);
    return at;
  }

  /** Adds a frame to the batch, with buffers; false: no room in one of them. */
  #place(source: FrameTable, frame: number, bytes: number): boolean {
    const { transmit, buffers, space } = this.#options;
    const target = this.#table;
    const { records, addresses, segments } = target;
    const total = VNET_HEADER_BYTES + bytes;
    const pieces = buffers.countFor(total);
    if (target.segmentCount + pieces > BATCH_PIECES) return false;
    const first = transmit.reserve(bytes);
    if (first < 0) return false;
    const index = target.addHead(VNET_HEADER_BYTES);
    writeVnetHeader(target.bytes, target.headAt(index), source, frame, 0);
    const start = target.segmentCount;
    buffers.segments(first, total, addresses, segments, start, space);
    target.segmentCount = start + pieces;
    const word = index * FRAME_WORDS;
    records[word + FRAME_SLOT] = frame;
    records[word + TAIL_START] = start;
    records[word + TAIL_COUNT] = pieces;
    this.#first[index] = first;
    return true;
  }

  #submit({ records: source }: FrameTable): void {
    const { transmit } = this.#options;
    const { records, count } = this.#table;
    for (let i = 0; i < count; i++) {
      const word = i * FRAME_WORDS;
      const bytes = source[(records[word + FRAME_SLOT] as number) * FRAME_WORDS + FRAME_BYTES] as number;
      const first = this.#first[i] as number;
      if (records[word + FRAME_STATUS] !== 0) {
        transmit.unreserve(first, bytes);
        this.#sent.txErrors += 1;
        continue;
      }
      transmit.submit(first, bytes);
      this.#sent.txFrames += 1;
      this.#sent.txBytes += bytes;
    }
  }
}

/** What is sent is copied into the shared memory. */
function capable(offloads: number, mtu: number): Capability {
  return { zeroCopy: 'never', thresholdBytes: Number.POSITIVE_INFINITY, offloads, mtu };
}
