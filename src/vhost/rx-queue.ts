/**
 * A receive queue that runs: frames from elsewhere go into the chains that the driver has posted, natively and with one copy.
 *
 * When the driver has posted too little, frames wait in a room of bounded size, copied: whoever sends must not wait for one guest
 * that does not read. What finds the room full is refused (a link then holds its own sender back, a switch drops and counts).
 */
import { type FrameTable, NOBODY } from '../core/frames.ts';
import { WaitingRoom } from '../core/waiting-room.ts';
import type { Native } from '../sys/binding.ts';
import { createFrameTable } from '../sys/frame-table.ts';
import { type ChainCounters, ChainReader } from './chain.ts';
import type { MemoryLease } from './lease.ts';
import { type RingFeatures, type RingMemory, SplitQueue } from './queue.ts';
import { resumedQueue } from './resumed-queue.ts';
import { type RxCounters, RxFiller } from './rx.ts';
import type { RingStart } from './session-host.ts';

/** Frames that may wait, of 2 KiB on average: or sixteen full TSO frames. */
const ROOM_FRAMES = 512;
/** A frame that waits for longer while the driver posts chains is dropped. */
const WAIT_MS_MAX = 1000;
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
  readonly now: () => number;
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
  /** Since when the frame waits that is first in the room. */
  #waitingSinceMs = 0;
  /** onBroken() was called. */
  #told = false;

  constructor(ring: RingStart, options: RxQueueOptions) {
    this.index = ring.index;
    this.enabled = ring.enabled;
    this.#options = options;
    this.#sys = options.sys;
    this.#space = ring.lease.space.id;
    this.#table = createFrameTable({ frames: BATCH_FRAMES, segments: BATCH_SEGMENTS, headBytes: 16 }, NOBODY);
    this.#room = new WaitingRoom(ROOM_FRAMES);
    this.queue = resumedQueue(ring, options.features);
    this.#filler = this.#makeFiller();
    // Kicks are of interest only to frames that wait.
    this.queue.disableNotifications();
  }

  moved(memory: RingMemory, lease: MemoryLease): void {
    const { size, lastAvail, usedIdx, broken } = this.queue;
    this.#space = lease.space.id;
    this.queue = new SplitQueue(memory, size, this.#options.features, lastAvail, usedIdx);
    // Until it is stopped, wherever it is.
    this.queue.broken = broken;
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
    if (at < count && this.#room.count === 0) this.#waitingSinceMs = this.#options.now();
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
    const stopped = this.#fill(room.table, room.which, room.first, room.table.count);
    const nowMs = this.#options.now();
    if (stopped > room.first) this.#waitingSinceMs = nowMs;
    else if (nowMs - this.#waitingSinceMs > WAIT_MS_MAX) {
      // Whatever this driver posts, it is never enough for this frame: those behind it have waited long enough.
      this.#options.counters.droppedSize += 1;
      this.#waitingSinceMs = nowMs;
      room.leave(stopped + 1);
      return room.count === 0;
    }
    room.leave(stopped);
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
    // In this order: a ring whose memory is gone is all zeros, which breaks it, too.
    if (this.#sys.spacePoisoned(this.#space) === 1) this.#options.onPoisoned();
    else if (queue.broken !== null) this.#broken(queue.broken);
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
