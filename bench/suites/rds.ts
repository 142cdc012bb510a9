/**
 * RDS in user space: zero-copy against copying, and against what a Node program would use instead.
 *
 *   rtt1M, cpuPerGB1M, txCall1M   rds-stress's pattern, 1 MiB each way, loopback (the kernel copies: COPIED is 1 there)
 *   wirepeer.txCpu1M              one way into the wire peer, where zero-copy stays zero-copy
 *   throughput1M, msgRate64       one way over loopback against node:net and zeromq
 *   copyVsMemcpy                  whether the copying variant copies as fast as memcpy does: it must not be a straw man
 *   rssGrowthMiB                  whether memory stays where it is
 *   lanes, reconnect, peers       see rds-lanes.ts
 */
import { depth, netFramed64, netStream1M, zmq1M, zmq64 } from '../cells/baselines.ts';
import {
  type Cell,
  type CellSpec,
  cellSpec,
  interleave,
  progress,
  type SliceResult,
  withCells,
  withPrefix,
  withVariant,
  withVariants,
} from '../harness.ts';
import { ratioWithin, total } from '../ratio.ts';
import { type Bound, median } from '../stats.ts';
import { groupedSuite, measured, type Results, type Suite, type SuiteOptions, skipped } from '../suite.ts';
import { type WirePeer, wirePeerOrReason } from '../wirepeer/index.ts';
import { CONGESTION_MESSAGE_BYTES, rdsGreeting } from '../wirepeer/rds-greeting.ts';
import { laneGroups } from './rds-lanes.ts';

const MIB = 1 << 20;
const SMALL_BYTES = 64;
const BATCH = 256;
/** 64 MiB of sources into the wire peer: larger than the caches, as in docs/performance.md. */
const COLD_BUFFERS = 64;
const SMALL_BUFFER_BYTES = 1 << 20;
const FALLBACK_SHARE_MAX = 0.01;
const RSS_SECONDS = 60;
const RSS_QUICK_SECONDS = 6;
const RSS_EDGE_SAMPLES = 5;

const bounds: Record<string, Bound> = {
  'rtt1M.zcVsCopy': { op: '<=', limit: 1 },
  'cpuPerGB1M.zcVsCopy': { op: '<=', limit: 0.92 },
  'wirepeer.txCpu1M.zcVsCopy': { op: '<=', limit: 0.45 },
  'throughput1M.vsNodeNet': { op: '>=', limit: 0.8 },
  'msgRate64.vsFramedNet': { op: '>=', limit: 0.35 },
  'msgRate64.vsZmq': { op: '>=', limit: 1 },
  'throughput1M.vsZmq': { op: '>=', limit: 1 },
  copyVsMemcpy: { op: '<=', limit: 1.2 },
  rssGrowthMiB: { op: '<=', limit: 32 },
};
const ratio = ratioWithin(bounds);

/**
 * rtt and CPU per GB from whole slices; the cost of one sendmsg() from the active side's requests. The third contender
 * makes a plain copy beside every request, to compare the copying call with: its slices count for nothing else.
 */
async function measureStress(options: SuiteOptions): Promise<Results> {
  const [copy, zerocopy, beside] = await withCells([stressCell()], ([cell]) => {
    const contenders = withVariants(cell!, ['copy', 'zerocopy', 'copyBesideMemcpy']);
    return interleave('rds-stress 1M', contenders, options.pairs, options.timing);
  });
  const rttUs = (slice: SliceResult): number => slice.sides.active!.counters.rttUs!;
  const callUs = (slice: SliceResult): number => slice.sides.active!.counters.callUs!;
  const memcpyUs = (slice: SliceResult): number => slice.sides.active!.counters.memcpyUs!;
  // A request and its acknowledgement in both directions: four messages.
  const cpuMsPerGB = (slice: SliceResult): number => (slice.cpuUs * 1e6) / (slice.count * 4 * MIB);
  return {
    'rtt1M.zcVsCopy': ratio('rtt1M.zcVsCopy', [zerocopy!, rttUs], [copy!, rttUs], 'Us'),
    'cpuPerGB1M.zcVsCopy': ratio('cpuPerGB1M.zcVsCopy', [zerocopy!, cpuMsPerGB], [copy!, cpuMsPerGB], 'Ms'),
    'txCall1M.zcVsCopy': ratio('txCall1M.zcVsCopy', [zerocopy!, callUs], [copy!, callUs], 'Us'),
    copyVsMemcpy: ratio('copyVsMemcpy', [beside!, callUs], [beside!, memcpyUs], 'Us'),
  };
}

