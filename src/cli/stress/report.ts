/**
 * What a run prints while it lasts: four seconds of "Starting up....", the header, a line each second; and what it
 * measured in all. The sockets start halfway through the start-up, so that measuring begins on a warm run.
 *
 * Ticks are due at whole seconds after the first, however long a line took, so a run of T seconds has T lines. The last,
 * partial interval of a run that was ended from outside counts in the summary but gets no line.
 */
import type { StressOptions } from '../../wire/rds-stress-options.ts';
import { columnsHeader, intervalLine } from './columns.ts';
import type { Ending } from './ending.ts';
import type { Perfdata } from './perfdata.ts';
import { ratesOf, sumTotals, type Totals, totalsBetween } from './statistics.ts';

export interface Output {
  line(text: string): void;
  /** Without a newline. */
  part(text: string): void;
  error(text: string): void;
}

export interface Measured {
  totals: Totals;
  seconds: number;
  cpuUserUs: number;
  cpuSystemUs: number;
}

interface ReportSetup {
  options: StressOptions;
  output: Output;
  ending: Ending;
  /** Seconds to measure, 0 for no limit. */
  runTime: number;
  reportCpu: boolean;
  totals(): Iterable<Readonly<Totals>>;
  start(): void;
  perfdata: (() => Perfdata) | undefined;
}

const startupSeconds = 4;
/** After this many seconds of start-up the sockets begin. */
const startAfterSeconds = 2;

interface Mark {
  ms: number;
  totals: Totals;
  cpu: NodeJS.CpuUsage;
}

export async function report(setup: ReportSetup): Promise<Measured> {
  if (!(await startUp(setup))) return difference(mark(setup), mark(setup));
  const perfdata = setup.perfdata?.();
  setup.output.line(perfdata?.header() ?? columnsHeader);
  const first = mark(setup);
  let last = first;
  for (let second = 1; ; second++) {
    const due = first.ms + second * 1000;
    const ended = await setup.ending.within(Math.max(0, due - performance.now()));
    const now = mark(setup);
    if (ended) return difference(first, now);
    if (setup.options.summaryOnly === 0) setup.output.line(interval(setup, perfdata, difference(last, now)));
    last = now;
    if (second === setup.runTime) {
      setup.ending.end('time');
      return difference(first, now);
    }
  }
}

/** Share of one core that the process used, in percent. */
export function cpuPercent(measured: Measured): number {
  const used = measured.cpuUserUs + measured.cpuSystemUs;
  return measured.seconds > 0 ? used / measured.seconds / 10_000 : 0;
}

/** False when the run ended before it began. */
async function startUp(setup: ReportSetup): Promise<boolean> {
  setup.output.part('Starting up');
  let ended = false;
  for (let second = 1; second <= startupSeconds && !ended; second++) {
    ended = await setup.ending.within(1000);
    if (ended) break;
    if (second === startAfterSeconds) setup.start();
    setup.output.part('.');
  }
  setup.output.line('');
  return !ended;
}

function interval(setup: ReportSetup, perfdata: Perfdata | undefined, measured: Measured): string {
  const { totals, seconds } = measured;
  const rates = ratesOf(totals, seconds, setup.options);
  const cpu = setup.reportCpu ? cpuPercent(measured) : undefined;
  return perfdata === undefined
    ? intervalLine(setup.options.nrTasks, rates, cpu)
    : perfdata.line(rates, seconds, cpu);
}

function mark(setup: ReportSetup): Mark {
  return { ms: performance.now(), totals: sumTotals(setup.totals()), cpu: process.cpuUsage() };
}

function difference(from: Mark, to: Mark): Measured {
  return {
    totals: totalsBetween(to.totals, from.totals),
    seconds: (to.ms - from.ms) / 1000,
    cpuUserUs: to.cpu.user - from.cpu.user,
    cpuSystemUs: to.cpu.system - from.cpu.system,
  };
}
