/** `zerotx msg-zerocopy`: the kernel's selftest of MSG_ZEROCOPY as people know it, over the sockets of this package. */

import { Argument, Command, InvalidArgumentError } from 'commander';
import { printableJson } from '../printable.ts';
import { parseNumber } from '../stress/numbers.ts';
import type { Tool } from '../tool.ts';
import { type Companion, startCompanion } from './companion.ts';
import { deadline } from './deadline.ts';
import { Pump } from './pump.ts';
import { receive } from './receiver.ts';
import { headLine, receiveLine, type SendReport, sendLines, sendReport } from './report.ts';
import { explained, openSender, type Target } from './sender.ts';
import {
  DEFAULT_PORT,
  DEFAULT_SECONDS,
  type GivenOptions,
  LIMIT_DEFAULT,
  PAYLOAD_DEFAULTS,
  place,
  type Settings,
  settingsOf,
  TESTS,
  type Test,
} from './settings.ts';

const help = `
Without -D and -r both ends run on this host, the receiver in a process of its own. The kernel then copies whatever is lent:
it is good for a look at the tool, and for nothing else.

The last line is that of the kernel's selftest: sends, sends whose memory came back (0 without -z), and whether nothing
at all was copied; its MB are 2^20 bytes, those above 10^6. The other side may be the selftest, or anything that reads: nc -l 8000.

Examples:
  zerotx msg-zerocopy tcp -z                        a first look, both ends here
  b$ zerotx msg-zerocopy tcp -r                     two machines, a and b
  a$ zerotx msg-zerocopy tcp -D b -z -t 10
  a$ zerotx msg-zerocopy udp -D b -z -s 1400 -c 46  46 datagrams in one call
  b$ zerotx msg-zerocopy rds -r -D <address of b>   RDS owns an address at either end
  a$ zerotx msg-zerocopy rds -S <address of a> -D <address of b> -z
  zerotx msg-zerocopy tcp -z --json | jq .copied

Not here: -C (use taskset), -i, -m, -v, and the tests packet and raw. -c is not UDP_CORK, as the kernel copies corked
datagrams: it is UDP_SEGMENT.

Exit code 1: nobody listens, or the run broke off. Ctrl-C ends a run with its summary.`;

function count(name: string, min: number, max: number): (text: string) => number {
  return (text) => {
    const value = parseNumber(text, max);
    if (value === undefined || value < min)
      throw new InvalidArgumentError(`not a ${name} from ${min} to ${max}.`);
    return value;
  };
}

/** Parts of a second are welcome. */
function seconds(text: string): number {
  const value = /^\d+(?:\.\d+)?$/.test(text) ? Number(text) : 0;
  if (value <= 0 || value > 1e6) throw new InvalidArgumentError('not a number of seconds up to 1000000.');
  return value;
}

export function msgZerocopyCommand(tool: Tool): Command {
  const { tcp, udp, rds } = PAYLOAD_DEFAULTS;
  const command = new Command('msg-zerocopy')
    .description('Send by MSG_ZEROCOPY or by copying, and measure it: the options of the kernel selftest.')
    .addArgument(new Argument('<test>', 'what to send over').choices(TESTS))
    .option('-4', 'IPv4')
    .option('-6', 'IPv6')
    .option('-D <dst>', "the receiver's address: where to send, and with -r where to receive; rds needs it")
    .option('-S <src>', "the sender's address; rds needs it. Nothing with -r")
    .option('-p <port>', `the receiver's port, ${DEFAULT_PORT} if left out`, count('port', 0, 65_535))
    .option(
      '-s <bytes>',
      `bytes of a send: tcp ${tcp}, udp ${udp} a datagram, rds ${rds}`,
      count('size', 1, 2 ** 30),
    )
    .option('-c <nr>', 'udp: datagrams of one send; as many as fit if left out', count('number', 1, 1024))
    .option(
      '-l <limit>',
      'sends that may wait for their notification',
      count('number', 1, 65_536),
      LIMIT_DEFAULT,
    )
    .option(
      '-t <seconds>',
      `how long; ${DEFAULT_SECONDS} for a sender if left out, no limit with -r`,
      seconds,
    )
    .option('-z', 'zero-copy: lend the memory. Without it everything is copied')
    .option('-r', 'receive')
    .option('--json', 'print one JSON document instead')
    .helpOption('-h, --help', 'print this help')
    .allowExcessArguments(false)
    .addHelpText('after', help)
    .action(async (test: Test, options: GivenOptions) => {
      const settings = settingsOf(test, options);
      if (typeof settings === 'string') command.error(`error: ${settings}`);
      else if (settings.role === 'receive') await receiveHere(tool, settings, options.json === true);
      else await sendFrom(tool, settings, options.json === true);
    });
  return command;
}

