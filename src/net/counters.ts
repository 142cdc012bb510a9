/** What happened to lent bytes, by cause: one object per owner (a socket, an RDS node), which its engines add to. */
import { LatencyHistogram } from '../core/histogram.ts';

/**
 * Why bytes went in an ordinary call, which copies:
 *
 *   off          the mode, or a kind of socket that never lends (Unix)
 *   threshold    the piece is smaller than the threshold
 *   loopback     `auto`: the destination is on this host
 *   kernel       `auto`: the kernel copied nearly all that was lent before, so lending stopped for a while
 *   memlock      RLIMIT_MEMLOCK, or the process's account of it, has no room
 *   optmem       the socket has too many completions outstanding (net.core.optmem_max)
 *   fragments    a datagram of more pages than the kernel takes (MAX_SKB_FRAGS)
 *   unsupported  the kernel has no MSG_ZEROCOPY for this socket
 *   foreign      the memory might be taken away while it is lent (sys/lend.ts)
 */
export const COPY_CAUSES = [
  'off',
  'threshold',
  'loopback',
  'kernel',
  'memlock',
  'optmem',
  'fragments',
  'unsupported',
  'foreign',
] as const;
export type CopyCause = (typeof COPY_CAUSES)[number];

export interface ZerocopyCounters {
  /** Flagged calls that the kernel took, and their bytes. */
  lentCalls: number;
  lentBytes: number;
  /** Completed flagged calls and bytes that the kernel copied after all. */
  kernelCopiedCalls: number;
  kernelCopiedBytes: number;
  /** Bytes sent by ordinary calls, which copy: in all, and by cause. */
  fallbackBytes: number;
  copied: Record<CopyCause, number>;
  refusedEnobufs: number;
  refusedOther: number;
  /** Bytes with the kernel now, and the most there were. */
  pinnedBytes: number;
  pinnedBytesMax: number;
  /** Completion numbers nobody waited for. */
  unexpectedCompletions: number;
  /** From a flagged call to its completion. */
  latency: LatencyHistogram;
}

/**
 * Bytes that the kernel has now of all owners in this thread, RDS nodes included, and the most it had at once: maxima of
 * sockets do not add up to it.
 */
export const pinned: { bytes: number; bytesMax: number } = { bytes: 0, bytesMax: 0 };

/** The kernel has taken so many bytes more, or has let go of them if negative. */
export function countPinned(counters: ZerocopyCounters, bytes: number): void {
  counters.pinnedBytes += bytes;
  if (counters.pinnedBytes > counters.pinnedBytesMax) counters.pinnedBytesMax = counters.pinnedBytes;
  pinned.bytes += bytes;
  if (pinned.bytes > pinned.bytesMax) pinned.bytesMax = pinned.bytes;
}

export function zerocopyCounters(): ZerocopyCounters {
  return {
    lentCalls: 0,
    lentBytes: 0,
    kernelCopiedCalls: 0,
    kernelCopiedBytes: 0,
    fallbackBytes: 0,
    copied: {
      off: 0,
      threshold: 0,
      loopback: 0,
      kernel: 0,
      memlock: 0,
      optmem: 0,
      fragments: 0,
      unsupported: 0,
      foreign: 0,
    },
    refusedEnobufs: 0,
    refusedOther: 0,
    pinnedBytes: 0,
    pinnedBytesMax: 0,
    unexpectedCompletions: 0,
    latency: new LatencyHistogram(),
  };
}

/** Adds `from` to `to`; of the most pinned at once the larger one stays, as maxima do not add up. */
export function addCounters(to: ZerocopyCounters, from: Readonly<ZerocopyCounters>): void {
  to.lentCalls += from.lentCalls;
  to.lentBytes += from.lentBytes;
  to.kernelCopiedCalls += from.kernelCopiedCalls;
  to.kernelCopiedBytes += from.kernelCopiedBytes;
  to.fallbackBytes += from.fallbackBytes;
  for (const cause of COPY_CAUSES) to.copied[cause] += from.copied[cause];
  to.refusedEnobufs += from.refusedEnobufs;
  to.refusedOther += from.refusedOther;
  to.pinnedBytes += from.pinnedBytes;
  to.pinnedBytesMax = Math.max(to.pinnedBytesMax, from.pinnedBytesMax);
  to.unexpectedCompletions += from.unexpectedCompletions;
  to.latency.add(from.latency);
}
