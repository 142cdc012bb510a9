/**
 * Lending a guest's memory to the kernel against copying it: CPU of the back-end for frames that nobody has touched since they
 * were written, out of a working set larger than the caches.
 *
 *   zc.cpuVsCopy.62000.stream   TSO frames into a stream with vnet headers, to the wire peer, where zero-copy stays zero-copy:
 *                               lent (`force`) against copied (`off`); in the details what `auto` makes of it
 *   zc.cpuVsCopy.*.vxlan        frames of a datagram each into an ingress drop: what the port chooses itself (`auto`) against `off`;
 *                               in the details what lending all of them (`force`) would cost
 *
 * Each way has a device and a driver of its own, with the same frames, and they take turns.
 */
import { execFileSync } from 'node:child_process';
import { piecesOf, socketFolder } from '../cells/vhost-kit.ts';
import {
  Cell,
  type CellSpec,
  interleave,
  type SliceResult,
  type Timing,
  withCells,
  withVariant,
} from '../harness.ts';
import { total } from '../ratio.ts';
import { median, pairedRatio } from '../stats.ts';
import {
  type Details,
  type Group,
  measured,
  type Result,
  type Results,
  type SuiteOptions,
  skipped,
} from '../suite.ts';
import { type WirePeer, wirePeerOrReason } from '../wirepeer/index.ts';
import { dropOnPeer, makeNetnsPair, type NetnsPair } from '../wirepeer/netns.ts';
import { bounds, joinedSpec, MIB, pinned, processors, reasonOf, withPrefixes } from './vhost-kit.ts';

export const WORKING_SET_BYTES: number = 64 * MIB;
const QUEUE_SIZE = 256;
const PORT = 9000;
const VXLAN_PORT = 4789;
const VNI = 42;
/** Outer IPv4, UDP and VXLAN headers, and the inner Ethernet header: what a packet grows by. */
const VXLAN_BYTES = 50;
const ETHERNET_BYTES = 14;
/** A call carries several frames, so it takes some hundred thousand of them until all code is compiled for good. */
const WARMUPS = 6;
const NAMESPACE_NEEDS = 'needs root: network namespaces and a filter that drops';

export type Mode = 'auto' | 'force' | 'off';

interface Shape {
  frameBytes: number;
  /** Left for the device: checksums, and the cutting of what is longer than a packet. */
  asks: boolean;
  mtu: number;
}

/** CPU of the back-end for a frame. */
export const deviceUs = (slice: SliceResult): number => slice.sides.device!.cpuUs / slice.count;
export const driverUs = (slice: SliceResult): number => slice.sides.driver!.cpuUs / slice.count;
/** Until the driver had everything back, in bytes a nanosecond. */
export function gigabytes(slice: SliceResult, frameBytes: number): number {
  const { startNs, endNs } = slice.sides.driver!;
  return (slice.count * frameBytes) / (endNs - startNs);
}

/** A device with this uplink, and a driver; the device may have a processor for itself if there are several. */
function cellOf(
  name: string,
  path: string,
  uplink: string,
  shape: Shape,
  prefix: readonly string[],
): CellSpec {
  const cpus = processors();
  const spec = joinedSpec(
    name,
    [
      ['vhost-device', 'device'],
      ['vhost-driver', 'driver'],
    ],
    'driver',
    { path, uplink, queueSize: QUEUE_SIZE, workingSetBytes: WORKING_SET_BYTES, ...shape },
  );
  return withPrefixes(spec, {
    device: prefix,
    driver: cpus.length < 2 ? [] : pinned(cpus.at(-1)!),
  });
}

/** Slices of frames into a stream to the wire peer, for each mode; or why there are none. */
export async function streamSlices(
  label: string,
  frameBytes: number,
  modes: readonly Mode[],
  { pairs, timing }: Pick<SuiteOptions, 'pairs' | 'timing'>,
): Promise<SliceResult[][] | string> {
  const sockets = socketFolder();
  const peers: WirePeer[] = [];
  const cells: Cell[] = [];
  try {
    for (const mode of modes) {
      const peer = await wirePeerOrReason({ greeting: Buffer.alloc(0), expectBytes: 0, port: PORT });
      if (typeof peer === 'string') return peer;
      peers.push(peer);
      const uplink = `stream:${peer.peerAddress}:${PORT},vnet,zerocopy=${mode}`;
      const shape = { frameBytes, asks: true, mtu: 1500 };
      cells.push(await Cell.start(cellOf(mode, sockets.path(mode), uplink, shape, peer.senderPrefix)));
      await peer.armed;
    }
    return await interleave(label, withVariant(cells, 'frames'), pairs, warm(timing));
  } finally {
    for (const cell of cells) await cell.stop();
    for (const peer of peers) await peer.stop();
    sockets.remove();
  }
}

function stream(frameBytes: number): Group {
  const key = `zc.cpuVsCopy.${frameBytes}.stream`;
  const run = async (options: SuiteOptions): Promise<Results> => {
    const slices = await streamSlices(`stream ${frameBytes}`, frameBytes, ['force', 'off', 'auto'], options);
    if (typeof slices === 'string') return { [key]: skipped(slices) };
    const [lent, copied, auto] = slices as [SliceResult[], SliceResult[], SliceResult[]];
    const details: Details = {
      ...common(lent, copied, frameBytes),
      ...{ mode: 'force against off', offloads: 'CSUM and TSO4, through to the peer' },
      autoRatio: pairedRatio(auto.map(deviceUs), copied.map(deviceUs)).value,
      ...prefixed('auto', lentDetails(auto)),
      peer: 'an emulated host that acknowledges and keeps nothing; no network card',
    };
    // What the device did not lend, as its borrower was slow, was copied, and counts against lending.
    const clean = details.kernelCopiedBytes === 0 && details.lost === 0 && Number(details.lentShare) > 0.9;
    return { [key]: ratio(key, lent, copied, details, clean) };
  };
  return { keys: [key], run };
}

