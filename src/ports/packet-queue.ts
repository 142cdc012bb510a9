/**
 * A descriptor that takes and gives whole frames: a tap's queue, a datagram socket. What ports over such descriptors have in
 * common: turns of reading, what the receiver does not take, and waiting for room.
 *
 *   reading   up to 8 batches a turn, then others have theirs; a frame with a status is dropped and counted
 *   writing   stops where there is no room (EAGAIN, ENOBUFS); any other error is the frame's own: dropped and counted
 *
 * Room again is an event after EAGAIN. After ENOBUFS it is not, as the descriptor is writable all the time: so a clock looks,
 * too. And the event is asked for only while it is waited for, since every packet that leaves would raise it.
 */

import type { Clock } from '../core/clock.ts';
import { errnoOf } from '../core/errors.ts';
import { FRAME_BYTES, FRAME_STATUS, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
import type { PortCounters } from '../core/port.ts';
import { EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT } from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { dropBad, dropFirst } from './receiving.ts';

export interface PacketQueueOptions {
  readonly fd: number;
  readonly clock: Clock;
  readonly counters: PortCounters;
  /** For what is read; null: nothing is. */
  readonly table: FrameTable | null;
  /** Reads frames into the table, from its first record on: their number, or `-errno`. */
  readonly read: () => number;
  /** Sends frames; returns the position where there was no room. Those before it have a FRAME_STATUS. */
  readonly write: (table: FrameTable, which: Uint32Array, from: number, count: number) => number;
  readonly handler: PacketQueueHandler;
}

export interface PacketQueueHandler {
  /** Offers frames; returns how many were taken, from the first. */
  deliver(table: FrameTable): number;
  /** There is room again. */
  writable(): void;
  /** An error event, or an error of reading (negative; 0 for the event): whether to go on with this descriptor. */
  error(errno: number): boolean;
}

const EAGAIN = -errnoOf('EAGAIN');
const BATCHES_PER_TURN = 8;
/** Between looks for room that no event tells of. */
const RETRY_MS = 1;

export class PacketQueue {
  readonly fd: number;
  readonly #options: PacketQueueOptions;
  #registration: Registration;
  #watchesRoom = false;
  #isReadable = false;
  /** The receiver did not take all. */
  #isHeld = false;
  /** There was no room. */
  #isBlocked = false;
  /** Frames taken since there was room last. */
  #progress = 0;
  #isClosed = false;
  #cancelTurn: (() => void) | null = null;
  #cancelRetry: (() => void) | null = null;

  /** Watches a descriptor, which stays the caller's; throws ENOSPC and ENOMEM. */
  constructor(options: PacketQueueOptions) {
    this.fd = options.fd;
    this.#options = options;
    this.#registration = this.#watch();
  }

  get isBlocked(): boolean {
    return this.#isBlocked;
  }

  /** Sends frames of 14 bytes or more; returns the position of the first that was not taken. */
  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    if (this.#isBlocked) return from;
    const stop = this.#options.write(table, which, from, count);
    const { counters } = this.#options;
    for (let i = from; i < stop; i++) {
      const record = (which[i] as number) * FRAME_WORDS;
      if ((table.records[record + FRAME_STATUS] as number) !== 0) counters.txErrors += 1;
      else {
        counters.txFrames += 1;
        counters.txBytes += table.records[record + FRAME_BYTES] as number;
      }
    }
    if (stop < from) return this.#drop(from, count);
    this.#progress += stop - from;
    if (stop < count) this.block();
    return stop;
  }

  /** There is no room: waits for it. */
  block(): void {
    this.#isBlocked = true;
    // Writable, and yet it took nothing: an event would come at once, and again and again.
    this.#watchRoom(this.#progress > 0);
    this.#progress = 0;
    this.#cancelRetry ??= this.#options.clock.after(RETRY_MS, () => this.#room());
  }

  /** The receiver takes frames again. */
  resume(): void {
    this.#isHeld = false;
    this.#later();
  }

  /** Stops events. The descriptor is not closed. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#registration.remove();
    this.#cancelTurn?.();
    this.#cancelRetry?.();
  }

  #watch(): Registration {
    const { table } = this.#options;
    const events = (table === null ? 0 : EPOLLIN) | (this.#watchesRoom ? EPOLLOUT : 0);
    return reactor().add(this.fd, events, (seen) => this.#onEvents(seen));
  }

  /** A new registration reports what is there, so nothing is missed in between. */
  #watchRoom(on: boolean): void {
    if (this.#watchesRoom === on) return;
    this.#watchesRoom = on;
    this.#registration.remove();
    this.#registration = this.#watch();
  }

  #onEvents(events: number): void {
    const { handler } = this.#options;
    if ((events & (EPOLLERR | EPOLLHUP)) !== 0 && !handler.error(0)) return;
    if ((events & EPOLLOUT) !== 0 && this.#isBlocked) this.#room();
    if ((events & EPOLLIN) === 0 || this.#isClosed) return;
    this.#isReadable = true;
    this.#turn();
  }

  #room(): void {
    this.#cancelRetry?.();
    this.#cancelRetry = null;
    if (!this.#isBlocked || this.#isClosed) return;
    this.#isBlocked = false;
    this.#options.handler.writable();
    if (!this.#isBlocked && !this.#isClosed) this.#watchRoom(false);
  }

  #turn(): void {
    this.#cancelTurn?.();
    this.#cancelTurn = null;
    const { table, read, handler } = this.#options;
    if (table === null) return;
    for (let batches = 0; this.#delivered(table) && this.#isReadable; batches++) {
      if (batches === BATCHES_PER_TURN) {
        this.#later();
        return;
      }
      table.clear();
      const n = read();
      if (n === EAGAIN) this.#isReadable = false;
      else if (n < 0 && !handler.error(n)) return;
      if (n > 0) this.#received(table, n);
    }
  }

  #received(table: FrameTable, count: number): void {
    table.count = count;
    this.#options.counters.rxErrors += dropBad(table);
  }

  /** Offers what was read; false: some of it is left, or this was closed meanwhile. */
  #delivered(table: FrameTable): boolean {
    if (this.#isHeld || this.#isClosed) return false;
    if (table.count === 0) return true;
    // Before the call: resume() may come from inside, and has then asked for another turn.
    this.#isHeld = true;
    const { count } = table;
    const taken = this.#options.handler.deliver(table);
    if (this.#isClosed) return false;
    dropFirst(table, taken);
    if (taken < count) return false;
    this.#isHeld = false;
    return true;
  }

  #later(): void {
    if (!this.#isClosed) this.#cancelTurn ??= this.#options.clock.soon(() => this.#turn());
  }

  /** The call itself was refused, which is a bug, or the descriptor is closed. */
  #drop(from: number, count: number): number {
    this.#options.counters.txErrors += count - from;
    return count;
  }
}
