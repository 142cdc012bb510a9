/**
 * What a lane has to send and has not begun to: messages get their numbers and their place in memory here, and wait in runs (run.ts)
 * in the order they go. No byte is written here; sender.ts takes the runs, and brings them back when a connection is lost.
 *
 *   a socket's message ──number, header──▶ staging ──▶ run ──▶ [ begun before | ... | not begun ] ──begin()──▶ sender.ts
 *   ping, pong         ─────────┘                                ▲                    ▲
 *                                        requeue() ──────────────┘    early ones ─────┘
 *
 * - Numbers are given when a message is queued, so queue order is sequence order.
 * - Small messages are copied behind each other into the staging area. Those of one socket are one run, as long as nothing comes between.
 * - A large message is a run of its own: its header is staged, its payload stays where it is.
 * - The protocol's own messages open the gate for all others, so they may go before them. They need a number below theirs then: the
 *   first two of a process are kept for that; later the number of a message that has gone before is used again.
 */
import { Deque } from '../core/deque.ts';
import type { Ubuf } from '../core/ubuf.ts';
import { writeU32 } from '../wire/bytes.ts';
import {
  EXTHDR_OFFSET,
  FLAGS_OFFSET,
  HEADER_BYTES,
  payloadLength,
  RETRANSMITTED,
  seqHi,
  seqLo,
  writeHeader,
} from '../wire/rds.ts';
import type { RdsCounters } from './counters.ts';
import type { Staging } from './memory.ts';
import { Run, type SendOwner } from './run.ts';
import { separated, without } from './run-queue.ts';
import type { Sequence } from './sequence.ts';

const RESERVED_NUMBERS = 2;

/** The runs that wait, for reading. Good until the queue is changed. */
export interface WaitingRuns extends Iterable<Run> {
  readonly length: number;
  at(index: number): Run | undefined;
}

export class SendQueue {
  readonly #staging: Staging;
  readonly #counters: RdsCounters;
  #runs = new Deque<Run>();
  #controlQueued = 0;
  readonly #baseHi: number;
  readonly #baseLo: number;
  #reserved = RESERVED_NUMBERS;
  #seqHi: number;
  #seqLo: number;

  constructor(base: Sequence, staging: Staging, counters: RdsCounters) {
    this.#baseHi = base.hi;
    this.#baseLo = base.lo;
    this.#seqHi = base.hi >>> 0;
    this.#seqLo = base.lo >>> 0;
    for (let i = 0; i < RESERVED_NUMBERS; i++) this.#advanceSeq();
    this.#staging = staging;
    this.#counters = counters;
  }

  get runs(): WaitingRuns {
    return this.#runs;
  }

