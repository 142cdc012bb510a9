/**
 * The zero-copy engine of one socket: flagged sends, their numbers, and the error queue.
 *
 * Every successful MSG_ZEROCOPY call takes one number of the socket and one reference on the Ubuf it sends from;
 * the completion of that number gives the reference back. A refused call (ENOBUFS, EMSGSIZE, EOPNOTSUPP, ENOMEM) is
 * made again without the flag, so that the program never sees these errors and the order of the stream is kept; and
 * nobody ever waits for a completion that cannot come.
 *
 * Sources: Documentation/networking/msg_zerocopy.rst; msg_zerocopy_realloc (net/core/skbuff.c) for the numbering.
 */
import { type MemlockBudget, pinnedPages } from '../core/budget.ts';
import { CompletionTracker } from '../core/completions.ts';
import { errnoOf } from '../core/errors.ts';
import type { Ubuf } from '../core/ubuf.ts';
import type { Native } from '../sys/binding.ts';
import { MSG_ZEROCOPY } from '../sys/constants.ts';
import { completionRange, ERRQUEUE_WORDS, isCopied, isZerocopyCompletion } from '../wire/errqueue.ts';
import { publishFallback, publishRelease } from './channels.ts';
import { type CopyCause, countPinned, type ZerocopyCounters } from './counters.ts';
import type { ZerocopyPolicy } from './policy.ts';

export interface EngineOptions<V extends Sized = Uint8Array> {
  readonly sys: Native;
  readonly fd: number;
  readonly policy: ZerocopyPolicy;
  readonly counters: ZerocopyCounters;
  /** Milliseconds, with a fraction, of a clock that is never set back. */
  readonly now: () => number;
  /** Pages are charged per call. None: whoever lends has charged them before. */
  readonly budget?: MemlockBudget;
  /** The system call: bytes taken or `-errno`. If left out: sendmsg(2) on `fd`, of views that are memory. */
  readonly call?: SendCall<V>;
}

/** All that the engine knows of a view: whoever makes the call knows what it stands for. */
export interface Sized {
  readonly byteLength: number;
}

/** Sends the first `count` views with `flags`. */
export type SendCall<V extends Sized = Uint8Array> = (
  views: readonly V[],
  count: number,
  flags: number,
) => number;

/** Whose memory a call sends from: one Ubuf all of it, or each of these its view. */
export type Lenders = Ubuf | readonly Ubuf[];

/** What a call took of one Ubuf. */
interface Part {
  readonly ubuf: Ubuf;
  readonly bytes: number;
}

interface LentCall {
  readonly parts: Part | readonly Part[];
  readonly bytes: number;
  readonly pages: number;
  readonly sinceMs: number;
}

const EAGAIN = -errnoOf('EAGAIN');
const ENOBUFS = -errnoOf('ENOBUFS');
const ENOMEM = -errnoOf('ENOMEM');
const EMSGSIZE = -errnoOf('EMSGSIZE');
const EOPNOTSUPP = -errnoOf('EOPNOTSUPP');
/** The kernel's own ENOTSUPP, which old kernels let through to user space. */
const KERNEL_ENOTSUPP = -524;

/** Fewer outstanding calls than these never exhaust optmem. */
const OPTMEM_CALLS_MIN = 8;
/** Flagged calls after which the error queue is read even if no event came. */
const DRAIN_EVERY = 16;
/** Records read in one batch; one scratch area serves all sockets, as nothing keeps it past the call. */
const DRAIN_RECORDS = 64;
const records = new Uint32Array(DRAIN_RECORDS * ERRQUEUE_WORDS);

/**
 * The most that one flagged call carries where pages are limited: the kernel charges what was asked for, even if it takes
 * only a part, and releases in steps of this size anyway (skb_zerocopy_realloc: 512 KiB share one notification).
 */
const LIMITED_CALL_BYTES = 512 * 1024;

/**
 * Views are memory of this process unless `V` says otherwise: frames of a guest are sent from memory that no view shows, and
 * `call` finds it.
 */
export class ZerocopyEngine<V extends Sized = Uint8Array> {
  readonly policy: ZerocopyPolicy;
  readonly counters: ZerocopyCounters;
  readonly #sys: Native;
  readonly #fd: number;
  /** Null: a call that failed. */
  readonly #calls = new CompletionTracker<LentCall | null>();
  readonly #now: () => number;
  readonly #call: SendCall<V>;
  readonly #budget: MemlockBudget | undefined;
  /** The process may pin as much as it likes. */
  readonly #isUnlimited: boolean;
  /** Flagged calls since the queue was read. */
  #undrained = 0;
  readonly #pageBytes: number;

