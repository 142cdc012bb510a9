#!/usr/bin/env node
/**
 * `zerotx`: tools for zero-copy senders, each a subcommand in a file or folder of its own. To add one, import it and put it
 * into the list.
 */
import { readFileSync } from 'node:fs';
import { constants } from 'node:os';
import { Command, CommanderError } from 'commander';
import { doctorCommand } from './doctor/command.ts';
import { explainCommand } from './explain/command.ts';
import { msgZerocopyCommand } from './msg-zerocopy/command.ts';
import { printable } from './printable.ts';
import { switchCommand } from './switch/command.ts';
import type { Subcommand, Tool } from './tool.ts';
import { vhostCommand } from './vhost/command.ts';

const subcommands: readonly Subcommand[] = [
  doctorCommand,
  explainCommand,
  msgZerocopyCommand,
  switchCommand,
  vhostCommand,
];

const examples = `
Examples:
  zerotx doctor                      what this host can do, and what is in the way
  zerotx doctor --to storage:9000    the same, for the way to that host
  zerotx doctor --json | jq .        for programs
  zerotx explain 4711                why the sockets of that process copied
  zerotx msg-zerocopy tcp -z         send by MSG_ZEROCOPY, and measure it
  zerotx vhost --socket vm1.sock --uplink tap:tap0
                                     a network card for a virtual machine
  zerotx switch lab.yaml             a switch between virtual machines, taps and tunnels
  zerotx help doctor                 its options

Exit codes: 0 all is well, 1 something failed, 2 the command line or a file is wrong, 130 or 143 ended by a signal,
141 nobody reads what it prints.`;

const USAGE = 2;
/** What a shell shows for a tool that a signal ended: 128 and its number. Of the first one that came. */
let signalled: number | null = null;
/** What a shell shows for a tool that SIGPIPE ended; Node ignores the signal and reports EPIPE. */
const BROKEN_PIPE = 141;
let isPipeBroken = false;

async function main(args: readonly string[]): Promise<number> {
  const tool = terminalTool();
  const program = new Command('zerotx')
    .description('Zero-copy transmit on Linux: tools for those who use it.')
    .version(tool.version, '-V, --version', 'print the version')
    .helpOption('-h, --help', 'print this help')
    .helpCommand('help [command]', 'print the help of a command')
    .addHelpText('after', examples);
  for (const make of subcommands) program.addCommand(make(tool));
  for (const command of [program, ...program.commands]) {
    command.exitOverride().showHelpAfterError('(--help tells more)');
  }
  try {
    await program.parseAsync(args, { from: 'user' });
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? 0 : USAGE;
    if (signalled !== null) return signalled;
    const code = (error as NodeJS.ErrnoException).code;
    // Without a code it is a bug, and its stack is what one wants to see.
    if (!(error instanceof Error) || code === undefined) throw error;
    tool.error(`zerotx: ${printable(error.message)}`);
    return 1;
  }
  return isPipeBroken ? BROKEN_PIPE : (tool.exitCode ?? signalled ?? 0);
}

function terminalTool(): Tool {
  const ending = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM'] as const) {
    process.on(name, () => {
      const code = 128 + constants.signals[name];
      if (ending.signal.aborted) process.exit(code);
      signalled = code;
      ending.abort();
    });
  }
  for (const stream of [process.stdout, process.stderr]) {
    stream.on('error', (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EPIPE' || !tool.endsOnBrokenPipe)
        process.exit(error.code === 'EPIPE' ? BROKEN_PIPE : 1);
      isPipeBroken = true;
      ending.abort();
    });
  }
  const { NO_COLOR, TERM } = process.env;
  const tool: Tool = {
    version: packageVersion(),
    color: process.stdout.isTTY === true && (NO_COLOR ?? '') === '' && TERM !== 'dumb',
    line: (text) => process.stdout.write(`${text}\n`),
    error: (text) => process.stderr.write(`${text}\n`),
    endsOnBrokenPipe: false,
    signal: ending.signal,
    exitCode: null,
  };
  return tool;
}

function packageVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { version: string }).version;
}

process.exitCode = await main(process.argv.slice(2));
