/** `zerotx vhost`: network devices for virtual machines, each with an uplink of its own. */

import { Command, Option } from 'commander';
import { userToBecome } from '../lab/identity.ts';
import { live, type Running } from '../lab/life.ts';
import { count, repeated, STATS_HELP, seconds, USER_HELP } from '../lab/options.ts';
import { showGuests } from '../lab/qemu.ts';
import type { Tool } from '../tool.ts';
import { LocalPairs } from './pair.ts';
import { type GivenOptions, pairsOf } from './settings.ts';
import { WorkerPairs } from './workers.ts';

const help = `
Uplinks:
  tap:tap0                        a tap of this host, which is made if it is not there
  macvtap:macvtap0                a macvtap, by its name or as /dev/tapN
  stream:192.0.2.7:9000[,vnet]    frames over TCP; stream:listen=HOST:PORT waits; stream:unix:PATH. QEMU and passt speak it,
                                  without vnet. Between two zerotx vnet lets segments of 64 KiB through
  dgram:local=A,remote=B          a frame in each datagram; A and B are HOST:PORT or unix:PATH
  vxlan:vni=42,remote=192.0.2.7   a tunnel (RFC 7348)
  pcap:FILE                       writes what the guest sends, to a new file or over an old one; pcap:replay=FILE gives it what was captured
  More settings, such as queues=, name= and zerocopy=, follow a comma.

Prints on standard output what to start the guest with, and on standard error what happens. SIGINT and SIGTERM close
everything, remove the socket and print the counters; a second one ends the process at once. SIGUSR1 prints the counters.

--socket, --uplink, --mac and --pcap may be repeated: the first of each belong together, and so on. All pairs run in one thread;
with --workers they are dealt out to so many, each pair wholly in one of them. One pair never uses more than one core, however many
queues it has. Guests that must not harm each other belong in processes of their own.

Taps and macvtaps are opened first. Then root is given up: for the user after --user, or the one who called sudo. Sockets and captures are
that user's.

Examples:
  zerotx vhost --socket vm1.sock --uplink tap:tap0
  sudo zerotx vhost --socket vm1.sock --uplink macvtap:macvtap0 --queues 2
  zerotx vhost --socket vm1.sock --uplink stream:192.0.2.7:9000,vnet --pcap vm1.pcap
  zerotx vhost --socket a.sock --uplink tap:tap0 --socket b.sock --uplink tap:tap1 --workers 2

Exit code 1: a port cannot be opened, or every uplink is lost. Closed by a signal: 0; because nobody reads what it prints: 141.`;

export function vhostCommand(tool: Tool): Command {
  const command = new Command('vhost')
    .description('Network devices for virtual machines (vhost-user), each joined to an uplink.')
    .option('--socket <path>', 'Unix socket that the front-end connects to', repeated)
    .option('--uplink <port>', 'where its frames go', repeated)
    .option('--queues <n>', 'queue pairs', count('number of queues', 1, 16), 1)
    .option(
      '--mtu <n>',
      "of guest and uplink; 1500, or the uplink's if that is less",
      count('MTU', 68, 65_535),
    )
    .option('--mac <address>', "of the guest's card; one made of the path if left out", repeated)
    .addOption(
      new Option('--mode <mode>', 'who waits at the socket: we, or the front-end')
        .choices(['listen', 'connect'])
        .default('listen'),
    )
    .addOption(
      new Option('--front-end <kind>', 'qemu (also for DPDK), or User-Mode Linux')
        .choices(['qemu', 'uml'])
        .default('qemu'),
    )
    .addOption(
      new Option('--zerocopy <mode>', 'lend guest memory to uplinks that take it')
        .choices(['auto', 'off'])
        .default('auto'),
    )
    .addOption(
      new Option(
        '--completion <order>',
        'whether copied frames are returned before lent ones that came earlier',
      )
        .choices(['in-order', 'copies-first'])
        .default('in-order'),
    )
    .option('--hold-ms <n>', 'a lent frame is overtaken after so long; 5', count('time', 1, 60_000))
    .option('--workers <n>', 'threads for several pairs', count('number of workers', 1, 64))
    .option(
      '--pcap <file>',
      'capture what the device takes and gives; an existing file is replaced',
      repeated,
    )
    .option('--user <name>', USER_HELP)
    .option('--stats <seconds>', STATS_HELP, seconds)
    .option('--json', 'documents, a line each, on standard output')
    .helpOption('-h, --help', 'print this help')
    .allowExcessArguments(false)
    .addHelpText('after', help)
    .action((options: GivenOptions) => run(tool, command, options));
  return command;
}

async function run(tool: Tool, command: Command, options: GivenOptions): Promise<void> {
  const pairs = pairsOf(options);
  if (typeof pairs === 'string') command.error(`error: ${pairs}`);
  const { workers, stats, json } = options;
  const user = userToBecome(options.user);
  if (typeof user === 'string') command.error(`error: ${user}`);
  await live(
    tool,
    {
      user,
      ...(stats === undefined ? {} : { stats }),
      ...(json === undefined ? {} : { json }),
    },
    (tell, fail): Running =>
      workers === undefined ? new LocalPairs(pairs, tell) : new WorkerPairs(pairs, workers, tell, fail),
    (voice) => showGuests(voice, pairs, json === true),
  );
}
