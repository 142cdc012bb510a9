/**
 * guestTcp: a Linux guest under QEMU's software emulation sends TCP in writes of 64 KiB to this host, through our device and a
 * tap, through QEMU's own tap, and through passt as its vhost-user back-end. One guest with a card for each way, which take turns.
 */
import { execFileSync } from 'node:child_process';
import { initramfs } from '../../test/guest/initramfs.ts';
import { guestKernel, missingPrograms } from '../../test/guest/kernel.ts';
import { namespaceObstacle } from '../../test/guest/namespace.ts';
import { passtPackage } from '../../test/guest/passt.ts';
import { HOST_ADDRESSES, type Way } from '../cells/vhost-guest.ts';
import { socketFolder } from '../cells/vhost-kit.ts';
import { Cell, type SliceResult } from '../harness.ts';
import { median, pairedRatio } from '../stats.ts';
import { type Details, type Group, measured, type Results, type SuiteOptions, skipped } from '../suite.ts';
import { makeNetnsPair, type NetnsPair } from '../wirepeer/netns.ts';
import { bounds, joinedSpec, MIB, reasonOf, rounds, withPrefixes } from './vhost-kit.ts';

const TAP_KEY = 'guestTcp.vsQemuTap';
const PASST_KEY = 'guestTcp.vsPasst';
const keys = [TAP_KEY, PASST_KEY];
const BYTES = 40 * MIB;
const BYTES_QUICK = 12 * MIB;
/** The first slice waits for the guest. */
const TIMEOUT_MS = 180_000;
const MTU = 1500;
const TAPS: Readonly<Record<'zerotx' | 'tap', string>> = { zerotx: 'tap0', tap: 'tap1' };

async function run(options: SuiteOptions): Promise<Results> {
  const obstacle = await guestObstacle();
  if (obstacle !== null) return Object.fromEntries(keys.map((key) => [key, skipped(obstacle)]));
  const noPasst = options.wants(PASST_KEY) ? await passtObstacle() : 'not asked for';
  const ways: Way[] = noPasst === null ? ['zerotx', 'tap', 'passt'] : ['zerotx', 'tap'];
  // Of the pair only the first namespace is used.
  const netns = makeNetnsPair();
  const sockets = socketFolder();
  try {
    makeTaps(netns);
    const slices = await measure(netns, sockets.path('guest'), ways, options);
    const [ours, tap, passt] = slices as [SliceResult[], SliceResult[], SliceResult[] | undefined];
    return {
      [TAP_KEY]: ratio(TAP_KEY, ours, tap),
      [PASST_KEY]: passt === undefined ? skipped(noPasst ?? '') : ratio(PASST_KEY, ours, passt),
    };
  } finally {
    netns.remove();
    sockets.remove();
  }
}

async function measure(
  netns: NetnsPair,
  path: string,
  ways: readonly Way[],
  options: SuiteOptions,
): Promise<SliceResult[][]> {
  const sides = [
    ['vhost-device', 'bridge'],
    ['vhost-guest', 'guest'],
  ] as const;
  const spec = joinedSpec('guest', sides, 'guest', {
    ...{ path: `${path}-zerotx`, uplink: `tap:${TAPS.zerotx},offloads`, mtu: MTU },
    ...{ sockets: path, ways: ways.join(' ') },
  });
  const cell = await Cell.start(
    withPrefixes(spec, { bridge: netns.senderPrefix, guest: [...netns.senderPrefix, ...OWN_PROCESSES] }),
  );
  try {
    const count = options.quick ? BYTES_QUICK : BYTES;
    const contenders = ways.map((variant) => () => cell.slice({ count, variant }, TIMEOUT_MS));
    return await rounds('guest', contenders, options.pairs);
  } finally {
    await cell.stop();
  }
}

/** The guest ends with the process that has it, and that one with ours. */
const OWN_PROCESSES = [
  'setpriv',
  '--pdeathsig',
  'KILL',
  'unshare',
  '--pid',
  '--mount-proc',
  '--fork',
  '--kill-child',
];

function ratio(key: string, ours: readonly SliceResult[], theirs: readonly SliceResult[]) {
  const rate = (slice: SliceResult): number =>
    slice.sides.guest!.counters.bytes! / slice.sides.guest!.counters.ms!;
  const details: Details = {
    mbit: median(ours.map(rate)) / 125,
    otherMbit: median(theirs.map(rate)) / 125,
    ...cpu('', ours),
    ...cpu('other', theirs),
    setting:
      'QEMU with -accel tcg, one processor, 64 KiB writes, copied by the guest; ours: device, link and tap in one process',
    pinning: 'none: no process polls',
    cpu: 'milliseconds of CPU for 100 MB',
  };
  return measured(pairedRatio(ours.map(rate), theirs.map(rate)), { bound: bounds[key], details });
}

function cpu(prefix: string, slices: readonly SliceResult[]): Details {
  const per100MB = (of: (slice: SliceResult) => number): number =>
    median(slices.map((slice) => (of(slice) / slice.count) * 1e8));
  const counter = (name: string) => (slice: SliceResult) => slice.sides.guest!.counters[name]!;
  const name = (text: string): string =>
    prefix === '' ? text : prefix + text[0]!.toUpperCase() + text.slice(1);
  return {
    [name('qemuCpu')]: per100MB(counter('qemuCpuMs')),
    [name('backEndCpu')]: per100MB(
      (slice) => slice.sides.bridge!.cpuUs / 1000 + counter('passtCpuMs')(slice),
    ),
    [name('receiverCpu')]: per100MB(counter('receiverCpuMs')),
  };
}

/** Our device joins the first by itself, QEMU the second. */
function makeTaps({ senderNetns }: NetnsPair): void {
  const ip = (...args: string[]): void => {
    execFileSync('ip', ['-n', senderNetns, ...args], { stdio: ['ignore', 'ignore', 'inherit'] });
  };
  for (const way of ['zerotx', 'tap'] as const) {
    ip('tuntap', 'add', 'dev', TAPS[way], 'mode', 'tap');
    ip('address', 'add', `${HOST_ADDRESSES[way]}/24`, 'dev', TAPS[way]);
    ip('link', 'set', TAPS[way], 'up');
  }
}

/** Why there can be no guest here; null if there can. What it needs is fetched. */
async function guestObstacle(): Promise<string | null> {
  const missing = namespaceObstacle() ?? (await missingPrograms());
  if (missing !== null) return missing;
  try {
    await initramfs(await guestKernel());
    return null;
  } catch (error) {
    return `no guest: ${reasonOf(error)}`;
  }
}

async function passtObstacle(): Promise<string | null> {
  try {
    await passtPackage();
    return null;
  } catch (error) {
    return `no passt: ${reasonOf(error)}`;
  }
}

export const guestGroup: Group = { keys, run };
