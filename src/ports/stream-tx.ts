/**
 * The sending half of a stream of frames: what goes out on one connection, in order, each frame behind its length.
 *
 *   frames ──▶ runs ──▶ copied: one sendmsg(2) for many frames, straight from where they are
 *                 └───▶ lent:   up to eight large frames, with their heads in a batch (lent-batch.ts), flagged
 *
 * A stream takes as much as there is room for, and that may end in the middle of a frame. A frame that was begun must be
 * finished before anything else, so it counts as taken, and the rest of it is kept: of a copied frame the bytes,
 * of a lent one the batch that it is in. That is all that is ever kept; then send() takes nothing until the rest is out. It counts as
 * sent when the kernel has all of it, and as dropped if the connection ends before.
 *
 * A frame's memory can go away under it (its file was truncated). Not begun, it is dropped; begun, its rest is what can still
 * be read, and zeros, because the peer waits for that many bytes.
 */

import type { Clock } from '../core/clock.ts';
import { errnoOf } from '../core/errors.ts';
import type { FrameTable } from '../core/frames.ts';
import type { PortCounters } from '../core/port.ts';
import { processBudget } from '../net/budget.ts';
import type { ZerocopyCounters } from '../net/counters.ts';
import type { ZerocopyPolicy } from '../net/policy.ts';
import { type Sized, ZerocopyEngine } from '../net/zerocopy.ts';
import type { Native } from '../sys/binding.ts';
import { ETHERNET_BYTES } from '../wire/ethernet.ts';
import { FRAME_BYTES_MAX, STREAM_PREFIX_BYTES, writeStreamPrefix } from '../wire/stream-frame.ts';
import { VNET_HEADER_BYTES } from '../wire/virtio.ts';
import { writeVnetHeader } from '../wire/vnet.ts';
import type { LendChooser } from './chooser.ts';
import { type FrameEngine, frameBytes, isAllHead, STREAM_PAGES_MAX, wantsLending } from './lending.ts';
import { BATCH_BYTES, BATCH_FRAMES, type LentBatch, LentBatches } from './lent-batch.ts';

export interface SenderOptions {
  readonly sys: Native;
  readonly fd: number;
  readonly policy: ZerocopyPolicy;
  readonly zerocopy: ZerocopyCounters;
  /** Null: everything that may be lent is. */
  readonly chooser: LendChooser | null;
  readonly counters: PortCounters;
  readonly clock: Clock;
  /** A vnet header goes between length and frame. */
  readonly vnet: boolean;
  /** What FrameOwner.lend() is told. */
  readonly borrower: object;
  /** The connection is of no use any more: an errno. Called once, from inside. */
  readonly failed: (errno: number) => void;
}

const EAGAIN = -errnoOf('EAGAIN');
const EFAULT = -errnoOf('EFAULT');
const EINVAL = -errnoOf('EINVAL');

/** Ways for a frame to go. */
const COPY = 0;
const LEND = 1;
const DROP = 2;

/** Frames of one call that copies: as many pieces as the kernel takes, two a frame. */
const RUN_FRAMES = 256;
/** Batches with the kernel: at 512 KiB each, more than any send buffer holds; at a frame each, what two rings lend. */
const BATCHES_MAX = 256;
const REST_BYTES = STREAM_PREFIX_BYTES + VNET_HEADER_BYTES + FRAME_BYTES_MAX;
const NO_PREFIXES = new Uint8Array(0);

export class StreamSender {
  /** It sees how long views are; #sendBatch() knows what they stand for. */
  readonly engine: FrameEngine;
  readonly #options: SenderOptions;
  readonly #prefixBytes: number;
  #prefixes: Uint8Array;
  readonly #batches = new LentBatches(BATCHES_MAX);
  /** Being sent; it comes before anything else but #rest. */
  #batch: LentBatch | null = null;
  /** Of a frame that was begun, and the bytes of all of it. */
  #rest: Buffer | null = null;
  #restBytes = 0;
  readonly #restMemory: Buffer;
  /** The send buffer is full. */
  #isBlocked = false;
  #hasFailed = false;
  /** Where the run ends that #nextRun() found; and what it knows of the frame behind it. */
  #runEnd = 0;
  #carriedAt = -1;
  #carriedWay = COPY;
  /** The owner of the frames lends no more of them: for the rest of a send(). */
  #isRefused = false;

  constructor(options: SenderOptions) {
    this.#options = options;
    this.#prefixBytes = STREAM_PREFIX_BYTES + (options.vnet ? VNET_HEADER_BYTES : 0);
    this.#prefixes = new Uint8Array(RUN_FRAMES * this.#prefixBytes);
    this.#restMemory = Buffer.alloc(REST_BYTES);
    this.engine = new ZerocopyEngine<Sized>({
      sys: options.sys,
      fd: options.fd,
      policy: options.policy,
      counters: options.zerocopy,
      now: () => options.clock.now(),
      budget: processBudget(),
      call: (_views, _count, flags) => this.#sendBatch(flags),
    });
  }

