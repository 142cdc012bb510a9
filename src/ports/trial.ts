/**
 * A trial: frames of one size are copied and lent by turns, and what that costs is compared, in time of the processor and by the clock.
 *
 *   copied │ (settling) lent │ lent │ (settling) copied │ copied │ (settling) lent │ ...
 *
 * These are sixteen pairs, which begin with either by turns. After each change it settles: what was sent the other way is gone by then, and
 * the send buffer is filled as it will be.
 *
 * The processor's time is the whole process's, as lending costs in many places: in the call, in the completion, in whoever gets the memory
 * back, and as packets leave in calls or later, when the peer acknowledges. Timing calls alone found the wrong way at 16 KiB and at 64
 * KiB (measured).
 *
 * The clock tells something else: lent memory is given back only when the peer has acknowledged it, and a guest whose ring is full of it
 * waits, while we idle. So what is cheaper is not used where it is slower, if the median of the pairs says so and nearly all agree: a
 * port that has little to send, or shares its wire, shows any ratio at random.
 *
 * Times in which nothing is sent do not count, and a port that sends less than some ten megabytes a second is not tried at all. What is
 * clear is decided sooner. Pure: the caller has the clocks.
 */
const PAIRS = 16;
/** Enough where all of them say the same, and clearly. */
const PAIRS_CLEAR = 6;
const CLEARLY_MORE = 1.2;
const CLEARLY_LESS = 0.85;
/** Pairs that must agree about the clock: by chance they do in one trial of 26. */
const AGREEING = 12;
/** What lending may cost where it is not in use, and where it is: both ways are noise around 1 where it does not matter. */
const LEND_FROM = 0.95;
const LEND_UP_TO = 1.03;
/** So much longer is slower. */
const SLOWER = 1.04;
/** A send buffer is 4 MiB at most, as systems are set up (tcp_wmem), and copies fill it at once; what is lent is less. */
const SETTLING_COPIED_BYTES = 6 << 20;
const SETTLING_LENT_BYTES = 2 << 20;
const SETTLING_MS = 0.5;
const EPOCH_BYTES = 2 << 20;
const EPOCH_MS = 2;
/** Too little is sent for it to matter, or too seldom. */
const EPOCH_MS_MAX = 1000;
const TRIAL_MS_MAX = 10_000;
/** Nothing was sent for so long: there was nothing to send. What is lent for longer than 5 ms is not lent again by a guest. */
const GAP_MS = 20;
/** Of the bytes, those of the size in question: one in so many at the least. */
const OWN_SHARE = 3;

/** What to do from now on; `unknown`: it could not be found out. */
export type Verdict = 'lend' | 'copy' | 'unknown';

export class LendTrial {
  readonly #cpuMs: () => number;
  readonly #lent: boolean;
  /** Of the pairs: what lending took, in copyings. */
  readonly #cpuRatios: number[] = [];
  readonly #timeRatios: number[] = [];
  readonly #beganMs: number;
  #epoch = 0;
  #isSettling = true;
  // When the epoch, or its settling, began.
  #startMs: number;
  #startCpuMs = 0;
  #startBytes: number;
  #lastMs: number;
  #ownBytes = 0;
  // Of the first of a pair, for each byte.
  #firstMs = 0;
  #firstCpuMs = 0;

  /** `lent`: what was done until now. `cpuMs`: time of the processor, that the process has used. */
  constructor(nowMs: number, bytes: number, lent: boolean, cpuMs: () => number) {
    this.#beganMs = nowMs;
    this.#startMs = nowMs;
    this.#lastMs = nowMs;
    this.#startBytes = bytes;
    this.#lent = lent;
    this.#cpuMs = cpuMs;
  }

  /** Whether the frames in question are lent now. */
  get lends(): boolean {
    return this.#epoch % 4 === 1 || this.#epoch % 4 === 2;
  }

  /** One of the frames in question is sent. */
  own(bytes: number): void {
    this.#ownBytes += bytes;
  }

  /** To be called often, with the bytes of all frames so far. Null: it goes on. */
  look(nowMs: number, bytes: number): Verdict | null {
    const gapMs = nowMs - this.#lastMs;
    if (gapMs > GAP_MS) this.#startMs += gapMs;
    this.#lastMs = nowMs;
    const elapsedMs = nowMs - this.#startMs;
    const sent = bytes - this.#startBytes;
    if (elapsedMs > EPOCH_MS_MAX || nowMs - this.#beganMs > TRIAL_MS_MAX) return 'unknown';
    if (this.#isSettling) {
      const settlingBytes = this.lends ? SETTLING_LENT_BYTES : SETTLING_COPIED_BYTES;
      if (elapsedMs >= SETTLING_MS && sent >= settlingBytes) this.#begin(nowMs, bytes, false);
      return null;
    }
    if (elapsedMs < EPOCH_MS || sent < EPOCH_BYTES) return null;
    if (OWN_SHARE * this.#ownBytes < sent) return 'unknown';
    this.#measured(elapsedMs / sent, (this.#cpuMs() - this.#startCpuMs) / sent);
    const lent = this.lends;
    this.#epoch += 1;
    this.#begin(nowMs, bytes, lent !== this.lends);
    return this.#epoch % 2 === 0 ? this.#verdict() : null;
  }

  #begin(nowMs: number, bytes: number, settling: boolean): void {
    this.#startMs = nowMs;
    this.#startBytes = bytes;
    this.#ownBytes = 0;
    this.#isSettling = settling;
    if (!settling) this.#startCpuMs = this.#cpuMs();
  }

  #measured(ms: number, cpuMs: number): void {
    if (this.#epoch % 2 === 0) {
      this.#firstMs = ms;
      this.#firstCpuMs = cpuMs;
      return;
    }
    this.#timeRatios.push(this.lends ? ms / this.#firstMs : this.#firstMs / ms);
    this.#cpuRatios.push(this.lends ? cpuMs / this.#firstCpuMs : this.#firstCpuMs / cpuMs);
  }

  #verdict(): Verdict | null {
    const time = this.#timeRatios;
    const cpu = this.#cpuRatios;
    if (time.length < PAIRS_CLEAR) return null;
    if (Math.min(...time) > CLEARLY_MORE || Math.min(...cpu) > CLEARLY_MORE) return 'copy';
    if (Math.max(...cpu) < CLEARLY_LESS && median(time) < SLOWER) return 'lend';
    if (time.length < PAIRS) return null;
    const isSlower = median(time) > SLOWER && time.filter((ratio) => ratio > 1).length >= AGREEING;
    return !isSlower && median(cpu) < (this.#lent ? LEND_UP_TO : LEND_FROM) ? 'lend' : 'copy';
  }
}

function median(ratios: readonly number[]): number {
  const sorted = ratios.toSorted((a, b) => a - b);
  const half = sorted.length / 2;
  return ((sorted[Math.ceil(half) - 1] as number) + (sorted[Math.floor(half)] as number)) / 2;
}
