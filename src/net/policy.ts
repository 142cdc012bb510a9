/**
 * Whether the next piece is worth lending to the kernel, per socket. Pure: the caller tells what happened and when.
 *
 * A flagged call costs more than a copying one when the piece is small, when the receiver is on this host, or when a
 * packet tap is open on the way: the kernel then copies after all, later and colder. Nothing but the completions can
 * tell (a veth copies or not depending on where it ends), so `auto` watches them:
 *
 *   lending ── 16 completions, 90 % of them copied ──▶ copying ── 30 s or 256 MiB later ──▶ lending (a probe)
 *
 * Loopback destinations start, and stay, copying. Refusals (ENOBUFS from the memlock or optmem limit) are answered by
 * copying the next calls: 1, 2, 4, ... 1024 of them, reset by a success.
 */
import type { CopyCause } from './counters.ts';

export type ZerocopyMode = 'auto' | 'force' | 'off';

export interface PolicyOptions {
  /** `auto`: as above. `force`: lend every piece of the threshold or more. `off`: always copy. */
  readonly mode: ZerocopyMode;
  /** Smaller pieces are copied. */
  readonly thresholdBytes: number;
  /** The peer is on this host; asked once, when the first piece is large enough to matter. */
  readonly loopback: () => boolean;
}

/** TCP breaks even near 8 KiB with a cold source; the callback and the record cost a Node program more. */
export const TCP_THRESHOLD_BYTES: number = 32 * 1024;

const SAMPLE_COMPLETIONS = 16;
const COPIED_SHARE_MAX = 0.9;
const REPROBE_AFTER_MS = 30_000;
const REPROBE_AFTER_BYTES = 256 * 1024 * 1024;
const PENALTY_CALLS_MAX = 1024;

export class ZerocopyPolicy {
  readonly options: PolicyOptions;
  /** Null until the first question. */
  #lending: boolean | null = null;
  /** Why nothing is lent, while nothing is. */
  #stopped: CopyCause = 'off';
  #penalty: CopyCause = 'memlock';
  #completions = 0;
  #copiedCompletions = 0;
  #reprobeAtMs = Number.POSITIVE_INFINITY;
  #reprobeBytesLeft = Number.POSITIVE_INFINITY;
  #penaltyCalls = 0;
  #nextPenalty = 1;

  constructor(options: PolicyOptions) {
    this.options = options;
  }

  /** Whether lending is on: it may still be that a piece is too small, or that a refusal has to be waited out. */
  get lending(): boolean {
    return this.#lending ?? this.options.mode !== 'off';
  }

  /** The causes that depend on nothing but the size: no clock needed. */
  never(bytes: number): CopyCause | null {
    if (this.options.mode === 'off') return 'off';
    return bytes < this.options.thresholdBytes ? 'threshold' : null;
  }

  /** Why a call that carries `bytes` should be an ordinary one now; null: lend it. Asking again changes nothing. */
  why(bytes: number, nowMs: number): CopyCause | null {
    const never = this.never(bytes);
    if (never !== null) return never;
    this.#lending ??= this.#startsLending();
    if (!this.#lending && !this.#probes(nowMs)) return this.#stopped;
    return this.#penaltyCalls > 0 ? this.#penalty : null;
  }

  /** A flagged call was taken: if it was a probe, lending begins again. */
  lent(nowMs: number): void {
    if (this.#lending === false && this.#probes(nowMs)) this.#startLending();
  }

  /** A call with `bytes` of lent memory went without the flag. */
  copied(bytes: number): void {
    if (bytes < this.options.thresholdBytes) return;
    if (this.#penaltyCalls > 0) this.#penaltyCalls -= 1;
    if (this.#lending === false) this.#reprobeBytesLeft -= bytes;
  }

  /** One record of completed calls; merged ones count once, because only the first of them set the flag. */
  completed(copied: boolean, nowMs: number): void {
    this.#nextPenalty = 1;
    if (this.options.mode !== 'auto' || this.#lending === false) return;
    this.#completions += 1;
    if (copied) this.#copiedCompletions += 1;
    if (this.#completions < SAMPLE_COMPLETIONS) return;
    if (this.#copiedCompletions >= COPIED_SHARE_MAX * this.#completions) {
      this.#lending = false;
      this.#stopped = 'kernel';
      this.#reprobeAtMs = nowMs + REPROBE_AFTER_MS;
      this.#reprobeBytesLeft = REPROBE_AFTER_BYTES;
    }
    this.#completions = 0;
    this.#copiedCompletions = 0;
  }

  /** The kernel refused a flagged call: copy for a while, longer each time. */
  refused(cause: CopyCause): void {
    this.#penalty = cause;
    this.#penaltyCalls = this.#nextPenalty;
    this.#nextPenalty = Math.min(this.#nextPenalty * 2, PENALTY_CALLS_MAX);
  }

  /** The socket cannot lend at all (EOPNOTSUPP): copy for good. */
  unsupported(): void {
    this.#lending = false;
    this.#stopped = 'unsupported';
    this.#reprobeAtMs = Number.POSITIVE_INFINITY;
    this.#reprobeBytesLeft = Number.POSITIVE_INFINITY;
  }

  #startsLending(): boolean {
    if (this.options.mode === 'force' || !this.options.loopback()) return true;
    this.#stopped = 'loopback';
    return false;
  }

  #probes(nowMs: number): boolean {
    return nowMs >= this.#reprobeAtMs || this.#reprobeBytesLeft <= 0;
  }

  #startLending(): void {
    this.#lending = true;
    this.#completions = 0;
    this.#copiedCompletions = 0;
    this.#reprobeAtMs = Number.POSITIVE_INFINITY;
    this.#reprobeBytesLeft = Number.POSITIVE_INFINITY;
  }
}
