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
import { CompletionTracker } from '../core/completions.ts';
import { errnoOf } from '../core/errors.ts';
import type { Ubuf } from '../core/ubuf.ts';
import type { Native } from '../sys/binding.ts';
import { MSG_ZEROCOPY } from '../sys/constants.ts';
import { completionRange, ERRQUEUE_WORDS, isCopied, isZerocopyCompletion } from '../wire/errqueue.ts';
import type { ZerocopyPolicy } from './policy.ts';

/** What happened on zero-copy sockets, by cause. One instance per owner (an RDS node); sockets add to it. */
export interface ZerocopyCounters {
  /** Flagged calls that the kernel took, and their bytes. */
  lentCalls: number;
  lentBytes: number;
  /** Completed flagged calls and bytes that the kernel copied after all. */
  kernelCopiedCalls: number;
  kernelCopiedBytes: number;
  /** Bytes of lent memory sent by an ordinary call: below the threshold, a loopback peer, or after a refusal. */
  fallbackBytes: number;
  refusedEnobufs: number;
  refusedOther: number;
  /** Bytes with the kernel now, and the most there were. */
  pinnedBytes: number;
  pinnedBytesMax: number;
  /** Completion numbers nobody waited for. */
  unexpectedCompletions: number;
}

export function zerocopyCounters(): ZerocopyCounters {
  return {
    lentCalls: 0,
    lentBytes: 0,
    kernelCopiedCalls: 0,
    kernelCopiedBytes: 0,
    fallbackBytes: 0,
    refusedEnobufs: 0,
    refusedOther: 0,
    pinnedBytes: 0,
    pinnedBytesMax: 0,
    unexpectedCompletions: 0,
  };
}

interface LentCall {
  readonly ubuf: Ubuf;
  readonly bytes: number;
}

const ENOBUFS = -errnoOf('ENOBUFS');
const ENOMEM = -errnoOf('ENOMEM');
const EMSGSIZE = -errnoOf('EMSGSIZE');
const EOPNOTSUPP = -errnoOf('EOPNOTSUPP');
/** The kernel's own ENOTSUPP, which old kernels let through to user space. */
const KERNEL_ENOTSUPP = -524;

/** Records read in one batch; one scratch area serves all sockets, as nothing keeps it past the call. */
const DRAIN_RECORDS = 64;
const records = new Uint32Array(DRAIN_RECORDS * ERRQUEUE_WORDS);

export class ZerocopyEngine {
  readonly #sys: Native;
  readonly #fd: number;
  readonly #policy: ZerocopyPolicy;
  readonly #counters: ZerocopyCounters;
  readonly #calls = new CompletionTracker<LentCall>();
  readonly #now: () => number;

  constructor(
    sys: Native,
    fd: number,
    policy: ZerocopyPolicy,
    counters: ZerocopyCounters,
    now: () => number,
  ) {
    this.#sys = sys;
    this.#fd = fd;
    this.#policy = policy;
    this.#counters = counters;
    this.#now = now;
  }

  /** Flagged calls not completed yet. */
  get outstanding(): number {
    return this.#calls.outstanding;
  }

  /** Whether a lent piece of `bytes` should go in a flagged call of its own, rather than be gathered with others. */
  lends(bytes: number): boolean {
    return this.#policy.lends(bytes, this.#now());
  }

  /**
   * Sends the first `count` views, which all lie in `ubuf`, in a flagged call; in an ordinary one if the kernel
   * refuses. Returns bytes taken, or `-errno` (`-EAGAIN` when the send buffer is full).
   */
  send(ubuf: Ubuf, views: readonly Uint8Array[], count: number, flags: number): number {
    let n = this.#sys.sendv(this.#fd, views, count, flags | MSG_ZEROCOPY);
    if (n === ENOBUFS && this.#calls.outstanding > 0) {
      // Unread records also use up optmem: drain, and try once more. With nothing outstanding, nothing would change.
      this.drain();
      n = this.#sys.sendv(this.#fd, views, count, flags | MSG_ZEROCOPY);
    }
    if (n > 0) {
      this.#calls.add({ ubuf: ubuf.ref(), bytes: n });
      this.#policy.lent(this.#now());
      const counters = this.#counters;
      counters.lentCalls += 1;
      counters.lentBytes += n;
      counters.pinnedBytes += n;
      if (counters.pinnedBytes > counters.pinnedBytesMax) counters.pinnedBytesMax = counters.pinnedBytes;
      return n;
    }
    if (!this.#refused(n)) return n;
    n = this.#sys.sendv(this.#fd, views, count, flags);
    // Not copied(): the policy has counted the refusal.
    if (n > 0) this.#countCopied(ubuf, n);
    return n;
  }

  /** Bytes of a lent Ubuf went in an ordinary call. */
  copied(ubuf: Ubuf, bytes: number): void {
    this.#policy.copied(bytes);
    this.#countCopied(ubuf, bytes);
  }

  /** Reads the error queue to its end. Returns the number of calls completed. */
  drain(): number {
    const before = this.#calls.outstanding;
    let count: number;
    do {
      count = this.#sys.drainErrors(this.#fd, records);
      for (let i = 0; i < count; i++) if (isZerocopyCompletion(records, i)) this.#complete(i);
    } while (count === DRAIN_RECORDS);
    this.#counters.unexpectedCompletions += this.#calls.unexpected;
    this.#calls.unexpected = 0;
    return before - this.#calls.outstanding;
  }

  /** Bytes of the calls that are not completed yet. */
  pendingBytes(): number {
    let bytes = 0;
    for (const call of this.#calls.pending()) bytes += call.bytes;
    return bytes;
  }

  #complete(record: number): void {
    const { lo, hi } = completionRange(records, record);
    const copied = isCopied(records, record);
    const counters = this.#counters;
    const before = this.#calls.outstanding;
    this.#calls.complete(lo, hi, (call) => {
      counters.pinnedBytes -= call.bytes;
      if (copied) {
        counters.kernelCopiedCalls += 1;
        counters.kernelCopiedBytes += call.bytes;
        call.ubuf.copiedBytes += call.bytes;
      }
      if (lo !== hi) call.ubuf.exact = false;
      call.ubuf.unref();
    });
    // One observation, however many calls were merged into the record: the flag is that of the first of them.
    if (this.#calls.outstanding < before) this.#policy.completed(copied, this.#now());
  }

  #countCopied(ubuf: Ubuf, bytes: number): void {
    ubuf.copiedBytes += bytes;
    this.#counters.fallbackBytes += bytes;
  }

  /** True if `n` is an error that only means "not with the flag". */
  #refused(n: number): boolean {
    if (n === ENOBUFS || n === ENOMEM) {
      this.#counters.refusedEnobufs += 1;
      this.#policy.refused();
      return true;
    }
    if (n === EMSGSIZE || n === EOPNOTSUPP || n === KERNEL_ENOTSUPP) {
      this.#counters.refusedOther += 1;
      if (n !== EMSGSIZE) this.#policy.unsupported();
      return true;
    }
    return false;
  }
}
