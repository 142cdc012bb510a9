/**
 * One run from agreed options to the summary, the same on both sides: bind the sockets, say so, start, report, stop,
 * take back what is lent, print, close.
 *
 * Stopping has an order that leaves nothing behind. Who ends the run stops sending and ends its half of the control
 * connection at once; the other, when it sees that, stops sending, waits for what it lent, and only then ends its half,
 * which says that nothing of it is under way any more. Then the sockets are closed. Messages that cross in between are
 * still received and checked. Neither waits longer than a second for the other.
 */
import { ZerotxError } from '../../index.ts';
import type { StressOptions } from '../../wire/rds-stress-options.ts';
import { summaryLine, summaryRule } from './columns.ts';
import type { ControlConnection } from './control.ts';
import type { Ending } from './ending.ts';
import { RttHistogram } from './histogram.ts';
import { bufferBytes } from './limits.ts';
import { dotted } from './numbers.ts';
import type { Settings } from './options.ts';
import { Perfdata } from './perfdata.ts';
import { cpuPercent, type Measured, type Output, report } from './report.ts';
import { type StressNode, Task, type TaskHooks } from './socket.ts';
import { ratesOf } from './statistics.ts';
import { copiedShare, lendingLine, type Summary, summaryOf } from './summary.ts';

export interface Context {
  settings: Settings;
  output: Output;
  ending: Ending;
  openNode(address: string): Promise<StressNode>;
  /** Rejects where no node could be opened, whatever its address. */
  loadAddon(): Promise<void>;
  /** Where `--json` puts the summary. */
  json(summary: Summary): void;
}

/** How long the end of a run waits for the peer, and then for lent buffers. */
const lingerMs = 1_000;

/**
 * `options` as this side sees them: `receiveAddr` is our address, `sendAddr` the peer's. `opened` is the node of our
 * address if there is one already; it is closed in any case.
 */
export async function run(
  role: 'active' | 'passive',
  options: StressOptions,
  control: ControlConnection,
  context: Context,
  opened?: StressNode,
): Promise<void> {
  let node = opened;
  try {
    refuseSameAddress(options);
    node ??= await openNode(options.receiveAddr, context);
    await runOn(node, role, options, control, context);
  } catch (error) {
    // Whatever a failed run stumbled over later, the failure is the reason.
    throw context.ending.failure ?? error;
  } finally {
    control.destroy();
    if (node !== undefined) await closeNode(node, context);
  }
}

/** An address has one RDS node. Checked by the active side before it says anything, and by the passive side. */
export function refuseSameAddress(options: StressOptions): void {
  if (options.receiveAddr !== options.sendAddr) return;
  const address = dotted(options.receiveAddr);
  throw new ZerotxError(
    'EINVAL',
    `both sides have the address ${address}; on one machine use two, such as -r 127.0.0.1 here and -r 127.0.0.2 there`,
  );
}

/** The node of our address, or the reason in words of the command line. */
export async function openNode(ownAddress: number, context: Context): Promise<StressNode> {
  const address = dotted(ownAddress);
  try {
    return await context.openNode(address);
  } catch (error) {
    const text = error instanceof ZerotxError ? openProblems[error.code] : undefined;
    if (text === undefined) throw error;
    throw new ZerotxError((error as ZerotxError).code, text(address), { cause: error, address });
  }
}

const openProblems: Record<string, (address: string) => string> = {
  EADDRINUSE: (address) =>
    `RDS port 16385 is taken on ${address}, by another program or the kernel's rds_tcp; choose another address with -r`,
  EADDRNOTAVAIL: (address) =>
    `${address} is not an address of this host; "ip address" lists those that -r can be`,
};

/** The run is over whatever happens here: a peer that vanished with what it was sent does not fail it. */
export async function closeNode(node: StressNode, context: Context): Promise<void> {
  try {
    await node.close({ timeoutMs: lingerMs });
  } catch (error) {
    context.output.error((error as Error).message);
  }
}

async function runOn(
  node: StressNode,
  role: 'active' | 'passive',
  options: StressOptions,
  control: ControlConnection,
  context: Context,
): Promise<void> {
  const { settings, output } = context;
  const histogram = settings.showHistogram ? new RttHistogram() : undefined;
  const tasks = bindTasks(node, role, options, context, histogram);
  const measured = await measure(node, role, options, control, context, tasks);
  const summary = summarize(node, role, options, measured, tasks, context, histogram);
  printSummary(summary, measured, options, context);
  for (const line of histogram?.lines() ?? []) output.line(line);
}

