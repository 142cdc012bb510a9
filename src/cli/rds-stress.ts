#!/usr/bin/env node
/**
 * `rds-stress`: the load generator of rds-tools over zerotx's RDS sockets, on either side of a run. Options and output
 * are those of rds-tools 2.0.7, and so is what goes over the wire, so that the other side may be the original on a
 * kernel with RDS. Where rds-tools forks a process for each task, one process serves all sockets here.
 */
import { readFileSync } from 'node:fs';
import { RdsNode } from '../rds/index.ts';
import { showThisProgram } from './rds/shown.ts';
import { runActive } from './stress/active.ts';
import { Ending } from './stress/ending.ts';
import { parseSettings, stressCommand } from './stress/options.ts';
import { runPassive } from './stress/passive.ts';
import type { Output } from './stress/report.ts';
import type { Context } from './stress/run.ts';

/** What a shell shows for a tool that these signals ended: 128 and their numbers. */
const INTERRUPTED = 130;
const TERMINATED = 143;

async function main(args: readonly string[]): Promise<number> {
  const settings = parseSettings(stressCommand(packageVersion()), args);
  const ending = new Ending();
  const context: Context = {
    settings,
    output: terminal(settings.json ? process.stderr : process.stdout),
    ending,
    openNode: (address) => RdsNode.open({ address }),
    loadAddon,
    json: (summary) => process.stdout.write(`${JSON.stringify(summary)}\n`),
  };
  showThisProgram();
  // The first signal ends the run with its summary; the second, of an impatient user, the program.
  let signalled = INTERRUPTED;
  const interrupt = (signal: NodeJS.Signals): void => {
    signalled = signal === 'SIGTERM' ? TERMINATED : INTERRUPTED;
    if (ending.reason === 'interrupt') process.exit(signalled);
    ending.end('interrupt');
  };
  // Whoever read the output is gone, as after `| head`.
  process.stdout.on('error', () => process.exit(1));
  process.on('SIGINT', interrupt);
  process.on('SIGTERM', interrupt);
  try {
    if (settings.sendAddress === undefined) await runPassive(context);
    else await runActive(context, settings.sendAddress);
    return 0;
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code;
    // Without a code it is a bug, and its stack is what one wants to see.
    if (!(error instanceof Error) || code === undefined) throw error;
    if (code === 'ABORT_ERR') return signalled;
    context.output.error(`rds-stress: ${error.message}`);
    return 1;
  }
}

/**
 * Opening a node on an address that no host has (RFC 5737 keeps it for documentation) fails over that address only after
 * everything else that a node needs was found.
 */
async function loadAddon(): Promise<void> {
  try {
    const node = await RdsNode.open({ address: '192.0.2.1' });
    // A host may be set up to bind addresses that it does not have (net.ipv4.ip_nonlocal_bind).
    await node.close();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'EADDRNOTAVAIL' && code !== 'EADDRINUSE') throw error;
  }
}

function terminal(stream: NodeJS.WritableStream): Output {
  return {
    line: (text) => stream.write(`${text}\n`),
    part: (text) => stream.write(text),
    error: (text) => process.stderr.write(`${text}\n`),
  };
}

function packageVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  return (JSON.parse(text) as { version: string }).version;
}

process.exitCode = await main(process.argv.slice(2));
