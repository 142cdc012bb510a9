/**
 * zc.table: what netperf's message sizes cost from a guest into a stream to the wire peer, as a guest with TSO hands them over,
 * lent as the port chooses (`auto`) and copied (`off`).
 *
 * A message is a frame: its headers, and at most as much payload as an IP packet holds. The value is the ratio of throughputs at
 * 64 KiB; everything else is in the details, a line for each size.
 */
import { HEADER_BYTES, piecesOf } from '../cells/vhost-kit.ts';
import type { SliceResult, Timing } from '../harness.ts';
import { total } from '../ratio.ts';
import { type MedianInterval, median, pairedRatio } from '../stats.ts';
import { type Details, type Group, measured, type Results, type SuiteOptions, skipped } from '../suite.ts';
import { KIB, MIB } from './vhost-kit.ts';
import { deviceUs, driverUs, gigabytes, lentDetails, streamSlices } from './vhost-zerocopy.ts';

const KEY = 'zc.table';
/** The longest IP packet, and an Ethernet header. */
const FRAME_BYTES_MAX = 65_535 + 14;
const SLICE_MS = 120;
const SIZES: Readonly<Record<string, number>> = {
  ...{ '64': 64, '128': 128, '256': 256, '512': 512, '1K': KIB, '2K': 2 * KIB },
  ...{ '4K': 4 * KIB, '8K': 8 * KIB, '16K': 16 * KIB, '64K': 64 * KIB },
};
const QUICK_SIZES = ['256', '2K', '16K', '64K'];
/** Up to here lending must not cost anything that can be seen. */
const SMALL_BYTES_MAX = 2 * KIB;
const SMALL_LOSS_MAX = 0.05;

interface Row {
  bytes: number;
  frameBytes: number;
  throughput: MedianInterval;
  auto: SliceResult[];
  off: SliceResult[];
}

async function run(options: SuiteOptions): Promise<Results> {
  const timing: Timing = { ...options.timing, sliceMs: Math.min(options.timing.sliceMs, SLICE_MS) };
  const rows = new Map<string, Row>();
  for (const [name, bytes] of Object.entries(SIZES)) {
    if (options.quick && !QUICK_SIZES.includes(name)) continue;
    const frameBytes = Math.min(bytes + HEADER_BYTES, FRAME_BYTES_MAX);
    const slices = await streamSlices(`table ${name}`, frameBytes, ['auto', 'off'], {
      pairs: options.pairs,
      timing,
    });
    if (typeof slices === 'string') return { [KEY]: skipped(slices) };
    const [auto, off] = slices as [SliceResult[], SliceResult[]];
    const rate = (slice: SliceResult): number => gigabytes(slice, frameBytes);
    rows.set(name, {
      ...{ bytes, frameBytes, auto, off },
      throughput: pairedRatio(auto.map(rate), off.map(rate)),
    });
  }
  return { [KEY]: measured(rows.get('64K')!.throughput, { details: details(rows) }) };
}

function details(rows: ReadonlyMap<string, Row>): Details {
  const small = [...rows].filter(([, { bytes }]) => bytes <= SMALL_BYTES_MAX);
  const lost = small.filter(([, { throughput }]) => throughput.high < 1 - SMALL_LOSS_MAX);
  return {
    ...Object.fromEntries([...rows].map(([name, row]) => [name, line(row)])),
    smallest: Math.min(...small.map(([, { throughput }]) => throughput.value)),
    smallLosesNoMoreThan5Percent: lost.length === 0 ? 'yes' : `NO: ${lost.map(([name]) => name).join(', ')}`,
    kernelCopiedBytes: [...rows.values()].reduce(
      (sum, { auto }) => sum + total(auto, 'device', 'txKernelCopiedBytes'),
      0,
    ),
    columns:
      'ratio: throughput of auto / off; then each: Gbit/s, CPU us a frame of the driver and of the device, kicks and signals a MB',
    mode: 'auto against off; event-driven driver, ring of 256, EVENT_IDX',
  };
}

function line({ frameBytes, throughput, auto, off }: Row): string {
  const side = (slices: readonly SliceResult[]): string => {
    const megabytes = slices.reduce((sum, { count }) => sum + (count * frameBytes) / MIB, 0);
    const per = (side: string, counter: string): number => total(slices, side, counter) / megabytes;
    return [
      `${(median(slices.map((slice) => gigabytes(slice, frameBytes))) * 8).toFixed(2)} Gbit/s`,
      `driver ${median(slices.map(driverUs)).toFixed(2)} us`,
      `device ${median(slices.map(deviceUs)).toFixed(2)} us`,
      `kicks ${per('device', 'kicks').toFixed(2)}/MB`,
      `signals ${per('device', 'signals').toFixed(2)}/MB`,
    ].join(' ');
  };
  const { value, low, high } = throughput;
  const cpu = pairedRatio(auto.map(deviceUs), off.map(deviceUs)).value;
  const lent = Number(lentDetails(auto).lentShare) * 100;
  return (
    `ratio ${value.toFixed(2)} (${low.toFixed(2)} .. ${high.toFixed(2)}), device CPU ratio ${cpu.toFixed(2)}, ` +
    `lent ${lent.toFixed(0)} %, ${piecesOf(frameBytes)} descriptors; auto: ${side(auto)}; off: ${side(off)}`
  );
}

export const tableGroup: Group = { keys: [KEY], run };
