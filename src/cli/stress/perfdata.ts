/**
 * `--show-perfdata`: lines of comma-separated values marked `::`, a header once and one line per interval. They carry
 * the run's rates, every counter of the RDS node as a rate, and the machine's CPU shares and interrupts from /proc/stat.
 */
import { readFileSync } from 'node:fs';
import type { Rates } from './statistics.ts';

export interface RunShape {
  nrTasks: number;
  reqSize: number;
  ackSize: number;
}

const runColumns = [
  'nr_tasks:count',
  'req_size:bytes',
  'ack_size:bytes',
  'rdma_size:bytes',
  'req_sent:count',
  'thruput:kB/s',
  'thruput_rdma:kB/s',
  'tx_delay:microseconds',
  'rtt:microseconds',
  'cpu:percent',
];
const machineColumns = ['user:percent', 'system:percent', 'idle:percent', 'irq:percent', 'intr:count'];

export class Perfdata {
  readonly #shape: RunShape;
  readonly #readCounters: () => Map<string, number>;
  readonly #readProcStat: () => string;
  #counters: Map<string, number>;
  #machine: Machine;

  /** `counters` is called for a plain object whose numbers are the counters. */
  constructor(shape: RunShape, counters: () => object, readProcStat: () => string = procStat) {
    this.#shape = shape;
    this.#readCounters = () => numbersIn(counters());
    this.#readProcStat = readProcStat;
    this.#counters = this.#readCounters();
    this.#machine = parseProcStat(this.#readProcStat());
  }

  header(): string {
    const counters = [...this.#counters.keys()].map(
      (name) => `${name}:${/bytes/i.test(name) ? 'bytes' : 'count'}`,
    );
    return `::${[...runColumns, ...counters, ...machineColumns].join(',')}`;
  }

  /** The interval since the last call. */
  line(rates: Rates, seconds: number, cpuPercent: number | undefined): string {
    const counters = this.#readCounters();
    const machine = parseProcStat(this.#readProcStat());
    const values = [
      ...[this.#shape.nrTasks, this.#shape.reqSize, this.#shape.ackSize, 0, rates.requestsSent].map(String),
      ...[rates.kibPerSecond, 0, rates.txUs, rates.rttUs, cpuPercent ?? 0].map(decimal),
    ];
    // The header fixed the names: a counter that appeared later has no column.
    for (const [name, before] of this.#counters)
      values.push(decimal(seconds > 0 ? ((counters.get(name) ?? before) - before) / seconds : 0));
    values.push(...machineShares(machine, this.#machine));
    for (const name of this.#counters.keys()) this.#counters.set(name, counters.get(name) ?? 0);
    this.#machine = machine;
    return `::${values.join(',')}`;
  }
}

/** The numbers among the properties. */
function numbersIn(counters: object): Map<string, number> {
  const numbers = Object.entries(counters).filter(([, value]) => typeof value === 'number');
  return new Map(numbers as [string, number][]);
}

interface Machine {
  /** user, nice, system, idle, iowait, irq, softirq, …, as proc_stat(5) orders them. */
  times: number[];
  interrupts: number;
}

function procStat(): string {
  return readFileSync('/proc/stat', 'utf8');
}

function parseProcStat(text: string): Machine {
  const times = /^cpu +(.*)$/m.exec(text)?.[1] ?? '';
  return {
    times: times.split(' ').map(Number),
    interrupts: Number(/^intr (\d+)/m.exec(text)?.[1] ?? 0),
  };
}

function machineShares(now: Machine, before: Machine): string[] {
  const spent = now.times.map((time, i) => time - (before.times[i] ?? 0));
  const total = spent.reduce((sum, time) => sum + time, 0);
  const share = (...fields: number[]): string =>
    decimal(total > 0 ? (fields.reduce((sum, i) => sum + (spent[i] ?? 0), 0) * 100) / total : 0);
  const interrupts = String(now.interrupts - before.interrupts);
  return [share(0, 1), share(2), share(3, 4), share(5, 6), interrupts];
}

function decimal(value: number): string {
  return value.toFixed(6);
}
