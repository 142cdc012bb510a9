/** `zerotx doctor`: what this host can do for lent memory, one line for each check as it comes. */

import { arch, release } from 'node:os';
import { Command } from 'commander';
import { doctor, doctorChecks, type Finding, zerocopyIsPossible } from '../../index.ts';
import { printableJson } from '../printable.ts';
import type { Tool } from '../tool.ts';
import { findingLine, summaryLine, wayIsLost } from './lines.ts';

interface Options {
  to?: string;
  only?: string[];
  json?: boolean;
}

const examples = `
Checks, by id; a group such as "zerocopy" or "device" stands for all of it:
${doctorChecks.map(({ id, title }) => `  ${id.padEnd(20)}${title}`).join('\n')}

Examples:
  zerotx doctor
  zerotx doctor --to 203.0.113.7:9000
  zerotx doctor --only zerocopy,memlock,optmem
  zerotx doctor --json | jq '.findings[] | select(.status == "warn")'

It tries things on loopback and changes nothing. It needs no rights; root is shown who owns a packet tap or a port, and
whether devices may be made.

Exit code 1 means that nothing can be lent here (no addon, or no kind of socket works), or that the host after --to was
not found. Warnings do not count.`;

export function doctorCommand(tool: Tool): Command {
  const command = new Command('doctor')
    .description('Find out by trying what this host can do for lent memory, and what is in the way.')
    .option('-t, --to <host[:port]>', 'look at the way to this host; else at the default route')
    .option('--only <ids>', 'run only these checks, separated by commas', (text) => text.split(','))
    .option('--json', 'print one JSON document instead')
    .helpOption('-h, --help', 'print this help')
    .allowExcessArguments(false)
    .addHelpText('after', examples)
    .action((options: Options) => run(tool, command, options));
  return command;
}

async function run(tool: Tool, command: Command, options: Options): Promise<void> {
  const findings: Finding[] = [];
  const { to, only } = options;
  try {
    for await (const finding of doctor({
      ...(to === undefined ? {} : { to }),
      ...(only === undefined ? {} : { only }),
    })) {
      findings.push(finding);
      if (options.json !== true) tool.line(findingLine(finding, tool.color));
      if (tool.signal.aborted) return;
    }
  } catch (error) {
    // Checks fail for themselves: only what was asked for can be wrong.
    if ((error as NodeJS.ErrnoException).code !== 'EINVAL') throw error;
    command.error(`error: ${(error as Error).message}`);
  }
  const possible = zerocopyIsPossible(findings);
  if (options.json === true) tool.line(printableJson(report(tool.version, to, findings, possible)));
  else tool.line(summaryLine(findings, possible, to));
  tool.exitCode = possible === false || wayIsLost(findings) ? 1 : 0;
}

function report(
  version: string,
  to: string | undefined,
  findings: readonly Finding[],
  possible: boolean | null,
) {
  return {
    zerotx: version,
    node: process.version,
    kernel: release(),
    arch: arch(),
    uid: process.getuid?.() ?? null,
    to: to ?? null,
    zerocopyPossible: possible,
    findings,
  };
}
