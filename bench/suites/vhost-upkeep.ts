/**
 * What a device does to those who are not the reason for it: a slow destination to a quick one, garbage to the guest's latency, an idle
 * front-end to the machine.
 */
import { socketFolder } from '../cells/vhost-kit.ts';
import { Cell, cellSpec, progress, type SliceResult, withCells } from '../harness.ts';
import { total } from '../ratio.ts';
import { median, medianInterval, pairedRatio } from '../stats.ts';
import { type Details, type Group, measured, type Results, type SuiteOptions, skipped } from '../suite.ts';
import { bounds, joinedSpec, MIB, pinned, rounds, twoProcessors, withPrefixes } from './vhost-kit.ts';

const TIMEOUT_MS = 120_000;

const HOLD_MS = 1000;
const HOLD_RING = 256;
const HOLD_FRAME_BYTES = 4096;
const HOLD_SLICE_MS = 1500;
const HOLD_SLICE_MS_QUICK = 400;
/** With IN_ORDER a slice is mostly waiting. */
const IN_ORDER_ROUNDS = 3;

const PACKETS = 10_000_000;
const PACKETS_QUICK = 1_000_000;
const GC_ROUNDS = 6;
const GC_ROUNDS_QUICK = 2;

const SETTLING_MS = 15_000;
const IDLE_MS = 10_000;
const IDLE_ROUNDS = 3;

async function holding(options: SuiteOptions): Promise<Results> {
  const free = await held(false, ['slow', 'without', 'prompt'], options.pairs, options);
  const inOrderRounds = options.quick ? 1 : IN_ORDER_ROUNDS;
  const ordered = await held(true, ['slow', 'without'], inOrderRounds, options);
  const [slow, without, prompt] = free as [SliceResult[], SliceResult[], SliceResult[]];
  const others = (slice: SliceResult): number => slice.sides.device!.counters.others!;
  const ratioOf = (above: readonly SliceResult[], below: readonly SliceResult[]) =>
    pairedRatio(above.map(others), below.map(others));
  const perSecond = (slices: readonly SliceResult[]): number =>
    (median(slices.map(others)) / sliceMs(options)) * 1000;
  const share = (name: string, of: string): number => total(slow, 'device', name) / total(slow, 'device', of);
  const details: Details = {
    ...{ framesPerSecond: perSecond(slow), withoutFramesPerSecond: perSecond(without) },
    vsPrompt: ratioOf(slow, prompt).value,
    inOrderNegotiated: ratioOf(ordered[0]!, ordered[1]!).value,
    ...{ lentShareOfSlow: share('lentSlows', 'slows'), lentShareOfOther: share('lentOthers', 'others') },
    overtaken: total(slow, 'device', 'overtaken'),
    outOfOrder: total(slow, 'driver', 'outOfOrder'),
    setting: `ring of ${HOLD_RING}, frames of ${HOLD_FRAME_BYTES} bytes, one in 16 to the slow destination, which holds each Ubuf for ${HOLD_MS} ms; slices of ${sliceMs(options)} ms, each with borrowers that are new to the device`,
    means:
      'frames to the quick destination, against a run without the slow one; vsPrompt: against one whose slow destination is quick; IN_ORDER not negotiated but for inOrderNegotiated',
  };
  return {
    'hol.throughputB': measured(ratioOf(slow, without), { bound: bounds['hol.throughputB'], details }),
  };
}

function sliceMs({ quick }: SuiteOptions): number {
  return quick ? HOLD_SLICE_MS_QUICK : HOLD_SLICE_MS;
}

async function held(
  inOrder: boolean,
  variants: readonly string[],
  count: number,
  options: SuiteOptions,
): Promise<SliceResult[][]> {
  const sockets = socketFolder();
  const spec = cellSpec('vhost-hold', ['device', 'driver'], 'driver', {
    ...{ path: sockets.path('hold'), queueSize: HOLD_RING, inOrder, holdMs: HOLD_MS },
    ...{ frameBytes: HOLD_FRAME_BYTES, workingSetBytes: 8 * MIB },
  });
  try {
    return await withCells([spec], ([cell]) => {
      const contenders = variants.map((variant) => () => {
        return cell!.slice({ count: sliceMs(options), variant }, TIMEOUT_MS);
      });
      return rounds(`slow destination${inOrder ? ', in order' : ''}`, contenders, count);
    });
  } finally {
    sockets.remove();
  }
}