  constructor(options: EngineOptions<V>) {
    const { sys, fd, budget } = options;
    this.#sys = sys;
    this.#fd = fd;
    this.policy = options.policy;
    this.counters = options.counters;
    this.#now = options.now;
    const sendv: SendCall = (views, count, flags) => sys.sendv(fd, views, count, flags);
    this.#call = options.call ?? (sendv as unknown as SendCall<V>);
    this.#isUnlimited = budget !== undefined && budget.limitPages < 0;
    this.#budget = this.#isUnlimited ? undefined : budget;
    this.#pageBytes = this.#budget === undefined ? 0 : sys.pageSize();
  }

  /** Flagged calls not completed yet. */
  get outstanding(): number {
    return this.#calls.outstanding;
  }

  /** The most that one flagged call should carry now. */
  get callBytesMax(): number {
    const budget = this.#budget;
    if (budget === undefined) return Number.POSITIVE_INFINITY;
    const room = (budget.limitPages - budget.used() - 2) * this.#pageBytes;
    return Math.min(LIMITED_CALL_BYTES, Math.max(0, room));
  }

  /** Why a piece of `bytes` should go in an ordinary call, gathered with others; null: in a flagged call of its own. */
  why(bytes: number): CopyCause | null {
    // Most pieces are small: they are not worth a look at the clock.
    const cause = this.policy.never(bytes) ?? this.policy.why(bytes, this.#now());
    if (cause !== null) return cause;
    return bytes > this.callBytesMax && this.callBytesMax < this.policy.options.thresholdBytes
      ? 'memlock'
      : null;
  }

  /** Since when the oldest call waits for its completion; undefined: none does. */
  get oldestSinceMs(): number | undefined {
    return this.#calls.first?.sinceMs;
  }

  /**
   * Sends the first `count` views in a flagged call; in an ordinary one if the kernel refuses. Returns bytes taken, or
   * `-errno` (`-EAGAIN` when the send buffer is full).
   */
  send(lenders: Lenders, views: readonly V[], count: number, flags: number): number {
    this.#drainSometimes();
    const pages = this.#charge(views, count);
    if (pages < 0) return this.#sendCopied(lenders, views, count, flags, 'memlock');
    const waiting = this.#calls.outstanding > 0;
    let n = this.#flagged(views, count, flags);
    // Unread records also use up optmem, and are drained now. With nothing outstanding before, nothing would change.
    if (n === ENOBUFS && waiting) n = this.#flagged(views, count, flags);
    if (n > 0) {
      const nowMs = this.#now();
      this.#calls.add({ parts: hold(lenders, views, n), bytes: n, pages, sinceMs: nowMs });
      this.policy.lent(nowMs);
      const { counters } = this;
      counters.lentCalls += 1;
      counters.lentBytes += n;
      countPinned(counters, n);
      return n;
    }
    this.#uncharge(pages);
    const cause = this.#refused(n);
    return cause === null ? n : this.#sendCopied(lenders, views, count, flags, cause);
  }

  /** Bytes, of a lent Ubuf or of no Ubuf, went in an ordinary call. */
  copied(ubuf: Ubuf | null, bytes: number, cause: CopyCause): void {
    this.policy.copied(bytes);
    this.#countCopied(ubuf, bytes, cause);
  }

  /**
   * A program that writes without a pause comes back to the event loop late, and meanwhile memory stays pinned that the kernel
   * is done with. One record for many calls is cheap, as the kernel merges them.
   */
  #drainSometimes(): void {
    this.#undrained += 1;
    if (this.#undrained < DRAIN_EVERY || this.#calls.outstanding < DRAIN_EVERY) return;
    this.drain();
  }

  /** Reads the error queue to its end. Returns the number of calls completed. */
  drain(): number {
    this.#undrained = 0;
    const before = this.#calls.outstanding;
    let count: number;
    do {
      count = this.#sys.drainErrors(this.#fd, records);
      for (let i = 0; i < count; i++) if (isZerocopyCompletion(records, i)) this.#complete(i);
    } while (count === DRAIN_RECORDS);
    this.counters.unexpectedCompletions += this.#calls.unexpected;
    this.#calls.unexpected = 0;
    return before - this.#calls.outstanding;
  }

  /** The deadline has passed: whoever waits for memory of the calls that are not completed is told. */
  quarantine(): void {
    for (const call of this.#calls.pending()) {
      if (call === null) continue;
      if ('ubuf' in call.parts) call.parts.ubuf.quarantine();
      else for (const { ubuf } of call.parts) ubuf.quarantine();
    }
  }

  /** Bytes of the calls that are not completed yet. */
  pendingBytes(): number {
    let bytes = 0;
    for (const call of this.#calls.pending()) bytes += call?.bytes ?? 0;
    return bytes;
  }

  /**
   * One flagged call. A datagram may be refused when it already has its number (a segment is longer than the MTU: EMSGSIZE; a
   * filter drops it: EPERM), which is then confirmed like any other (udp_send_skb frees the packet). So after an error the
   * queue tells whether the number is used up; otherwise all later ones would be off by one, and memory would be released
   * too early.
   */
  #flagged(views: readonly V[], count: number, flags: number): number {
    const n = this.#call(views, count, flags | MSG_ZEROCOPY);
    if (n >= 0 || n === EAGAIN) return n;
    this.#calls.add(null);
    this.drain();
    this.#calls.retract();
    return n;
  }

  #complete(record: number): void {
    const { lo, hi } = completionRange(records, record);
    const copied = isCopied(records, record);
    const { counters } = this;
    const nowMs = this.#now();
    let completed = 0;
    this.#calls.complete(lo, hi, (call) => {
      if (call === null) return;
      completed += 1;
      const latencyUs = (nowMs - call.sinceMs) * 1e3;
      countPinned(counters, -call.bytes);
      counters.latency.record(latencyUs);
      publishRelease(counters, call.bytes, copied, lo === hi, latencyUs);
      this.#uncharge(call.pages);
      if (copied) {
        counters.kernelCopiedCalls += 1;
        counters.kernelCopiedBytes += call.bytes;
      }
      if ('ubuf' in call.parts) letGo(call.parts, copied, lo === hi);
      else for (const part of call.parts) letGo(part, copied, lo === hi);
    });
    // One observation, however many calls were merged into the record: the flag is that of the first of them.
    if (completed > 0) this.policy.completed(copied, nowMs);
  }

  #sendCopied(lenders: Lenders, views: readonly V[], count: number, flags: number, cause: CopyCause): number {
    const n = this.#call(views, count, flags);
    if (n <= 0) return n;
    // Not copied(): the policy has counted the refusal.
    for (const { ubuf, bytes } of partsOf(lenders, views, n)) this.#countCopied(ubuf, bytes, cause);
    return n;
  }

  #countCopied(ubuf: Ubuf | null, bytes: number, cause: CopyCause): void {
    if (ubuf !== null) ubuf.copiedBytes += bytes;
    this.counters.fallbackBytes += bytes;
    this.counters.copied[cause] += bytes;
    publishFallback(this.counters, bytes, cause);
  }

  /** Pages taken from the account for this call; -1 when it has no room. */
  #charge(views: readonly V[], count: number): number {
    if (this.#budget === undefined) return 0;
    let bytes = 0;
    for (let i = 0; i < count; i++) bytes += (views[i] as Sized).byteLength;
    const pages = pinnedPages(bytes, this.#pageBytes);
    return this.#budget.charge(pages) ? pages : -1;
  }

  #uncharge(pages: number): void {
    if (pages > 0) this.#budget?.uncharge(pages);
  }

  /**
   * The kernel says ENOBUFS for two limits. A notification takes less than 1 KiB of optmem, of which a socket has 10 at the
   * least, so a few outstanding calls do not fill it; and an account of pages that is half used is the likelier reason,
   * because other processes of the user, and io_uring, are charged to it unseen. With no limit on pages it is clear.
   */
  #fillsOptmem(): boolean {
    if (this.#isUnlimited) return true;
    const budget = this.#budget;
    const nearLimit = budget !== undefined && budget.used() > budget.limitPages / 2;
    return this.#calls.outstanding >= OPTMEM_CALLS_MIN && !nearLimit;
  }

  /** The cause if `n` is an error that only means "not with the flag". */
  #refused(n: number): CopyCause | null {
    if (n === ENOBUFS || n === ENOMEM) {
      const cause = n === ENOMEM || !this.#fillsOptmem() ? 'memlock' : 'optmem';
      this.counters.refusedEnobufs += 1;
      this.policy.refused(cause);
      return cause;
    }
    if (n !== EMSGSIZE && n !== EOPNOTSUPP && n !== KERNEL_ENOTSUPP) return null;
    this.counters.refusedOther += 1;
    if (n === EMSGSIZE) return 'fragments';
    this.policy.unsupported();
    return 'unsupported';
  }
}

/** References on what a call took: `bytes` from the start of the views. */
function hold(lenders: Lenders, views: readonly Sized[], bytes: number): Part | readonly Part[] {
  const parts = partsOf(lenders, views, bytes);
  for (const { ubuf } of parts) ubuf.ref();
  return parts.length === 1 ? (parts[0] as Part) : parts;
}

function partsOf(lenders: Lenders, views: readonly Sized[], bytes: number): Part[] {
  if (!Array.isArray(lenders)) return [{ ubuf: lenders as Ubuf, bytes }];
  const parts: Part[] = [];
  for (let i = 0; bytes > 0; i++) {
    const part = Math.min(bytes, (views[i] as Sized).byteLength);
    if (part > 0) parts.push({ ubuf: lenders[i] as Ubuf, bytes: part });
    bytes -= part;
  }
  return parts;
}

/** A call is completed: its part of a Ubuf is free. */
function letGo({ ubuf, bytes }: Part, copied: boolean, alone: boolean): void {
  if (copied) ubuf.copiedBytes += bytes;
  if (!alone) ubuf.exact = false;
  ubuf.unref();
}
