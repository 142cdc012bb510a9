/**
 * A receive queue of the front-end: buffers are given to the back-end, frames come in them.
 *
 *   buffers ──▶ ring ──▶ back-end ──▶ poll(): used entries ──▶ frames ──▶ receiver(table) ──▶ buffers go back
 *                                        a frame spans num_buffers of them (MRG_RXBUF)    └▶ those lent: when released
 *
 * The table handed to the receiver has the first bytes of each frame as its head, the rest in the shared memory. Without
 * a receiver frames are counted and dropped, without a look at their bytes: what a benchmark's sink needs.
 *
 * num_buffers is in memory that the back-end may change: it is read once. A frame whose buffers have not all come waits for the
 * rest; one that says it has more than there are breaks the queue.
 */
import {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_VLAN,
  FRAME_WORDS,
  type FrameOwner,
  type FrameTable,
  HEAD_BYTES,
  TAIL_COUNT,
  TAIL_START,
} from '../core/frames.ts';
import type { FrameReceiver, Port } from '../core/port.ts';
import { releases } from '../core/releases.ts';
import { Ubuf } from '../core/ubuf.ts';
import type { Native } from '../sys/binding.ts';
import { createFrameTable } from '../sys/frame-table.ts';
import { VNET_HEADER_BYTES } from '../wire/virtio.ts';
import type { FrontendBuffers } from './frontend-buffers.ts';
import type { FrontendRing } from './frontend-ring.ts';
import type { RingFeatures } from './queue.ts';

/** All count from the start. */
export interface ReceiveCounters {
  /** Whole frames that came, and their bytes without header. */
  frames: number;
  bytes: number;
  /** Of these, with nobody to take them; and no frames at all: shorter than their header, or beyond any size. */
  dropped: number;
  errors: number;
}

export interface ReceiveOptions {
  readonly sys: Native;
  readonly ring: FrontendRing;
  readonly buffers: FrontendBuffers;
  readonly memory: Uint8Array;
  /** The space of the shared memory. */
  readonly space: number;
  readonly onBroken: (reason: string) => void;
  /** poll() is to be called soon. */
  readonly onWork: () => void;
}

/** What is copied of each frame as its head; the same as the device does. */
const HEAD_BYTES_MAX = 256;
/** Frames that a receiver gets at a time. */
const TABLE_FRAMES = 64;
const NUM_BUFFERS_AT = 10;
const FRAME_BYTES_MIN = 14;

export class ReceiveQueue implements FrameOwner {
  readonly counters: ReceiveCounters = { frames: 0, bytes: 0, dropped: 0, errors: 0 };
  readonly ring: FrontendRing;
  /** Gets the frames; without it they are dropped. */
  receiver: FrameReceiver | null = null;
  /** What the receiver is told they come from. */
  from: Port | null = null;
  readonly #options: ReceiveOptions;
  readonly #buffers: FrontendBuffers;
  readonly #table: FrameTable;
  readonly #mask: number;
  #isMergeable = false;
  /** By head: its buffer. */
  readonly #buffer: Uint32Array;
  /** Buffers that came and are not handled yet, and the bytes in them: rings, from `first` on. */
  readonly #came: Uint32Array;
  readonly #lengths: Uint32Array;
  #first = 0;
  #count = 0;
  /** By frame of the table, bad ones included: where its buffers begin in `came`, and their number; whether it is lent. */
  readonly #start = new Uint32Array(TABLE_FRAMES);
  readonly #spans = new Uint32Array(TABLE_FRAMES);
  readonly #lent = new Uint8Array(TABLE_FRAMES);
  #frames = 0;
  /** The receiver had no room: nothing more is offered before unblock(). */
  #isBlocked = false;
  /** The receiver is being called, and perhaps calls us: it has the table. */
  #isOffering = false;
  /** By buffer: it is with a borrower; and how many are. */
  readonly #isLent: Uint8Array;
  #lentBuffers = 0;
  #isClosed = false;
  readonly #address = new Float64Array(1);
  readonly #length = new Uint32Array(1);

  constructor(options: ReceiveOptions) {
    const { size } = options.ring;
    this.#options = options;
    this.ring = options.ring;
    this.#buffers = options.buffers;
    this.#mask = size - 1;
    this.#buffer = new Uint32Array(size);
    this.#came = new Uint32Array(size);
    this.#lengths = new Uint32Array(size);
    this.#isLent = new Uint8Array(options.buffers.count);
    this.#length[0] = options.buffers.bufferBytes;
    const dimensions = { frames: TABLE_FRAMES, segments: size, headBytes: HEAD_BYTES_MAX };
    this.#table = createFrameTable(dimensions, this);
  }