async function receiveHere(tool: Tool, settings: Settings, json: boolean): Promise<void> {
  const { seconds } = settings;
  const end = deadline(tool.signal, seconds === undefined ? undefined : seconds * 1000);
  const received = await receive(settings, {
    stop: end.signal,
    listening: (address, port) => {
      const text = `receiving ${settings.test} at ${place(address, port)}`;
      if (json) tool.error(text);
      else tool.line(text);
    },
  }).finally(() => end.clear());
  if (json) tool.line(printableJson({ role: 'receive', test: settings.test, ...received }));
  else tool.line(receiveLine(received));
  if (received.error !== null) tool.error(`zerotx: ${received.error}`);
  tool.exitCode = received.error === null ? 0 : 1;
}

async function sendFrom(tool: Tool, settings: Settings, json: boolean): Promise<void> {
  if (settings.role === 'send') {
    const target = { address: settings.destination as string, port: settings.port ?? DEFAULT_PORT };
    await sendTo(tool, settings, { target, json, companion: null });
    return;
  }
  const { here, there } = loopbackPair(settings);
  if (!json)
    tool.line('Both ends are on this host, where the kernel copies what is lent: -D sends to another one.');
  const companion = await startCompanion(there);
  try {
    await sendTo(tool, here, { target: companion, json, companion });
  } finally {
    companion.kill();
  }
}

/** The two ends of a run on this host. An RDS end point owns an address: two that hardly anybody else has just now. */
function loopbackPair(settings: Settings): { here: Settings; there: Settings } {
  const { test, family, port = test === 'rds' ? DEFAULT_PORT : 0 } = settings;
  const net = `127.${1 + (process.pid & 0x7f)}.${(process.pid >> 7) & 0xff}`;
  const address = test === 'rds' ? `${net}.1` : family === 6 ? '::1' : '127.0.0.1';
  const source = settings.source ?? (test === 'rds' ? `${net}.2` : undefined);
  return {
    here: { ...settings, source },
    there: { ...settings, role: 'receive', destination: address, port, seconds: undefined },
  };
}

interface Way {
  readonly target: Target;
  readonly json: boolean;
  readonly companion: Companion | null;
}

async function sendTo(tool: Tool, settings: Settings, { target, json, companion }: Way): Promise<void> {
  const sender = await openSender(settings, target, tool.signal);
  if (!json) tool.line(headLine(settings, sender));
  const pumped = await new Pump(sender, {
    limit: settings.limit,
    seconds: settings.seconds ?? DEFAULT_SECONDS,
    signal: tool.signal,
    progress: !json && process.stderr.isTTY ? showProgress : undefined,
  }).run();
  if (!json && process.stderr.isTTY) process.stderr.write('\r\u001b[K');
  const counts = sender.counts();
  if (pumped.error === null) await sender.close();
  else sender.abandon();
  const received = companion === null ? null : await companion.result(pumped.error !== null);
  const report = sendReport(settings, sender, pumped, counts, received);
  print(tool, report, json);
  tool.exitCode = pumped.error === null ? 0 : 1;
  if (pumped.error !== null) throw explained(pumped.error, settings, target);
}

function print(tool: Tool, report: SendReport, json: boolean): void {
  if (json) tool.line(printableJson({ zerotx: tool.version, ...report }));
  else for (const line of sendLines(report)) tool.line(line);
}

function showProgress(bytes: number, elapsed: number): void {
  const rate = bytes / 1e6 / elapsed;
  process.stderr.write(
    `\r\u001b[K${elapsed.toFixed(0)} s, ${(bytes / 1e6).toFixed(0)} MB, ${rate.toFixed(0)} MB/s`,
  );
}
