/**
 * A transmit queue that runs: chains of the guest become frames, are handed on, and go back.
 *
 *   available() ─▶ chains ─▶ segments of the table ─▶ framesPeek: heads copied, once ─▶ receiver(table)
 *                                                                                          │ lend(): tails that are kept
 *   signal ◀─ publish() ◀─ ledger.report() ◀─ finish(): all that is not lent  ◀────────────┘
 *
 * A turn takes a bounded number of frames and bytes, however fast the guest makes new ones, so that one guest does not
 * keep the others waiting; it says whether there may be more. Frames that the receiver has no room for go back to the ring as if
 * they had not been taken, until resume().
 */
import { errnoOf } from '../core/errors.ts';
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
import type { FrameReceiver, Port, PortCounters } from '../core/port.ts';
import { type ReleaseQueue, releases } from '../core/releases.ts';
import type { Ubuf } from '../core/ubuf.ts';
import type { Native } from '../sys/binding.ts';
import { createFrameTable } from '../sys/frame-table.ts';
import { CHAIN_BROKEN, CHAIN_FULL, CHAIN_SKIP, type ChainCounters, ChainReader } from './chain.ts';
import type { MemoryLease } from './lease.ts';
import { TxLedger } from './ledger.ts';
import type { LedgerCounters } from './ledger-counters.ts';
import { type RingFeatures, type RingMemory, SplitQueue } from './queue.ts';
import { resumedTxQueue } from './resumed-queue.ts';
import type { Borrowers } from './selector.ts';
import type { RingStart } from './session-host.ts';

/** Frames of a turn, and about how many bytes: as vhost-net's weight (VHOST_NET_WEIGHT, VHOST_NET_PKT_WEIGHT). */
const TURN_FRAMES = 256;
const TURN_BYTES = 512 * 1024;
/** Frames of 19 pieces are the longest of a Linux driver; this many, a turn of them and the longest chain fit in. */
const SEGMENTS = 4096;
/** A turn, and what the event loop does between two, is much shorter: whatever takes longer, somebody else had the processor. */
const GAP_MS = 1;
/** Descriptors of a turn: chains of nothing fill no table and are no bytes, but take as long to read. */
const TURN_DESCRIPTORS = SEGMENTS;
/** What is copied of each frame: as GOODCOPY_LEN of vhost-net. Shorter frames are not worth lending anywhere. */
const HEAD_BYTES_MAX = 256;
/** The longest chain that is looked at: a frame of 64 KiB with headers, and room for what is then refused as too long. */
const CHAIN_BYTES_MAX = 128 * 1024;

const EFAULT = errnoOf('EFAULT');

export interface TxQueueOptions {
  readonly sys: Native;
  readonly features: RingFeatures;
  readonly headerBytes: number;
  readonly borrowers: Borrowers;
  /** False: nothing is lent. */
  readonly lends: boolean;
  readonly holdMs?: number;
  readonly lentMax?: number;
  readonly copiesFirst?: boolean;
  readonly releases?: ReleaseQueue;
  readonly now: () => number;
  readonly counters: PortCounters;
  readonly chainCounters: ChainCounters;
  readonly ledgerCounters: LedgerCounters;
  /** The driver wants to hear of used entries. */
  readonly signal: () => void;
  /** What is lent came back: run settle() soon. */
  readonly onWork: () => void;
}

/** What a turn found. */
export const TURN_IDLE = 0;
const TURN_WORKED = 1;
/** The receiver has no room: wait for resume(). */
export const TURN_BLOCKED = 2;
/** The queue is broken, or its memory is poisoned. */
export const TURN_BROKEN = 3;

export class TxQueue implements FrameOwner {
  readonly index: number;
  readonly ledger: TxLedger;
  queue: SplitQueue;
  enabled: boolean;
  readonly #options: TxQueueOptions;
  readonly #sys: Native;
  readonly #table: FrameTable;
  readonly #counters: PortCounters;
  #chains: ChainReader;
  #space: number;
  #nowMs = 0;

