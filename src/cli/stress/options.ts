/**
 * The command line: rds-tools' options under the same names, and a few of our own.
 *
 * What the two sides must agree on goes into `StressOptions` and travels to the passive side; the rest (`--zerocopy`,
 * `-c`, what to print) is each side's own. Options that need RDMA, a real-time scheduler or another vendor's RDS are
 * known and refused by name, so that a script written for the other tool fails with a reason.
 */
import { Command, InvalidArgumentError, Option } from 'commander';
import { defaultOptions, type StressOptions } from '../../wire/rds-stress-options.ts';
import { refusal } from './limits.ts';
import { parseNumber } from './numbers.ts';

export interface Settings {
  /** Agreed with the peer; `sendAddr` and `receiveAddr` are filled in once names are resolved. */
  run: StressOptions;
  /** Where to send; absent on the passive side. */
  sendAddress: string | undefined;
  receiveAddress: string | undefined;
  zerocopy: boolean;
  reportCpu: boolean;
  json: boolean;
  showHistogram: boolean;
  /** Report round trips longer than this many microseconds. */
  outlierUs: number | undefined;
}

const u32Max = 2 ** 32 - 1;

/** Options of rds-tools that cannot work here: flags, placeholder for their value or '', and why. */
const refused: readonly (readonly [flags: string, value: string, reason: string])[] = [
  ['-D, --rdma-bytes', 'bytes', 'RDMA is not possible over TCP'],
  ['-I', 'iovecs', 'RDMA is not possible over TCP'],
  ['-M', 'mode', 'RDMA is not possible over TCP'],
  ['--rdma-use-once', '0|1', 'RDMA is not possible over TCP'],
  ['--rdma-use-get-mr', '0|1', 'RDMA is not possible over TCP'],
  ['--rdma-use-fence', '0|1', 'RDMA is not possible over TCP'],
  ['--rdma-use-notify', '0|1', 'RDMA is not possible over TCP'],
  ['--rdma-cache-mrs', '0|1', 'RDMA is not possible over TCP'],
  ['--rdma-alignment', 'bytes', 'RDMA is not possible over TCP'],
  ['--rdma-key-o-meter', '', 'RDMA is not possible over TCP'],
  ['-Q, --tos', 'tos', 'RDS over TCP has no type of service'],
  ['-R, --rtprio', '', 'real-time priority is set from outside, with chrt(1)'],
  ['--reset', '', 'only other kernels than mainline Linux can reset a connection through this option'],
  ['--async', '', 'asynchronous sends are an extension of another RDS'],
];

const helpHead = `Load an RDS connection with requests and acknowledgements, and measure it.
Without -s it waits for a peer; with -s it runs the test. The peer may be rds-stress of rds-tools on a kernel with RDS.
Numbers take the suffixes K, M and G.`;

const helpTail = `
Examples:
  two machines, a and b            a$ rds-stress
                                   b$ rds-stress -s a -q 1M -T 10 --zerocopy
  one machine, two addresses of it  $ rds-stress -r 127.0.0.1
                                    $ rds-stress -r 127.0.0.2 -s 127.0.0.1 -q 1M -a 1M -T 5

Columns, once a second: sockets, requests sent and received, KiB/s both ways, RDMA KiB/s in and out (always 0),
microseconds in sendmsg per request (tx us/c), microseconds from a request to its acknowledgement (rtt us), and the
CPU time of this process (cpu %), which is -1.00 without -c.

Not supported, because RDS runs over TCP in user space here: -D, -I, -M, --rdma-*, -Q, -R, --reset, --async.`;

function number(name: string, max: number): (text: string) => number {
  return (text) => {
    const value = parseNumber(text, max);
    if (value === undefined) throw new InvalidArgumentError(`not a ${name} from 0 to ${max}.`);
    return value;
  };
}

