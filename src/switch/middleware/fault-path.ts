/**
 * One direction of a faulty line: frames go in, and come out late, in another order, damaged, twice or not at all.
 *
 *   take() ─▶ lost? ─▶ twice? ─▶ damaged? ─▶ rate ─▶ delay ± jitter ─▶ held, by the time they are due ─▶ deliver()
 *
 * Order is kept whatever the jitter: a frame is not due before the one before it. Only those that reorderPercent picks are held for
 * reorderMs more, and overtaken meanwhile.
 *
 * Frames are kept, so they are copied to memory of our own: whoever lent them gets them back at once. The copy is one object a
 * frame, which a line that is slow on purpose can afford; what is held is bounded in bytes.
 *
 * Damage happens on the wire, so a frame whose checksum or segmentation is still to be done is made into what the wire would see
 * first: else its receiver would be given a sum that fits the damage.
 */
import { checkInteger, checkObject, wrongRange, wrongType } from '../../core/arguments.ts';
import type { Clock } from '../../core/clock.ts';
import {
  FRAME_BYTES,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameTable,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../core/frames.ts';
import { HostBatch } from '../../core/host-table.ts';
import { SoftwareOffload } from '../offload.ts';
import { VNET_ASKS } from '../vnet.ts';
import type { Prng } from './prng.ts';

export interface Faults {
  readonly lossPercent?: number;
  readonly duplicatePercent?: number;
  /** One bit of the frame, anywhere in it, is turned around. */
  readonly corruptPercent?: number;
  readonly delayMs?: number;
  /** The delay is up to so much longer or shorter. */
  readonly jitterMs?: number;
  readonly reorderPercent?: number;
  /** What those are held for beyond the others: 1 ms. */
  readonly reorderMs?: number;
  /** Of frames, from the destination address on; none: as fast as they come. */
  readonly bytesPerSecond?: number;
  /** What may wait for the rate: 256 KiB. Longer queues drop. */
  readonly queueBytes?: number;
  /** What may be held in all: 64 MiB. */
  readonly heldBytes?: number;
}

/** frames + duplicated + segments = lost + unreadable + overflowed + delivered + discarded + what is held. */
export interface FaultCounters {
  /** Frames that came in. */
  frames: number;
  lost: number;
  duplicated: number;
  corrupted: number;
  reordered: number;
  /** Frames that others were cut into, to damage one: so many more than there were. */
  segments: number;
  /** The owner of the frame could not copy it. */
  unreadable: number;
  /** No room in the queue, or too much held. */
  overflowed: number;
  delivered: number;
  /** Held when the port closed. */
  discarded: number;
}

interface Held {
  readonly bytes: Uint8Array;
  readonly flags: number;
  readonly gso: number;
  readonly csum: number;
  readonly dueMs: number;
}

const MINUTES_10 = 600_000;
const BYTES_MAX = 2 ** 40;
/** Taken from the front of the list only when so many have gone: each time costs a move of the rest. */
const COMPACT_AT = 256;

export class FaultPath {
  readonly counters: FaultCounters = {
    frames: 0,
    lost: 0,
    duplicated: 0,
    corrupted: 0,
    reordered: 0,
    segments: 0,
    unreadable: 0,
    overflowed: 0,
    delivered: 0,
    discarded: 0,
  };
  readonly #faults: Required<Faults>;
  readonly #clock: Clock;
  readonly #prng: Prng;
  /** Takes frames of the batch, from the first; how many. */
  readonly #deliver: (table: FrameTable) => number;
  readonly #batch = new HostBatch();
  #software: SoftwareOffload | null = null;
  /** By dueMs; those before #first have gone. */
  #held: Held[] = [];
  #first = 0;
  #heldBytes = 0;
  /** Of the last frame that was not held longer than others. */
  #lastDueMs = 0;
  /** When the line has sent what waits for the rate. */
  #freeMs = 0;
  #isFull = false;
  #isPumping = false;
  #timerMs = Number.POSITIVE_INFINITY;
  #cancelTimer: (() => void) | null = null;

  constructor(faults: Faults, clock: Clock, prng: Prng, deliver: (table: FrameTable) => number) {
    this.#faults = complete(faults);
    this.#clock = clock;
    this.#prng = prng;
    this.#deliver = deliver;
  }

  /** Frames that are held. */
  get held(): number {
    return this.#held.length - this.#first;
  }

  /** Takes a frame; pump() is to be called when the batch is through. */
  take(table: FrameTable, frame: number): void {
    const { lossPercent, duplicatePercent, corruptPercent } = this.#faults;
    this.counters.frames += 1;
    if (this.#prng.chance(lossPercent)) {
      this.counters.lost += 1;
      return;
    }
    const isTwice = this.#prng.chance(duplicatePercent);
    if (isTwice) this.counters.duplicated += 1;
    for (let copy = 0; copy < (isTwice ? 2 : 1); copy++) {
      if (this.#prng.chance(corruptPercent)) this.#takeDamaged(table, frame);
      else this.#hold(table, frame, -1);
    }
  }

  /** Delivers what is due, and sets the timer for what is not. */
  pump(): void {
    if (this.#isPumping || this.#isFull) return;
    this.#isPumping = true;
    try {
      while (this.#fillBatch() && this.#deliverBatch());
    } finally {
      this.#isPumping = false;
    }
    this.#setTimer();
  }

  /** Whoever takes the frames has room again. */
  wake(): void {
    this.#isFull = false;
    this.pump();
  }

  /** Drops what is held. */
  close(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    this.counters.discarded += this.held;
    this.#held = [];
    this.#first = 0;
    this.#heldBytes = 0;
  }

  #takeDamaged(table: FrameTable, frame: number): void {
    this.counters.corrupted += 1;
    const record = frame * FRAME_WORDS;
    if ((table.records[record + VNET_FLAGS]! & VNET_ASKS) !== 0) {
      this.#software ??= new SoftwareOffload();
      if (this.#software.begin(table, frame, 0, 0xffff) === null) {
        this.#takeSegments(this.#software);
        return;
      }
    }
    this.#hold(table, frame, this.#prng.below(table.records[record + FRAME_BYTES]! * 8));
  }

  /** Holds all that a frame was made into, and damages one of them. */
  #takeSegments(software: SoftwareOffload): void {
    this.counters.segments += software.unmade - 1;
    const victim = this.#prng.below(software.unmade);
    let index = 0;
    for (let isDone = false; !isDone; software.clear()) {
      isDone = software.fill();
      for (let made = 0; made < software.table.count; made++) {
        const bytes = software.table.records[made * FRAME_WORDS + FRAME_BYTES]!;
        this.#hold(software.table, made, index === victim ? this.#prng.below(bytes * 8) : -1);
        index += 1;
      }
    }
  }

  /** Copies a frame and decides when it is due. `bit`: which is turned around; -1: none. */
  #hold(table: FrameTable, frame: number, bit: number): void {
    const { records } = table;
    const record = frame * FRAME_WORDS;
    const frameBytes = records[record + FRAME_BYTES]!;
    const nowMs = this.#clock.now();
    const leaveMs = this.#leaveMs(frameBytes, nowMs);
    if (leaveMs < 0) {
      this.counters.overflowed += 1;
      return;
    }
    const bytes = new Uint8Array(frameBytes);
    if (records[record + FRAME_STATUS] !== 0 || table.owner.gather(frame, bytes) !== frameBytes) {
      this.counters.unreadable += 1;
      return;
    }
    if (bit >= 0) bytes[bit >>> 3]! ^= 1 << (bit & 7);
    const { delayMs, jitterMs, reorderPercent, reorderMs } = this.#faults;
    const jitter = jitterMs === 0 ? 0 : (this.#prng.next() * 2 - 1) * jitterMs;
    let dueMs = Math.max(this.#lastDueMs, leaveMs + Math.max(0, delayMs + jitter));
    this.#lastDueMs = dueMs;
    if (this.#prng.chance(reorderPercent)) {
      this.counters.reordered += 1;
      dueMs += reorderMs;
    }
    this.#insert({
      bytes,
      flags: records[record + VNET_FLAGS]!,
      gso: records[record + VNET_GSO]!,
      csum: records[record + VNET_CSUM]!,
      dueMs,
    });
  }

  /** When the last bit of a frame has left at the line's rate. -1: there is no room to wait in. */
  #leaveMs(frameBytes: number, nowMs: number): number {
    const { bytesPerSecond, queueBytes, heldBytes } = this.#faults;
    if (this.#heldBytes + frameBytes > heldBytes) return -1;
    if (bytesPerSecond === 0) return nowMs;
    const startMs = Math.max(nowMs, this.#freeMs);
    const waitingBytes = ((startMs - nowMs) * bytesPerSecond) / 1000;
    if (waitingBytes + frameBytes > queueBytes) return -1;
    this.#freeMs = startMs + (frameBytes * 1000) / bytesPerSecond;
    return this.#freeMs;
  }

  #insert(one: Held): void {
    const held = this.#held;
    let at = held.length;
    // From the end: most are due last.
    while (at > this.#first && held[at - 1]!.dueMs > one.dueMs) at -= 1;
    if (at === held.length) held.push(one);
    else held.splice(at, 0, one);
    this.#heldBytes += one.bytes.length;
  }

  /** Copies what is due into the batch. False: nothing is. */
  #fillBatch(): boolean {
    const { table } = this.#batch;
    this.#batch.clear();
    const nowMs = this.#clock.now();
    for (let i = this.#first; i < this.#held.length; i++) {
      const one = this.#held[i]!;
      if (one.dueMs > nowMs) break;
      const at = this.#batch.place(one.bytes.length);
      if (at < 0) break;
      table.bytes.set(one.bytes, at);
      const record = (table.count - 1) * FRAME_WORDS;
      table.records[record + VNET_FLAGS] = one.flags;
      table.records[record + VNET_GSO] = one.gso;
      table.records[record + VNET_CSUM] = one.csum;
    }
    return table.count > 0;
  }

  /** False: not all were taken, and there will be a wake(). */
  #deliverBatch(): boolean {
    const { table } = this.#batch;
    // Set before, as the wake() may come before deliver() has returned.
    this.#isFull = true;
    const taken = this.#deliver(table);
    for (let i = 0; i < taken; i++) this.#heldBytes -= this.#held[this.#first + i]?.bytes.length ?? 0;
    this.#first = Math.min(this.#first + taken, this.#held.length);
    if (this.#first >= COMPACT_AT || this.#first === this.#held.length) {
      this.#held.splice(0, this.#first);
      this.#first = 0;
    }
    this.counters.delivered += taken;
    if (taken === table.count) this.#isFull = false;
    return !this.#isFull;
  }

  #setTimer(): void {
    const next = this.#held[this.#first];
    if (next === undefined || this.#isFull) return;
    if (this.#cancelTimer !== null) {
      if (this.#timerMs <= next.dueMs) return;
      this.#cancelTimer();
    }
    this.#timerMs = next.dueMs;
    this.#cancelTimer = this.#clock.after(Math.max(0, next.dueMs - this.#clock.now()), () => {
      this.#cancelTimer = null;
      this.pump();
    });
  }
}

