/**
 * The sending half of a lane: what is queued, what is written, what is acknowledged. Pure: gather() offers bytes,
 * wrote() learns how many went.
 *
 *   queue ──gather/wrote──▶ unacked ──acked──▶ released
 *     ▲                        │
 *     └──── requeue ───────────┘    connection lost: in order, at the head, flagged RETRANSMITTED
 *
 * Rules (rds_send_xmit, rds_send_path_reset, rds_tcp_xmit):
 * - Sequence numbers are given when a message is queued, so queue order is sequence order.
 * - A run moves to `unacked` before its first byte is written.
 * - A message is acknowledged when the peer's TCP has its last byte: position in the stream, counted from what was
 *   *written*, not from what TCP has put on the wire.
 * - A congestion map goes between runs, before the next one; its content is read when it is sent. It is not kept: a
 *   lost one is replaced by the map that opens the next connection.
 * - A half-sent message starts again from its header. Probes are not sent again.
 * - Over-retransmission is harmless (the receiver drops by number and flag); freeing early is data loss.
 */
import { assert } from '../core/assert.ts';
import { Deque } from '../core/deque.ts';
import type { Ubuf } from '../core/ubuf.ts';
import { writeU32 } from '../wire/bytes.ts';
import {
  CONG_BITMAP,
  EXTHDR_OFFSET,
  encodeHeader,
  FLAGS_OFFSET,
  HEADER_BYTES,
  payloadLength,
  RETRANSMITTED,
  seqHi,
  seqLo,
  writeHeader,
} from '../wire/rds.ts';
import { CONG_MAP_BYTES, createMap } from '../wire/rds-congestion.ts';
import type { RdsCounters } from './counters.ts';
import type { Staging } from './memory.ts';
import { type Lender, MapInFlight, Offer, type Part } from './offer.ts';
import { Run, type SendOwner } from './run.ts';
import { separated, without } from './run-queue.ts';

/** Of this thread: nothing happens between gather() and wrote(), and idle lanes should be light. */
const offer = new Offer();
const emptyMap: Uint8Array = mapMessage(createMap());

const RESERVED_NUMBERS = 2;

/** What may be written: maps and probes; with them what was begun on an earlier connection; everything. */
export type Gate = 'probes' | 'resent' | 'open';

/** Where a lane reads our congestion map, at the moment it is sent. */
export interface MapSource {
  readMap(): Uint8Array;
}

export class LaneSender {
  readonly #staging: Staging;
  readonly #counters: RdsCounters;
  readonly #maps: MapSource;
  #queue = new Deque<Run>();
  readonly #unacked = new Deque<Run>();
  /** Partly written: the last of `#unacked`, or the map. */
  #current: Part | null = null;
  #mapPending = false;
  #controlQueued = 0;
  #memoryTaken = false;
  readonly #baseHi: number;
  readonly #baseLo: number;
  #reserved = RESERVED_NUMBERS;
  #seqHi: number;
  #seqLo: number;
  /** Bytes written to the current connection. */
  #written = 0;

  constructor(
    base: { readonly hi: number; readonly lo: number },
    staging: Staging,
    counters: RdsCounters,
    maps: MapSource,
  ) {
    this.#baseHi = base.hi;
    this.#baseLo = base.lo;
    this.#seqHi = base.hi >>> 0;
    this.#seqLo = base.lo >>> 0;
    for (let i = 0; i < RESERVED_NUMBERS; i++) this.#advanceSeq();
    this.#staging = staging;
    this.#counters = counters;
    this.#maps = maps;
  }

  /** Nothing queued and nothing unacknowledged. */
  get idle(): boolean {
    return this.#queue.length === 0 && this.#unacked.length === 0 && this.#current === null;
  }

  get hasUnacked(): boolean {
    return this.#unacked.length > 0;
  }

  /** Protocol messages that wait to be written. */
  get controlQueued(): number {
    return this.#controlQueued;
  }

  get mapPending(): boolean {
    return this.#mapPending;
  }

