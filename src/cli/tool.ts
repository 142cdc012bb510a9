/**
 * What the subcommands of `zerotx` share: where output goes, whether it may be coloured, and the exit code.
 *
 * Exit codes: 0 all is well, 1 what was looked at or run failed, 2 the command line or a file is wrong, 130 or 143 ended by a signal,
 * 141 nobody reads what it prints.
 */
import type { Command } from 'commander';

export interface Tool {
  readonly version: string;
  /** Whether standard output is a terminal that may be coloured: NO_COLOR and TERM=dumb are respected. */
  readonly color: boolean;
  /** A line on standard output. */
  line(text: string): void;
  /** A line on standard error. */
  error(text: string): void;
  /** When nobody reads what is printed: true fires `signal`; false, as it begins, ends the process at once. */
  endsOnBrokenPipe: boolean;
  /** Fires at the first SIGINT or SIGTERM; the second ends the process. */
  readonly signal: AbortSignal;
  /** What the process exits with, once nothing keeps it alive. Null, as it begins: 0, or 128 and the signal's number if `signal` fired. */
  exitCode: number | null;
}

/** A file below src/cli that makes one subcommand; its action sets `tool.exitCode`. */
export type Subcommand = (tool: Tool) => Command;