function vxlan(frameBytes: number): Group {
  const key = `zc.cpuVsCopy.${frameBytes}.vxlan`;
  const run = async (options: SuiteOptions): Promise<Results> => {
    const mtu = frameBytes - ETHERNET_BYTES;
    const netns = droppingPair(mtu + VXLAN_BYTES);
    if (typeof netns === 'string') return { [key]: skipped(netns) };
    const sockets = socketFolder();
    try {
      const uplink = (mode: Mode, port: number): string =>
        `vxlan:vni=${VNI},remote=${netns.peerAddress},local=${netns.senderAddress},port=${port},mtu=${mtu},zerocopy=${mode}`;
      const shape = { frameBytes, asks: false, mtu };
      const prefix = [...netns.senderPrefix, ...firstProcessor()];
      const specs = (['auto', 'off', 'force'] as const).map((mode, i) =>
        cellOf(mode, sockets.path(mode), uplink(mode, VXLAN_PORT + i), shape, prefix),
      );
      const [auto, copied, forced] = await withCells(specs, (cells) =>
        interleave(`vxlan ${frameBytes}`, withVariant(cells, 'frames'), options.pairs, warm(options.timing)),
      );
      const details: Details = {
        ...common(auto!, copied!, frameBytes),
        ...{ mode: 'auto against off', outerMtu: mtu + VXLAN_BYTES },
        forceRatio: pairedRatio(forced!.map(deviceUs), copied!.map(deviceUs)).value,
        ...prefixed('force', lentDetails(forced!)),
        peer: 'a veth whose other end drops on ingress; no network card',
      };
      return { [key]: ratio(key, auto!, copied!, details, details.lost === 0) };
    } finally {
      netns.remove();
      sockets.remove();
    }
  };
  return { keys: [key], run };
}

function ratio(
  key: string,
  lent: readonly SliceResult[],
  copied: readonly SliceResult[],
  details: Details,
  alsoNeeds: boolean,
): Result {
  return measured(pairedRatio(lent.map(deviceUs), copied.map(deviceUs)), {
    bound: bounds[key],
    details,
    alsoNeeds,
  });
}

function common(lent: readonly SliceResult[], copied: readonly SliceResult[], frameBytes: number): Details {
  const both = (slice: SliceResult): number => slice.cpuUs / slice.count;
  return {
    thisUs: median(lent.map(deviceUs)),
    otherUs: median(copied.map(deviceUs)),
    ...lentDetails(lent),
    lost: total(lent, 'device', 'lost') + total(copied, 'device', 'lost'),
    driverUs: median(lent.map(driverUs)),
    otherDriverUs: median(copied.map(driverUs)),
    bothRatio: pairedRatio(lent.map(both), copied.map(both)).value,
    GBs: median(lent.map((slice) => gigabytes(slice, frameBytes))),
    otherGBs: median(copied.map((slice) => gigabytes(slice, frameBytes))),
    source: `cold: ${WORKING_SET_BYTES / MIB} MiB in turn, never touched after it was written, on both sides`,
    frames: `${frameBytes} bytes in ${piecesOf(frameBytes)} descriptors, the last 1 - 256 of them copied as heads`,
    pinning: 'device on its own processors, the driver (event-driven) on the last, as the peer',
  };
}

function warm(timing: Timing): Timing {
  return { ...timing, warmups: Math.max(timing.warmups, WARMUPS) };
}

/** Of the bytes: lent, and lent but copied by the kernel (COPIED). And frames that the device did not lend when it was asked to. */
export function lentDetails(slices: readonly SliceResult[]): Details {
  const sum = (name: string): number => total(slices, 'device', name);
  const refusals = ['overdue', 'refusedLimit', 'refusedCopies', 'refusedOverdue'];
  return {
    // Prefixes are lent, too, and no part of frames.
    lentShare: Math.min(1, sum('txLentBytes') / sum('txBytes')),
    kernelCopiedBytes: sum('txKernelCopiedBytes'),
    ...Object.fromEntries(refusals.map((name) => [name, sum(name)]).filter(([, count]) => count !== 0)),
  };
}

function prefixed(prefix: string, details: Details): Details {
  const capital = (name: string): string => name[0]!.toUpperCase() + name.slice(1);
  return Object.fromEntries(Object.entries(details).map(([name, value]) => [prefix + capital(name), value]));
}

/** All but the last, which is the driver's. */
function firstProcessor(): string[] {
  const cpus = processors();
  return cpus.length < 2 ? [] : ['taskset', '-c', cpus.slice(0, -1).join(',')];
}

/** Two namespaces joined by a veth of this MTU, of which the second drops everything; or why they cannot be had here. */
function droppingPair(mtu: number): NetnsPair | string {
  if (process.getuid?.() !== 0) return NAMESPACE_NEEDS;
  let netns: NetnsPair | undefined;
  try {
    netns = makeNetnsPair();
    dropOnPeer(netns);
    for (const [name, ifname] of [
      [netns.peerNetns, netns.peerIfname],
      [netns.senderNetns, 'wire0'],
    ] as const) {
      execFileSync('ip', ['-n', name, 'link', 'set', ifname, 'mtu', `${mtu}`], { stdio: 'ignore' });
    }
    return netns;
  } catch (error) {
    netns?.remove();
    return reasonOf(error);
  }
}

export const zerocopyGroups: readonly Group[] = [stream(62_000), vxlan(9000), vxlan(1500)];