async function garbage(options: SuiteOptions): Promise<Results> {
  const key = 'gcPer10MPackets';
  const cpus = twoProcessors();
  if (typeof cpus === 'string') return { [key]: skipped(cpus) };
  const sockets = socketFolder();
  const sides = [
    ['vhost-sink', 'sink'],
    ['vhost-driver', 'driver'],
  ] as const;
  const spec = joinedSpec('garbage', sides, 'driver', {
    ...{ path: sockets.path('gc'), queueSize: 1024, polled: true },
    ...{ frameBytes: 64, workingSetBytes: MIB, asks: false },
  });
  const cell = await Cell.start(withPrefixes(spec, { sink: pinned(cpus[0]), driver: pinned(cpus[1]) }));
  try {
    const count = options.quick ? PACKETS_QUICK : PACKETS;
    const slice = (packets: number) => () => cell.slice({ count: packets, variant: 'frames' }, TIMEOUT_MS);
    await slice(PACKETS_QUICK)();
    const [slices] = await rounds('garbage', [slice(count)], options.quick ? GC_ROUNDS_QUICK : GC_ROUNDS, 0);
    const per10M = (name: string) => (one: SliceResult) =>
      (one.sides.sink!.counters[name]! * PACKETS) / one.count;
    const details = {
      otherCollections: median(slices!.map(per10M('collections'))),
      mpps: median(slices!.map(({ count, elapsedNs }) => (count * 1000) / elapsedNs)),
      packets: count * slices!.length,
    };
    return {
      [key]: measured(medianInterval(slices!.map(per10M('scavenges'))), { bound: bounds[key], details }),
    };
  } finally {
    await cell.stop();
    sockets.remove();
  }
}

/** V8 tidies its heap some seconds after the last activity, which the first seconds are for; they are a detail. */
async function idle(options: SuiteOptions): Promise<Results> {
  const sockets = socketFolder();
  const sides = [
    ['vhost-device', 'device'],
    ['vhost-driver', 'driver'],
  ] as const;
  const spec = joinedSpec('idle', sides, 'driver', {
    ...{ path: sockets.path('idle'), uplink: `pcap:${sockets.path('nothing.pcap')}`, mtu: 1500 },
    ...{ queueSize: 256, frameBytes: 1500, workingSetBytes: MIB, asks: false },
  });
  const scale = options.quick ? 0.3 : 1;
  try {
    return await withCells([spec], async ([cell]) => {
      await cell!.slice({ count: 10_000, variant: 'frames' }, TIMEOUT_MS);
      const ms: number[] = [];
      for (let round = 0; round <= IDLE_ROUNDS; round++) {
        const count = (round === 0 ? SETTLING_MS : IDLE_MS) * scale;
        const { sides } = await cell!.slice({ count, variant: 'idle' }, TIMEOUT_MS);
        ms.push(sides.device!.cpuUs / 1e3);
        progress(`idle front-end: round ${round} of ${IDLE_ROUNDS}`);
      }
      const [settlingMs, ...idleMs] = ms;
      const details = {
        settlingMs: settlingMs!,
        seconds: (IDLE_MS * scale) / 1000,
        frontEnds: 1,
        sentBefore: 10_000,
      };
      const result = measured(medianInterval(idleMs), { bound: bounds.idleCpuMs, unit: 'ms', details });
      return { idleCpuMs: result };
    });
  } finally {
    sockets.remove();
  }
}

export const upkeepGroups: readonly Group[] = [
  { keys: ['hol.throughputB'], run: holding },
  { keys: ['gcPer10MPackets'], run: garbage },
  { keys: ['idleCpuMs'], run: idle },
];