  get isBlocked(): boolean {
    return this.#isBlocked;
  }

  /** As Port.send(). */
  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (count * this.#prefixBytes > this.#prefixes.length)
      this.#prefixes = new Uint8Array(2 * count * this.#prefixBytes);
    this.#carriedAt = -1;
    this.#isRefused = false;
    const { chooser, clock, counters } = this.#options;
    chooser?.look(clock.now(), counters.txBytes);
    let at = from;
    while (at < count && !this.#isBlocked && !this.#hasFailed) {
      const way = this.#nextRun(table, which, at, count);
      if (way === COPY) at = this.#copyRun(table, which, at, this.#runEnd);
      else if (way === LEND) at = this.#lendRun(table, which, at, this.#runEnd);
      else at = this.#drop(at, this.#runEnd);
    }
    return this.#hasFailed ? this.#drop(at, count) : at;
  }

  /** There is room: goes on with what was begun. */
  writable(): void {
    this.#isBlocked = false;
    this.#pump();
  }

  /** Gives up what was begun. What the kernel has is the engine's affair. */
  end(): void {
    this.#hasFailed = true;
    const batch = this.#batch;
    this.#drop(0, (this.#rest === null ? 0 : 1) + (batch === null ? 0 : batch.count - batch.at));
    this.#rest = null;
    this.#batch = null;
    batch?.end();
  }

