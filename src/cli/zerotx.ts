#!/usr/bin/env node
/**
 * `zerotx`: tools for zero-copy senders, each a subcommand in a file or folder of its own. To add one, import it and put it
 * into the list.
 */
import { Command } from 'commander';
import { doctorCommand } from './doctor/command.ts';
import { explainCommand } from './explain/command.ts';
import { msgZerocopyCommand } from './msg-zerocopy/command.ts';
import { switchCommand } from './switch/command.ts';
import { runTool } from './terminal.ts';
import type { Subcommand } from './tool.ts';
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

await runTool('zerotx', (tool) => {
  const program = new Command('zerotx')
    .description('Zero-copy transmit on Linux: tools for those who use it.')
    .helpOption('-h, --help', 'print this help')
    .helpCommand('help [command]', 'print the help of a command')
    .addHelpText('after', examples);
  for (const make of subcommands) program.addCommand(make(tool));
  return program;
});
