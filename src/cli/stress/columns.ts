/**
 * The lines of a run, in the widths and with the words of rds-stress, so that what reads its output reads ours.
 * The RDMA columns are always 0. Without `-c` the CPU column is -1.00.
 */
import type { Rates } from './statistics.ts';

export const columnsHeader: string = [
  'tsks'.padStart(4),
  'tx/s'.padStart(6),
  'rx/s'.padStart(6),
  'tx+rx K/s'.padStart(10),
  'mbi K/s'.padStart(10),
  'mbo K/s'.padStart(10),
  'tx us/c'.padStart(7),
  'rtt us'.padStart(8),
  'cpu %'.padStart(5),
].join(' ');

export const summaryRule: string = '-'.repeat(45);

/** One interval: requests are counts, as they were in this about one second; throughput is per second. */
export function intervalLine(tasks: number, rates: Rates, cpuPercent: number | undefined): string {
  return line(tasks, rates.requestsSent, rates.requestsReceived, rates, cpuPercent);
}

/** The whole run: everything per second. */
export function summaryLine(tasks: number, rates: Rates, cpuPercent: number | undefined): string {
  const tx = Math.trunc(rates.txPerSecond);
  const rx = Math.trunc(rates.rxPerSecond);
  return `${line(tasks, tx, rx, rates, cpuPercent)}  (average)`;
}

function line(tasks: number, tx: number, rx: number, rates: Rates, cpuPercent: number | undefined): string {
  return [
    String(tasks).padStart(4),
    String(tx).padStart(6),
    String(rx).padStart(6),
    fixed(rates.kibPerSecond, 10),
    fixed(0, 10),
    fixed(0, 10),
    fixed(rates.txUs, 7),
    fixed(rates.rttUs, 8),
    fixed(cpuPercent ?? -1, 5),
  ].join(' ');
}

function fixed(value: number, width: number): string {
  return value.toFixed(2).padStart(width);
}
