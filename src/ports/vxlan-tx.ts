/**
 * The sending half of one socket of a VXLAN port: connected to a remote end, with an engine and a number sequence of its
 * own.
 *
 * Frames go out in batches (vxlan-runs.ts), which copies; a large one may be lent, in a call of its own, as each datagram
 * is a completion of its own. The kernel takes a datagram as a whole or not at all. A frame that was lent and finds no room
 * is ours already: it stays first in line, and nothing else is taken until it is out.
 *
 * MSG_MORE is never used: the kernel copies corked datagrams, flagged or not (ip_append_data).
 */

import type { Clock } from '../core/clock.ts';
import { errnoOf } from '../core/errors.ts';
import type { FrameTable } from '../core/frames.ts';
import type { PortCounters } from '../core/port.ts';
import { processBudget } from '../net/budget.ts';
import { lingerClosed } from '../net/closer.ts';
import type { ZerocopyCounters } from '../net/counters.ts';
import type { ZerocopyPolicy } from '../net/policy.ts';
import { ZerocopyEngine } from '../net/zerocopy.ts';
import type { Native } from '../sys/binding.ts';
import { SO_ERROR, SOL_SOCKET } from '../sys/constants.ts';
import { VXLAN_HEADER_BYTES } from '../wire/vxlan.ts';
import type { LendChooser } from './chooser.ts';
import { DATAGRAM_PAGES_MAX, type FrameEngine, wantsLending } from './lending.ts';
import { BATCH_BYTES, type LentBatch, LentBatches } from './lent-batch.ts';
import { PacketQueue, type PacketQueueHandler } from './packet-queue.ts';
import { DatagramRuns } from './vxlan-runs.ts';

export interface VxlanSenderOptions {
  readonly sys: Native;
  readonly fd: number;
  readonly clock: Clock;
  readonly counters: PortCounters;
  readonly policy: ZerocopyPolicy;
  readonly zerocopy: ZerocopyCounters;
  readonly chooser: LendChooser | null;
  /** What FrameOwner.lend() is told: the remote end. */
  readonly borrower: object;
  /** The VXLAN header again and again, for as many frames as are ever sent at once. */
  readonly headers: () => Uint8Array;
  /** As in RunsOptions. */
  readonly canCut: boolean;
  readonly onUncut: () => void;
  readonly writable: () => void;
}

const EAGAIN = -errnoOf('EAGAIN');
const ENOBUFS = -errnoOf('ENOBUFS');
const BATCHES_MAX = 64;
/** Completions raise events; this is for one that was lost, and costs nothing. */
const DRAIN_MS = 100;
const NO_PREFIXES = new Uint8Array(0);

export class VxlanSender implements PacketQueueHandler {
  readonly fd: number;
  readonly engine: FrameEngine;
  /** Errors that remote ends reported, such as ECONNREFUSED. */
  reported = 0;
  readonly #options: VxlanSenderOptions;
  readonly #queue: PacketQueue;
  readonly #batches = new LentBatches(BATCHES_MAX);
  #batch: LentBatch | null = null;
  #cancelDrain: (() => void) | null = null;
  #isClosed = false;

