/**
 * Frames out of a ring that never runs empty, against the yardstick: DPDK's virtio-user (testpmd) sends as fast as it can to
 * our device, and to DPDK's vhost library. The same front-end program, a split ring, and the same ring size for both; both copy
 * every byte to memory of their own and look at it (cells/vhost-sink.ts, baselines/dpdk-vhost.c). Each has a processor for itself, and
 * its front-end the other one; they take turns, and who waits uses nothing.
 */
import { compiledWithDpdk, type Dpdk, dpdk } from '../baselines/dpdk.ts';
import { type DpdkSlice, DpdkVhost } from '../baselines/dpdk-vhost.ts';
import { Testpmd } from '../baselines/testpmd.ts';
import { socketFolder } from '../cells/vhost-kit.ts';
import { Cell, cellSpec, type SliceResult, withPrefix } from '../harness.ts';
import { median, pairedRatio } from '../stats.ts';
import { type Group, measured, type Result, type Results, type SuiteOptions, skipped } from '../suite.ts';
import { bounds, pinned, reasonOf, rounds, twoProcessors } from './vhost-kit.ts';

const QUEUE_SIZE = 1024;
/** DPDK's own, at both of its ends: MAX_PKT_BURST of testpmd. */
const BURST = 32;

interface Taken {
  framesPerSecond: number;
  cpuNs: number;
  batch: number;
}

function rate(key: string, frameBytes: number): Group {
  const run = async (options: SuiteOptions): Promise<Results> => {
    const cpus = twoProcessors();
    if (typeof cpus === 'string') return { [key]: skipped(cpus) };
    let found: Dpdk;
    try {
      found = await dpdk();
      await compiledWithDpdk(found, 'dpdk-vhost');
    } catch (error) {
      return { [key]: skipped(`no DPDK: ${reasonOf(error)}`) };
    }
    return { [key]: await measure(key, frameBytes, found, cpus, options) };
  };
  return { keys: [key], run };
}

async function measure(
  key: string,
  frameBytes: number,
  found: Dpdk,
  [own, other]: readonly [number, number],
  options: SuiteOptions,
): Promise<Result> {
  const sockets = socketFolder();
  const ends: (() => Promise<void>)[] = [];
  try {
    const oursPath = sockets.path('ours');
    const spec = cellSpec('vhost-sink', ['sink'], 'sink', { path: oursPath });
    const cell = await Cell.start(withPrefix(spec, pinned(own)));
    ends.push(() => cell.stop());
    const sink = await DpdkVhost.start(found, { path: sockets.path('dpdk'), core: own, burst: BURST });
    ends.push(() => sink.stop());
    const fronts: Testpmd[] = [];
    for (const path of [oursPath, sockets.path('dpdk')]) {
      const front = await Testpmd.start(found, {
        ...{ role: 'front-end', path, core: other, forward: 'txonly' },
        ...{ packetBytes: frameBytes, queueSize: QUEUE_SIZE },
      });
      ends.push(() => front.stop());
      await front.command('stop');
      fronts.push(front);
    }
    const ms = options.timing.sliceMs;
    const contenders: (() => Promise<Taken>)[] = [
      async () => takenByUs(await cell.slice({ count: ms, variant: 'time' }, options.timing.sliceTimeoutMs)),
      async () => takenByDpdk(await sink.slice(ms)),
    ];
    const sent = contenders.map((take, i) => async (): Promise<Taken> => {
      await fronts[i]!.command('start');
      const taken = await take();
      await fronts[i]!.command('stop');
      return taken;
    });
    const [ours, dpdks] = await rounds(key, sent, options.pairs, options.timing.warmups);
    return result(key, frameBytes, found, ours!, dpdks!);
  } finally {
    for (const end of ends.reverse()) await end();
    sockets.remove();
  }
}

function takenByUs({ sides, cpuUs }: SliceResult): Taken {
  const { frames, elapsedMs, batches } = sides.sink!.counters;
  return {
    framesPerSecond: (frames! / elapsedMs!) * 1000,
    cpuNs: (cpuUs * 1000) / frames!,
    batch: frames! / batches!,
  };
}

function takenByDpdk({ packets, elapsedNs, busyNs, bursts }: DpdkSlice): Taken {
  return {
    framesPerSecond: (packets / elapsedNs) * 1e9,
    cpuNs: busyNs / packets,
    batch: packets / bursts,
  };
}

function result(
  key: string,
  frameBytes: number,
  found: Dpdk,
  ours: readonly Taken[],
  dpdks: readonly Taken[],
): Result {
  const of = (taken: readonly Taken[], name: keyof Taken): number => median(taken.map((one) => one[name]));
  const perSecond = (taken: readonly Taken[]): number[] => taken.map((one) => one.framesPerSecond);
  return measured(pairedRatio(perSecond(ours), perSecond(dpdks)), {
    bound: bounds[key],
    details: {
      mpps: of(ours, 'framesPerSecond') / 1e6,
      dpdkMpps: of(dpdks, 'framesPerSecond') / 1e6,
      gbit: (of(ours, 'framesPerSecond') * frameBytes * 8) / 1e9,
      dpdkGbit: (of(dpdks, 'framesPerSecond') * frameBytes * 8) / 1e9,
      cpuNsPerFrame: of(ours, 'cpuNs'),
      dpdkBusyNsPerFrame: of(dpdks, 'cpuNs'),
      batch: of(ours, 'batch'),
      dpdkBatch: of(dpdks, 'batch'),
      ...{ ring: `split, ${QUEUE_SIZE}`, frontEndBurst: BURST, dpdk: found.version },
      bytes:
        frameBytes <= 256
          ? 'copied to host memory by the device as the head of the frame, then summed; DPDK: dequeued to mbufs, then summed'
          : 'gathered into host memory, 32 frames at a time, then summed; DPDK: dequeued to mbufs, then summed',
      pinning: 'back-ends on one processor, front-ends on another, in turn',
    },
  });
}

export const dpdkGroups: readonly Group[] = [
  rate('pps64.vsDpdkVhost', 64),
  rate('bps1500.vsDpdkVhost', 1500),
];
