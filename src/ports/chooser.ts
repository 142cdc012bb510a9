/**
 * Whether a frame of some size is better copied or lent, by measurement: for seven classes of sizes, and per port.
 *
 * No table can tell. Lending costs a fixed sum (pages are looked up and held, a record is read from the error queue, the owner
 * is told), copying costs by the byte, by how cold the memory is, and by what the device wants; where the lines cross was
 * found anywhere from 8 KiB to never. So a port begins with what was found before, and tries both (trial.ts):
 *
 *   class     8 KiB  12 KiB  16 KiB  24 KiB  32 KiB  48 KiB  64 KiB and more
 *   begins    copy    copy    copy    copy    lend    lend    lend                 a stream
 *
 * A trial takes some 100 ms and needs a port that is busy with frames of the class. It is repeated, at first after two seconds; as long as
 * it finds the same, each time after twice as long, up to a minute.
 *
 * Frames under 8 KiB are never lent by choice: it did not pay anywhere, and what comes behind a lent frame is not given
 * back to the guest before it.
 *
 * Where the kernel copies after all it does so later, and often in the receiver's time: completions tell that, and ZerocopyPolicy stops
 * lending then, whatever was found here.
 *
 * Pure: the caller has the clocks.
 */
import { LendTrial } from './trial.ts';

/** Smaller frames are not worth lending, whoever asks for it. */
export const LEND_BYTES_MIN = 1024;
/** Smaller ones are not lent by choice. */
export const CHOICE_BYTES_MIN: number = 8 * 1024;

/** From which size on a port lends before it has tried: a stream, and datagrams. */
export const STREAM_BEGINS_BYTES: number = 32 * 1024;
export const DATAGRAM_BEGINS_BYTES: number = Number.POSITIVE_INFINITY;

const FIRST_ORDER = 13;
/** Frames of 64 KiB and more. */
const LAST_ORDER = 16;
const CLASSES = 2 * (LAST_ORDER - FIRST_ORDER) + 1;
/** Before the first trial: compilers are at work until then, and what is not run so often would lose. */
const FIRST_TRIAL_MS = 1000;
const FIRST_TRIAL_FRAMES = 4096;
const PAUSE_MS = 2000;
const PAUSE_MS_MAX = 64_000;

interface SizeClass {
  lends: boolean;
  frames: number;
  /** When the next trial is; negative: none of its frames has been seen. */
  trialAtMs: number;
  pauseMs: number;
}

export class LendChooser {
  readonly #classes: SizeClass[] = [];
  readonly #cpuMs: () => number;
  #thresholdBytes = 0;
  #trial: LendTrial | null = null;
  /** What the trial is about; and what was sent last. */
  #tried: SizeClass | null = null;
  #last: SizeClass | null = null;

  /** `cpuMs`: time of the processor, in milliseconds, that the process has used. */
  constructor(beginsBytes: number, cpuMs: () => number) {
    this.#cpuMs = cpuMs;
    for (let i = 0; i < CLASSES; i++)
      this.#classes.push({ lends: bytesOf(i) >= beginsBytes, frames: 0, trialAtMs: -1, pauseMs: PAUSE_MS });
    this.#findThreshold();
  }

  /** From this size on frames are lent as a rule; infinity: none is. */
  get thresholdBytes(): number {
    return this.#thresholdBytes;
  }

  /** Whether frames of this size are lent, but for trials. */
  lends(bytes: number): boolean {
    return bytes >= CHOICE_BYTES_MIN && (this.#classes[classOf(bytes)] as SizeClass).lends;
  }

  /** Whether the next frame, of this size, is to be lent. */
  choose(bytes: number): boolean {
    if (bytes < CHOICE_BYTES_MIN) return false;
    const one = this.#classes[classOf(bytes)] as SizeClass;
    this.#last = one;
    one.frames += 1;
    if (one !== this.#tried || this.#trial === null) return one.lends;
    this.#trial.own(bytes);
    return this.#trial.lends;
  }

  /** To be called before frames are sent: the time, and the bytes of all frames so far. */
  look(nowMs: number, bytes: number): void {
    if (this.#trial === null) {
      this.#begin(nowMs, bytes);
      return;
    }
    const verdict = this.#trial.look(nowMs, bytes);
    if (verdict === null) return;
    const tried = this.#tried as SizeClass;
    this.#trial = null;
    const lends = verdict === 'unknown' ? tried.lends : verdict === 'lend';
    tried.pauseMs = lends === tried.lends ? Math.min(2 * tried.pauseMs, PAUSE_MS_MAX) : PAUSE_MS;
    tried.trialAtMs = nowMs + tried.pauseMs;
    tried.lends = lends;
    this.#findThreshold();
  }

  #begin(nowMs: number, bytes: number): void {
    const last = this.#last;
    if (last === null) return;
    this.#last = null;
    if (last.trialAtMs < 0) last.trialAtMs = nowMs + FIRST_TRIAL_MS;
    if (nowMs < last.trialAtMs || last.frames < FIRST_TRIAL_FRAMES) return;
    this.#tried = last;
    this.#trial = new LendTrial(nowMs, bytes, last.lends, this.#cpuMs);
  }

  /** The smallest class such that it and all above it are lent. */
  #findThreshold(): void {
    let i = CLASSES;
    while (i > 0 && this.#classes[i - 1]?.lends === true) i -= 1;
    this.#thresholdBytes = i === CLASSES ? Number.POSITIVE_INFINITY : bytesOf(i);
  }
}

/** Two classes to a power of two. */
function classOf(bytes: number): number {
  const order = 31 - Math.clz32(bytes);
  if (order >= LAST_ORDER) return CLASSES - 1;
  return 2 * (order - FIRST_ORDER) + ((bytes >> (order - 1)) & 1);
}

/** The smallest frame of a class. */
function bytesOf(index: number): number {
  return (2 + (index & 1)) << (FIRST_ORDER - 1 + (index >> 1));
}
