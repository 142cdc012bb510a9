/**
 * The sockets of zerotx/net against those of Node: the same program over both.
 *
 *   wirepeer.cpuVsNodeNet      sender's CPU into the wire peer, where zero-copy stays zero-copy: both sides send what
 *                              they hold in cold memory and never touch it, leases against Buffers, as a cache of
 *                              objects does; in the details the same with a number written into each before it is sent
 *   loopback.cpuVsNodeNet      CPU of both ends in `auto`, where lending does not pay: nobody may lose by using the library
 *   loopback.throughputVsNodeNet
 *   udp...                     one call for 44 datagrams, lent and copied, against 44 calls of node:dgram (net-udp.ts)
 *   idleCpuMs, memory...       connections that do nothing cost nothing, closed ones leave nothing (net-upkeep.ts)
 */
import {
  type CellSpec,
  cellSpec,
  interleave,
  type SliceResult,
  withCells,
  withPrefix,
  withVariant,
} from '../harness.ts';
import { ratioWithin, refilledDetails } from '../ratio.ts';
import { type Bound, pairedRatio } from '../stats.ts';
import {
  type Details,
  type Group,
  groupedSuite,
  type Results,
  type Suite,
  type SuiteOptions,
  skipped,
} from '../suite.ts';
import { type WirePeer, wirePeerOrReason } from '../wirepeer/index.ts';
import { udp } from './net-udp.ts';
import { upkeep } from './net-upkeep.ts';
import { neverCopied, zerocopyDetails } from './zerocopy-details.ts';

const KIB = 1 << 10;
const WORKING_SET_BYTES = 64 << 20;
const FIRST_BYTES = 16;
const PORT = 16385;
const GREETING = Buffer.alloc(FIRST_BYTES, 'g');
const WIRE_THRESHOLD_BYTES = 4096;
const SENT = 'held leases against held Buffers, never touched; refilled: a number written into each first';
/** What `auto` is given: the library's own threshold. */
const TCP_THRESHOLD_BYTES = 32 * KIB;

const bounds: Record<string, Bound> = {
  'wirepeer.cpuVsNodeNet.16K': { op: '<=', limit: 0.65 },
  'wirepeer.cpuVsNodeNet.64K': { op: '<=', limit: 0.75 },
  'wirepeer.cpuVsNodeNet.256K': { op: '<=', limit: 0.75 },
  'wirepeer.cpuVsNodeNet.1M': { op: '<=', limit: 0.65 },
  'loopback.cpuVsNodeNet.1K': { op: '<=', limit: 1.1 },
  'loopback.cpuVsNodeNet.16K': { op: '<=', limit: 1.1 },
  'loopback.cpuVsNodeNet.64K': { op: '<=', limit: 1.1 },
  'loopback.cpuVsNodeNet.1M': { op: '<=', limit: 1.1 },
  'loopback.throughputVsNodeNet.64K': { op: '>=', limit: 0.95 },
  'loopback.throughputVsNodeNet.1M': { op: '>=', limit: 0.95 },
};
const ratio = ratioWithin(bounds);

const cpuUs = (slice: SliceResult): number => slice.cpuUs / slice.count;

/**
 * The sender's CPU for each write. The key is of messages that are sent as they lie, held leases against held Buffers;
 * `refilled...` in the details is of messages that a number is written into before each send, on both sides. What the
 * views of leases cost is in the latter.
 */
