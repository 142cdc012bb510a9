#!/usr/bin/env node
/**
 * `rds-ping`: whether an address can be reached over RDS, and how fast, with the options and the lines of rds-tools. Pings go to RDS port
 * 0, which the other side's RDS answers itself: a kernel's, or a zerotx node's.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { Command, InvalidArgumentError, Option } from 'commander';
import { RdsNode, type RdsSocket } from '../rds/index.ts';
import { printable, printableJsonLine } from './printable.ts';
import { Pings } from './rds/pings.ts';
import { showThisProgram } from './rds/shown.ts';
import { resolveHost, sourceFor } from './rds/source-address.ts';
import { runTool } from './terminal.ts';
import type { Tool } from './tool.ts';

interface Options {
  readonly c?: number;
  readonly i: number;
  readonly I?: string;
  readonly wait: number;
  readonly json?: boolean;
}

const SOCKETS = 8;
const COUNT_MAX = 2 ** 31 - 1;
/** rds-tools' own: a microsecond more than a second. */
const INTERVAL_MS = 1000.001;
const WAIT_MS = 5000;

const help = `
Times are seconds, or have a unit: 0.5, 200ms, 200msec, 50us, 50usec. The first answer includes setting up the connection. A ping
is left out while all ${SOCKETS} sockets wait for an answer, each for as long as -W says.

Examples:
  rds-ping 192.0.2.7
  rds-ping -c 3 -i 200ms -I 127.0.0.2 127.0.0.1

Exit codes: 0 at least one answer came, 1 none did or something failed, 2 the command line is wrong.`;

await runTool('rds-ping', (tool) => {
  const command: Command = new Command('rds-ping')
    .description('Ping an address over RDS.')
    .argument('<address>', 'an IP address or a name')
    .option('-c <count>', 'end after so many pings; those left out count', parseCount)
    .addOption(
      new Option('-i <interval>', 'time between two pings')
        .argParser(parseTime)
        .default(INTERVAL_MS, '1.000001 s'),
    )
    .option('-I <address>', 'ping from this address of this host')
    .option('-Q <tos>', 'refused: RDS over TCP has no type of service')
    .addOption(
      new Option('-W, --wait <time>', 'wait so long for an answer, and for the last ones')
        .argParser(parseTime)
        .default(WAIT_MS, '5 s'),
    )
    .option('--json', 'print a line of JSON for each answer, and one for all')
    .helpOption('-h, --help', 'print this help')
    .allowExcessArguments(false)
    .addHelpText('after', help)
    .action((address: string, options: Options & { readonly Q?: string }) => {
      if (options.Q !== undefined) command.error('error: -Q: RDS over TCP has no type of service');
      return run(tool, address, options);
    });
  return command;
});

function parseCount(text: string): number {
  const count = Number(text);
  if (/^\d+$/.test(text) && count >= 1 && count <= COUNT_MAX) return count;
  throw new InvalidArgumentError('not a number of pings.');
}

/** Milliseconds. */
function parseTime(text: string): number {
  const [, number, unit = 's'] = /^(\d+(?:\.\d*)?|\.\d+)(s|ms|msec|us|usec)?$/.exec(text) ?? [];
  const ms = Number(number) * ({ s: 1000, ms: 1, msec: 1, us: 0.001, usec: 0.001 }[unit] ?? 0);
  if (ms > 0 && ms <= COUNT_MAX) return ms;
  throw new InvalidArgumentError('not a time.');
}

async function run(tool: Tool, host: string, options: Options): Promise<void> {
  tool.endsOnBrokenPipe = true;
  const to = await resolveHost(host);
  const from = options.I === undefined ? await sourceFor(to) : await resolveHost(options.I);
  if (from === to) {
    tool.error(
      `rds-ping: ${to} would be this program's own address: say with -I which other one to ping from`,
    );
    tool.exitCode = 1;
    return;
  }
  showThisProgram();
  const node = await RdsNode.open({ address: from, allow: [to.split('%')[0] ?? to] });
  try {
    await ping(tool, node, to, options);
  } finally {
    await node.close();
  }
}

async function ping(tool: Tool, node: RdsNode, to: string, options: Options): Promise<void> {
  let warned = false;
  node.on('warning', ({ event, address, detail }) => {
    warned = true;
    tool.error(`rds-ping: ${event}: ${printable(address)}: ${printable(detail)}`);
  });
  const pings = new Pings(SOCKETS);
  const answered = new AbortController();
  const open = (at: number): RdsSocket => {
    const socket = node.bind(0);
    socket.connect({ address: to, port: 0 });
    socket.on('readable', () => {
      for (let got = socket.recvmsg(); got !== null; got = socket.recvmsg()) {
        // A program may send to this port, too: only a pong comes from port 0.
        if (got.kind === 'data' && got.port === 0) report(tool, pings, at, to, options);
      }
      if (pings.attempts === options.c && pings.waiting === 0) answered.abort();
    });
    return socket;
  };
  await send(tool, pings, open, options);
  if (options.c !== undefined && pings.waiting > 0 && !tool.signal.aborted) {
    await pause(options.wait, AbortSignal.any([tool.signal, answered.signal]));
  }
  const sums = pings.sums();
  if (options.json === true) tool.line(printableJsonLine({ to, from: node.address, ...sums }));
  else {
    const { sent, received, skipped, minUs, averageUs, maxUs } = sums;
    const left = skipped > 0 ? `, ${skipped} left out` : '';
    const times = [minUs, averageUs, maxUs].map(Math.round).join('/');
    tool.line('');
    tool.line(
      `${sent} sent, ${received} answered${left}${received > 0 ? `; min/avg/max ${times} usec` : ''}`,
    );
  }
  if (sums.received === 0 && !warned)
    tool.error('rds-ping: no answer, and no refusal either: a filter on the way, or keys that differ');
  // A signal is the usual end of a ping without -c.
  tool.exitCode = sums.received > 0 ? 0 : 1;
}

async function send(
  tool: Tool,
  pings: Pings,
  open: (at: number) => RdsSocket,
  { c: count = Number.POSITIVE_INFINITY, i: intervalMs, wait: waitMs }: Options,
): Promise<void> {
  const sockets = Array.from({ length: SOCKETS }, (_, at) => open(at));
  while (!tool.signal.aborted) {
    const nowUs = performance.now() * 1000;
    for (const at of pings.giveUp(nowUs, waitMs * 1000)) {
      const given = sockets[at];
      // First the new one, so that it has another port.
      sockets[at] = open(at);
      await given?.close();
    }
    const at = pings.next(performance.now() * 1000);
    if (at !== null) sockets[at]?.sendmsg(new Uint8Array(0));
    if (pings.attempts >= count) return;
    await pause(intervalMs, tool.signal);
  }
}

function report(tool: Tool, pings: Pings, at: number, to: string, { json }: Options): void {
  const { id, us, duplicate } = pings.answered(at, performance.now() * 1000);
  if (json === true) tool.line(printableJsonLine({ id, us: Math.round(us), duplicate, address: to }));
  else tool.line(` ${String(id).padStart(3)}: ${Math.round(us)} usec${duplicate ? ' DUP!' : ''}`);
}

/** Until the time is over or the signal fires. */
async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await delay(ms, undefined, { signal }).catch(() => {});
}
