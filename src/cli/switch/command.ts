/** `zerotx switch`: a switch between virtual machines, taps, tunnels and captures, as a file describes it. */

import { existsSync, readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { Command, InvalidArgumentError, Option } from 'commander';
import { userToBecome } from '../lab/identity.ts';
import { live } from '../lab/life.ts';
import { STATS_HELP, seconds, USER_HELP } from '../lab/options.ts';
import { type Card, showGuests } from '../lab/qemu.ts';
import { printable, printableJsonLine } from '../printable.ts';
import type { Tool } from '../tool.ts';
import type { Problem } from './document.ts';
import type { Lab } from './lab.ts';
import { readLab } from './read-lab.ts';
import { LabSwitch } from './running.ts';

interface GivenOptions {
  check?: boolean;
  user?: string;
  stats?: number;
  json?: boolean;
}

const help = `
A lab file, in YAML; docs/vm-lab.md has all of it:

  ports:
    vm1:
      vhost: vm1.sock               # QEMU connects to it; paths are relative to the file
      vlan: 10
      macs: [52:54:00:00:00:01]     # what the guest may send from
    vm2:
      vhost: { socket: vm2.sock, queues: 2 }
      vlan: 10
      faults:
        tx: { delay: 20ms, jitter: 5ms, loss: 1% }
      capture: vm2.pcap             # an existing file is replaced
    uplink:
      tap: tap0
      vlan: { trunk: [10, 20] }

Prints on standard output what to start each guest with, and on standard error what happens. SIGINT and SIGTERM close everything,
remove the sockets and print the counters; a second one ends the process at once. SIGUSR1 prints the counters.

A switch runs in one thread, and so do all of its ports. Taps are opened first. Then root is given up: for the user after --user,
or the one who called sudo. Sockets and captures are that user's.

Examples:
  zerotx switch lab.yaml --check
  sudo zerotx switch lab.yaml
  zerotx switch lab.yaml --stats 10 --json | jq 'select(.event == "counters") | .ports.vm1'

Exit code 1: a port cannot be opened. 2: the file is wrong. Closed by a signal: 0; because nobody reads what it prints: 141.`;

export function switchCommand(tool: Tool): Command {
  const command = new Command('switch')
    .description('A learning switch between virtual machines, taps, tunnels and captures, from a file.')
    .argument('<file>', 'the lab file')
    .option('--check', 'say what is wrong in the file, and end')
    .option('--user <name>', USER_HELP)
    .option('--stats <seconds>', STATS_HELP, seconds)
    .option('--json', 'documents, a line each, on standard output')
    .addOption(new Option('--workers <n>').argParser(refuseWorkers).hideHelp())
    .helpOption('-h, --help', 'print this help')
    .allowExcessArguments(false)
    .addHelpText('after', help)
    .action((file: string, options: GivenOptions) => run(tool, command, file, options));
  return command;
}

function refuseWorkers(): never {
  throw new InvalidArgumentError(
    'A switch hands each frame to its ports where it came from, in one thread. Several switches are several processes.',
  );
}

async function run(tool: Tool, command: Command, file: string, options: GivenOptions): Promise<void> {
  const { check, stats, json = false } = options;
  const { lab, ports, problems, warnings } = readLab(
    source(command, file),
    dirname(resolve(file)),
    existsSync,
  );
  complain(tool, file, problems, warnings, json);
  if (check === true && json) {
    const counts = { problems: problems.length, warnings: warnings.length };
    tool.line(printableJsonLine({ event: 'checked', ports, ...counts }));
  }
  if (lab === null) {
    tool.exitCode = 2;
    return;
  }
  if (check === true) {
    const found = warnings.length === 0 ? 'nothing is wrong' : counted(warnings.length, 'warning');
    if (!json) tool.line(`${printable(file)}: ${counted(ports, 'port')}, ${found}`);
    tool.exitCode = 0;
    return;
  }
  const user = userToBecome(options.user);
  if (typeof user === 'string') command.error(`error: ${user}`);
  await live(
    tool,
    { user, json, ...(stats === undefined ? {} : { stats }) },
    (tell) => new LabSwitch(lab, tell),
    (voice) => showGuests(voice, cardsOf(lab), json),
  );
}

function source(command: Command, file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const why = READ_ERRORS[code ?? ''];
    return command.error(`error: ${why === undefined ? message : `${printable(file)}: ${why}`}`);
  }
}

const READ_ERRORS: Readonly<Record<string, string>> = {
  ENOENT: 'no such file',
  ENOTDIR: 'no such file',
  EISDIR: 'a folder, and a lab is a file',
  EACCES: 'this user may not read it',
};

function counted(n: number, what: string): string {
  return `${n} ${what}${n === 1 ? '' : 's'}`;
}

function complain(
  tool: Tool,
  file: string,
  problems: readonly Problem[],
  warnings: readonly Problem[],
  json: boolean,
): void {
  if (json) {
    for (const [event, list] of [
      ['problem', problems],
      ['warning', warnings],
    ] as const)
      for (const problem of list) tool.line(printableJsonLine({ event, file, ...problem }));
    return;
  }
  for (const { line, column, text } of problems) tool.error(printable(`${file}:${line}:${column}: ${text}`));
  for (const { line, column, text } of warnings)
    tool.error(printable(`${file}:${line}:${column}: warning: ${text}`));
}

function cardsOf(lab: Lab): Card[] {
  return lab.ports.flatMap(({ name, port }) => {
    if (port.kind !== 'vhost') return [];
    const { path, role = 'listen', frontend = 'qemu', queues = 1, mtu = 1500 } = port.options;
    return [{ name, socket: path, role, frontend, queues, mtu, mac: port.options.mac ?? '' }];
  });
}