function wirePeer(size: string, messageBytes: number): Group {
  const key = `wirepeer.cpuVsNodeNet.${size}`;
  const run = async (options: SuiteOptions): Promise<Results> => {
    const peers: WirePeer[] = [];
    try {
      for (let i = 0; i < 2; i++) {
        const peer = await wirePeerOrReason({ greeting: GREETING, expectBytes: FIRST_BYTES, port: PORT });
        if (typeof peer === 'string') return { [key]: skipped(peer) };
        peers.push(peer);
      }
      const specs = [
        wireCell(peers[0]!, messageBytes, {
          ...{ transport: 'zerotx/net', source: 'leases', mode: 'force' },
          thresholdBytes: WIRE_THRESHOLD_BYTES,
        }),
        wireCell(peers[1]!, messageBytes, { transport: 'node:net', source: 'buffers' }),
      ];
      const [ours, node, oursRefilled, nodeRefilled] = await withCells(specs, (cells) =>
        interleave(
          `wire peer ${size}`,
          [...withVariant(cells, 'resent'), ...withVariant(cells, 'refilled')],
          options.pairs,
          options.timing,
        ),
      );
      const details: Details = {
        ...{ mode: 'force', thresholdBytes: WIRE_THRESHOLD_BYTES, sent: SENT },
        ...refilledDetails([oursRefilled!, cpuUs], [nodeRefilled!, cpuUs]),
        ...zerocopyDetails([...ours!, ...oursRefilled!], messageBytes),
      };
      return { [key]: ratio(key, [ours!, cpuUs], [node!, cpuUs], 'Us', details, neverCopied(details)) };
    } finally {
      for (const peer of peers) await peer.stop();
    }
  };
  return { keys: [key], run };
}

function wireCell(peer: WirePeer, messageBytes: number, options: CellSpec['options']): CellSpec {
  const cell = cellSpec('tcp-stream', ['dialler'], 'dialler', {
    ...{ host: peer.peerAddress, port: PORT, firstBytes: FIRST_BYTES, greetingBytes: GREETING.length },
    ...{ messageBytes, workingSetBytes: WORKING_SET_BYTES, ...options },
  });
  return withPrefix(cell, peer.senderPrefix);
}

/**
 * Both ends are the library's, or both Node's; both write a number into each Buffer before it is sent. Most programs read by 'data' events; the details have the ratio between
 * programs that read into one buffer (`onread`), where the receiver has less to do.
 */
function loopback(size: string, messageBytes: number, withThroughput: boolean): Group {
  const cpuKey = `loopback.cpuVsNodeNet.${size}`;
  const throughputKey = `loopback.throughputVsNodeNet.${size}`;
  const run = async (options: SuiteOptions): Promise<Results> => {
    const auto = { mode: 'auto', thresholdBytes: TCP_THRESHOLD_BYTES };
    const specs = ['data', 'onread'].flatMap((reader) => [
      loopbackCell(messageBytes, { transport: 'zerotx/net', ...auto, reader }),
      loopbackCell(messageBytes, { transport: 'node:net', reader }),
    ]);
    const [ours, node, oursOnread, nodeOnread] = await withCells(specs, (cells) =>
      interleave(`loopback ${size}`, withVariant(cells, 'refilled'), options.pairs, options.timing),
    );
    const gigabytes = (slice: SliceResult): number => (slice.count * messageBytes) / slice.elapsedNs;
    const onread = (of: (slice: SliceResult) => number): Details => ({
      onreadRatio: pairedRatio(oursOnread!.map(of), nodeOnread!.map(of)).value,
    });
    const cpuDetails = { ...auto, ...onread(cpuUs), ...zerocopyDetails(ours!, messageBytes) };
    const throughputDetails = { ...auto, ...onread(gigabytes) };
    return {
      [cpuKey]: ratio(cpuKey, [ours!, cpuUs], [node!, cpuUs], 'Us', cpuDetails),
      [throughputKey]: ratio(throughputKey, [ours!, gigabytes], [node!, gigabytes], 'GBs', throughputDetails),
    };
  };
  return { keys: withThroughput ? [cpuKey, throughputKey] : [cpuKey], run };
}

function loopbackCell(messageBytes: number, options: CellSpec['options']): CellSpec {
  return cellSpec('tcp-stream', ['sender', 'receiver'], 'sender', {
    ...{ messageBytes, workingSetBytes: WORKING_SET_BYTES, source: 'buffers', ...options },
  });
}

export const suite: Suite = groupedSuite(
  'zerotx/net against node:net and node:dgram; the wire peer and udpGso send what they hold without touching it, and in the details ("refilled") with a number written into each message before it is sent',
  [
    wirePeer('16K', 16 * KIB),
    wirePeer('64K', 64 * KIB),
    wirePeer('256K', 256 * KIB),
    wirePeer('1M', 1024 * KIB),
    loopback('1K', KIB, false),
    loopback('16K', 16 * KIB, false),
    loopback('64K', 64 * KIB, true),
    loopback('1M', 1024 * KIB, true),
    udp,
    ...upkeep,
  ],
);
