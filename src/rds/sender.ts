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
import { CONG_BITMAP, EXTHDR_OFFSET, encodeHeader, HEADER_BYTES, writeHeader } from '../wire/rds.ts';
import { CONG_MAP_BYTES } from '../wire/rds-congestion.ts';
import type { RdsCounters } from './counters.ts';
import type { Staging } from './memory.ts';
import { Run, type SendOwner } from './run.ts';

/** One offer of bytes. A `lent` offer lies wholly in that Ubuf; otherwise the views are to be copied by the kernel. */
export interface Offer {
  readonly views: Uint8Array[];
  count: number;
  bytes: number;
  lent: Ubuf | null;
  /** More follows at once: the transport may hold back a partial segment. */
  more: boolean;
}

const OFFER_VIEWS_MAX = 64;
/** A largest message with its header and something before it still goes in one call. */
const OFFER_BYTES_MAX = 1024 * 1024 + 64 * 1024;
/** The kernel accounts zero-copy memory in objects of up to 512 KiB: longer calls are not released in bigger steps. */
const LENT_CALL_BYTES_MAX = 512 * 1024;

type Part = Run | MapInFlight;

class MapInFlight {
  readonly bytes: Uint8Array;
  sent = 0;
  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }
}

export class LaneSender {
  readonly #staging: Staging;
  readonly #counters: RdsCounters;
  readonly #readMap: () => Uint8Array;
  #queue = new Deque<Run>();
  readonly #unacked = new Deque<Run>();
  /** Partly written: the last of `#unacked`, or the map. */
  #current: Part | null = null;
  #mapPending = false;
  #controlQueued = 0;
  #memoryTaken = false;
  #seqHi: number;
  #seqLo: number;
  /** Bytes written to the current connection. */
  #written = 0;
  /** Parts of the last offer, in its order. */
  readonly #offered: Part[] = [];
  readonly #offer: Offer = {
    views: new Array<Uint8Array>(OFFER_VIEWS_MAX),
    count: 0,
    bytes: 0,
    lent: null,
    more: false,
  };

  constructor(
    base: { readonly hi: number; readonly lo: number },
    staging: Staging,
    counters: RdsCounters,
    readMap: () => Uint8Array,
  ) {
    this.#seqHi = base.hi >>> 0;
    this.#seqLo = base.lo >>> 0;
    this.#staging = staging;
    this.#counters = counters;
    this.#readMap = readMap;
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
   * Queues an empty message of the protocol. A probe carries extension headers and, when `seq` is given, goes to the
   * head of the queue with that reserved number.
   */
  queueControl(
    sport: number,
    dport: number,
    extensions: Uint8Array | null,
    seq: { hi: number; lo: number } | null,
  ): void {
    const staging = this.#staging;
    const offset =
      seq === null ? this.#stageHeader(HEADER_BYTES, 0, sport, dport) : staging.reserve(HEADER_BYTES);
    if (seq !== null) writeHeader(staging.view, offset, seq.hi, seq.lo, 0, sport, dport, 0);
    this.#controlQueued += 1;
    if (extensions !== null) staging.bytes.set(extensions, offset + EXTHDR_OFFSET);
    const end = offset + HEADER_BYTES;
    const run = new Run(
      null,
      staging.chunk,
      staging.bytes,
      offset,
      end,
      null,
      false,
      extensions !== null,
      true,
    );
    if (seq === null) this.#queue.push(run);
    else this.#insertProbe(run);
  }

  /** Takes `count` sequence numbers out of the row, for probes that must come before everything queued. */
  reserveSeq(count: number): { hi: number; lo: number } {
    const first = { hi: this.#seqHi, lo: this.#seqLo };
    for (let i = 0; i < count; i++) this.#advanceSeq();
    return first;
  }

  /** The own congestion map changed: send it before the next message. Coalesced. */
  queueMap(): void {
    if (!this.#mapPending) this.#counters.cong_update_queued += 1;
    this.#mapPending = true;
  }

  /**
   * Offers what should be written next, or null when there is nothing. The offer is reused by the next call. With
   * `gateClosed` only maps and probes are offered.
   */
  gather(lends: (bytes: number) => boolean, gateClosed: boolean): Offer | null {
    const offer = this.#offer;
    offer.count = 0;
    offer.bytes = 0;
    offer.lent = null;
    offer.more = false;
    this.#offered.length = 0;
    const current = this.#current;
    if (current instanceof Run && isTaken(current)) {
      this.#memoryTaken = true;
      return null;
    }
    let room = current === null || this.#offerPart(current, lends);
    if (room && this.#mapPending && !(this.#current instanceof MapInFlight)) {
      room = this.#offerPart(this.#openMap(), lends);
    }
    for (let i = 0; room && i < this.#queue.length; i++) {
      const run = this.#queue.at(i) as Run;
      if (gateClosed && !run.probe) break;
      if (isTaken(run)) {
        // Not begun, so nobody misses it on the wire; its numbers are a hole, which is normal.
        this.#counters.send_memory_taken += this.#filterQueue((other) => other === run);
        i -= 1;
        continue;
      }
      room = this.#offerPart(run, lends);
    }
    return offer.count === 0 ? null : offer;
  }

  /** `n` bytes of the last offer were written. */
  wrote(n: number, copied: (ubuf: Ubuf, bytes: number) => void): void {
    const lentOffer = this.#offer.lent !== null;
    let left = n;
    for (const part of this.#offered) {
      if (left === 0) break;
      if (part !== this.#current) this.#begin(part);
      const length = part instanceof MapInFlight ? part.bytes.byteLength : part.byteLength;
      // A lent offer stops at 512 KiB, so the rest of its run was not offered; `left` bounds it all the same.
      const take = Math.min(left, length - part.sent);
      if (part instanceof Run && part.lent && !lentOffer) {
        const payloadBytes = part.sent + take - Math.max(part.sent, HEADER_BYTES);
        if (payloadBytes > 0) copied(part.payload as Ubuf, payloadBytes);
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
    return messages;
  }

  /** The connection is gone: all that is not acknowledged goes back to the head of the queue, in order. */
  requeue(): void {
    this.#current = null;
    this.#offered.length = 0;
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
      this.#counters.send_retransmitted += run.flag(run.boundaryAfter(run.sent));
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

  /** The peer restarted: what was begun may have reached the one before, so it is not sent to this one again. */
  generationChanged(): void {
    for (const run of this.#unacked) if (!run.probe) run.staleEnd = run.boundaryAfter(run.sent);
  }

  /**
   * Withdraws what `owner` has queued here. What is half sent is finished, as the stream must stay framed, and what is
   * sent is not sent again. Lent memory comes back when the kernel lets go of it.
   */
  cancel(owner: SendOwner): void {
    this.#counters.send_cancelled += this.#filterQueue((run) => run.owner === owner);
    for (const run of this.#unacked) {
      if (run.owner !== owner) continue;
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

  #advanceSeq(): void {
    this.#seqLo = (this.#seqLo + 1) >>> 0;
    if (this.#seqLo === 0) this.#seqHi = (this.#seqHi + 1) >>> 0;
  }

  /** Probes with reserved numbers stand before the first run that is not a probe. */
  #insertProbe(run: Run): void {
    const old = this.#queue;
    const queue = new Deque<Run>(old.length + 1);
    let placed = false;
    for (const other of old) {
      if (!placed && !other.probe) {
        queue.push(run);
        placed = true;
      }
      queue.push(other);
    }
    if (!placed) queue.push(run);
    this.#queue = queue;
  }

  #openMap(): MapInFlight {
    // A copy: the map may change while the rest of these bytes waits for room.
    const bytes = new Uint8Array(HEADER_BYTES + CONG_MAP_BYTES);
    encodeHeader(bytes, 0, 0, 0, CONG_MAP_BYTES, 0, 0, CONG_BITMAP);
    bytes.set(this.#readMap(), HEADER_BYTES);
    return new MapInFlight(bytes);
  }

  /** Adds a part to the offer; false when the offer must end there. */
  #offerPart(part: Part, lends: (bytes: number) => boolean): boolean {
    const offer = this.#offer;
    this.#offered.push(part);
    if (part instanceof MapInFlight) return this.#offerView(part.bytes.subarray(part.sent));
    if (part.sent < part.headLength) {
      if (!this.#offerView(part.bytes.subarray(part.start + part.sent, part.end))) return false;
    }
    if (part.payload === null) return true;
    const done = Math.max(0, part.sent - part.headLength);
    const left = part.payload.byteLength - done;
    if (left === 0) return true;
    if (!part.lent || !lends(lentCallBytes(part.payload, done)))
      return this.#offerPayload(part.payload, done, OFFER_BYTES_MAX);
    // A flagged call carries lent bytes alone; what comes before it goes first.
    if (offer.count > 0) {
      offer.more = true;
      return false;
    }
    offer.lent = part.payload;
    this.#offerPayload(part.payload, done, LENT_CALL_BYTES_MAX);
    return false;
  }

  #offerPayload(payload: Ubuf, from: number, bytesMax: number): boolean {
    let skip = from;
    for (const piece of payload.iov) {
      if (skip >= piece.byteLength) {
        skip -= piece.byteLength;
        continue;
      }
      const take = Math.min(piece.byteLength - skip, bytesMax - this.#offer.bytes);
      if (take <= 0) return false;
      const whole = take === piece.byteLength;
      if (!this.#offerView(whole ? piece : piece.subarray(skip, skip + take))) return false;
      if (skip + take < piece.byteLength) return false;
      skip = 0;
    }
    return true;
  }

  #offerView(view: Uint8Array): boolean {
    const offer = this.#offer;
    if (offer.count === OFFER_VIEWS_MAX || offer.bytes >= OFFER_BYTES_MAX) return false;
    offer.views[offer.count++] = view;
    offer.bytes += view.byteLength;
    return offer.count < OFFER_VIEWS_MAX;
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
    part.streamStart = this.#written;
    this.#unacked.push(part);
  }

  #dropStale(run: Run): void {
    if (run.staleEnd === 0) return;
    this.#counters.send_drop_generation += run.dropFront(run.staleEnd);
  }

  #inQueue(run: Run): boolean {
    for (const other of this.#queue) if (other === run) return true;
    return false;
  }

  /** Gives up what `drop` says; returns how many messages that were. */
  #filterQueue(drop: (run: Run) => boolean): number {
    let messages = 0;
    const kept = new Deque<Run>(this.#queue.length);
    for (const run of this.#queue) {
      if (drop(run)) {
        messages += run.messages;
        run.release();
      } else kept.push(run);
    }
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

/** What one flagged call would carry of `payload` from byte `from` on: at most 64 pieces and 512 KiB. */
function lentCallBytes(payload: Ubuf, from: number): number {
  const [first] = payload.iov;
  if (payload.iov.length === 1 && first !== undefined)
    return Math.min(first.byteLength - from, LENT_CALL_BYTES_MAX);
  let skip = from;
  let bytes = 0;
  let pieces = 0;
  for (const piece of payload.iov) {
    if (pieces === OFFER_VIEWS_MAX || bytes >= LENT_CALL_BYTES_MAX) break;
    if (skip >= piece.byteLength) {
      skip -= piece.byteLength;
      continue;
    }
    bytes += piece.byteLength - skip;
    skip = 0;
    pieces += 1;
  }
  return Math.min(bytes, LENT_CALL_BYTES_MAX);
}
