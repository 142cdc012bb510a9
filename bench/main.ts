/**
 * The benchmark's command line: picks a suite, runs it, prints its results.
 *
 *   npm run bench -- rds            a table, and whether each bound holds
 *   npm run --silent bench -- rds --json    one JSON object, a key for each measurement
 *
 * Progress goes to standard error, so standard output is the result alone. The exit code is 0 when the suite ran, also
 * when a bound does not hold: a benchmark reports, and whoever runs it judges.
 */
import { Command, InvalidArgumentError } from 'commander';
import { fullTiming, progress, quickTiming } from './harness.ts';
import type { Result, Results, Suite } from './suite.ts';

/** Loaded on demand: a suite must not need what another one imports. */
const suites: Record<string, () => Promise<{ suite: Suite }>> = {
  baselines: () => import('./suites/baselines.ts'),
  net: () => import('./suites/net.ts'),
  rds: () => import('./suites/rds.ts'),
  vhost: () => import('./suites/vhost.ts'),
  wirepeer: () => import('./suites/wirepeer.ts'),
};

interface Flags {
  json?: true;
  pairs?: number;
  quick?: true;
  only: string[];
}

const DEFAULT_PAIRS = 15;
const QUICK_PAIRS = 6;

async function main(): Promise<void> {
  const command = new Command('bench')
    .description('Interleaved benchmarks with 95 % intervals of the median.')
    .argument('<suite>', `one of ${Object.keys(suites).join(', ')}`)
    .option('--json', 'print one JSON object instead of a table')
    .option('--pairs <n>', `interleaved pairs (default ${DEFAULT_PAIRS})`, parsePairs)
    .option('--quick', 'short slices and few pairs: shows that everything runs, proves nothing')
    .option('--only <key>', 'measure only this key (repeatable)', (key, keys: string[]) => [...keys, key], [])
    .parse();
  const name = command.args[0]!;
  const flags = command.opts<Flags>();
  const load = suites[name];
  if (load === undefined)
    return command.error(`error: no suite ${name}; there are ${Object.keys(suites).join(', ')}`);
  const { suite } = await load();
  const unknown = flags.only.find((key) => !suite.keys.includes(key));
  if (unknown !== undefined)
    command.error(`error: ${name} has no key ${unknown}; it has ${suite.keys.join(', ')}`);

  // SIGINT and SIGTERM end in the 'exit' handlers that stop children and remove namespaces.
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130));
  const quick = flags.quick === true;
  const results = await suite.run({
    pairs: flags.pairs ?? (quick ? QUICK_PAIRS : DEFAULT_PAIRS),
    timing: quick ? quickTiming : fullTiming,
    quick,
    wants: (key) => flags.only.length === 0 || flags.only.includes(key),
  });
  progress('done:');
  process.stdout.write(flags.json ? `${JSON.stringify(results, null, 2)}\n` : table(results));
}

function parsePairs(text: string): number {
  const pairs = Number(text);
  if (!Number.isInteger(pairs) || pairs < 1 || pairs > 1000) throw new InvalidArgumentError('1 to 1000');
  return pairs;
}

function table(results: Results): string {
  const rows = Object.entries(results).map(([key, result]) => [key, ...columns(result)]);
  const header = ['key', 'median', '95 % interval', 'must be', 'holds', 'details'];
  const widths = header.map((title, i) => Math.max(title.length, ...rows.map((row) => row[i]!.length)));
  return [header, ...rows]
    .map(
      (row) =>
        `${row
          .map((cell, i) => cell.padEnd(widths[i]!))
          .join('  ')
          .trimEnd()}\n`,
    )
    .join('');
}

function columns(result: Result): [string, string, string, string, string] {
  if (result.value === null) return ['-', '-', '-', '-', result.skipped ?? ''];
  const unit = result.unit === undefined ? '' : ` ${result.unit}`;
  return [
    short(result.value) + unit,
    `${short(result.low!)} .. ${short(result.high!)}`,
    result.bound ?? 'report',
    result.holds === undefined ? '' : result.holds ? 'yes' : 'NO',
    Object.entries(result.details ?? {})
      .map(([name, value]) => `${name} ${typeof value === 'number' ? short(value) : value}`)
      .join(', '),
  ];
}

function short(value: number): string {
  return Number(value.toPrecision(4)).toString();
}

main().catch((error: unknown) => {
  process.stderr.write(`\n${error instanceof Error ? error.stack : String(error)}\n`);
  process.exit(1);
});