function complete(faults: Faults): Required<Faults> {
  checkObject('faults', faults);
  const percent = (name: keyof Faults): number => number(name, faults[name] ?? 0, 0, 100);
  const ms = (name: keyof Faults, otherwise: number): number =>
    number(name, faults[name] ?? otherwise, 0, MINUTES_10);
  const bytes = (name: keyof Faults, otherwise: number): number => {
    const value = faults[name] ?? otherwise;
    checkInteger(name, value, 0, BYTES_MAX);
    return value;
  };
  return {
    lossPercent: percent('lossPercent'),
    duplicatePercent: percent('duplicatePercent'),
    corruptPercent: percent('corruptPercent'),
    delayMs: ms('delayMs', 0),
    jitterMs: ms('jitterMs', 0),
    reorderPercent: percent('reorderPercent'),
    reorderMs: ms('reorderMs', 1),
    bytesPerSecond: bytes('bytesPerSecond', 0),
    queueBytes: bytes('queueBytes', 256 * 1024),
    heldBytes: bytes('heldBytes', 64 * 1024 * 1024),
  };
}

function number(name: string, value: unknown, min: number, max: number): number {
  if (typeof value !== 'number') throw wrongType(name, 'of type number', value);
  if (!(value >= min && value <= max)) throw wrongRange(name, `>= ${min} and <= ${max}`, value);
  return value;
}