/** The parser; `version` is what `--version` prints. */
export function stressCommand(version: string): Command {
  const bytes = number('number of bytes', u32Max);
  const flag = number('flag', 1);
  const command = new Command('rds-stress')
    .description(helpHead)
    .version(version, '--version', 'print the version')
    .helpOption('-h, --help', 'print this help')
    .allowExcessArguments(false)
    .option('-r, --recv-addr <address>', 'use this local address')
    .option('-s, --send-addr <address>', 'send to this address; without it, wait for a peer')
    .option(
      '-p, --port <port>',
      'start port: control over TCP; RDS uses the ports above it',
      number('port', 65_535),
      4000,
    )
    .option('-q, --req-bytes <bytes>', 'request size', bytes, defaultOptions.reqSize)
    .option('-a, --ack-bytes <bytes>', 'acknowledgement size', bytes, defaultOptions.ackSize)
    .option('-d, --depth <nr>', 'requests outstanding per pair of sockets', number('number', u32Max), 1)
    .option(
      '-t, --tasks <nr>',
      'RDS sockets on each side, all served by one process',
      number('number', 65_535),
      1,
    )
    .option('-T, --time <seconds>', 'run time, 0 until interrupted', number('number', u32Max), 0)
    .option('-o', 'requests one way only, from the active side')
    .option(
      '-c, --report-cpu',
      "report this process's CPU time (no soaker processes: 100 is one core kept busy)",
    )
    .option('-v, --verify', 'verify the whole payload of every message')
    .option('-V, --trace', 'trace every message to standard error')
    .option('-z, --report-summary', 'print only the summary')
    .option('--show-params', 'print the parameters first')
    .option('--show-perfdata', 'print lines of comma-separated values, marked ::, with all counters')
    .option('--show-histogram', 'print a histogram of round trips at the end')
    .option('--show-outliers <us>', 'report round trips longer than this', number('number', u32Max))
    .option('--use-cong-monitor <0|1>', 'let the socket tell when a congested peer is free again', flag, 1)
    .option('--connect-retries <nr>', 'tries, one a second, to reach the peer', number('number', u32Max), 0)
    .option('--zerocopy', 'lend the messages instead of copying them (this side only)')
    .option('--json', 'print the summary as one JSON object on standard output, all else on standard error')
    .addHelpText('after', helpTail);
  // Values are optional, so that one that is missing is not what is complained about.
  for (const [flags, value] of refused)
    command.addOption(new Option(value === '' ? flags : `${flags} [${value}]`).hideHelp());
  return command;
}

interface Parsed {
  recvAddr?: string;
  sendAddr?: string;
  port: number;
  reqBytes: number;
  ackBytes: number;
  depth: number;
  tasks: number;
  time: number;
  o?: boolean;
  reportCpu?: boolean;
  verify?: boolean;
  trace?: boolean;
  reportSummary?: boolean;
  showParams?: boolean;
  showPerfdata?: boolean;
  showHistogram?: boolean;
  showOutliers?: number;
  useCongMonitor: number;
  connectRetries: number;
  zerocopy?: boolean;
  json?: boolean;
}

/** Parses the arguments after the program's name. Errors go through `command.error`, which exits with 1. */
export function parseSettings(command: Command, args: readonly string[]): Settings {
  command.parse(args, { from: 'user' });
  refuseUnsupported(command);
  const given = command.opts<Parsed & Record<string, unknown>>();
  const run: StressOptions = {
    ...defaultOptions,
    reqDepth: given.depth,
    reqSize: given.reqBytes,
    ackSize: given.ackBytes,
    startingPort: given.port,
    nrTasks: given.tasks,
    runTime: given.time,
    summaryOnly: bit(given.reportSummary),
    tracing: bit(given.trace),
    verify: bit(given.verify),
    showParams: bit(given.showParams),
    showPerfdata: bit(given.showPerfdata),
    useCongMonitor: given.useCongMonitor,
    simplex: bit(given.o),
    connectRetries: given.connectRetries,
  };
  const why = refusal(run);
  if (why !== undefined) command.error(`error: ${why}`);
  return {
    run,
    sendAddress: given.sendAddr,
    receiveAddress: given.recvAddr,
    zerocopy: given.zerocopy === true,
    reportCpu: given.reportCpu === true,
    json: given.json === true,
    showHistogram: given.showHistogram === true,
    outlierUs: given.showOutliers,
  };
}

function refuseUnsupported(command: Command): void {
  for (const [flags, , reason] of refused)
    if (command.getOptionValue(new Option(flags).attributeName()) !== undefined)
      command.error(`error: option '${flags}' is not supported: ${reason}`);
}

function bit(given: boolean | undefined): number {
  return given === true ? 1 : 0;
}