  get writtenBytes(): number {
    return this.#written;
  }

  /** A half-sent message's memory was taken away: the stream cannot be continued. Cleared by requeue(). */
  get memoryTaken(): boolean {
    return this.#memoryTaken;
  }

  /** For observers: what is not begun, and what is not acknowledged. Headers are read in place (run.ts). */
  runs(): { readonly queued: Iterable<Run>; readonly unacked: Iterable<Run> } {
    return { queued: this.#queue, unacked: this.#unacked };
  }

  /**
   * For observers: where the last message that was begun starts in the stream of the current connection, and where it ends, which is what the
   * peer's TCP must acknowledge (i_ack_point of the kernel's TCP transport).
   */
  lastMessage(): { readonly startBytes: number; readonly ackPointBytes: number } {
    const run = this.#unacked.last;
    if (run === undefined || run.sent === 0)
      return { startBytes: this.#written, ackPointBytes: this.#written };
    const end = run.boundaryAfter(run.sent);
    return { startBytes: run.streamStart + run.boundaryBefore(end), ackPointBytes: run.streamStart + end };
  }

  /** Next number to be given. */
  get nextSeq(): { hi: number; lo: number } {
    return { hi: this.#seqHi, lo: this.#seqLo };
  }

  /** Queues a message that is copied into the staging area now; the pieces are the caller's again on return. */
  queueCopy(
    owner: SendOwner | null,
    pieces: readonly Uint8Array[],
    length: number,
    sport: number,
    dport: number,
  ): Run {
    const total = HEADER_BYTES + length;
    const last = this.#queue.last;
    const joins = last !== undefined && this.#extendable(last, owner) && this.#staging.fits(total);
    const offset = this.#stageHeader(total, length, sport, dport);
    const bytes = this.#staging.bytes;
    let at = offset + HEADER_BYTES;
    for (let i = 0; i < pieces.length; i++) {
      const piece = pieces[i] as Uint8Array;
      bytes.set(piece, at);
      at += piece.byteLength;
    }
    this.#counters.send_queued += 1;
    if (joins) {
      last.extend(offset + total);
      return last;
    }
    const run = new Run(owner, this.#staging.chunk, bytes, offset, offset + total, null, false);
    this.#queue.push(run);
    return run;
  }

  /** Queues one message whose payload is `payload`; its reference passes to the run. */
  queuePayload(owner: SendOwner | null, payload: Ubuf, lent: boolean, sport: number, dport: number): Run {
    const offset = this.#stageHeader(HEADER_BYTES, payload.byteLength, sport, dport);
    const { chunk, bytes } = this.#staging;
    const run = new Run(owner, chunk, bytes, offset, offset + HEADER_BYTES, payload, lent);
    this.#queue.push(run);
    this.#counters.send_queued += 1;
    return run;
  }

  /**
   * Queues an empty message of the protocol. `early`: before the first message that was not begun yet, with a number below its
   * own. Everything with a lower number goes before it, so whatever the peer expects after it, nothing that is sent again looks old.
   */
  queueControl(sport: number, dport: number, extensions: Uint8Array | null, early: boolean): void {
    const staging = this.#staging;
    const place = early ? this.#firstUnbegun() : -1;
    const isReserved = early && this.#reserved > 0;
    const offset =
      isReserved || place >= 0
        ? staging.reserve(HEADER_BYTES)
        : this.#stageHeader(HEADER_BYTES, 0, sport, dport);
    if (isReserved) this.#stageReserved(offset, sport, dport);
    else if (place >= 0) this.#stageBefore(this.#queue.at(place) as Run, offset, sport, dport);
    this.#controlQueued += 1;
    if (extensions !== null) staging.bytes.set(extensions, offset + EXTHDR_OFFSET);
    const end = offset + HEADER_BYTES;
    const isProbe = extensions !== null;
    const run = new Run(null, staging.chunk, staging.bytes, offset, end, null, false, isProbe, true);
    if (place < 0) this.#queue.push(run);
    else this.#insert(run, place);
  }

  /** Takes out of the queue what programs have sent and is not begun, for other lanes. */
  takeQueued(): Run[] {
    const taken: Run[] = [];
    const kept = new Deque<Run>();
    for (const run of this.#queue) {
      if (run.control) kept.push(run);
      else taken.push(run);
    }
    this.#queue = kept;
    return taken;
  }

  /** Queues a run that another lane had: with numbers of this one, and as never sent before. */
  adopt(run: Run): void {
    run.resent = false;
    for (let at = run.start; at < run.end; ) {
      writeU32(run.bytes, at, this.#seqHi);
      writeU32(run.bytes, at + 4, this.#seqLo);
      run.bytes[at + FLAGS_OFFSET]! &= ~RETRANSMITTED;
      this.#advanceSeq();
      at += HEADER_BYTES + (run.payload === null ? payloadLength(run.bytes, at) : 0);
    }
    this.#queue.push(run);
  }

  /** The own congestion map changed: send it before the next message. Coalesced. */
  queueMap(): void {
    if (!this.#mapPending) this.#counters.cong_update_queued += 1;
    this.#mapPending = true;
  }

  /**
   * Offers what should be written next and `gate` lets through, or null when there is nothing. The offer is good until the next
   * call to any sender.
   */
  gather(lender: Lender, gate: Gate): Offer | null {
    offer.clear();
    const current = this.#current;
    if (current instanceof Run && isTaken(current)) {
      this.#memoryTaken = true;
      return null;
    }
    let room = current === null || offer.add(current, lender);
    if (room && this.#mapPending && !(this.#current instanceof MapInFlight)) {
      room = offer.add(this.#openMap(), lender);
    }
    for (let i = 0; room && i < this.#queue.length; i++) {
      const run = this.#queue.at(i) as Run;
      if (gate !== 'open' && !run.probe && !(run.resent && gate === 'resent')) break;
      if (isTaken(run)) {
        // Not begun, so nobody misses it on the wire; its numbers are a hole, which is normal.
        this.#counters.send_memory_taken += this.#filterQueue((other) => other === run);
        i -= 1;
        continue;
      }
      room = offer.add(run, lender);
    }
    return offer.count === 0 ? null : offer;
  }

  /** `n` bytes of the last offer were written. */
  wrote(n: number, lender: Lender): void {
    const lentOffer = offer.lent !== null;
    let left = n;
    for (const part of offer.parts) {
      if (left === 0) break;
      if (part !== this.#current) this.#begin(part);
      const length = part instanceof MapInFlight ? part.bytes.byteLength : part.byteLength;
      // A lent offer stops at 512 KiB, so the rest of its run was not offered; `left` bounds it all the same.
      const take = Math.min(left, length - part.sent);
      if (part instanceof Run && part.lent && !lentOffer) {
        const payloadBytes = part.sent + take - Math.max(part.sent, HEADER_BYTES);
        if (payloadBytes > 0) lender.copied(part.payload as Ubuf, payloadBytes);
      }
      part.sent += take;
      this.#written += take;
      left -= take;
      this.#current = part.sent < length ? part : null;
    }
  }

  /** The peer's TCP has the first `bytes` bytes of the current connection. Returns messages acknowledged. */
  acked(bytes: number): number {
    let messages = 0;
    for (;;) {
      const run = this.#unacked.first;
      if (run === undefined || bytes <= run.streamStart) break;
      messages += run.dropFront(Math.min(bytes - run.streamStart, run.sent));
      if (run.messages > 0 || run === this.#current) break;
      this.#unacked.shift();
      run.release();
    }
    this.#counters.send_drop_acked += messages;
    if (this.idle) this.#staging.rest();
    return messages;
  }

  /** The connection is gone: all that is not acknowledged goes back to the head of the queue, in order. */
  requeue(): void {
    this.#current = null;
    this.#mapPending = false;
    this.#memoryTaken = false;
    this.#written = 0;
    const runs: Run[] = [];
    for (const run of this.#unacked) {
      this.#dropStale(run);
      if (isTaken(run)) this.#counters.send_memory_taken += 1;
      if (run.probe || run.cancelled || run.messages === 0 || isTaken(run)) {
        run.release();
        continue;
      }
      const flagged = run.flag(run.boundaryAfter(run.sent));
      this.#counters.send_retransmitted += flagged;
      run.resent ||= flagged > 0;
      run.sent = 0;
      run.streamStart = 0;
      runs.push(run);
    }
    this.#unacked.clear();
    // Probes still queued belong to the lost connection's handshake, too.
    for (const run of this.#queue) {
      if (run.probe) run.release();
      else runs.push(run);
    }
    this.#queue.clear();
    this.#controlQueued = 0;
    for (const run of runs) {
      this.#queue.push(run);
      if (run.control) this.#controlQueued += 1;
    }
  }

  /** The peer restarted: what was begun on this connection may have reached it, or the one before, so it is not sent again on the next. */
  generationChanged(): void {
    for (const run of this.#unacked) if (!run.probe) run.staleEnd = run.boundaryAfter(run.sent);
  }

  /**
   * Withdraws what `owner` has queued here, for RDS port `port` of the peer (null: for any). What is half sent is finished, as the
   * stream must stay framed, and what is sent is not sent again, unless messages to another port are among it. Lent memory comes
   * back when the kernel lets go of it.
   */
  cancel(owner: SendOwner, port: number | null = null): void {
    if (port !== null) this.#separate(owner, port);
    const concerned = (run: Run): boolean => run.owner === owner && (port === null || run.goesTo(port));
    this.#counters.send_cancelled += this.#filterQueue(concerned);
    for (const run of this.#unacked) {
      if (!concerned(run)) continue;
      run.cancelled = true;
      if (run !== this.#current) continue;
      const at = run.boundaryAfter(run.sent);
      if (at < run.byteLength) this.#counters.send_cancelled += run.truncate(at);
      if (run.sent === run.byteLength) this.#current = null;
    }
    this.#releaseCancelled();
  }

  /** Withdraws one run that was not begun; false if it was. */
  cancelRun(run: Run): boolean {
    if (run.sent > 0 || !this.#inQueue(run)) return false;
    this.#counters.send_cancelled += this.#filterQueue((other) => other === run);
    return true;
  }

  /** Gives everything up. */
  close(): void {
    for (const run of this.#unacked) run.release();
    for (const run of this.#queue) run.release();
    this.#unacked.clear();
    this.#queue.clear();
    this.#current = null;
    this.#staging.close();
  }

  /** Only the last run in the queue grows, and only while no byte of it was written or offered for flagging. */
  #extendable(run: Run, owner: SendOwner | null): boolean {
    return (
      run.owner === owner &&
      owner !== null &&
      run.payload === null &&
      run.bytes === this.#staging.bytes &&
      run.end === this.#staging.used
    );
  }

  #stageHeader(reserve: number, length: number, sport: number, dport: number): number {
    const offset = this.#staging.reserve(reserve);
    writeHeader(this.#staging.view, offset, this.#seqHi, this.#seqLo, length, sport, dport, 0);
    this.#advanceSeq();
    return offset;
  }

  /** The first two numbers are for the first ping and pong, as long as nothing else was sent. */
  #stageReserved(offset: number, sport: number, dport: number): void {
    const at = this.#baseLo + RESERVED_NUMBERS - this.#reserved;
    this.#reserved -= 1;
    const carry = at > 0xffffffff ? 1 : 0;
    writeHeader(this.#staging.view, offset, (this.#baseHi + carry) >>> 0, at >>> 0, 0, sport, dport, 0);
  }

  /** The number before that of `next`: another may have had it, which has gone before. */
  #stageBefore(next: Run, offset: number, sport: number, dport: number): void {
    const hi = seqHi(next.bytes, next.start);
    const lo = seqLo(next.bytes, next.start);
    const before = lo === 0 ? (hi - 1) >>> 0 : hi;
    writeHeader(this.#staging.view, offset, before, (lo - 1) >>> 0, 0, sport, dport, 0);
  }

  #advanceSeq(): void {
    this.#seqLo = (this.#seqLo + 1) >>> 0;
    if (this.#seqLo === 0) this.#seqHi = (this.#seqHi + 1) >>> 0;
  }

  /** Place in the queue of the first run of which nothing was begun, probes aside; -1 if there is none. */
  #firstUnbegun(): number {
    for (let i = 0; i < this.#queue.length; i++) {
      const run = this.#queue.at(i) as Run;
      if (!run.probe && !run.resent) return i;
    }
    return -1;
  }

  #insert(run: Run, place: number): void {
    const queue = new Deque<Run>(this.#queue.length + 1);
    for (let i = 0; i < this.#queue.length; i++) {
      if (i === place) queue.push(run);
      queue.push(this.#queue.at(i) as Run);
    }
    this.#queue = queue;
  }

  #openMap(): MapInFlight {
    const map = this.#maps.readMap();
    return new MapInFlight(isEmptyMap(map) ? emptyMap : mapMessage(map));
  }

  /** First byte of a part is written. */
  #begin(part: Part): void {
    if (part instanceof MapInFlight) {
      this.#mapPending = false;
      return;
    }
    const run = this.#queue.shift();
    assert(run === part, 'offered runs out of order');
    if (part.control) this.#controlQueued -= 1;
    if (!part.probe) this.#reserved = 0;
    part.streamStart = this.#written;
    this.#unacked.push(part);
  }

  #dropStale(run: Run): void {
    if (run.staleEnd === 0) return;
    this.#counters.send_drop_generation += run.dropFront(run.staleEnd);
  }

  /** Puts the owner's small messages to `port` that are not begun into runs without any other. */
  #separate(owner: SendOwner, port: number): void {
    const current = this.#current;
    if (current instanceof Run && current.owner === owner && current.payload === null) {
      const at = current.boundaryAfter(current.sent);
      if (at < current.byteLength) this.#queue.unshift(current.split(at));
      if (current.sent === current.byteLength) this.#current = null;
    }
    this.#queue = separated(this.#queue, owner, port);
  }

  #inQueue(run: Run): boolean {
    for (const other of this.#queue) if (other === run) return true;
    return false;
  }

  /** Gives up what `drop` says; returns how many messages that were. */
  #filterQueue(drop: (run: Run) => boolean): number {
    const { kept, messages } = without(this.#queue, drop);
    this.#queue = kept;
    return messages;
  }

  /** Cancelled runs that are wholly sent need no acknowledgement: nobody waits for it. */
  #releaseCancelled(): void {
    const kept: Run[] = [];
    for (const run of this.#unacked) {
      if (run.cancelled && run !== this.#current) {
        this.#counters.send_cancelled += run.messages;
        run.release();
      } else kept.push(run);
    }
    this.#unacked.clear();
    for (const run of kept) this.#unacked.push(run);
  }
}

/** The program took the lent memory away (detached or shrank its ArrayBuffer). */
function isTaken(run: Run): boolean {
  return run.lent && (run.payload as Ubuf).taken;
}

function mapMessage(map: Uint8Array): Uint8Array {
  // A copy: the map may change while the rest of these bytes waits for room.
  const bytes = new Uint8Array(HEADER_BYTES + CONG_MAP_BYTES);
  encodeHeader(bytes, 0, 0, 0, CONG_MAP_BYTES, 0, 0, CONG_BITMAP);
  bytes.set(map, HEADER_BYTES);
  return bytes;
}

/** Nearly always: then all connections share one message. */
function isEmptyMap(map: Uint8Array): boolean {
  return Buffer.compare(map, emptyMap.subarray(HEADER_BYTES)) === 0;
}
