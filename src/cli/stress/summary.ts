/**
 * What a run measured in all: as the last line of columns, and as one JSON object for `--json`.
 */
import type { StressOptions } from '../../wire/rds-stress-options.ts';
import type { EndReason } from './ending.ts';
import { dotted } from './numbers.ts';
import { cpuPercent, type Measured } from './report.ts';
import { ratesOf } from './statistics.ts';

export interface LendingSummary {
  /** Messages and bytes handed over to be sent from where they are. */
  sends: number;
  bytes: number;
  completions: number;
  /** Messages that were copied because there was no memory to lend more and nothing to wait for. */
  copiedInstead: number;
  /** Share of those bytes that zerotx or the kernel copied after all, 0 to 1. */
  copiedShare: number;
}

export interface Summary {
  role: 'active' | 'passive';
  address: string;
  peer: string;
  tasks: number;
  depth: number;
  requestBytes: number;
  ackBytes: number;
  endedBy: EndReason;
  seconds: number;
  requestsSentPerSecond: number;
  requestsReceivedPerSecond: number;
  /** Requests and acknowledgements, sent and received. */
  messagesPerSecond: number;
  kibPerSecond: number;
  txUs: number;
  rttUs: number;
  /** CPU time of this process, 100 for one core kept busy. */
  cpuPercent: number;
  cpuUserSeconds: number;
  cpuSystemSeconds: number;
  /** Absent when the run copied. */
  lending?: LendingSummary;
  /** Messages from elsewhere that arrived on the run's ports. */
  strangers: number;
  rttHistogram?: readonly number[];
  stats: object;
}

export function summaryOf(
  run: Pick<Summary, 'role' | 'endedBy' | 'strangers' | 'stats'>,
  options: StressOptions,
  measured: Measured,
): Summary {
  const { totals, seconds } = measured;
  const rates = ratesOf(totals, seconds, options);
  const messages = totals.reqTx + totals.reqRx + totals.ackTx + totals.ackRx;
  return {
    role: run.role,
    address: dotted(options.receiveAddr),
    peer: dotted(options.sendAddr),
    tasks: options.nrTasks,
    depth: options.reqDepth,
    requestBytes: options.reqSize,
    ackBytes: options.ackSize,
    endedBy: run.endedBy,
    seconds,
    requestsSentPerSecond: rates.txPerSecond,
    requestsReceivedPerSecond: rates.rxPerSecond,
    messagesPerSecond: seconds > 0 ? messages / seconds : 0,
    kibPerSecond: rates.kibPerSecond,
    txUs: rates.txUs,
    rttUs: rates.rttUs,
    cpuPercent: cpuPercent(measured),
    cpuUserSeconds: measured.cpuUserUs / 1e6,
    cpuSystemSeconds: measured.cpuSystemUs / 1e6,
    strangers: run.strangers,
    stats: run.stats,
  };
}

/**
 * How much of `lentBytes` was copied, from the node's counters: what the kernel was lent and did not copy went out
 * without a copy, all else was copied somewhere.
 */
export function copiedShare(
  lentBytes: number,
  kernel: { lentBytes: number; kernelCopiedBytes: number },
): number {
  if (lentBytes === 0) return 0;
  const uncopied = kernel.lentBytes - kernel.kernelCopiedBytes;
  return Math.min(1, Math.max(0, 1 - uncopied / lentBytes));
}

export function lendingLine(lending: LendingSummary): string {
  const instead = lending.copiedInstead > 0 ? `, ${lending.copiedInstead} copied for want of memory` : '';
  const share = (lending.copiedShare * 100).toFixed(1);
  return `zerocopy: ${lending.sends} sends, ${lending.completions} completions, ${share} % of the bytes copied${instead}`;
}
