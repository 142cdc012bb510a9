/**
 * The limit on what a port may have flooded: broadcasts, multicasts and frames to unknown addresses each cost every other port, so each
 * kind has a bucket of tokens that fills with time. What finds it empty is dropped (IEEE 802.1Q leaves this to the bridge).
 */
import { checkInteger, checkObject, wrongType } from '../core/arguments.ts';

export interface Rate {
  readonly framesPerSecond: number;
  /** Frames that may come at once; as many as in a tenth of a second, and at least 1, unless told. */
  readonly burstFrames?: number;
}

/** Per port that frames come in by. A kind that is not named has no limit. */
export interface StormLimits {
  readonly broadcast?: Rate;
  readonly multicast?: Rate;
  /** To an address that no port is known for. */
  readonly unknown?: Rate;
}

const RATE_MAX = 1_000_000_000;

export class TokenBucket {
  readonly #perMs: number;
  readonly #burst: number;
  #tokens: number;
  #filledMs: number;

  /** Full at the beginning. */
  constructor(perSecond: number, burst: number, nowMs: number) {
    this.#perMs = perSecond / 1000;
    this.#burst = burst;
    this.#tokens = burst;
    this.#filledMs = nowMs;
  }

  /** Takes a token, if there is one. */
  take(nowMs: number): boolean {
    if (nowMs > this.#filledMs) {
      this.#tokens = Math.min(this.#burst, this.#tokens + (nowMs - this.#filledMs) * this.#perMs);
      this.#filledMs = nowMs;
    }
    if (this.#tokens < 1) return false;
    this.#tokens -= 1;
    return true;
  }
}

/** The buckets of a port; null: no limit. */
export class StormControl {
  readonly broadcast: TokenBucket | null;
  readonly multicast: TokenBucket | null;
  readonly unknown: TokenBucket | null;

  constructor(limits: StormLimits, nowMs: number) {
    this.broadcast = bucket('storm.broadcast', limits.broadcast, nowMs);
    this.multicast = bucket('storm.multicast', limits.multicast, nowMs);
    this.unknown = bucket('storm.unknown', limits.unknown, nowMs);
  }
}

/** Throws ERR_INVALID_ARG_TYPE and ERR_OUT_OF_RANGE for limits that are none. */
export function checkStorm(limits: StormLimits): void {
  checkObject('storm', limits);
  new StormControl(limits, 0);
}

function bucket(name: string, rate: Rate | undefined, nowMs: number): TokenBucket | null {
  if (rate === undefined) return null;
  if (typeof rate !== 'object' || rate === null)
    throw wrongType(name, 'an object such as { framesPerSecond: 1000 }', rate);
  const { framesPerSecond, burstFrames = Math.max(1, Math.ceil(framesPerSecond / 10)) } = rate;
  checkInteger(`${name}.framesPerSecond`, framesPerSecond, 0, RATE_MAX);
  checkInteger(`${name}.burstFrames`, burstFrames, 1, RATE_MAX);
  return new TokenBucket(framesPerSecond, burstFrames, nowMs);
}
