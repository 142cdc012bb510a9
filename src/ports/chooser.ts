/**
 * Whether a frame of some size is cheaper to copy or to lend, by measurement: per power of two, and per port.
 *
 * No table can tell. Lending costs a fixed sum (pages are looked up and held, a record is read from the error
 * queue), copying costs by the byte, by how cold the memory is, and by what the device wants; where the lines cross was
 * found anywhere from 2 KiB to never. So both ways are timed, and the cheaper one is used:
 *
 *   size class    1 KiB   2 KiB   4 KiB  ...  32 KiB  64 KiB
 *   copying  ns     900     950    1100        3100    5200
 *   lending  ns    1700    1700    1750        2300    2600
 *                  copy    copy    copy        lend    lend
 *
 * Some frames go the other way, so that its cost stays known; eight in a row, since a call that carries several frames is
 * what is cheap about either. That is not cheap at all, as what comes behind a lent frame is not given back to the guest before
 * it: of 16 KiB, one burst in 64 cost a quarter of the throughput (measured). So a way that was clearly dearer the last time is
 * tried half as often the next, down to one burst in 4096; and one that was not, in 64 again. Estimates are running means of clipped samples: a thread that lost its CPU in the
 * middle of a call shows as a sample of milliseconds, and must not decide anything for long. A change of mind needs a
 * difference of 5 %.
 *
 * The time of a call is all that is seen. Where the kernel copies after all it does so later, and often in the
 * receiver's time: completions tell that, and ZerocopyPolicy stops lending then, whatever the times are.
 *
 * Pure: the caller has the clock.
 */
import { assert } from '../core/assert.ts';

/** Nanoseconds: what is believed until something has been measured. */
export interface CostPriors {
  readonly copyFrameNs: number;
  readonly copyNsPerByte: number;
  readonly lendFrameNs: number;
  readonly lendNsPerByte: number;
  /** Reading the completion of a frame. */
  readonly completionNs: number;
}

/** A stream: what the kernel does for each segment is in both. */
export const STREAM_PRIORS: CostPriors = {
  copyFrameNs: 1000,
  copyNsPerByte: 0.1,
  lendFrameNs: 1700,
  lendNsPerByte: 0.02,
  completionNs: 300,
};

/** Datagrams, copied in batches. */
export const DATAGRAM_PRIORS: CostPriors = {
  copyFrameNs: 900,
  copyNsPerByte: 0.1,
  lendFrameNs: 1500,
  lendNsPerByte: 0.02,
  completionNs: 400,
};

/** Smaller frames are not worth a thought: not even that of measuring them. */
export const LEND_BYTES_MIN = 1024;

const FIRST_ORDER = 10;
/** Frames of 64 KiB and more. */
const LAST_ORDER = 16;
/** Frames in a row that go the same way for the sake of measuring. */
const BURST_FRAMES = 8;
/** One burst in so many is for exploring: at first, and at the least. */
const EXPLORE_EVERY = 64;
const EXPLORE_EVERY_MAX = 4096;
/** How much dearer the other way is when it is clear. */
const CLEAR = 1.25;
/** Bursts at the start that go either way by turns: priors are of another machine. */
const LEARNING_BURSTS = 8;
const WEIGHT = 1 / 32;
/** A sample counts as this many times the estimate at most. */
const CLIP = 3;
const HYSTERESIS = 0.95;

const fresh = { frames: 0, exploreAt: EXPLORE_EVERY - 1, patience: EXPLORE_EVERY, otherNs: 0 };

interface SizeClass {
  copyNs: number;
  /** Without the completion. */
  lendNs: number;
  lends: boolean;
  /** Frames so far. */
  frames: number;
  /** The burst that explores next, and how many later the one after that. */
  exploreAt: number;
  patience: number;
  /** What the other way cost when it was tried last, without the completion. */
  otherNs: number;
}

export interface CostEstimate {
  readonly copyNs: number;
  /** The completion included. */
  readonly lendNs: number;
  readonly lends: boolean;
}

export class LendChooser {
  readonly #classes: SizeClass[] = [];
  #completionNs: number;
  #thresholdBytes = 0;

