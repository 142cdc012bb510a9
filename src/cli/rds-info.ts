#!/usr/bin/env node
/**
 * `rds-info`: what the RDS nodes of live programs have open, connected and queued, with the options and in the layout of rds-tools. Where that one
 * asks the kernel, this one asks the programs, through their control sockets.
 */
import { Command, InvalidArgumentError } from 'commander';
import { askRdsList, type InfoLists, ZerotxError } from '../rds/index.ts';
import { printable, printableJson } from './printable.ts';
import { type RdsProgram, rdsPrograms } from './rds/programs.ts';
import { counterLines, listLines } from './rds/tables.ts';
import { runTool } from './terminal.ts';
import type { Tool } from './tool.ts';

type Section = 'counters' | keyof InfoLists;

/** By option, in the order of the output. */
const sections: readonly (readonly [flag: string, section: Section, what: string])[] = [
  ['c', 'counters', 'counters'],
  ['k', 'sockets', 'sockets'],
  ['n', 'connections', 'connections (lane 0 of each; all lanes with -v)'],
  ['r', 'receiveQueue', 'messages received and not read'],
  ['s', 'sendQueue', 'messages to be sent'],
  ['t', 'retransmitQueue', 'messages sent and not acknowledged'],
  ['T', 'tcpSockets', 'TCP connections, of all lanes'],
];

const help = `
Without options it shows everything. Programs show their RDS nodes if they are started with ZEROTX_CONTROL=1 or call
openControl() of zerotx/net (rds-stress and rds-ping of this package do): to their own user and to root. With several
programs the tables are those of all of them together, as a kernel has one set; --pid picks one.

Examples:
  rds-info -n                      the connections
  rds-info -v -n --pid 4711        all lanes of one program's
  rds-info --json | jq .counters

Exit code 1 means that no program shows a node, or not the one asked for, or that one did not answer in full.`;

interface Options extends Readonly<Record<string, unknown>> {
  readonly v?: boolean;
  readonly pid?: number;
  readonly json?: boolean;
}

await runTool('rds-info', (tool) => {
  const command = new Command('rds-info')
    .description('Show what the RDS nodes of live programs have open, connected and queued.')
    .option('-v', 'show more of connections');
  for (const [flag, , what] of sections) command.option(`-${flag}`, what);
  return command
    .option('-I', 'InfiniBand connections: there are none, as RDS runs over TCP here')
    .option('--pid <pid>', 'of this process only', parsePid)
    .option('--json', 'print one JSON document instead')
    .helpOption('-h, --help', 'print this help')
    .allowExcessArguments(false)
    .addHelpText('after', help)
    .action((options: Options) => run(tool, options));
});

function parsePid(text: string): number {
  if (!/^[1-9]\d{0,6}$/.test(text)) throw new InvalidArgumentError('not a process.');
  return Number(text);
}

async function run(tool: Tool, options: Options): Promise<void> {
  const programs = await rdsPrograms(options.pid, (pid) => {
    tool.error(`rds-info: process ${pid} does not answer: it is stopped, or busy`);
    tool.exitCode = 1;
  });
  if (typeof programs === 'string') {
    tool.error(`rds-info: ${programs}`);
    tool.exitCode = 1;
    return;
  }
  const chosen = sections.filter(([flag]) => options[flag] === true);
  // As rds-tools: -I alone asks for what is not there, and nothing else.
  const wanted = (chosen.length > 0 || options.I === true ? chosen : sections).map(([, section]) => section);
  const found = new Map<Section, object>();
  let leftOut = 0;
  for (const section of wanted) {
    if (section === 'counters') found.set(section, counters(programs));
    else {
      const { records, more } = await list(tool, programs, section);
      found.set(section, records);
      leftOut += more;
    }
  }
  if (options.json === true) {
    tool.line(printableJson(document(tool, programs, found)));
  } else {
    for (const [section, data] of found) {
      const lines =
        section === 'counters'
          ? counterLines(data as Record<string, number>)
          : listLines(section, data as never, options.v === true);
      for (const line of lines) tool.line(line);
    }
    tool.line('');
  }
  if (leftOut > 0) tool.error(`rds-info: ${leftOut} more are not listed`);
}

function counters(programs: readonly RdsProgram[]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const { summary } of programs) {
    for (const [name, count] of Object.entries(summary.counters)) sums[name] = (sums[name] ?? 0) + count;
  }
  return sums;
}

/** A program that ends meanwhile, or answers with rubbish, is left out: the others are shown. */
async function list(
  tool: Tool,
  programs: readonly RdsProgram[],
  section: keyof InfoLists,
): Promise<{ records: object[]; more: number }> {
  const records: object[] = [];
  let more = 0;
  for (const { path, summary } of programs) {
    try {
      const answer = await askRdsList(path, section);
      records.push(...answer.records);
      more += answer.leftOut;
    } catch (error) {
      if (!(error instanceof ZerotxError)) throw error;
      tool.error(`rds-info: process ${summary.pid}: ${printable(error.message)}`);
      tool.exitCode = 1;
    }
  }
  return { records, more };
}

function document(tool: Tool, programs: readonly RdsProgram[], found: ReadonlyMap<Section, object>): object {
  return {
    zerotx: tool.version,
    programs: programs.map(({ summary: { pid, threadId, nodes } }) => ({ pid, threadId, nodes })),
    ...Object.fromEntries(found),
  };
}