  /** Before a back-end is told of a new ring: gives it all buffers. */
  begin(features: RingFeatures, isMergeable: boolean): void {
    this.#isMergeable = isMergeable;
    this.#first = 0;
    this.#count = 0;
    this.ring.begin(features);
    for (let buffer = 0; buffer < this.#buffers.count; buffer++) this.#post(buffer);
    this.ring.queue.publish();
  }

  /** The back-end runs the ring. It may not know of what was in it before. */
  start(): void {
    this.ring.isRunning = true;
    this.ring.flush();
    this.ring.kick();
  }

  /** The back-end is gone: takes what it had returned. */
  interrupt(): void {
    this.ring.isRunning = false;
    if (this.ring.queue.broken === null) this.#take();
  }

  /** Before a new back-end is told of the ring: makes it say which buffers there are. */
  resume(features: RingFeatures): void {
    const { ring } = this;
    if (ring.isIntact) return;
    ring.begin(features);
    const elsewhere = this.#isLent.slice();
    for (let i = 0; i < this.#count; i++) elsewhere[this.#came[(this.#first + i) & this.#mask] as number] = 1;
    for (let buffer = 0; buffer < elsewhere.length; buffer++) if (elsewhere[buffer] === 0) this.#post(buffer);
    ring.queue.publish();
  }

  /** Takes what came and hands it on; how many frames. Buffers go back at once, but for those that are lent or wait. */
  poll(): number {
    return this.ring.isRunning ? this.#take() : 0;
  }

  /** The receiver has room again. From within the receiver: it is asked later. */
  unblock(): void {
    this.#isBlocked = false;
    if (this.#isOffering) this.#options.onWork();
    else this.poll();
  }

  lend(frame: number, _borrower: object): Ubuf | null {
    const { records } = this.#table;
    const at = frame * FRAME_WORDS;
    const slot = records[at + FRAME_SLOT] as number;
    const tail = (records[at + FRAME_BYTES] as number) - (records[at + HEAD_BYTES] as number);
    const spans = this.#spans[slot] as number;
    // The back-end keeps half of the buffers, whatever borrowers do.
    if (tail <= 0 || this.#lent[slot] === 1 || this.#lentBuffers + spans > this.#buffers.count >> 1)
      return null;
    const start = this.#start[slot] as number;
    const buffers = Uint32Array.from(
      { length: spans },
      (_, i) => this.#came[(start + i) & this.#mask] as number,
    );
    this.#lent[slot] = 1;
    for (const buffer of buffers) this.#isLent[buffer] = 1;
    this.#lentBuffers += spans;
    return new Ubuf([], () => this.#released(buffers), releases, null, tail);
  }

  gather(frame: number, out: Uint8Array): number {
    return this.#options.sys.framesGather(this.#table.bytes, frame, out);
  }

  /** The memory goes away: what is lent is not given to the ring any more. */
  end(): void {
    this.#isClosed = true;
    this.#count = 0;
  }

  #take(): number {
    const reaped = this.ring.reap();
    if (reaped < 0) {
      this.#options.onBroken(this.ring.queue.broken as string);
      return 0;
    }
    this.#keep(reaped);
    if (this.#count === 0 || this.#isBlocked || this.#isOffering) return 0;
    const frames = this.receiver === null ? this.#drop() : this.#offer(this.receiver);
    // The receiver may have closed the front-end.
    if (!this.#isClosed) this.ring.flush();
    return frames;
  }

  #released(buffers: Uint32Array): void {
    if (this.#isClosed) return;
    this.#lentBuffers -= buffers.length;
    for (const buffer of buffers) {
      this.#isLent[buffer] = 0;
      this.#post(buffer);
    }
    this.ring.flush();
  }

  #post(buffer: number): void {
    this.#address[0] = this.#buffers.address(buffer);
    const head = this.ring.add(this.#address, this.#length, 0, 0, 1);
    if (head >= 0) this.#buffer[head] = buffer;
  }

  /** Adds what reap() found to what is kept. */
  #keep(reaped: number): void {
    const { heads, lengths } = this.ring;
    let end = this.#first + this.#count;
    for (let i = 0; i < reaped; i++) {
      const at = end & this.#mask;
      this.#came[at] = this.#buffer[heads[i] as number] as number;
      this.#lengths[at] = lengths[i] as number;
      end += 1;
    }
    this.#count += reaped;
  }

  /** Buffers of the frame that begins `offset` buffers behind the first; 0: not all are here. */
  #spansAt(offset: number): number {
    if (!this.#isMergeable) return 1;
    const buffer = this.#came[(this.#first + offset) & this.#mask] as number;
    const at = this.#buffers.offset(buffer) + NUM_BUFFERS_AT;
    const { memory } = this.#options;
    const spans = (memory[at] as number) | ((memory[at + 1] as number) << 8);
    if (offset + spans <= this.#count) return Math.max(spans, 1);
    if (offset + spans > this.#count + this.ring.queue.outstanding) {
      this.ring.queue.broken ??= `a frame of ${spans} buffers`;
      this.#options.onBroken(this.ring.queue.broken);
    }
    return 0;
  }

  #drop(): number {
    let frames = 0;
    for (let spans = this.#spansAt(0); spans > 0; spans = this.#count > 0 ? this.#spansAt(0) : 0) {
      let bytes = -VNET_HEADER_BYTES;
      for (let i = 0; i < spans; i++) bytes += this.#lengths[(this.#first + i) & this.#mask] as number;
      if (bytes < FRAME_BYTES_MIN) this.counters.errors += 1;
      else {
        this.counters.frames += 1;
        this.counters.bytes += bytes;
        this.counters.dropped += 1;
        frames += 1;
      }
      this.#give(spans);
    }
    return frames;
  }

  #offer(receiver: FrameReceiver): number {
    const table = this.#table;
    let frames = 0;
    for (let isTaken = true; isTaken && this.#count > 0 && this.#fill() > 0; ) {
      table.count = this.#peek();
      // If the receiver throws, it has seen them all.
      let taken = table.count;
      try {
        if (taken > 0) taken = this.#call(receiver);
      } finally {
        if (!this.#isClosed) this.#settle(taken);
      }
      frames += taken;
      isTaken = taken === table.count && !this.#isClosed;
    }
    return frames;
  }

  #call(receiver: FrameReceiver): number {
    let isAll = true;
    // Set before, as the receiver may unblock itself meanwhile.
    this.#isBlocked = true;
    this.#isOffering = true;
    try {
      const taken = receiver(this.#table, this.from as Port);
      isAll = taken === this.#table.count;
      return taken;
    } finally {
      this.#isOffering = false;
      if (isAll) this.#isBlocked = false;
    }
  }

  /** Fills the table with as many frames as are here; how many, bad ones included. */
  #fill(): number {
    const table = this.#table;
    const { records, addresses, segments } = table;
    const { space } = this.#options;
    table.clear();
    let offset = 0;
    let frame = 0;
    while (frame < TABLE_FRAMES && offset < this.#count) {
      const spans = this.#spansAt(offset);
      if (spans === 0) break;
      for (let i = 0; i < spans; i++) {
        const at = (this.#first + offset + i) & this.#mask;
        const segment = offset + i;
        addresses[segment << 1] = this.#buffers.address(this.#came[at] as number);
        segments[(segment << 2) + 2] = this.#lengths[at] as number;
        segments[(segment << 2) + 3] = space;
      }
      const word = frame * FRAME_WORDS;
      records[word + TAIL_START] = offset;
      records[word + TAIL_COUNT] = spans;
      records[word + FRAME_SLOT] = frame;
      records[word + FRAME_VLAN] = 0;
      this.#start[frame] = this.#first + offset;
      this.#spans[frame] = spans;
      this.#lent[frame] = 0;
      offset += spans;
      frame += 1;
    }
    table.count = frame;
    table.segmentCount = offset;
    this.#frames = frame;
    return frame;
  }

  /** Copies the heads, and takes out of the table what is no frame; how many are left. */
  #peek(): number {
    const table = this.#table;
    const { records } = table;
    const all = this.#frames;
    const good = this.#options.sys.framesPeek(table.bytes, all, VNET_HEADER_BYTES, HEAD_BYTES_MAX);
    if (good === all) return all;
    let kept = 0;
    for (let i = 0; i < all; i++) {
      const word = i * FRAME_WORDS;
      if (records[word + FRAME_STATUS] !== 0) continue;
      if (kept !== i) records.copyWithin(kept * FRAME_WORDS, word, word + FRAME_WORDS);
      kept += 1;
    }
    return kept;
  }

  /** The first `taken` frames of the table are done with, and bad ones before the next. Their buffers go back. */
  #settle(taken: number): void {
    const table = this.#table;
    const { records } = table;
    const end = taken === table.count ? this.#frames : (records[taken * FRAME_WORDS + FRAME_SLOT] as number);
    for (let i = 0; i < taken; i++) {
      this.counters.bytes += records[i * FRAME_WORDS + FRAME_BYTES] as number;
    }
    this.counters.frames += taken;
    this.counters.errors += end - taken;
    for (let frame = 0; frame < end; frame++) {
      const spans = this.#spans[frame] as number;
      if (this.#lent[frame] === 1) this.#skip(spans);
      else this.#give(spans);
    }
  }

  /** The first `spans` buffers go back to the back-end. */
  #give(spans: number): void {
    for (let i = 0; i < spans; i++) this.#post(this.#came[(this.#first + i) & this.#mask] as number);
    this.#skip(spans);
  }

  #skip(spans: number): void {
    this.#first = (this.#first + spans) & this.#mask;
    this.#count -= spans;
  }
}