  constructor(ring: RingStart, options: TxQueueOptions) {
    this.index = ring.index;
    this.enabled = ring.enabled;
    this.#options = options;
    this.#sys = options.sys;
    this.#counters = options.counters;
    this.#space = ring.lease.space.id;
    const { size } = ring;
    const { queue, givenBack } = resumedTxQueue(ring, options.features);
    this.queue = queue;
    options.ledgerCounters.inherited += givenBack;
    this.#chains = this.#reader();
    this.ledger = new TxLedger(this.queue, ring.lease, {
      borrowers: options.borrowers,
      onWork: options.onWork,
      counters: options.ledgerCounters,
      gapMs: GAP_MS,
      ...(options.holdMs === undefined ? {} : { holdMs: options.holdMs }),
      ...(options.lentMax === undefined ? {} : { lentMax: options.lentMax }),
      ...(options.copiesFirst === undefined ? {} : { copiesFirst: options.copiesFirst }),
      ...(options.releases === undefined ? {} : { releases: options.releases }),
    });
    const frames = Math.min(TURN_FRAMES, size);
    this.#table = createFrameTable({ frames, segments: SEGMENTS, headBytes: HEAD_BYTES_MAX }, this);
  }

  /** The same ring at other addresses. Between turns nothing but what is lent is out, and that keeps its own memory. */
  moved(memory: RingMemory, lease: MemoryLease): void {
    const { size, lastAvail, usedIdx, broken } = this.queue;
    this.#space = lease.space.id;
    this.queue = new SplitQueue(memory, size, this.#options.features, lastAvail, usedIdx);
    // Until it is stopped, wherever it is.
    this.queue.broken = broken;
    this.#chains = this.#reader();
    this.ledger.attach(this.queue, lease);
  }

  /** A file of the guest's memory was truncated. What else is wrong is no wonder then. */
  get isPoisoned(): boolean {
    return this.#sys.spacePoisoned(this.#space) === 1;
  }

  /** Takes what the guest has made available, up to a turn's worth, and hands it to `receiver`; null: all is dropped. */
  turn(receiver: FrameReceiver | null, from: Port): number {
    const available = this.queue.available();
    if (available <= 0) return available < 0 || this.isPoisoned ? TURN_BROKEN : TURN_IDLE;
    this.#nowMs = this.#options.now();
    const table = this.#table;
    this.#take(available);
    this.#peek();
    // A disabled ring is emptied, not stopped (vhost-user specification, "Ring states").
    const drops = receiver === null || !this.enabled;
    const taken = drops ? table.count : this.#offer(receiver, from);
    if (drops) this.#counters.rxDropped += taken;
    const { records } = table;
    for (let i = 0; i < taken; i++) this.ledger.finish(records[i * FRAME_WORDS + FRAME_SLOT] as number);
    const left = table.count - taken;
    if (left > 0) this.#giveBack(taken, left);
    this.settle();
    if (this.queue.broken !== null || this.isPoisoned) return TURN_BROKEN;
    return left > 0 ? TURN_BLOCKED : TURN_WORKED;
  }

  /** Reports what is done, and tells the driver if it wants to know. */
  settle(): void {
    if (this.ledger.report(this.#options.now()) > 0 && this.queue.publish()) this.#options.signal();
  }

  lend(frame: number, borrower: object): Ubuf | null {
    if (!this.#options.lends || neverBorrows(borrower)) return null;
    const at = frame * FRAME_WORDS;
    const { records } = this.#table;
    const bytes = (records[at + FRAME_BYTES] as number) - (records[at + HEAD_BYTES] as number);
    if (bytes <= 0 || records[at + TAIL_COUNT] === 0) return null;
    return this.ledger.lend(records[at + FRAME_SLOT] as number, bytes, borrower, this.#nowMs);
  }

  gather(frame: number, out: Uint8Array): number {
    return this.#sys.framesGather(this.#table.bytes, frame, out);
  }

  #reader(): ChainReader {
    const space = this.#space;
    const { sys, chainCounters } = this.#options;
    return new ChainReader(
      this.queue,
      {
        writable: false,
        space,
        bytesMax: CHAIN_BYTES_MAX,
        readIndirect: (address, out) => (sys.spaceRead(space, address, out) === 0 ? out.length : -1),
      },
      chainCounters,
    );
  }

  /** Fills the table with chains. */
  #take(available: number): void {
    const table = this.#table;
    const { records } = table;
    table.clear();
    const most = Math.min(available, table.options.frames);
    const chains = this.#chains;
    chains.visited = 0;
    let bytes = 0;
    let last = 0;
    // As many whole frames as fit, if the next is like the last: ports lend as much in one call (lent-batch.ts), and a rest of one
    // frame would cost them a call of its own.
    for (let taken = 0; taken < most && bytes + last <= TURN_BYTES; taken++) {
      if (chains.visited >= TURN_DESCRIPTORS) return;
      const head = this.queue.peekHead(0);
      if (head < 0) return;
      const start = table.segmentCount;
      const segments = chains.read(head, table);
      if (segments === CHAIN_BROKEN || segments === CHAIN_FULL) return;
      const slot = this.ledger.take(head);
      if (slot < 0) return;
      if (segments === CHAIN_SKIP) {
        this.ledger.finish(slot);
        this.#counters.rxErrors += 1;
        continue;
      }
      const at = table.count * FRAME_WORDS;
      records[at + TAIL_START] = start;
      records[at + TAIL_COUNT] = segments;
      records[at + FRAME_SLOT] = slot;
      records[at + FRAME_VLAN] = 0;
      table.count += 1;
      last = chains.bytes;
      bytes += last;
    }
  }

  /** Copies the heads, and takes out of the table what is no frame: its chains are done. */
  #peek(): void {
    const table = this.#table;
    const { count, records } = table;
    if (count === 0) return;
    const good = this.#sys.framesPeek(table.bytes, count, this.#options.headerBytes, HEAD_BYTES_MAX);
    if (good === count) return;
    let kept = 0;
    for (let i = 0; i < count; i++) {
      const at = i * FRAME_WORDS;
      if (records[at + FRAME_STATUS] === 0) {
        if (kept !== i) records.copyWithin(kept * FRAME_WORDS, at, at + FRAME_WORDS);
        kept += 1;
        continue;
      }
      this.ledger.finish(records[at + FRAME_SLOT] as number);
      this.#counters.rxErrors += 1;
      if (records[at + FRAME_STATUS] === EFAULT) this.#chains.counters.address += 1;
    }
    table.count = kept;
  }

  /** A program's receiver that throws loses the frames, and the error is uncaught; the guest has its chains back all the same. */
  #received(receiver: FrameReceiver, from: Port): number {
    try {
      return receiver(this.#table, from);
    } catch (error) {
      releases.run(() => {
        throw error;
      });
      return this.#table.count;
    }
  }

  /** How many frames the receiver is done with, from the first. */
  #offer(receiver: FrameReceiver, from: Port): number {
    const { count, records } = this.#table;
    // Before the call: afterwards a tag may have been taken out of a frame.
    let bytes = 0;
    for (let i = 0; i < count; i++) bytes += records[i * FRAME_WORDS + FRAME_BYTES] as number;
    const taken = Math.min(count, this.#received(receiver, from));
    for (let i = taken; i < count; i++) bytes -= records[i * FRAME_WORDS + FRAME_BYTES] as number;
    this.#counters.rxFrames += taken;
    this.#counters.rxBytes += bytes;
    return taken;
  }

  /**
   * The last `left` frames will be taken again. A chain among them that was refused and is done already is in the way of those
   * before it, which are then dropped: a guest that makes such chains has no claim to more.
   */
  #giveBack(taken: number, left: number): void {
    const { records } = this.#table;
    const given = this.ledger.untake(left);
    for (let i = taken; i < taken + left - given; i++) {
      this.ledger.finish(records[i * FRAME_WORDS + FRAME_SLOT] as number);
      this.#counters.rxDropped += 1;
    }
  }
}

/** A port is asked, as the kernel asks a device for NETIF_F_ZEROCOPY; what a port tells its destinations apart by is none. */
function neverBorrows(borrower: object): boolean {
  return (borrower as Partial<Port>).capability?.zeroCopy === 'never';
}
