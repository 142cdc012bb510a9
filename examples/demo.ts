/**
 * `npm run demo`: rds-stress between two loopback addresses, 1 MiB requests and acknowledgements, first copying and then
 * lending on both sides, and the two runs side by side. No root, no kernel module, under half a minute.
 *
 * Each side is a process of its own, as on two machines: `dist/cli/rds-stress.js` with `--json`. Other addresses:
 * `npm run demo -- 127.0.0.31 127.0.0.32`.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { fileURLToPath } from 'node:url';

const seconds = 6;
const startupSeconds = 4;
/** Besides start-up the end takes two seconds at most; a run that takes this long hangs. */
const runTimeoutMs = (seconds + 20) * 1000;
const rdsPort = 16_385;
const controlPort = 4000;
/** As one types it; npx would build the checkout again each time. */
const stress = 'node dist/cli/rds-stress.js';
const tool = fileURLToPath(new URL('../../dist/cli/rds-stress.js', import.meta.url));
const shape = ['-q', '1M', '-a', '1M', '-t', '1', '-d', '1', '-T', String(seconds)];

/** What the demo reads of `rds-stress --json`. */
interface Summary {
  seconds: number;
  messagesPerSecond: number;
  kibPerSecond: number;
  txUs: number;
  rttUs: number;
  cpuPercent: number;
  lending?: { copiedShare: number };
}

interface Run {
  active: Summary;
  passive: Summary;
}

const children = new Set<ChildProcess>();

async function main(): Promise<void> {
  const [first = '127.0.0.21', second = '127.0.0.22'] = process.argv.slice(2);
  for (const address of [first, second]) await requireFree(address, rdsPort);
  await requireFree(first, controlPort);
  console.log(
    `rds-stress ${shape.join(' ')} from ${second} to ${first}, ${seconds} s each after ${startupSeconds} s of start-up`,
  );
  const copying = await phase('copying', () => run(first, second, []));
  const lending = await phase('lending (--zerocopy)', () => run(first, second, ['--zerocopy']));
  console.log(table(copying, lending));
  console.log(meaning(first, second));
}

/** Says what goes on while `work` lasts: a line a second to somebody who watches, else one line in all. */
async function phase<T>(name: string, work: () => Promise<T>): Promise<T> {
  console.error(`${name} ...`);
  if (!process.stderr.isTTY) return work();
  let second = 0;
  const progress = setInterval(() => {
    second += 1;
    const measured = Math.min(second - startupSeconds, seconds);
    console.error(
      measured <= 0
        ? `  starting up, ${second} of ${startupSeconds} s`
        : `  measuring, ${measured} of ${seconds} s`,
    );
  }, 1000);
  try {
    return await work();
  } finally {
    clearInterval(progress);
  }
}

async function run(first: string, second: string, extra: readonly string[]): Promise<Run> {
  const passive = start(['-r', first, '--json', ...extra]);
  await Promise.race([passive.ready, passive.summary]);
  const active = start(['-r', second, '-s', first, ...shape, '--json', ...extra]);
  const [fromActive, fromPassive] = await withinTime(Promise.all([active.summary, passive.summary]));
  return { active: fromActive, passive: fromPassive };
}

/** One rds-stress: `ready` when it waits for its peer, `summary` when it has ended well. */
function start(args: readonly string[]): { ready: Promise<void>; summary: Promise<Summary> } {
  const child = spawn(process.execPath, [tool, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  children.add(child);
  let out = '';
  let errors = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    out += text;
  });
  const ready = new Promise<void>((resolve) => {
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      errors += text;
      if (errors.includes('waiting for incoming connection')) resolve();
    });
  });
  const summary = once(child, 'close').then(([code, signal]) => {
    children.delete(child);
    if (code === 0) return JSON.parse(out) as Summary;
    throw new Error(`rds-stress ${args.join(' ')} ended with ${code ?? signal}:\n${errors}`);
  });
  return { ready, summary };
}

async function withinTime<T>(work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no end after ${runTimeoutMs} ms`)), runTimeoutMs);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

async function requireFree(address: string, port: number): Promise<void> {
  const server = createServer();
  server.listen({ host: address, port });
  try {
    await once(server, 'listening');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new Error(
      `cannot listen on ${address}:${port}: ${code}. Another program has the port, or the kernel's rds_tcp module, which\n` +
        'takes 16385 on every address. Try other addresses, npm run demo -- 127.0.0.31 127.0.0.32, or unload the module.',
    );
  }
  server.close();
  await once(server, 'close');
}

function table(copying: Run, lending: Run): string {
  const rows: [label: string, value: (run: Run) => string][] = [
    ['messages/s, both directions', (run) => run.active.messagesPerSecond.toFixed(0)],
    ['throughput, MiB/s', (run) => (run.active.kibPerSecond / 1024).toFixed(0)],
    ['tx us/c: microseconds in sendmsg', (run) => run.active.txUs.toFixed(1)],
    ['rtt us: request to acknowledgement', (run) => run.active.rttUs.toFixed(0)],
    ['CPU of the active process, %', (run) => run.active.cpuPercent.toFixed(0)],
    ['CPU of the passive process, %', (run) => run.passive.cpuPercent.toFixed(0)],
    ['CPU microseconds per message, both', (run) => cpuPerMessage(run).toFixed(0)],
    ['bytes copied on the way, %', (run) => copiedPercent(run)],
  ];
  const line = (label: string, left: string, right: string): string =>
    `  ${label.padEnd(36)}${left.padStart(10)}${right.padStart(12)}`;
  return [
    '',
    line('', 'copying', '--zerocopy'),
    ...rows.map(([label, of]) => line(label, of(copying), of(lending))),
  ].join('\n');
}

function cpuPerMessage({ active, passive }: Run): number {
  // Percent of a second, for the messages that passed in it.
  return ((active.cpuPercent + passive.cpuPercent) * 10_000) / Math.max(1, active.messagesPerSecond);
}

function copiedPercent({ active }: Run): string {
  return active.lending === undefined ? '100' : (active.lending.copiedShare * 100).toFixed(0);
}

function meaning(first: string, second: string): string {
  return `
What this shows: with --zerocopy sendmsg hands over a reference instead of copying 1 MiB, so tx us/c falls by the price
of that copy. The bytes still count as copied here: loopback delivers inside one kernel, which copies them to the
receiver whatever one asks for. So on one machine lending saves the copy in user space and nothing more. It pays in full
where a network card reads the pages itself: messages of 32 KiB and more, to another machine, without TLS.
Messages/s may go either way, and down as easily as up where other programs want the cores: who gets to run when
weighs more there than one copy saved. tx us/c and CPU per message tell more. One run each on a machine that does other
things too is good for a look, not for a claim.

Next, in this checkout:
  two machines     a$ ${stress} --zerocopy
                   b$ ${stress} -s a -q 1M -a 1M -T 10 --zerocopy
  your own sizes   $ ${stress} -r ${first}
                   $ ${stress} -r ${second} -s ${first} -q 64K -d 8 -t 2 -T 5
  with intervals   $ npm run bench -- rds`;
}

function endChildren(): void {
  for (const child of children) child.kill('SIGKILL');
}

process.on('exit', endChildren);
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => process.exit(130));
try {
  await main();
} catch (error) {
  console.error((error as Error).message);
  process.exitCode = 1;
} finally {
  endChildren();
}
