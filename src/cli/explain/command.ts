/** `zerotx explain`: why the sockets and RDS nodes of a live program copied, and what changing it would save. */

import { Command } from 'commander';
import { measureSendCosts, type SendCosts } from '../../index.ts';
import { printableJson } from '../printable.ts';
import type { Tool } from '../tool.ts';
import { explainNode, peerEnds } from './rds.ts';
import { othersOf, reasonsOf } from './reasons.ts';
import { findPrograms, type Program, parseTarget, type Target } from './target.ts';
import { costLine, type ExplainedProgram, programLines } from './text.ts';
import { commandOf, Ways } from './ways.ts';

interface Options {
  json?: boolean;
  all?: boolean;
}

const help = `
The program must show its statistics: start it with ZEROTX_CONTROL=1, or let it call openControl() of zerotx/net. It shows
them to its own user and to root. Nothing in it is changed.

Examples:
  zerotx explain 4711                    all sockets and RDS nodes of this process
  zerotx explain 198.51.100.7:9000       sockets with this address at either end, of all programs that can be asked
  zerotx explain ./my.sock               a control socket at a place of the program's choice
  zerotx explain --json 4711 | jq '.programs[].sockets[].reasons'

Exit code 1 means that there is no such process or socket, or that the program does not show its statistics.`;

export function explainCommand(tool: Tool): Command {
  const command: Command = new Command('explain')
    .description(
      'Tell why the sockets and RDS nodes of a live program copied, and what changing it would save.',
    )
    .argument('<pid | host:port>', 'a process, or an address at either end of a socket')
    .option('--all', 'show sockets that copied nothing, too, and all that did, and all peers of RDS nodes')
    .option('--json', 'print one JSON document instead')
    .helpOption('-h, --help', 'print this help')
    .allowExcessArguments(false)
    .addHelpText('after', help)
    .action((text: string, options: Options) => {
      const target = parseTarget(text);
      if (target === undefined) command.error(`error: neither a pid nor host:port: ${JSON.stringify(text)}`);
      return run(tool, target, options);
    });
  return command;
}

async function run(tool: Tool, target: Target, { json = false, all = false }: Options): Promise<void> {
  const found = await findPrograms(target);
  if ('nothing' in found) {
    tool.error(`zerotx: ${found.nothing}`);
    tool.exitCode = 1;
    return;
  }
  const costs = await costsHere();
  const ways = new Ways();
  const programs: ExplainedProgram[] = [];
  for (const program of found.programs) {
    if (tool.signal.aborted) return;
    await ways.look([...program.sockets, ...peerEnds(program.rds)], program.pid);
    programs.push(explained(program, ways, costs, target.kind !== 'address'));
  }
  if (json) {
    tool.line(printableJson({ zerotx: tool.version, costs: costs ?? null, programs }));
    return;
  }
  for (const program of programs) for (const line of [...programLines(program, all), '']) tool.line(line);
  if (programs.some(savesSomething)) tool.line(costLine(costs));
}

function explained(
  { pid, threadId, stats, sockets, rds }: Program,
  ways: Ways,
  costs: SendCosts | undefined,
  withOthers: boolean,
): ExplainedProgram {
  return {
    pid,
    threadId,
    command: commandOf(pid),
    openSockets: stats.sockets,
    closedSockets: stats.closedSockets,
    sockets: sockets.map((socket) => ({ stats: socket, reasons: reasonsOf(socket, ways.to(socket), costs) })),
    others: withOthers ? others(stats.zerocopy, sockets, costs) : null,
    rds: rds.map((node) => explainNode(node, ways, costs, withOthers)),
  };
}

function others(
  total: Program['stats']['zerocopy'],
  sockets: Program['sockets'],
  costs: SendCosts | undefined,
): ExplainedProgram['others'] {
  const zerocopy = othersOf(total, sockets);
  const way = { unknown: 'the ways of these sockets are not known any more' };
  const reasons = reasonsOf({ kind: 'various', zerocopy }, way, costs);
  return zerocopy.fallbackBytes + zerocopy.lentBytes === 0 ? null : { zerocopy, reasons };
}

/** Reasons stand without them. */
async function costsHere(): Promise<SendCosts | undefined> {
  try {
    return await measureSendCosts();
  } catch {
    return undefined;
  }
}

function savesSomething({ sockets, others: rest, rds }: ExplainedProgram): boolean {
  const all = [
    ...sockets,
    ...rds.flatMap((node) => [...node.peers, ...(node.others === null ? [] : [node.others])]),
  ];
  const reasons = [...all.flatMap((one) => one.reasons), ...(rest?.reasons ?? [])];
  return reasons.some(({ saves }) => saves !== undefined);
}
