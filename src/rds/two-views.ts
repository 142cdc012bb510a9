/**
 * Message numbers while it is not known which of two rules they follow. Both are kept. A message that is new by both, or has come
 * before by both, goes its way; from the first one on which they differ all are held, until decide() says which rule it is.
 *
 * That is bounded, by the memory a peer may hold (peer.ts then has it decided) and by time: then the first rule is taken.
 */
import type { RdsCounters } from './counters.ts';
import type { ReceiveBuffer } from './memory.ts';
import { holdBuffer, MESSAGE_OVERHEAD_BYTES, type MessageSource, releaseBuffer } from './received.ts';
import type { Sequence, SequenceRule } from './sequence.ts';
import type { Runtime, Timer } from './transport.ts';

/** Messages are held so long for a word of the peer. */
const UNCLEAR_TIMEOUT_MS = 5000;

/** A message, or a user's ping from `sport`. */
export interface Arrival {
  readonly sport: number;
  readonly dport: number;
  readonly payload: {
    readonly buffer: ReceiveBuffer;
    readonly offset: number;
    readonly length: number;
  } | null;
}

interface Held extends Arrival {
  /** By the only rule by which it has come before; null: by neither. */
  readonly oldBy: SequenceRule | null;
}

export interface ViewsHost {
  readonly source: MessageSource;
  readonly counters: RdsCounters;
  timer: Runtime['timer'];
  /** Takes what was held. */
  pass(arrival: Arrival): void;
}

export class TwoViews implements SequenceRule {
  /** What comes is to be given to hold(). */
  isHolding = false;
  readonly #host: ViewsHost;
  readonly #first: SequenceRule;
  readonly #second: SequenceRule;
  #decided: SequenceRule | null = null;
  /** Of the last message that was not dropped. */
  #oldBy: SequenceRule | null = null;
  #held: Held[] = [];
  #timer: Timer | null = null;

  constructor(host: ViewsHost, first: SequenceRule, second: SequenceRule) {
    this.#host = host;
    this.#first = first;
    this.#second = second;
  }

  /** What decide() said last; null before. */
  get decided(): SequenceRule | null {
    return this.#decided;
  }

  get next(): Sequence {
    return (this.#decided ?? this.#first).next;
  }

  expect(next: Sequence): void {
    this.#first.expect(next);
    this.#second.expect(next);
  }

  isDuplicate(hi: number, lo: number, flagged: boolean): boolean {
    const isOldByFirst = this.#first.isDuplicate(hi, lo, flagged);
    const isOldBySecond = this.#second.isDuplicate(hi, lo, flagged);
    if (this.#decided !== null) return this.#decided === this.#first ? isOldByFirst : isOldBySecond;
    if (isOldByFirst && isOldBySecond) return true;
    if (isOldByFirst !== isOldBySecond) this.isHolding = true;
    this.#oldBy = isOldByFirst ? this.#first : isOldBySecond ? this.#second : null;
    return false;
  }

  /** Keeps what isDuplicate() has just let through. */
  hold(arrival: Arrival): void {
    const { source, counters } = this.#host;
    this.#timer ??= this.#host.timer(() => this.decide(), UNCLEAR_TIMEOUT_MS);
    this.#held.push({ ...arrival, oldBy: this.#oldBy });
    counters.recv_held_unclear += 1;
    const buffer = arrival.payload?.buffer.ref();
    // Behind the push: this may be more than the peer may hold, and have all of it let go.
    if (buffer === undefined) source.held(MESSAGE_OVERHEAD_BYTES);
    else holdBuffer(source, buffer);
  }

  /** This rule it is; said again, it may be another. Without one it is the first, unless that was decided before. */
  decide(rule: SequenceRule = this.#decided ?? this.#first): void {
    const { source, counters } = this.#host;
    this.#decided = rule;
    this.isHolding = false;
    this.#timer?.cancel();
    this.#timer = null;
    for (const arrival of this.#held.splice(0)) {
      const { payload, oldBy } = arrival;
      if (payload === null) source.held(-MESSAGE_OVERHEAD_BYTES);
      else releaseBuffer(source, payload.buffer);
      if (oldBy === rule) counters.recv_drop_old_seq += 1;
      else this.#host.pass(arrival);
      payload?.buffer.unref();
    }
  }
}