  /** Finds how far frames from `at` on go the same way, which is returned, and writes their prefixes. */
  #nextRun(table: FrameTable, which: Uint32Array, at: number, count: number): number {
    const way = at === this.#carriedAt ? this.#carriedWay : this.#wayOf(table, which[at] as number);
    // Not more than are taken at once: each frame is decided about once.
    const limit = Math.min(count, at + (way === LEND ? BATCH_FRAMES : RUN_FRAMES));
    this.#write(table, which, at);
    let next = at + 1;
    for (; next < limit; next++) {
      const frame = which[next] as number;
      const joins = way === LEND && isAllHead(table, frame) && isJoining(frameBytes(table, frame));
      const its = joins ? LEND : this.#wayOf(table, frame);
      if (its !== way) {
        this.#carriedAt = next;
        this.#carriedWay = its;
        break;
      }
      this.#write(table, which, next);
    }
    this.#runEnd = next;
    return way;
  }

  #wayOf(table: FrameTable, frame: number): number {
    const bytes = frameBytes(table, frame);
    if (bytes < ETHERNET_BYTES || bytes > FRAME_BYTES_MAX) return DROP;
    if (this.#isRefused) return COPY;
    return wantsLending(table, frame, this.engine, this.#options.chooser, STREAM_PAGES_MAX) ? LEND : COPY;
  }

  /** Writes the prefix of the frame at position `at`. */
  #write(table: FrameTable, which: Uint32Array, at: number): void {
    const frame = which[at] as number;
    const bytes = frameBytes(table, frame);
    const to = at * this.#prefixBytes;
    writeStreamPrefix(this.#prefixes, to, this.#prefixBytes - STREAM_PREFIX_BYTES + bytes);
    if (this.#options.vnet) writeVnetHeader(this.#prefixes, to + STREAM_PREFIX_BYTES, table, frame);
  }

  /** Sends frames from where they are. Returns the position of the first that is not taken. */
  #copyRun(table: FrameTable, which: Uint32Array, from: number, end: number): number {
    const { sys, fd } = this.#options;
    const prefixBytes = this.#prefixBytes;
    let at = from;
    let skip = 0;
    while (at < end) {
      const n = sys.framesStream(fd, table.bytes, which, at, end, this.#prefixes, prefixBytes, skip, 0);
      if (n === EAGAIN) {
        this.#isBlocked = true;
        return skip > 0 ? this.#keepRest(table, which, at, skip) : at;
      }
      if (n === EFAULT || n === EINVAL) {
        at = this.#keepRest(table, which, at, skip);
        skip = 0;
        if (!this.#pumpRest()) return at;
        continue;
      }
      if (n <= 0) {
        this.#fail(n);
        return this.#drop(at, end);
      }
      skip += n;
      for (; at < end; at++) {
        const bytes = frameBytes(table, which[at] as number);
        if (skip < prefixBytes + bytes) break;
        skip -= prefixBytes + bytes;
        this.#sent(bytes);
      }
    }
    return at;
  }

  /** Keeps what is left of the frame at `at` after `skip` bytes; it is taken, or dropped if there is nothing to be had of it. */
  #keepRest(table: FrameTable, which: Uint32Array, at: number, skip: number): number {
    const frame = which[at] as number;
    const bytes = frameBytes(table, frame);
    const prefixAt = at * this.#prefixBytes;
    this.#restMemory.set(this.#prefixes.subarray(prefixAt, prefixAt + this.#prefixBytes));
    this.#gatherRest(table, frame, this.#prefixBytes, bytes, skip);
    return at + 1;
  }

  /** Copies a frame to behind the prefix in #restMemory, zeros where its memory has gone; it is lost if it was not begun. */
  #gatherRest(table: FrameTable, frame: number, prefixBytes: number, bytes: number, skip: number): void {
    const room = this.#restMemory.subarray(prefixBytes, prefixBytes + bytes);
    room.fill(0);
    const result = this.#options.sys.framesGather(table.bytes, frame, room);
    if (result < 0) this.#options.counters.txErrors += 1;
    if (result < 0 && skip === 0) return;
    this.#rest = this.#restMemory.subarray(skip, prefixBytes + bytes);
    // What is in a batch has its prefix with it.
    this.#restBytes = prefixBytes + bytes - this.#prefixBytes;
  }

  /**
   * Lends frames, as many as fit in a batch. Returns the position of the first that is not taken. Where the owner refuses, it does so
   * because too much is out already, which does not change before we return: what is left is then copied in runs, since a
   * call for each of them would cost twice as much (measured).
   */
  #lendRun(table: FrameTable, which: Uint32Array, from: number, end: number): number {
    const { engine } = this;
    const { borrower } = this.#options;
    const batch = this.#batches.take();
    if (batch === null) return this.#copyRun(table, which, from, end);
    const bytesMax = Math.min(BATCH_BYTES, engine.callBytesMax);
    const prefixBytes = this.#prefixBytes;
    let at = from;
    for (; at < end && batch.fits(table, which[at] as number, prefixBytes, bytesMax); at++) {
      const frame = which[at] as number;
      const tail = isAllHead(table, frame) ? null : table.owner.lend(frame, borrower);
      this.#isRefused = tail === null && !isAllHead(table, frame);
      if (this.#isRefused) break;
      batch.add(table, frame, this.#prefixes, at * prefixBytes, prefixBytes, tail);
    }
    if (at === from) {
      batch.end();
      return this.#copyRun(table, which, from, this.#isRefused ? end : from + 1);
    }
    this.#batch = batch;
    this.#pump();
    return at;
  }

  /** Sends what was begun. False: there is more, and no room; or the connection has failed. */
  #pump(): boolean {
    return this.#pumpRest() && this.#pumpBatch();
  }

  #pumpRest(): boolean {
    const { sys, fd } = this.#options;
    while (this.#rest !== null) {
      const n = sys.sendv(fd, [this.#rest], 1, 0);
      if (n <= 0) return this.#refused(n);
      this.#rest = n === this.#rest.length ? null : this.#rest.subarray(n);
      if (this.#rest === null) this.#sent(this.#restBytes);
    }
    return true;
  }

  #pumpBatch(): boolean {
    for (let batch = this.#batch; batch !== null; batch = this.#batch) {
      const n = this.engine.send(batch.lenders, batch.views, 2 * batch.count, 0);
      if (n === EFAULT || n === EINVAL) {
        // One of its frames has no pages to hold, and it is not said which: the next one is sent by copying.
        const bytes = batch.frameBytes(batch.at);
        this.engine.policy.refused('foreign');
        this.#gatherRest(batch.table, batch.at, 0, bytes, batch.skipBytes);
        batch.advance(bytes - batch.skipBytes);
      } else if (n <= 0) return this.#refused(n);
      else this.#advance(batch, n);
      if (batch.at === batch.count) {
        this.#batch = null;
        batch.end();
      }
      if (!this.#pumpRest()) return false;
    }
    return true;
  }

  #advance(batch: LentBatch, bytes: number): void {
    const first = batch.at;
    batch.advance(bytes);
    for (let i = first; i < batch.at; i++) this.#sent(batch.frameBytes(i) - this.#prefixBytes);
  }

  /** The engine's call. */
  #sendBatch(flags: number): number {
    const { sys, fd } = this.#options;
    const { table, which, at, count, skipBytes } = this.#batch as LentBatch;
    return sys.framesStream(fd, table.bytes, which, at, count, NO_PREFIXES, 0, skipBytes, flags);
  }

  #refused(n: number): false {
    if (n === EAGAIN) this.#isBlocked = true;
    else this.#fail(n);
    return false;
  }

  #fail(errno: number): void {
    if (this.#hasFailed) return;
    this.end();
    this.#options.failed(errno);
  }

  #sent(bytes: number): void {
    const { counters } = this.#options;
    counters.txFrames += 1;
    counters.txBytes += bytes;
  }

  #drop(from: number, to: number): number {
    this.#options.counters.txDropped += to - from;
    return to;
  }
}

/** A short frame behind lent ones goes with them: cheaper than a call of its own. */
function isJoining(bytes: number): boolean {
  return bytes >= ETHERNET_BYTES && bytes <= 256;
}
