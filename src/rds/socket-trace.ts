/**
 * When messages came, for sockets that ask (SO_TIMESTAMP, SO_RDS_MSG_RXPATH_LATENCY). Nothing is measured while nobody asks.
 *
 *   header read ──0──▶ first byte of data ──1──▶ whole message ──2──▶ recvmsg()
 */
import type { LatencyPoint } from './socket-options.ts';

/** One point of a message's way, in nanoseconds. */
export interface RdsLatency {
  readonly point: LatencyPoint;
  readonly ns: number;
}

/** Times of the message that is being received: lanes write them, sockets copy them. On the runtime's clock. */
export class ReceiveTimes {
  /** Sockets that want them. */
  wanted = 0;
  headerMs = 0;
  dataMs = 0;
  wholeMs = 0;
  /** Messages that these were for. */
  messages = 0;

  /** Of a message that came in one piece. */
  at(nowMs: number): void {
    this.headerMs = nowMs;
    this.dataMs = nowMs;
    this.wholeMs = nowMs;
  }

  /** The message was delivered; if another one is behind it, that came in one piece with its end. */
  delivered(): void {
    this.messages += 1;
    this.at(this.wholeMs);
  }
}

/** How far a receiver is with the message that has begun. */
export interface Unfinished {
  readonly partialBytes: number;
  readonly missing: { readonly headerBytes: number; readonly payloadBytes: number };
}

/** When the message began that is incomplete between two reads of one lane. NaN: it has not. */
export class LaneTimes {
  readonly #times: ReceiveTimes;
  #headerMs = Number.NaN;
  #dataMs = Number.NaN;
  #messagesBefore = 0;

  constructor(times: ReceiveTimes) {
    this.#times = times;
  }

  /** Bytes came, and the receiver is about to see them. */
  before(nowMs: number): void {
    const times = this.#times;
    times.at(nowMs);
    if (!Number.isNaN(this.#headerMs)) times.headerMs = this.#headerMs;
    if (!Number.isNaN(this.#dataMs)) times.dataMs = this.#dataMs;
    this.#messagesBefore = times.messages;
  }

  after(nowMs: number, { partialBytes, missing }: Unfinished): void {
    // What is incomplete now has begun in this read, if the message before it was delivered in it.
    if (this.#times.messages !== this.#messagesBefore) this.forget();
    if (partialBytes === 0 && missing.payloadBytes === 0) {
      this.forget();
      return;
    }
    if (Number.isNaN(this.#headerMs)) this.#headerMs = nowMs;
    if (missing.headerBytes === 0 && Number.isNaN(this.#dataMs)) this.#dataMs = nowMs;
  }

  forget(): void {
    this.#headerMs = Number.NaN;
    this.#dataMs = Number.NaN;
  }
}

/** What one message carries of it. */
export class MessageTrace {
  readonly timestamp: number | null;
  readonly #points: readonly LatencyPoint[];
  readonly #headerMs: number;
  readonly #dataMs: number;
  readonly #wholeMs: number;
  latency: readonly RdsLatency[] | null = null;

  constructor(timestamp: number | null, points: readonly LatencyPoint[], times: ReceiveTimes) {
    this.timestamp = timestamp;
    this.#points = points;
    this.#headerMs = times.headerMs;
    this.#dataMs = times.dataMs;
    this.#wholeMs = times.wholeMs;
  }

  /** recvmsg() returns the message now. */
  read(nowMs: number): void {
    if (this.#points.length === 0) return;
    const spans = [this.#dataMs - this.#headerMs, this.#wholeMs - this.#dataMs, nowMs - this.#wholeMs];
    this.latency = this.#points.map((point) => ({
      point,
      ns: Math.max(0, Math.round((spans[point] as number) * 1e6)),
    }));
  }
}

/** A millisecond, and a little for what passes between two calls. */
const AHEAD_MAX_MS = 1.5;

/** Wall time in milliseconds with a fraction: Date.now() has none, and a clock that only runs on misses what is set anew. */
export class WallClock {
  readonly #epochMs: () => number;
  readonly #now: () => number;
  #offsetMs = Number.NaN;

  constructor(epochMs: () => number, now: () => number) {
    this.#epochMs = epochMs;
    this.#now = now;
  }

  read(): number {
    const now = this.#now();
    const wall = this.#epochMs();
    // Date.now() shows whole milliseconds that have begun, so the truth is less than one ahead of it. Behind it is too little, which
    // moves the offset up to where it belongs, reading by reading; far ahead, the wall was set back.
    const ahead = now + this.#offsetMs - wall;
    if (!(ahead >= 0 && ahead <= AHEAD_MAX_MS)) this.#offsetMs = wall - now;
    return now + this.#offsetMs;
  }
}
