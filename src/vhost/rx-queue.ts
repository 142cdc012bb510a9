/**
 * A receive queue that runs: frames from elsewhere go into the chains that the driver has posted, natively and with one copy.
 *
 * When the driver has posted too little, frames wait in a room of bounded size, copied: whoever sends must not wait for one guest
 * that does not read. What finds the room full is refused (a link then holds its own sender back, a switch drops and counts).
 */
import {
  FRAME_BYTES,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameOwner,
  FrameTable,
  frameTableBytes,
  HEAD_AT,
  HEAD_BYTES,
  TAIL_COUNT,
  TAIL_START,
} from '../core/frames.ts';
import type { Native } from '../sys/binding.ts';
import { createFrameTable } from '../sys/frame-table.ts';
import { type ChainCounters, ChainReader } from './chain.ts';
import type { MemoryLease } from './lease.ts';
import { type RingFeatures, type RingMemory, SplitQueue } from './queue.ts';
import { type RxCounters, RxFiller } from './rx.ts';
import type { RingStart } from './session-host.ts';
import { usedIndex } from './tx-queue.ts';

/** Frames that may wait, and bytes: a burst of a dozen full TSO frames. */
const ROOM_FRAMES = 256;
const ROOM_BYTES = 1024 * 1024;
/** Frames of one native call, and pieces of all their chains: 64 KiB in mergeable buffers of 1.5 KiB are 44. */
const BATCH_FRAMES = 64;
const BATCH_SEGMENTS = 4096;
const CHAIN_BYTES_MAX = 1024 * 1024;

export interface RxQueueOptions {
  readonly sys: Native;
  readonly features: RingFeatures;
  readonly headerBytes: number;
  readonly mergeable: boolean;
  /** OFFLOAD_ bits that the guest takes. */
  readonly offloads: number;
  readonly frameBytesMax: number;
  readonly counters: RxCounters;
  readonly chainCounters: ChainCounters;
  readonly signal: () => void;
  readonly onBroken: (reason: string) => void;
  /** A file of the guest's memory was truncated. */
  readonly onPoisoned: () => void;
}

export class RxQueue {
  readonly index: number;
  queue: SplitQueue;
  enabled: boolean;
  readonly #options: RxQueueOptions;
  readonly #sys: Native;
  readonly #table: FrameTable;
  readonly #room: WaitingRoom;
  #space: number;
  #filler: RxFiller;
  /** onBroken() was called. */
  #told = false;

  constructor(ring: RingStart, options: RxQueueOptions) {
    this.index = ring.index;
    this.enabled = ring.enabled;
    this.#options = options;
    this.#sys = options.sys;
    this.#space = ring.lease.space.id;
    this.#table = createFrameTable({ frames: BATCH_FRAMES, segments: BATCH_SEGMENTS, headBytes: 16 }, NOBODY);
    this.#room = new WaitingRoom();
    this.queue = new SplitQueue(
      ring.memory,
      ring.size,
      options.features,
      ring.base,
      usedIndex(ring.memory.used),
    );
    this.#filler = this.#makeFiller();
    // Kicks are of interest only to frames that wait.
    this.queue.disableNotifications();
  }

