/**
 * Frames that a port lends to the kernel in one call, and what the kernel needs until it is done with them.
 *
 * A frame's tail stays where it is and is held by its Ubuf. Its head, and what the port puts in front of it, have to stay,
 * too, while the table they came in goes back to its owner: so they are copied to a small table of the port's own, which
 * is in use until the last completion.
 *
 *   table of the batch   [ records | segments, copied | prefix and head, prefix and head, ... ]
 *   views                  head 0, tail 0, head 1, tail 1, ...          what a call carries, in this order
 *   lenders                batch,  Ubuf 0, batch,  Ubuf 1, ...          whose it is
 *
 * Several frames a call are worth the trouble: in one sendmsg(2) frames of 62 KB cost about half of what each costs in a call
 * of its own. More than 512 KiB share no completion anyway (msg_zerocopy_realloc).
 */
import { assert } from '../core/assert.ts';
import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  HEAD_BYTES,
  NOBODY,
  TAIL_COUNT,
  TAIL_START,
} from '../core/frames.ts';
import { releases } from '../core/releases.ts';
import { Ubuf } from '../core/ubuf.ts';
import { createFrameTable } from '../sys/frame-table.ts';

/** Frames and bytes of one batch. */
export const BATCH_FRAMES = 8;
export const BATCH_BYTES: number = 512 * 1024;
/** A guest's chain has 19 descriptors as a rule (MAX_SKB_FRAGS and 2). */
const BATCH_SEGMENTS = 256;
/** What a guest's head has, a prefix and a VLAN tag. */
const HEAD_BYTES_MAX = 384;

/** What a view is to the engine; changed as bytes are taken. */
interface View {
  byteLength: number;
}

export class LentBatch {
  readonly table: FrameTable;
  /** Positions are frames. */
  readonly which: Uint32Array = Uint32Array.from({ length: BATCH_FRAMES }, (_, i) => i);
  readonly views: View[] = [];
  readonly lenders: Ubuf[] = [];
  /** The first frame that is not taken yet, and how many of its bytes are. */
  at = 0;
  skipBytes = 0;
  /** Bytes of all frames. */
  bytes = 0;
  readonly #free: (batch: LentBatch) => void;

  constructor(free: (batch: LentBatch) => void) {
    const options = { frames: BATCH_FRAMES, segments: BATCH_SEGMENTS, headBytes: HEAD_BYTES_MAX };
    this.table = createFrameTable(options, NOBODY);
    this.#free = free;
    for (let i = 0; i < 2 * BATCH_FRAMES; i++) this.views.push({ byteLength: 0 });
  }

  get count(): number {
    return this.table.count;
  }

