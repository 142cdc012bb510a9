/**
 * The sending half of a lane: what is written next, what is written, what is acknowledged. Pure: gather() offers bytes,
 * wrote() learns how many went.
 *
 *   queue ──gather/wrote──▶ unacked ──acked──▶ released
 *     ▲                        │
 *     └──── requeue ───────────┘    connection lost: in order, at the head, flagged RETRANSMITTED
 *
 * Rules (rds_send_xmit, rds_send_path_reset, rds_tcp_xmit); what waits, and its numbers, is the queue's (sender-queue.ts):
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
import { CONG_BITMAP, encodeHeader, HEADER_BYTES } from '../wire/rds.ts';
import { CONG_MAP_BYTES, createMap } from '../wire/rds-congestion.ts';
import type { RdsCounters } from './counters.ts';
import type { Staging } from './memory.ts';
import { type Lender, MapInFlight, Offer, type Part } from './offer.ts';
import { Run, type SendOwner } from './run.ts';
import { SendQueue } from './sender-queue.ts';
import type { Sequence } from './sequence.ts';

/** Of this thread: nothing happens between gather() and wrote(), and idle lanes should be light. */
const offer = new Offer();
const emptyMap: Uint8Array = mapMessage(createMap());

/** What may be written: maps and probes; with them what was begun on an earlier connection; everything. */
export type Gate = 'probes' | 'resent' | 'open';

/** Where a lane reads our congestion map, at the moment it is sent. */
export interface MapSource {
  readMap(): Uint8Array;
}

export class LaneSender {
  /** What waits. Whoever has something to say adds it there. */
  readonly queue: SendQueue;
  readonly #counters: RdsCounters;
  readonly #maps: MapSource;
  readonly #unacked = new Deque<Run>();
  /** Partly written: the last of `#unacked`, or the map. */
  #current: Part | null = null;
  #mapPending = false;
  #memoryTaken = false;
  /** Bytes written to the current connection. */
  #written = 0;

  constructor(base: Sequence, staging: Staging, counters: RdsCounters, maps: MapSource) {
    this.queue = new SendQueue(base, staging, counters);
    this.#counters = counters;
    this.#maps = maps;
  }

  /** Nothing queued and nothing unacknowledged. */
  get idle(): boolean {
    return this.queue.runs.length === 0 && this.#unacked.length === 0 && this.#current === null;
  }

  get hasUnacked(): boolean {
    return this.#unacked.length > 0;
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
    return { queued: this.queue.runs, unacked: this.#unacked };
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

  /** Takes out of the queue what programs have sent, for other lanes. */
  takeQueued(): Run[] {
    return this.queue.take();
  }

  /** Queues a run that another lane had. */
  adopt(run: Run): void {
    this.queue.adopt(run);
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
    const { queue } = this;
    for (let i = 0; room && i < queue.runs.length; i++) {
      const run = queue.runs.at(i) as Run;
      if (gate !== 'open' && !run.probe && !(run.resent && gate === 'resent')) break;
      if (isTaken(run)) {
        // Not begun, so nobody misses it on the wire; its numbers are a hole, which is normal.
        this.#counters.send_memory_taken += queue.withdraw((other) => other === run);
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
    if (this.idle) this.queue.rest();
    return messages;
  }

  /** The connection is gone: all that is not acknowledged goes back to the head of the queue, in order. */
  requeue(): void {
    this.#current = null;
    this.#mapPending = false;
    this.#memoryTaken = false;
    this.#written = 0;
    const begun: Run[] = [];
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
      begun.push(run);
    }
    this.#unacked.clear();
    this.queue.requeue(begun);
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
    this.#counters.send_cancelled += this.queue.withdraw(concerned);
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
    if (run.sent > 0 || !this.queue.has(run)) return false;
    this.#counters.send_cancelled += this.queue.withdraw((other) => other === run);
    return true;
  }

  /** Gives everything up. */
  close(): void {
    for (const run of this.#unacked) run.release();
    this.#unacked.clear();
    this.#current = null;
    this.queue.close();
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
    const run = this.queue.begin();
    assert(run === part, 'offered runs out of order');
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
      if (at < current.byteLength) this.queue.unshift(current.split(at));
      if (current.sent === current.byteLength) this.#current = null;
    }
    this.queue.separate(owner, port);
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