  /** Next number to be given. */
  get nextSeq(): Sequence {
    return { hi: this.#seqHi, lo: this.#seqLo };
  }

  /** Messages of the protocol that wait. */
  get controlQueued(): number {
    return this.#controlQueued;
  }

  /** Adds a message that is copied into the staging area now; the pieces are the caller's again on return. */
  addCopy(
    owner: SendOwner | null,
    pieces: readonly Uint8Array[],
    length: number,
    sport: number,
    dport: number,
  ): Run {
    const total = HEADER_BYTES + length;
    const last = this.#runs.last;
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
    this.#runs.push(run);
    return run;
  }

  /** Adds one message whose payload is `payload`; its reference passes to the run. */
  addPayload(owner: SendOwner | null, payload: Ubuf, lent: boolean, sport: number, dport: number): Run {
    const offset = this.#stageHeader(HEADER_BYTES, payload.byteLength, sport, dport);
    const { chunk, bytes } = this.#staging;
    const run = new Run(owner, chunk, bytes, offset, offset + HEADER_BYTES, payload, lent);
    this.#runs.push(run);
    this.#counters.send_queued += 1;
    return run;
  }

  /**
   * Adds an empty message of the protocol. `early`: before the first message that was not begun yet, with a number below its
   * own. Everything with a lower number goes before it, so whatever the peer expects after it, nothing that is sent again looks old.
   */
  addControl(sport: number, dport: number, extensions: Uint8Array | null, early: boolean): void {
    const staging = this.#staging;
    const place = early ? this.#firstUnbegun() : -1;
    const isReserved = early && this.#reserved > 0;
    const offset =
      isReserved || place >= 0
        ? staging.reserve(HEADER_BYTES)
        : this.#stageHeader(HEADER_BYTES, 0, sport, dport);
    if (isReserved) this.#stageReserved(offset, sport, dport);
    else if (place >= 0) this.#stageBefore(this.#runs.at(place) as Run, offset, sport, dport);
    this.#controlQueued += 1;
    if (extensions !== null) staging.bytes.set(extensions, offset + EXTHDR_OFFSET);
    const end = offset + HEADER_BYTES;
    const isProbe = extensions !== null;
    const run = new Run(null, staging.chunk, staging.bytes, offset, end, null, false, isProbe, true);
    if (place < 0) this.#runs.push(run);
    else this.#insert(run, place);
  }

  /** Takes out what programs have sent, for other lanes. */
  take(): Run[] {
    const taken: Run[] = [];
    const kept = new Deque<Run>();
    for (const run of this.#runs) {
      if (run.control) kept.push(run);
      else taken.push(run);
    }
    this.#runs = kept;
    return taken;
  }

  /** Adds a run that another lane had: with numbers of this one, and as never sent before. */
  adopt(run: Run): void {
    run.resent = false;
    for (let at = run.start; at < run.end; ) {
      writeU32(run.bytes, at, this.#seqHi);
      writeU32(run.bytes, at + 4, this.#seqLo);
      run.bytes[at + FLAGS_OFFSET]! &= ~RETRANSMITTED;
      this.#advanceSeq();
      at += HEADER_BYTES + (run.payload === null ? payloadLength(run.bytes, at) : 0);
    }
    this.#runs.push(run);
  }

  // --- for its sender ---

  /** The first run is about to be written: it is the sender's from now on. */
  begin(): Run | undefined {
    const run = this.#runs.shift();
    if (run?.control) this.#controlQueued -= 1;
    if (run?.probe === false) this.#reserved = 0;
    return run;
  }

  /**
   * The connection is gone: what was begun on it, in its order, waits at the head again. Probes that were not begun were of its
   * handshake, and go nowhere.
   */
  requeue(begun: readonly Run[]): void {
    const waiting = this.#runs;
    this.#runs = new Deque(begun.length + waiting.length);
    this.#controlQueued = 0;
    for (const run of begun) this.#pushAgain(run);
    for (const run of waiting) {
      if (run.probe) run.release();
      else this.#pushAgain(run);
    }
  }

  /** The rest of a run of which only messages before it are begun: it waits at the head. */
  unshift(rest: Run): void {
    this.#runs.unshift(rest);
  }

  /** Puts the owner's small messages to `port` into runs without any other. */
  separate(owner: SendOwner, port: number): void {
    this.#runs = separated(this.#runs, owner, port);
  }

  /** Gives up what `drop` says; returns how many messages that were. */
  withdraw(drop: (run: Run) => boolean): number {
    const { kept, messages } = without(this.#runs, drop);
    this.#runs = kept;
    return messages;
  }

  has(run: Run): boolean {
    for (const other of this.#runs) if (other === run) return true;
    return false;
  }

  /** Nothing waits, here or for an acknowledgement: the staging area needs no memory. */
  rest(): void {
    this.#staging.rest();
  }

  /** Gives everything up. */
  close(): void {
    for (const run of this.#runs) run.release();
    this.#runs.clear();
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
    for (let i = 0; i < this.#runs.length; i++) {
      const run = this.#runs.at(i) as Run;
      if (!run.probe && !run.resent) return i;
    }
    return -1;
  }

  #insert(run: Run, place: number): void {
    const runs = new Deque<Run>(this.#runs.length + 1);
    for (let i = 0; i < this.#runs.length; i++) {
      if (i === place) runs.push(run);
      runs.push(this.#runs.at(i) as Run);
    }
    this.#runs = runs;
  }

  #pushAgain(run: Run): void {
    this.#runs.push(run);
    if (run.control) this.#controlQueued += 1;
  }
}