  /** Starts anew; end() must follow. */
  begin(): void {
    assert(this.lenders.length === 0, 'a batch that is in use');
    this.table.clear();
    this.at = 0;
    this.skipBytes = 0;
    this.bytes = 0;
    for (const view of this.views) view.byteLength = 0;
    this.lenders.push(new Ubuf([], () => this.#free(this), releases));
  }

  /** Whether there is room for the frame, with `prefixBytes` in front of it. */
  fits(from: FrameTable, frame: number, prefixBytes: number, bytesMax: number): boolean {
    const { table } = this;
    const record = frame * FRAME_WORDS;
    return (
      table.count < BATCH_FRAMES &&
      (from.records[record + HEAD_BYTES] as number) + prefixBytes <= HEAD_BYTES_MAX &&
      (from.records[record + TAIL_COUNT] as number) <= BATCH_SEGMENTS - table.segmentCount &&
      (this.bytes === 0 || this.bytes + (from.records[record + FRAME_BYTES] as number) <= bytesMax)
    );
  }

  /** Adds a frame that fits; its tail, if there is one, is held by `tail`, whose reference is ours from now on. */
  add(
    from: FrameTable,
    frame: number,
    prefix: Uint8Array,
    prefixAt: number,
    prefixBytes: number,
    tail: Ubuf | null,
  ): void {
    const { table } = this;
    const record = frame * FRAME_WORDS;
    const headAt = from.records[record + HEAD_AT] as number;
    const headBytes = from.records[record + HEAD_BYTES] as number;
    const tailBytes = (from.records[record + FRAME_BYTES] as number) - headBytes;
    const to = table.addHead(prefixBytes + headBytes);
    const at = table.headAt(to);
    copy(table.bytes, at, prefix, prefixAt, prefixBytes);
    copy(table.bytes, at + prefixBytes, from.bytes, headAt, headBytes);
    table.records[to * FRAME_WORDS + TAIL_START] = table.segmentCount;
    if (tail !== null) {
      const count = from.records[record + TAIL_COUNT] as number;
      this.#addSegments(from, from.records[record + TAIL_START] as number, count);
      table.records[to * FRAME_WORDS + TAIL_COUNT] = count;
      table.records[to * FRAME_WORDS + FRAME_BYTES] = prefixBytes + headBytes + tailBytes;
    }
    const batch = this.lenders[0] as Ubuf;
    if (to > 0) this.lenders.push(batch);
    this.lenders.push(tail ?? batch);
    (this.views[2 * to] as View).byteLength = prefixBytes + headBytes;
    (this.views[2 * to + 1] as View).byteLength = tail === null ? 0 : tailBytes;
    this.bytes += prefixBytes + headBytes + (tail === null ? 0 : tailBytes);
  }

  /** Bytes of frame `i`, with its prefix. */
  frameBytes(i: number): number {
    return this.table.records[i * FRAME_WORDS + FRAME_BYTES] as number;
  }

  /** The next `bytes` are taken, or are not to be sent. */
  advance(bytes: number): void {
    for (let left = bytes, i = 2 * this.at; left > 0; i++) {
      const view = this.views[i] as View;
      const part = Math.min(left, view.byteLength);
      view.byteLength -= part;
      left -= part;
    }
    this.skipBytes += bytes;
    while (this.at < this.count && this.skipBytes >= this.frameBytes(this.at)) {
      this.skipBytes -= this.frameBytes(this.at);
      this.at += 1;
    }
  }

  /** Nothing more of it is sent by whoever made it; what the kernel has, it keeps until it is done. */
  end(): void {
    const batch = this.lenders[0] as Ubuf;
    for (let i = 1; i < this.lenders.length; i++) {
      const tail = this.lenders[i] as Ubuf;
      if (tail !== batch) tail.unref();
    }
    this.lenders.length = 0;
    batch.unref();
  }

  #addSegments(from: FrameTable, start: number, count: number): void {
    const { table } = this;
    for (let i = start; i < start + count; i++) {
      const to = table.segmentCount++;
      table.addresses[2 * to] = from.addresses[2 * i] as number;
      table.segments[4 * to + 2] = from.segments[4 * i + 2] as number;
      table.segments[4 * to + 3] = from.segments[4 * i + 3] as number;
    }
  }
}

/** The batches of one socket, made as they are needed. */
export class LentBatches {
  readonly #free: LentBatch[] = [];
  readonly #max: number;
  #made = 0;

  constructor(max: number) {
    this.#max = max;
  }

  /** A batch that has begun; null: all are with the kernel, or there is no memory for another. */
  take(): LentBatch | null {
    const batch = this.#free.pop() ?? this.#make();
    batch?.begin();
    return batch;
  }

  /** Batches that are out. */
  get used(): number {
    return this.#made - this.#free.length;
  }

  #make(): LentBatch | null {
    if (this.#made === this.#max) return null;
    try {
      const batch = new LentBatch((released) => this.#free.push(released));
      this.#made += 1;
      return batch;
    } catch {
      return null;
    }
  }
}

/** Too few bytes for a view of them to pay. */
function copy(to: Uint8Array, at: number, from: Uint8Array, fromAt: number, bytes: number): void {
  if (bytes > 32) to.set(from.subarray(fromAt, fromAt + bytes), at);
  else for (let i = 0; i < bytes; i++) to[at + i] = from[fromAt + i] as number;
}