async function measureWirePeer(options: SuiteOptions): Promise<Results> {
  const key = 'wirepeer.txCpu1M.zcVsCopy';
  const peer = await wirePeerOrReason({ greeting: rdsGreeting(), expectBytes: CONGESTION_MESSAGE_BYTES });
  if (typeof peer === 'string') return { [key]: skipped(peer) };
  try {
    const [copy, zerocopy] = await withCells([wirePeerCell(peer)], ([cell]) => {
      const contenders = withVariants(cell!, ['copy', 'zerocopy']);
      return interleave('wire peer 1M', contenders, options.pairs, options.timing);
    });
    const cpuUs = (slice: SliceResult): number => slice.cpuUs / slice.count;
    const details = {
      zerocopyCalls: total(zerocopy!, 'sender', 'zerocopyCalls'),
      copiedCalls: total(zerocopy!, 'sender', 'copiedCalls'),
      fallbackBytes: total(zerocopy!, 'sender', 'fallbackBytes'),
    };
    // Tails below the library's threshold go in ordinary calls: a few bytes, or this is not zero-copy.
    const bytes = zerocopy!.reduce((sum, slice) => sum + slice.count * MIB, 0);
    const neverCopied = details.copiedCalls === 0 && details.fallbackBytes < FALLBACK_SHARE_MAX * bytes;
    return { [key]: ratio(key, [zerocopy!, cpuUs], [copy!, cpuUs], 'Us', details, neverCopied) };
  } finally {
    await peer.stop();
  }
}

async function measureThroughput(options: SuiteOptions): Promise<Results> {
  const [rds, net, zmq] = await withCells([streamCell(MIB), netStream1M, zmq1M], (cells) =>
    interleave('throughput 1M', withVariant(cells, 'zerocopy'), options.pairs, options.timing),
  );
  const gigabytes = (slice: SliceResult): number => (slice.count * MIB) / slice.elapsedNs;
  return {
    'throughput1M.vsNodeNet': ratio('throughput1M.vsNodeNet', [rds!, gigabytes], [net!, gigabytes], 'GBs'),
    'throughput1M.vsZmq': ratio('throughput1M.vsZmq', [rds!, gigabytes], [zmq!, gigabytes], 'GBs'),
  };
}

async function measureRate(options: SuiteOptions): Promise<Results> {
  const [rds, net, zmq] = await withCells([streamCell(SMALL_BYTES), netFramed64, zmq64], (cells) =>
    interleave('rate 64', withVariant(cells, 'copy'), options.pairs, options.timing),
  );
  const millions = (slice: SliceResult): number => (slice.count * 1e3) / slice.elapsedNs;
  return {
    'msgRate64.vsFramedNet': ratio('msgRate64.vsFramedNet', [rds!, millions], [net!, millions], 'Millions'),
    'msgRate64.vsZmq': ratio('msgRate64.vsZmq', [rds!, millions], [zmq!, millions], 'Millions'),
  };
}

/**
 * Resident memory of both processes, sampled every second of rds-stress traffic that alternates between copying and
 * zero-copy. Growth is the median of the last samples minus the median of the first: a single sample swings with the
 * garbage collector. The range is that of the two sides' own growths.
 */