  /** The descriptor stays the caller's if it throws (ENOSPC, ENOMEM). */
  constructor(options: VxlanSenderOptions) {
    const { sys, fd, policy, zerocopy, clock, counters } = options;
    this.fd = fd;
    this.#options = options;
    this.engine = new ZerocopyEngine({
      sys,
      fd,
      policy,
      counters: zerocopy,
      now: () => clock.now(),
      budget: processBudget(),
      call: (_views, _count, flags) => this.#sendLent(flags),
    });
    const runs = new DatagramRuns({ ...options, prefixes: options.headers, prefixBytes: VXLAN_HEADER_BYTES });
    this.#queue = new PacketQueue({
      fd,
      clock,
      counters,
      table: null,
      read: () => EAGAIN,
      write: (table, which, from, count) => runs.write(table, which, from, count),
      handler: this,
    });
  }

  /** Sends frames of 14 bytes or more; returns the position of the first that was not taken. */
  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const { chooser, clock, counters } = this.#options;
    chooser?.look(clock.now(), counters.txBytes);
    let at = from;
    /** Too much is out already, and that does not change before we return. */
    let isRefused = false;
    while (at < count && !this.#queue.isBlocked) {
      let end = at;
      while (end < count && (isRefused || !this.#wants(table, which[end] as number, chooser))) end += 1;
      if (end > at) at = this.#queue.send(table, which, at, end);
      if (at < end || end === count) continue;
      at = this.#lend(table, which, end);
      isRefused = at === end;
    }
    if (this.engine.outstanding > 0) this.#watchCompletions();
    return at;
  }

  /** Sends one frame without lending it: a flood lends nothing to several. */
  sendCopied(table: FrameTable, which: Uint32Array, at: number): boolean {
    return this.#queue.send(table, which, at, at + 1) > at;
  }

  /** What the kernel has of lent memory it keeps; the descriptor is with the closer. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#cancelDrain?.();
    this.#queue.close();
    this.#batch?.end();
    this.#batch = null;
    lingerClosed(this.#options.sys, this.fd, this.engine, 'linger');
  }

  // --- what the queue says ---

  deliver(table: FrameTable): number {
    return table.count;
  }

  writable(): void {
    if (this.#pump()) this.#options.writable();
    else this.#queue.block();
  }

  error(): boolean {
    // The error queue first: a pending record raises the event, too.
    this.engine.drain();
    const { sys } = this.#options;
    if (sys.getsockoptInt(this.fd, SOL_SOCKET, SO_ERROR) > 0) this.reported += 1;
    return true;
  }

  #wants(table: FrameTable, frame: number, chooser: LendChooser | null): boolean {
    return wantsLending(table, frame, this.engine, chooser, DATAGRAM_PAGES_MAX);
  }

  /** Lends a frame. Returns the position of the first that was not taken: the same if it cannot be lent. */
  #lend(table: FrameTable, which: Uint32Array, at: number): number {
    const { borrower, headers } = this.#options;
    const frame = which[at] as number;
    const batch = this.#batches.take();
    const fits = batch?.fits(table, frame, VXLAN_HEADER_BYTES, BATCH_BYTES) ?? false;
    const tail = fits ? table.owner.lend(frame, borrower) : null;
    if (batch === null || tail === null) {
      batch?.end();
      return at;
    }
    batch.add(table, frame, headers(), 0, VXLAN_HEADER_BYTES, tail);
    this.#batch = batch;
    if (!this.#pump()) this.#queue.block();
    return at + 1;
  }

  /** Sends what was lent; false: there is no room. */
  #pump(): boolean {
    const batch = this.#batch;
    if (batch === null) return true;
    const n = this.engine.send(batch.lenders, batch.views, 2, 0);
    if (n === EAGAIN || n === ENOBUFS) return false;
    const { counters } = this.#options;
    // Refused for good (EMSGSIZE, EPERM), or an earlier datagram's error; or cut, as it had more pieces than a call takes.
    if (n < batch.bytes) counters.txErrors += 1;
    else {
      counters.txFrames += 1;
      counters.txBytes += batch.bytes - VXLAN_HEADER_BYTES;
    }
    this.#batch = null;
    batch.end();
    return true;
  }

  /** The engine's call: on a datagram socket one frame's bytes are one datagram. */
  #sendLent(flags: number): number {
    const { sys } = this.#options;
    const { table, which } = this.#batch as LentBatch;
    return sys.framesStream(this.fd, table.bytes, which, 0, 1, NO_PREFIXES, 0, 0, flags);
  }

  #watchCompletions(): void {
    this.#cancelDrain ??= this.#options.clock.after(DRAIN_MS, () => {
      this.#cancelDrain = null;
      this.engine.drain();
      if (this.engine.outstanding > 0) this.#watchCompletions();
    });
  }
}