  moved(memory: RingMemory, lease: MemoryLease): void {
    const { size, lastAvail, usedIdx } = this.queue;
    this.#space = lease.space.id;
    this.queue = new SplitQueue(memory, size, this.#options.features, lastAvail, usedIdx);
    this.#filler = this.#makeFiller();
  }

  /** Frames that wait for chains. */
  get waiting(): number {
    return this.#room.count;
  }

  /** As Port.send(): where it stopped. What it took is with the guest, dropped and counted, or waiting. */
  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (!this.enabled) return count;
    let at = from;
    if (this.#flushRoom()) at = this.#fill(table, which, from, count);
    while (at < count && this.#room.add(table, which[at] as number)) at += 1;
    return at;
  }

  /** The driver has posted more, perhaps. True: there is room for frames again. */
  kicked(): boolean {
    return this.#flushRoom();
  }

  /** True: nobody waits. */
  #flushRoom(): boolean {
    const room = this.#room;
    if (room.count === 0) return true;
    if (!this.enabled) {
      room.clear();
      return true;
    }
    room.leave(this.#fill(room.table, room.which, room.first, room.table.count));
    return room.count === 0;
  }

  #fill(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const { queue } = this;
    let at = this.#filler.fill(table, which, from, count);
    // One more look after asking for a kick: the driver may have posted meanwhile without one.
    for (let looks = 0; at < count && looks < 2 && queue.enableNotifications(); looks++) {
      at = this.#filler.fill(table, which, at, count);
    }
    if (at === count) queue.disableNotifications();
    if (queue.publish()) this.#options.signal();
    if (queue.broken !== null) this.#broken(queue.broken);
    else if (this.#sys.spacePoisoned(this.#space) === 1) this.#options.onPoisoned();
    return at;
  }

  #broken(reason: string): void {
    if (this.#told) return;
    this.#told = true;
    this.#options.onBroken(reason);
  }

  #makeFiller(): RxFiller {
    const { sys, headerBytes, mergeable, offloads, frameBytesMax, counters, chainCounters } = this.#options;
    const space = this.#space;
    const chains = new ChainReader(
      this.queue,
      {
        writable: true,
        space,
        bytesMax: CHAIN_BYTES_MAX,
        readIndirect: (address, out) => (sys.spaceRead(space, address, out) === 0 ? out.length : -1),
      },
      chainCounters,
    );
    return new RxFiller(
      this.queue,
      chains,
      this.#table,
      {
        headerBytes,
        mergeable,
        offloads,
        frameBytesMax,
        deliver: (source, target, count) => sys.framesDeliver(source.bytes, target.bytes, count),
      },
      counters,
    );
  }
}

/** A table of which nothing can be lent: its frames are all head. */
const NOBODY: FrameOwner = { lend: () => null, gather: () => 0 };

/** Frames in a row, each copied behind the one before; when the last has left it begins anew. */
class WaitingRoom {
  readonly table: FrameTable;
  readonly which: Uint32Array = Uint32Array.from({ length: ROOM_FRAMES }, (_, i) => i);
  first = 0;
  readonly #start: number;
  #end: number;

  constructor() {
    // One slot of heads is the whole room: frames lie in it wherever there is place, as their records say.
    const options = { frames: ROOM_FRAMES, segments: 0, headBytes: ROOM_BYTES / ROOM_FRAMES };
    this.table = new FrameTable(new ArrayBuffer(frameTableBytes(options)), options, NOBODY);
    this.#start = this.table.headAt(0);
    this.#end = this.#start;
  }

  get count(): number {
    return this.table.count - this.first;
  }

  clear(): void {
    this.table.clear();
    this.first = 0;
    this.#end = this.#start;
  }

  /** The frames before `at` have left. */
  leave(at: number): void {
    this.first = at;
    if (this.count === 0) this.clear();
  }

  /** False: it is full. */
  add(source: FrameTable, frame: number): boolean {
    const { table } = this;
    const from = frame * FRAME_WORDS;
    const bytes = source.records[from + FRAME_BYTES] as number;
    const at = this.#end;
    if (table.count === ROOM_FRAMES || at + bytes > table.bytes.length) return false;
    const out = table.bytes.subarray(at, at + bytes);
    if (source.owner.gather(frame, out) !== bytes) return true; // its memory is gone: so is the frame
    const to = table.count * FRAME_WORDS;
    table.records.set(source.records.subarray(from, from + FRAME_WORDS), to);
    table.records[to + HEAD_AT] = at;
    table.records[to + HEAD_BYTES] = bytes;
    table.records[to + TAIL_START] = 0;
    table.records[to + TAIL_COUNT] = 0;
    table.records[to + FRAME_STATUS] = 0;
    table.count += 1;
    this.#end = at + bytes;
    return true;
  }
}
