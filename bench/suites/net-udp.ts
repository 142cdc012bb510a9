/**
 * UDP: one call of UdpSocket.sendSegments() for 44 datagrams, lent and copied, and 44 calls of node:dgram.
 *
 * The datagrams leave a namespace by a veth whose other end drops them on ingress, before the moment where the kernel
 * would copy lent pages after all.
 */
import { type CellSpec, cellSpec, interleave, type SliceResult, withCells, withPrefix } from '../harness.ts';
import { ratioWithin } from '../ratio.ts';
import type { Bound } from '../stats.ts';
import { type Details, type Group, type Results, type SuiteOptions, skipped } from '../suite.ts';
import { dropOnPeer, makeNetnsPair, type NetnsPair } from '../wirepeer/netns.ts';
import { neverCopied, zerocopyDetails } from './zerocopy-details.ts';

/** The payload of an Ethernet frame of 1500 bytes, and the most of them that fit a call: 64,768 bytes. */
const SEGMENT_BYTES = 1472;
const PAYLOAD_BYTES = 44 * SEGMENT_BYTES;
const WORKING_SET_BYTES = 64 << 20;
const THRESHOLD_BYTES = 4096;
/** The discard service; nothing gets there. */
const PORT = 9;

const bounds: Record<string, Bound> = {
  'udpGso.cpuZcVsCopy.64K': { op: '<=', limit: 0.35 },
  'udp.cpuCopyGsoVsDgram.64K': { op: '<=', limit: 0.35 },
  'udp.cpuZcGsoVsDgram.64K': { op: '<=', limit: 0.2 },
};
const ratio = ratioWithin(bounds);
const keys = Object.keys(bounds);

async function run(options: SuiteOptions): Promise<Results> {
  const netns = droppingPair();
  if (typeof netns === 'string') return Object.fromEntries(keys.map((key) => [key, skipped(netns)]));
  try {
    const [lent, copied, dgram] = await withCells(
      [cell(netns, 'udp-segments'), cell(netns, 'dgram')],
      ([gso, node]) =>
        interleave(
          'udp 64K',
          [
            { cell: gso!, variant: 'force' },
            { cell: gso!, variant: 'off' },
            { cell: node!, variant: 'copy' },
          ],
          options.pairs,
          options.timing,
        ),
    );
    return results(lent!, copied!, dgram!);
  } finally {
    netns.remove();
  }
}

function results(lent: SliceResult[], copied: SliceResult[], dgram: SliceResult[]): Results {
  const cpuUs = (slice: SliceResult): number => slice.cpuUs / slice.count;
  const force = { mode: 'force', thresholdBytes: THRESHOLD_BYTES, segmentBytes: SEGMENT_BYTES };
  const lentDetails: Details = { ...force, ...zerocopyDetails(lent, PAYLOAD_BYTES) };
  const copiedDetails: Details = { ...force, mode: 'off', ...zerocopyDetails(copied, PAYLOAD_BYTES) };
  const lentOnly = neverCopied(lentDetails);
  return {
    'udpGso.cpuZcVsCopy.64K': ratio(
      'udpGso.cpuZcVsCopy.64K',
      [lent, cpuUs],
      [copied, cpuUs],
      'Us',
      lentDetails,
      lentOnly,
    ),
    'udp.cpuCopyGsoVsDgram.64K': ratio(
      'udp.cpuCopyGsoVsDgram.64K',
      [copied, cpuUs],
      [dgram, cpuUs],
      'Us',
      copiedDetails,
    ),
    'udp.cpuZcGsoVsDgram.64K': ratio(
      'udp.cpuZcGsoVsDgram.64K',
      [lent, cpuUs],
      [dgram, cpuUs],
      'Us',
      lentDetails,
      lentOnly,
    ),
  };
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