  constructor(priors: CostPriors) {
    this.#completionNs = priors.completionNs;
    for (let order = FIRST_ORDER; order <= LAST_ORDER; order++) {
      const bytes = order === LAST_ORDER ? 2 ** order : 1.5 * 2 ** order;
      const copyNs = priors.copyFrameNs + bytes * priors.copyNsPerByte;
      const lendNs = priors.lendFrameNs + bytes * priors.lendNsPerByte;
      this.#classes.push({ copyNs, lendNs, lends: lendNs + this.#completionNs < copyNs, ...fresh });
    }
    this.#findThreshold();
  }

  /** From this size on frames are lent as a rule; infinity: none is. */
  get thresholdBytes(): number {
    return this.#thresholdBytes;
  }

  /** Whether the next frame, of this size, is to be lent. */
  choose(bytes: number): boolean {
    if (bytes < LEND_BYTES_MIN) return false;
    const one = this.#classOf(bytes);
    const burst = Math.floor(one.frames / BURST_FRAMES);
    one.frames += 1;
    if (burst > one.exploreAt) this.#plan(one, burst);
    const explores = burst < LEARNING_BURSTS ? burst % 2 === 1 : burst === one.exploreAt;
    return explores ? !one.lends : one.lends;
  }

  /** Frames of the class of `bytes`, and no others, were sent by a call; `ns` for each of them. */
  measured(bytes: number, lent: boolean, ns: number): void {
    assert(bytes >= LEND_BYTES_MIN, 'a frame that is never timed');
    const one = this.#classOf(bytes);
    if (lent !== one.lends) one.otherNs = ns;
    if (lent) one.lendNs = blend(one.lendNs, ns);
    else one.copyNs = blend(one.copyNs, ns);
    this.#decide(one);
  }

  /** The completions of `frames` frames were read in `ns`. */
  completed(frames: number, ns: number): void {
    this.#completionNs = blend(this.#completionNs, ns / frames);
  }

  /** What is believed of frames of this size. */
  estimate(bytes: number): CostEstimate {
    const { copyNs, lendNs, lends } = this.#classOf(bytes);
    return { copyNs, lendNs: lendNs + this.#completionNs, lends };
  }

  /** An exploration is over: says when the next is. */
  #plan(one: SizeClass, burst: number): void {
    const completionNs = this.#completionNs;
    const ownNs = one.lends ? one.lendNs + completionNs : one.copyNs;
    const otherNs = one.lends ? one.otherNs : one.otherNs + completionNs;
    one.patience = otherNs > CLEAR * ownNs ? Math.min(2 * one.patience, EXPLORE_EVERY_MAX) : EXPLORE_EVERY;
    one.exploreAt = burst + one.patience;
  }

  #classOf(bytes: number): SizeClass {
    return this.#classes[Math.max(sizeOrder(bytes), FIRST_ORDER) - FIRST_ORDER] as SizeClass;
  }

  #decide(one: SizeClass): void {
    const lendNs = one.lendNs + this.#completionNs;
    const lends = one.lends ? lendNs * HYSTERESIS <= one.copyNs : lendNs < one.copyNs * HYSTERESIS;
    if (lends === one.lends) return;
    one.lends = lends;
    // The other way is now the one that was taken until now, and is known.
    one.otherNs = 0;
    this.#findThreshold();
  }

  /** The smallest class such that it and all above it are lent. */
  #findThreshold(): void {
    let order = LAST_ORDER + 1;
    while (order > FIRST_ORDER && (this.#classes[order - 1 - FIRST_ORDER] as SizeClass).lends) order -= 1;
    this.#thresholdBytes = order > LAST_ORDER ? Number.POSITIVE_INFINITY : 2 ** order;
  }
}

/** Frames of one order are one class: what is timed together should be of the same. */
export function sizeOrder(bytes: number): number {
  return Math.min(31 - Math.clz32(bytes), LAST_ORDER);
}

function blend(estimate: number, sample: number): number {
  return estimate + (Math.min(sample, CLIP * estimate) - estimate) * WEIGHT;
}
