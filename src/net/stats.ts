/**
 * What the sockets of this thread did: each by itself, and all together, those that are gone included.
 *
 * A socket enters its counters here when it is connected and takes them out when the last lent byte is back, which may be
 * after its 'close': what the closer still holds is counted, too.
 */
import type { HistogramSnapshot } from '../core/histogram.ts';
import { processBudget } from './budget.ts';
import { nameCounters, publishClose, publishOpen } from './channels.ts';
import { closerStats } from './closer.ts';
import { addCounters, type CopyCause, pinned, type ZerocopyCounters, zerocopyCounters } from './counters.ts';
import type { ZerocopyMode } from './policy.ts';
import { type PoolSums, poolSums } from './pool-stats.ts';

/** A snapshot of ZerocopyCounters. */
export interface ZerocopyStats extends Readonly<Omit<ZerocopyCounters, 'copied' | 'latency'>> {
  readonly copied: Readonly<Record<CopyCause, number>>;
  /** From a flagged call to its completion. */
  readonly latency: HistogramSnapshot;
}

export interface SocketStats {
  /** Number of the connection or UDP socket in this thread, from 1; 0 before there was any. */
  readonly id: number;
  readonly kind: 'tcp' | 'unix' | 'udp';
  /** `address:port`, a path, or an empty text where there is none. */
  readonly local: string;
  readonly remote: string;
  readonly mode: ZerocopyMode;
  readonly thresholdBytes: number;
  /** Whether large enough pieces are lent now. */
  readonly lending: boolean;
  readonly bytesRead: number;
  readonly bytesWritten: number;
  readonly zerocopy: ZerocopyStats;
}

export interface NetStats {
  /** Sockets now, and those that are gone. */
  readonly sockets: number;
  readonly closedSockets: number;
  /** Closed ones whose lent memory the kernel still reads, and those that did not let go at their deadline. */
  readonly lingering: number;
  readonly quarantinedSockets: number;
  readonly quarantinedBytes: number;
  /** Pages that may be pinned by the process (-1: no limit), and those it has charged. */
  readonly memlockLimitPages: number;
  readonly memlockUsedPages: number;
  /** Bytes that the kernel has now, and the most it had at once: RDS nodes included. */
  readonly pinnedBytes: number;
  readonly pinnedBytesMax: number;
  readonly pools: PoolSums;
  /** Sums, but for `pinnedBytesMax`: that is the most of one socket. */
  readonly zerocopy: ZerocopyStats;
}

export interface StatsSource {
  readonly counters: ZerocopyCounters;
  stats(): SocketStats;
}

const sources = new Map<number, StatsSource>();
const gone = zerocopyCounters();
let lastId = 0;
let closedSockets = 0;

let first: (() => void) | undefined;

/** Runs `task` before the first socket or server of this thread is made. */
export function beforeFirstSocket(task: () => void): void {
  first = task;
}

/** A socket or a server is about to be made. */
export function aboutToBegin(): void {
  const task = first;
  first = undefined;
  task?.();
}

export function nextSocketId(): number {
  aboutToBegin();
  lastId += 1;
  return lastId;
}

/** Enters a socket; the function returned takes it out again and keeps its sums. */
export function watchSocket(id: number, source: StatsSource): () => void {
  sources.set(id, source);
  nameCounters(source.counters, id);
  publishOpen(id, source);
  return () => {
    if (!sources.delete(id)) return;
    closedSockets += 1;
    addCounters(gone, source.counters);
    publishClose(id, source);
  };
}

export function snapshot(counters: Readonly<ZerocopyCounters>): ZerocopyStats {
  return { ...counters, copied: { ...counters.copied }, latency: counters.latency.snapshot() };
}

/** Every socket of this thread that holds a descriptor, in the order they were made. */
export function socketStats(): SocketStats[] {
  return Array.from(sources.values(), (source) => source.stats());
}

/** Sums over all sockets of this thread, present and gone. */
export function stats(): NetStats {
  const all = zerocopyCounters();
  addCounters(all, gone);
  for (const { counters } of sources.values()) addCounters(all, counters);
  const budget = processBudget();
  return {
    sockets: sources.size,
    closedSockets,
    ...closerStats(),
    memlockLimitPages: budget.limitPages,
    memlockUsedPages: budget.used(),
    pinnedBytes: pinned.bytes,
    pinnedBytesMax: pinned.bytesMax,
    pools: poolSums(),
    zerocopy: snapshot(all),
  };
}