/** From bound sockets to the end of traffic. */
async function measure(
  node: StressNode,
  role: 'active' | 'passive',
  options: StressOptions,
  control: ControlConnection,
  context: Context,
  tasks: readonly Task[],
): Promise<Measured> {
  const { settings, output, ending } = context;
  if (role === 'active') await control.offerReady(ending);
  else await control.answerReady(ending);
  output.line('negotiated options, tasks will start in 2 seconds');
  control.watch(ending);
  const measured = await report({
    options,
    output,
    ending,
    runTime: role === 'active' ? options.runTime : 0,
    reportCpu: settings.reportCpu,
    totals: () => tasks.map((task) => task.engine.totals),
    start: () => {
      for (const task of tasks) task.start();
    },
    perfdata: options.showPerfdata === 0 ? undefined : () => new Perfdata(options, () => counters(node)),
  });
  for (const task of tasks) task.stop();
  if (ending.reason !== 'peer') control.end();
  if (ending.failure === undefined) await takeBack(tasks);
  await control.finish(lingerMs);
  if (ending.failure !== undefined) throw ending.failure;
  return measured;
}

function bindTasks(
  node: StressNode,
  role: 'active' | 'passive',
  options: StressOptions,
  context: Context,
  histogram: RttHistogram | undefined,
): Task[] {
  const { settings, ending } = context;
  const firstPort = options.startingPort + 1;
  const hooks = taskHooks(options, context, histogram);
  const bytes = bufferBytes(options);
  return Array.from({ length: options.nrTasks }, (_, i) => {
    const socket = node.bind(firstPort + i, {
      zerocopy: settings.zerocopy,
      sendBufferBytes: bytes,
      receiveBufferBytes: bytes,
      congestionMonitor: options.useCongMonitor !== 0,
    });
    const config = {
      own: { address: options.receiveAddr, port: firstPort + i },
      remote: { address: options.sendAddr, firstPort, count: options.nrTasks },
      reqSize: options.reqSize,
      ackSize: options.ackSize,
      depth: options.reqDepth,
      sendsRequests: options.simplex === 0 || role === 'active',
      verify: options.verify !== 0,
      zerocopy: settings.zerocopy,
      congestionMonitor: options.useCongMonitor !== 0,
    };
    return new Task(socket, config, ending, hooks);
  });
}

/** Only the hooks that are wanted: they cost on every message. */
function taskHooks(options: StressOptions, context: Context, histogram: RttHistogram | undefined): TaskHooks {
  const { outlierUs } = context.settings;
  const hooks: TaskHooks = {};
  if (options.tracing !== 0) hooks.trace = (line) => context.output.error(line);
  if (histogram !== undefined || outlierUs !== undefined)
    hooks.roundTrip = (us) => {
      histogram?.add(us);
      if (outlierUs !== undefined && us > outlierUs)
        context.output.error(`Found RTT = 0x${Math.round(us).toString(16)} (${Math.round(us)} us)`);
    };
  return hooks;
}

function counters(node: StressNode): object {
  const { counters, zerocopy } = node.stats();
  return { ...counters, ...zerocopy };
}

/** Waits until every lent buffer came back, but not for a peer that is gone. */
async function takeBack(tasks: readonly Task[]): Promise<void> {
  const deadline = performance.now() + lingerMs;
  while (tasks.some((task) => task.engine.outbox.lent > 0) && performance.now() < deadline)
    await new Promise((resolve) => setTimeout(resolve, 10));
}

function summarize(
  node: StressNode,
  role: 'active' | 'passive',
  options: StressOptions,
  measured: Measured,
  tasks: readonly Task[],
  context: Context,
  histogram: RttHistogram | undefined,
): Summary {
  const stats = node.stats();
  const total = (value: (task: Task) => number): number => tasks.reduce((sum, task) => sum + value(task), 0);
  const strangers = total((task) => task.engine.strangers);
  const endedBy = context.ending.reason ?? 'time';
  const summary = summaryOf({ role, endedBy, strangers, stats }, options, measured);
  if (histogram !== undefined) summary.rttHistogram = histogram.counts;
  if (!context.settings.zerocopy) return summary;
  const sends = total((task) => task.engine.outbox.lentSends);
  const bytes = total((task) => task.engine.outbox.lentBytes);
  summary.lending = {
    sends,
    bytes,
    completions: sends - total((task) => task.engine.outbox.lent),
    copiedInstead: total((task) => task.engine.outbox.copiedInstead),
    copiedShare: copiedShare(bytes, stats.zerocopy),
  };
  return summary;
}

function printSummary(summary: Summary, measured: Measured, options: StressOptions, context: Context): void {
  const { output, settings, ending } = context;
  if (ending.reason === 'peer' && summary.role === 'active') output.error('the peer ended the run');
  if (options.summaryOnly === 0) output.line(summaryRule);
  const cpu = settings.reportCpu ? cpuPercent(measured) : undefined;
  output.line(summaryLine(options.nrTasks, ratesOf(measured.totals, measured.seconds, options), cpu));
  if (summary.lending !== undefined) output.line(lendingLine(summary.lending));
  if (summary.strangers > 0)
    output.error(`${summary.strangers} messages came from elsewhere and were ignored`);
  if (settings.json) context.json(summary);
}
