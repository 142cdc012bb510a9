/**
 * switch64.mpps and latency64.us: frames of 64 bytes from one driver side to another, through two devices and a switch. The
 * switch has a processor for itself; both drivers poll in one process, on another.
 */
import { socketFolder } from '../cells/vhost-kit.ts';
import { Cell, cellSpec, interleave, type SliceResult } from '../harness.ts';
import { median, medianInterval } from '../stats.ts';
import { type Group, measured, type Results, type SuiteOptions, skipped } from '../suite.ts';
import { pinned, rounds, twoProcessors, withPrefixes } from './vhost-kit.ts';

const FRAME_BYTES = 64;
const QUEUE_SIZE = 1024;
const PINGS = 5000;
const PINGS_QUICK = 500;
const RESTS_SHARE = 10;
const RATE_KEY = 'switch64.mpps';
const LATENCY_KEY = 'latency64.us';
const keys = [RATE_KEY, LATENCY_KEY];
const pinning = 'the switch on one processor, both drivers (polling, one process) on another';

async function run(options: SuiteOptions): Promise<Results> {
  const cpus = twoProcessors();
  if (typeof cpus === 'string') return Object.fromEntries(keys.map((key) => [key, skipped(cpus)]));
  const sockets = socketFolder();
  const spec = cellSpec('vhost-switch', ['switch', 'drivers'], 'drivers', {
    ...{ path: sockets.path('switch'), frameBytes: FRAME_BYTES, queueSize: QUEUE_SIZE },
  });
  const cell = await Cell.start(withPrefixes(spec, { switch: pinned(cpus[0]), drivers: pinned(cpus[1]) }));
  try {
    return { ...(await rate(cell, options)), ...(await latency(cell, options)) };
  } finally {
    await cell.stop();
    sockets.remove();
  }
}

async function rate(cell: Cell, { pairs, timing }: SuiteOptions): Promise<Results> {
  const [slices] = await interleave('switch 64', [{ cell, variant: 'stream' }], pairs, timing);
  const switchNs = (slice: SliceResult): number => (slice.sides.switch!.cpuUs * 1000) / slice.count;
  const mpps = ({ count, sides }: SliceResult): number =>
    (count * 1000) / (sides.drivers!.endNs - sides.drivers!.startNs);
  const details = {
    switchCpuNsPerFrame: median(slices!.map(switchNs)),
    ...{ lost: 0, ring: QUEUE_SIZE, window: 512, pinning },
  };
  return { [RATE_KEY]: measured(medianInterval(slices!.map(mpps)), { details }) };
}

async function latency(cell: Cell, options: SuiteOptions): Promise<Results> {
  const count = options.quick ? PINGS_QUICK : PINGS;
  const slice = (variant: string, pings: number) => () =>
    cell.slice({ count: pings, variant }, options.timing.sliceTimeoutMs);
  const [pings, rests] = await rounds(
    'latency 64',
    [slice('pings', count), slice('rests', count / RESTS_SHARE)],
    options.pairs,
    options.timing.warmups,
  );
  const counter = (slices: readonly SliceResult[], name: string): number[] =>
    slices.map(({ sides }) => sides.drivers!.counters[name]!);
  const p50 = counter(pings!, 'p50');
  return {
    [LATENCY_KEY]: measured(medianInterval(p50), {
      unit: 'us',
      details: {
        ...{ p50: median(p50), p99: median(counter(pings!, 'p99')) },
        asleepP50: median(counter(rests!, 'p50')),
        asleepP99: median(counter(rests!, 'p99')),
        means:
          'one way, from giving a frame to finding it, one at a time; asleep: the device has to be woken by its kick',
        pinning,
      },
    }),
  };
}

export const switchGroup: Group = { keys, run };