async function measureRss(options: SuiteOptions): Promise<Results> {
  const seconds = options.quick ? RSS_QUICK_SECONDS : RSS_SECONDS;
  return withCells([stressCell()], async ([cell]) => {
    await interleave('memory, warm-up', withVariants(cell!, ['copy', 'zerocopy']), 2, options.timing);
    const samples: Record<string, number>[] = [];
    const count = await messagesPerSecond(cell!, options);
    const untilMs = performance.now() + seconds * 1e3;
    while (performance.now() < untilMs || samples.length < 2 * RSS_EDGE_SAMPLES) {
      const variant = samples.length % 2 === 0 ? 'copy' : 'zerocopy';
      await cell!.slice({ count, variant }, options.timing.sliceTimeoutMs);
      samples.push(await cell!.rss());
      progress(`memory: sample ${samples.length} of about ${seconds}`);
    }
    const growths = ['active', 'passive'].map((side) => {
      const mib = samples.map((sample) => sample[side]! / MIB);
      return median(mib.slice(-RSS_EDGE_SAMPLES)) - median(mib.slice(0, RSS_EDGE_SAMPLES));
    });
    const sum = growths[0]! + growths[1]!;
    const interval = { value: sum, low: sum, high: sum };
    const details = { activeMiB: growths[0]!, passiveMiB: growths[1]!, samples: samples.length };
    return { rssGrowthMiB: measured(interval, { bound: bounds.rssGrowthMiB!, unit: 'MiB', details }) };
  });
}

async function messagesPerSecond(cell: Cell, options: SuiteOptions): Promise<number> {
  const count = 100;
  const { elapsedNs } = await cell.slice({ count, variant: 'zerocopy' }, options.timing.sliceTimeoutMs);
  return Math.max(1, Math.round((count * 1e9) / elapsedNs));
}

function stressCell(): CellSpec {
  const [activeAddress, passiveAddress] = loopbackPair();
  // rds-stress: tasks * depth * (request + acknowledgement) * 2.
  const options = { activeAddress, passiveAddress, messageBytes: MIB, bufferBytes: 4 * MIB };
  return cellSpec('rds-stress', ['passive', 'active'], 'active', options);
}

function streamCell(messageBytes: number): CellSpec {
  const [senderAddress, receiverAddress] = loopbackPair();
  const small = messageBytes === SMALL_BYTES;
  return cellSpec('rds-stream', ['receiver', 'sender'], 'sender', {
    ...{ senderAddress, receiverAddress, messageBytes, depth },
    ...(small ? { batch: BATCH, bufferBytes: SMALL_BUFFER_BYTES } : { bufferBytes: depth * MIB }),
  });
}

function wirePeerCell(peer: WirePeer): CellSpec {
  const cell = cellSpec('rds-stream', ['sender'], 'sender', {
    ...{ senderAddress: peer.senderAddress, receiverAddress: peer.peerAddress, messageBytes: MIB },
    ...{ depth: COLD_BUFFERS, bufferBytes: depth * MIB },
  });
  return withPrefix(cell, peer.senderPrefix);
}

let pairs = 0;

/** Two loopback addresses that no other run uses: RDS has one fixed TCP port for each address. */
function loopbackPair(): [smaller: string, larger: string] {
  const subnet = (process.pid % 0x4000) * 4 + (pairs++ % 4);
  const prefix = `127.${128 + (subnet >> 14)}.${(subnet >> 6) & 0xff}`;
  const host = (subnet & 0x3f) * 4;
  return [`${prefix}.${host + 1}`, `${prefix}.${host + 2}`];
}

export const suite: Suite = groupedSuite('RDS: zero-copy against copying, and against node:net and zeromq', [
  {
    keys: ['rtt1M.zcVsCopy', 'cpuPerGB1M.zcVsCopy', 'txCall1M.zcVsCopy', 'copyVsMemcpy'],
    run: measureStress,
  },
  { keys: ['wirepeer.txCpu1M.zcVsCopy'], run: measureWirePeer },
  { keys: ['throughput1M.vsNodeNet', 'throughput1M.vsZmq'], run: measureThroughput },
  { keys: ['msgRate64.vsFramedNet', 'msgRate64.vsZmq'], run: measureRate },
  { keys: ['rssGrowthMiB'], run: measureRss },
  ...laneGroups,
]);
