/**
 * UDP: one call of UdpSocket.sendSegments() for 44 datagrams, lent and copied, and 44 calls of node:dgram.
 *
 *   udpGso.cpuZcVsCopy         held leases, lent against copied, never touched, as a cache of objects sends them; in the
 *                              details the same with a number written into each before it is sent (`refilled...`), and
 *                              what a C program pays for the same calls out of untouched memory (`floor...`)
 *   udp.cpu...VsDgram          both sides write a number into each payload before it is sent
 *
 * The datagrams leave a namespace by a veth whose other end drops them on ingress, before the moment where the kernel
 * would copy lent pages after all.
 */
import {
  type CellSpec,
  cellSpec,
  interleave,
  type SliceResult,
  withCells,
  withPrefix,
  withVariants,
} from '../harness.ts';
import { type Measure, ratioWithin, refilledDetails } from '../ratio.ts';
import { type Bound, median, pairedRatio } from '../stats.ts';
import { type Details, type Group, type Results, type SuiteOptions, skipped } from '../suite.ts';
import { CSender, cpuUs as floorUs } from '../wirepeer/c-sender.ts';
import { dropOnPeer, makeNetnsPair, type NetnsPair } from '../wirepeer/netns.ts';
import { neverCopied, zerocopyDetails } from './zerocopy-details.ts';

/** The payload of an Ethernet frame of 1500 bytes, and the most of them that fit a call: 64,768 bytes. */
const SEGMENT_BYTES = 1472;
const PAYLOAD_BYTES = 44 * SEGMENT_BYTES;
const WORKING_SET_BYTES = 64 << 20;
const THRESHOLD_BYTES = 4096;
/** The discard service; nothing gets there. */
const PORT = 9;
const SENT = 'held leases, never touched; refilled: a number written into each first';
const force = { mode: 'force', thresholdBytes: THRESHOLD_BYTES, segmentBytes: SEGMENT_BYTES };
/** Payloads in a slice of the C program. */
const FLOOR_COUNT = 15_000;
const FLOOR_COUNT_QUICK = 3000;

const bounds: Record<string, Bound> = {
  'udpGso.cpuZcVsCopy.64K': { op: '<=', limit: 0.35 },
  'udp.cpuCopyGsoVsDgram.64K': { op: '<=', limit: 0.35 },
  'udp.cpuZcGsoVsDgram.64K': { op: '<=', limit: 0.2 },
};
const ratio = ratioWithin(bounds);
const keys = Object.keys(bounds);

interface Measured {
  lent: SliceResult[];
  copied: SliceResult[];
  lentRefilled: SliceResult[];
  copiedRefilled: SliceResult[];
  dgram: SliceResult[];
}

const cpuUs = (slice: SliceResult): number => slice.cpuUs / slice.count;

async function run(options: SuiteOptions): Promise<Results> {
  const netns = droppingPair();
  if (typeof netns === 'string') return Object.fromEntries(keys.map((key) => [key, skipped(netns)]));
  try {
    const [lent, copied, lentRefilled, copiedRefilled, dgram] = await withCells(
      [cell(netns, 'udp-segments'), cell(netns, 'dgram')],
      ([gso, node]) =>
        interleave(
          'udp 64K',
          [
            ...withVariants(gso!, ['force resent', 'off resent', 'force refilled', 'off refilled']),
            { cell: node!, variant: 'refilled' },
          ],
          options.pairs,
          options.timing,
        ),
    );
    const slices = {
      ...{ lent: lent!, copied: copied!, dgram: dgram! },
      ...{ lentRefilled: lentRefilled!, copiedRefilled: copiedRefilled! },
    };
    const floor = options.wants('udpGso.cpuZcVsCopy.64K') ? await floorDetails(netns, options) : {};
    return { ...lentAgainstCopied(slices, floor), ...againstDgram(slices) };
  } finally {
    netns.remove();
  }
}

function lentAgainstCopied(slices: Measured, floor: Details): Results {
  const { lent, copied, lentRefilled, copiedRefilled } = slices;
  const key = 'udpGso.cpuZcVsCopy.64K';
  const details: Details = {
    ...{ ...force, sent: SENT },
    ...refilledDetails([lentRefilled, cpuUs], [copiedRefilled, cpuUs]),
    ...floor,
    ...zerocopyDetails([...lent, ...lentRefilled], PAYLOAD_BYTES),
  };
  return { [key]: ratio(key, [lent, cpuUs], [copied, cpuUs], 'Us', details, neverCopied(details)) };
}

function againstDgram({ lentRefilled, copiedRefilled, dgram }: Measured): Results {
  const copyKey = 'udp.cpuCopyGsoVsDgram.64K';
  const lentKey = 'udp.cpuZcGsoVsDgram.64K';
  const copied: Details = { ...force, mode: 'off', ...zerocopyDetails(copiedRefilled, PAYLOAD_BYTES) };
  const lent: Details = { ...force, ...zerocopyDetails(lentRefilled, PAYLOAD_BYTES) };
  const node: Measure = [dgram, cpuUs];
  return {
    [copyKey]: ratio(copyKey, [copiedRefilled, cpuUs], node, 'Us', copied),
    [lentKey]: ratio(lentKey, [lentRefilled, cpuUs], node, 'Us', lent, neverCopied(lent)),
  };
}

/** The same calls by a C program, lent and copied in turn: what the kernel alone allows. */
async function floorDetails(netns: NetnsPair, options: SuiteOptions): Promise<Details> {
  const count = options.quick ? FLOOR_COUNT_QUICK : FLOOR_COUNT;
  const args = [netns.peerAddress, PORT, SEGMENT_BYTES, PAYLOAD_BYTES, WORKING_SET_BYTES];
  const sender = await CSender.start('udp-sender', netns.senderPrefix, args);
  try {
    const { copy, zerocopy } = await sender.pairs('udp 64K in C', count, options.pairs);
    const copyUs = copy.map(floorUs);
    const zcUs = zerocopy.map(floorUs);
    return {
      floorRatio: pairedRatio(zcUs, copyUs).value,
      floorZcUs: median(zcUs),
      floorCopyUs: median(copyUs),
      floorCopiedCalls: zerocopy.reduce((sum, report) => sum + report.copiedCalls, 0),
    };
  } finally {
    sender.stop();
  }
}

/** Two namespaces of which the second drops everything, or why they cannot be had here. */
function droppingPair(): NetnsPair | string {
  if (process.getuid?.() !== 0) return 'needs root: network namespaces and a filter that drops';
  let netns: NetnsPair | undefined;
  try {
    netns = makeNetnsPair();
    dropOnPeer(netns);
    return netns;
  } catch (error) {
    netns?.remove();
    return error instanceof Error ? error.message : String(error);
  }
}

function cell(netns: NetnsPair, name: string): CellSpec {
  const spec = cellSpec(name, ['sender'], 'sender', {
    ...{ host: netns.peerAddress, port: PORT, segmentBytes: SEGMENT_BYTES, payloadBytes: PAYLOAD_BYTES },
    ...{ workingSetBytes: WORKING_SET_BYTES, thresholdBytes: THRESHOLD_BYTES },
  });
  return withPrefix(spec, netns.senderPrefix);
}

export const udp: Group = { keys, run };
