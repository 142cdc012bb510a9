/**
 * What every command of the package does around its work: signals, a reader that goes away, and exit codes (tool.ts).
 */
import { readFileSync } from 'node:fs';
import { constants } from 'node:os';
import { type Command, CommanderError } from 'commander';
import { printable } from './printable.ts';
import type { Tool } from './tool.ts';

const USAGE = 2;
/** What a shell shows for a tool that a signal ended: 128 and its number. Of the first one that came. */
let signalled: number | null = null;
/** What a shell shows for a tool that SIGPIPE ended; Node ignores the signal and reports EPIPE. */
const BROKEN_PIPE = 141;
let isPipeBroken = false;

/** Runs the command that `make` builds on the arguments of this process, and sets its exit code. */
export async function runTool(name: string, make: (tool: Tool) => Command): Promise<void> {
  process.exitCode = await exitCodeOf(name, make, process.argv.slice(2));
}

async function exitCodeOf(
  name: string,
  make: (tool: Tool) => Command,
  args: readonly string[],
): Promise<number> {
  const tool = terminalTool();
  const program = make(tool).version(tool.version, '-V, --version', 'print the version');
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
    tool.error(`${name}: ${printable(error.message)}`);
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
