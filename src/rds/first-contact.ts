/**
 * What a dialled side makes of message numbers before it knows how many lanes the peer has. A peer that knew our former process
 * comes with several connections; by them alone one cannot tell
 *
 *   several lanes (7.x, zerotx)     each source port, modulo the lanes, has numbers of its own
 *   one lane, connected again (6.x) all continue one row of numbers, and what was not acknowledged comes again
 *
 * and the wrong guess loses messages, or delivers them twice. So both views are kept, and a message that is new in both, or old
 * in both, goes its way. From the first one on which they differ all are held, until a probe of the peer has SPORT_IDX or has none.
 * That is bounded: by the memory a peer may hold, and by time. Then the view of several lanes is taken, which loses nothing.
 */
import type { RdsCounters } from './counters.ts';
import type { ReceiveBuffer } from './memory.ts';
import { holdBuffer, MESSAGE_OVERHEAD_BYTES, type MessageSource, releaseBuffer } from './received.ts';
import { Expectation, type Sequence, type SequenceRule } from './sequence.ts';
import type { Runtime, Timer } from './transport.ts';

/** Held so long for a word of the peer. */
const UNCLEAR_TIMEOUT_MS = 5000;

type View = 'one' | 'several';

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
  /** In the only view in which it has come before; null: in neither. */
  readonly isOldIn: View | null;
}

export interface ContactHost {
  /** Takes what was held. */
  pass(arrival: Arrival): void;
  timer: Runtime['timer'];
}

export class FirstContact implements SequenceRule {
  /** What comes is to be given to hold(). */
  isHolding = false;
  readonly #modulus: number;
  readonly #source: MessageSource;
  readonly #counters: RdsCounters;
  readonly #host: ContactHost;
  readonly #one = new Expectation();
  /** By source port modulo lanes. */
  readonly #several = new Map<number, Expectation>();
  #residue = 0;
  #view: View | null;
  /** Of the last message that was not dropped. */
  #isOldIn: View | null = null;
  #held: Held[] = [];
  #timer: Timer | null = null;

  /** `lanes` is how many it has, if several; `hasSeveral` whether it does, if that is known. */
  constructor(
    peer: { readonly source: MessageSource; readonly lanes: number; readonly hasSeveral: boolean | null },
    counters: RdsCounters,
    host: ContactHost,
  ) {
    this.#modulus = peer.lanes;
    this.#source = peer.source;
    this.#counters = counters;
    this.#host = host;
    this.#view = viewOf(peer.hasSeveral);
  }

  get next(): Sequence {
    return (this.#view === 'one' ? this.#one : this.#current).next;
  }

  expect(next: Sequence): void {
    this.#one.expect(next);
    this.#current.expect(next);
  }

  /** From now on what comes is from source port `port`. */
  comesFrom(port: number): void {
    this.#residue = port % this.#modulus;
  }

  /** What comes is, or may be, another lane's than lane 0's; and not all has been. */
  get isOneOfSeveral(): boolean {
    return this.#view !== 'one' && this.#residue !== 0 && this.#several.size > 1;
  }

  isDuplicate(hi: number, lo: number, flagged: boolean): boolean {
    const isOldInOne = this.#one.isDuplicate(hi, lo, flagged);
    const isOldInSeveral = this.#current.isDuplicate(hi, lo, flagged);
    if (this.#view !== null) return this.#view === 'one' ? isOldInOne : isOldInSeveral;
    if (isOldInOne && isOldInSeveral) return true;
    if (isOldInOne !== isOldInSeveral) this.isHolding = true;
    this.#isOldIn = isOldInOne ? 'one' : isOldInSeveral ? 'several' : null;
    return false;
  }

  /** Keeps what isDuplicate() has just let through. */
  hold(arrival: Arrival): void {
    this.#timer ??= this.#host.timer(() => this.decide(true), UNCLEAR_TIMEOUT_MS);
    this.#held.push({ ...arrival, isOldIn: this.#isOldIn });
    this.#counters.recv_held_unclear += 1;
    const buffer = arrival.payload?.buffer.ref();
    // Behind the push: this may be more than the peer may hold, and have all of it let go.
    if (buffer === undefined) this.#source.held(MESSAGE_OVERHEAD_BYTES);
    else holdBuffer(this.#source, buffer);
  }

  /** The peer is known to have several lanes or one, or it is time to decide. May be said again. */
  decide(hasSeveral: boolean): void {
    this.#view = viewOf(hasSeveral);
    this.isHolding = false;
    this.#timer?.cancel();
    this.#timer = null;
    for (const arrival of this.#held.splice(0)) {
      const { payload, isOldIn } = arrival;
      if (payload === null) this.#source.held(-MESSAGE_OVERHEAD_BYTES);
      else releaseBuffer(this.#source, payload.buffer);
      if (isOldIn === this.#view) this.#counters.recv_drop_old_seq += 1;
      else this.#host.pass(arrival);
      payload?.buffer.unref();
    }
  }

  /** The peer has so many lanes, and what comes now is lane `current`'s: what each expects that has been heard of. */
  lanes(count: number, current: number): ReadonlyMap<number, Expectation> {
    const rules = new Map<number, Expectation>();
    if (count > 1) for (const [residue, rule] of this.#several) rules.set(residue % count, rule);
    return rules.set(current, this.#view === 'one' ? this.#one : this.#current);
  }

  /** Lanes left at these numbers: what the peer went on with. */
  seed(lane: number, next: Sequence): void {
    this.#of(lane).expect(next);
    if (lane === 0) this.#one.expect(next);
  }

  get #current(): Expectation {
    return this.#of(this.#residue);
  }

  #of(residue: number): Expectation {
    let rule = this.#several.get(residue);
    if (rule === undefined) {
      rule = new Expectation();
      this.#several.set(residue, rule);
    }
    return rule;
  }
}

function viewOf(hasSeveral: boolean | null): View | null {
  if (hasSeveral === null) return null;
  return hasSeveral ? 'several' : 'one';
}
