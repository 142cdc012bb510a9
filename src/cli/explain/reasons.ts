/**
 * Why a socket copied: its statistics and what is known of the way to its peer, as reasons with a remedy. Pure.
 *
 * Two kinds of copies: those that zerotx made, whose causes it has counted itself, and those that the kernel made of what was
 * lent, of which it says nothing but that it did. For these the way tells: where it ends, what its device can do, who
 * listens in. What is seen there is so now; when the bytes went it may have been otherwise.
 */
import type { Finding, SendCosts } from '../../index.ts';
import type { CopyCause, SocketStats } from '../../net/index.ts';
import { size } from './size.ts';

export type ReasonId =
  | Exclude<CopyCause, 'kernel'>
  | 'unix'
  | 'local'
  | 'tap'
  | 'offload'
  | 'virtual'
  | 'unknown';

export interface Reason {
  readonly id: ReasonId;
  /** What was copied for it, and by whom. */
  readonly bytes: number;
  readonly by: 'zerotx' | 'kernel';
  readonly why: string;
  /** Left out, as `saves` is, for less than a hundredth of what the socket sent. */
  readonly remedy?: string;
  /** CPU time of the sender that these bytes would not have taken; left out where a change saves nothing. */
  readonly saves?: Saving;
}

export interface Saving {
  readonly leastMs: number;
  readonly mostMs: number;
}

/** The part of SocketStats that is looked at; of many sockets together only the sums are known. */
export type Copies =
  | Pick<SocketStats, 'kind' | 'mode' | 'thresholdBytes' | 'zerocopy'>
  | (Pick<SocketStats, 'mode' | 'thresholdBytes' | 'zerocopy'> & { readonly kind: 'rds' })
  | (Pick<SocketStats, 'zerocopy'> & { readonly kind: 'various' });

/** What is known of the way to the peer: findings of doctor(), or why there are none. */
export type Way = { readonly findings: readonly Finding[] } | { readonly unknown: string };

/** The reasons, those of most bytes first. */
export function reasonsOf(socket: Copies, way: Way, costs: SendCosts | undefined): Reason[] {
  const { copied, kernelCopiedBytes, lentBytes, fallbackBytes } = socket.zerocopy;
  const worthwhileBytes = (lentBytes + fallbackBytes) / 100;
  const found: Reason[] = [];
  const add = (bytes: number, by: Reason['by'], explanation: Explanation): void => {
    if (bytes === 0) return;
    const { id, why, remedy, pays } = explanation;
    const worthwhile = bytes >= worthwhileBytes;
    const saves = pays && worthwhile ? savingOf(bytes, by, costs) : undefined;
    found.push({
      ...{ id, bytes, by, why },
      ...(remedy === undefined || !worthwhile ? {} : { remedy }),
      ...(saves === undefined ? {} : { saves }),
    });
  };
  const onTheWay = explainWay(socket, way);
  add(kernelCopiedBytes, 'kernel', onTheWay);
  for (const [cause, bytes] of Object.entries(copied) as [CopyCause, number][]) {
    if (cause === 'kernel') {
      add(bytes, 'zerotx', { ...onTheWay, why: `the kernel copied what was lent before: ${onTheWay.why}` });
    } else add(bytes, 'zerotx', causes[cause](socket, staysHere(way)));
  }
  return found.sort((a, b) => b.bytes - a.bytes);
}

interface Explanation {
  readonly id: ReasonId;
  readonly why: string;
  readonly remedy?: string | undefined;
  /** A change saves CPU time. */
  readonly pays: boolean;
}

const LOCAL = 'the receiver is on this host, where every byte is copied once';
const UNIX = 'Unix sockets copy, whatever they are asked for';
const OFF = "lending is switched off (zerocopy.mode is 'off')";
const RDS_OFF = "lending is switched off (mode of RdsNode.open() is 'off')";

const causes: Readonly<
  Record<Exclude<CopyCause, 'kernel'>, (socket: Copies, staysHere: boolean) => Explanation>
> = {
  off: ({ kind }, local) => {
    if (kind === 'unix') return { id: 'unix', why: UNIX, pays: false };
    const off = kind === 'rds' ? RDS_OFF : OFF;
    const why = kind === 'various' ? `${off}, or: ${UNIX}` : off;
    if (local) return { id: 'off', why: `${why}; and ${LOCAL}`, pays: false };
    return { id: 'off', why, remedy: "leave out the mode, or set 'auto'", pays: kind !== 'various' };
  },
  threshold: (socket) => ({
    id: 'threshold',
    why: `pieces smaller than ${'thresholdBytes' in socket ? size(socket.thresholdBytes) : 'the threshold'}: to lend these costs more than to copy them`,
    remedy:
      socket.kind === 'rds'
        ? 'send larger messages'
        : 'write larger pieces: gather them in one buffer of a Pool',
    pays: false,
  }),
  loopback: () => ({ id: 'loopback', why: LOCAL, pays: false }),
  memlock: () => ({
    id: 'memlock',
    why: 'no room for more lent memory (RLIMIT_MEMLOCK)',
    remedy: 'raise RLIMIT_MEMLOCK: ulimit -l, LimitMEMLOCK= (systemd), --ulimit memlock= (docker)',
    pays: true,
  }),
  optmem: () => ({
    id: 'optmem',
    why: 'no room for more records of unconfirmed calls (net.core.optmem_max)',
    remedy: 'sysctl -w net.core.optmem_max=131072, or fewer and larger sends',
    pays: true,
  }),
  fragments: () => ({
    id: 'fragments',
    why: 'datagrams that lie on more pages than the kernel takes',
    remedy: 'send from one contiguous buffer, at a page boundary, as a Lease of a Pool is',
    pays: true,
  }),
  unsupported: () => ({
    id: 'unsupported',
    why: 'the kernel does not lend for this kind of socket',
    remedy: 'zerotx doctor --only zerocopy shows what this kernel can do',
    pays: false,
  }),
  foreign: ({ kind }) => ({
    id: 'foreign',
    why: 'buffers that this runtime cannot keep in place while they are lent',
    remedy:
      kind === 'rds'
        ? 'vouch for your buffers with `pin` of bind()'
        : 'send leases of a Pool, or vouch for your buffers with zerocopy.pin',
    pays: true,
  }),
};

/** Why the kernel copied what it had been lent. */
function explainWay(socket: Copies, way: Way): Explanation {
  if ('unknown' in way) {
    return { id: 'unknown', why: `the kernel gives no reason, and ${way.unknown}`, pays: false };
  }
  if (staysHere(way)) {
    const forced = 'mode' in socket && socket.mode === 'force';
    const remedy = forced ? "leave out mode 'force': it lends to this host, too" : undefined;
    return { id: 'local', why: LOCAL, remedy, pays: false };
  }
  const obstacles = [
    { id: 'tap', finding: find(way, 'device.taps') },
    { id: 'offload', finding: find(way, 'device.offload') },
  ] as const;
  const [first, second] = obstacles.filter(({ finding }) => finding?.status === 'warn');
  if (first !== undefined) {
    const findings = [first, second].flatMap((obstacle) => obstacle?.finding ?? []);
    return {
      id: first.id,
      why: findings.map(({ found }) => found).join('; and '),
      remedy: findings.flatMap(({ remedy }) => remedy ?? []).join('; and ') || undefined,
      pays: true,
    };
  }
  const data = find(way, 'device.route')?.data;
  const datagrams =
    socket.kind === 'udp'
      ? `; datagrams longer than the MTU${data?.mtu ? ` of ${data.mtu}` : ''} are copied`
      : '';
  if (typeof data?.deviceType === 'string') {
    const why =
      `${data.device} is a virtual device (${data.deviceType}): the receiver, or a listener, may be on this host, ` +
      `in another network namespace${datagrams}`;
    return { id: 'virtual', why, pays: false };
  }
  const why = `nothing on the way gives a reason now (no tap, and the device gathers)${datagrams}`;
  return { id: 'unknown', why, pays: false };
}

function staysHere(way: Way): boolean {
  if ('unknown' in way) return false;
  const route = find(way, 'device.route');
  return route?.data?.routeType === 'local' || route?.data?.device === 'lo';
}

function find(way: { readonly findings: readonly Finding[] }, id: string): Finding | undefined {
  return way.findings.find((finding) => finding.id === id);
}

const GB = 1e9;

/**
 * From the measured costs: what the kernel copied was lent before, and the copy came on top of that; what zerotx copied would
 * have been lent instead. Undefined without costs, or if lending is no cheaper here.
 */
function savingOf(bytes: number, by: Reason['by'], costs: SendCosts | undefined): Saving | undefined {
  if (costs?.lendMs === undefined) return undefined;
  const insteadMs = by === 'kernel' ? 0 : costs.lendMs;
  const saved = (copyMs: number): number => (Math.max(0, copyMs - insteadMs) * bytes) / GB;
  const mostMs = saved(costs.dearCopyMs);
  return mostMs === 0 ? undefined : { leastMs: saved(costs.cheapCopyMs), mostMs };
}

/** What sockets that are gone, or that were not listed, have copied: the sums without those of `sockets`. */
export function othersOf(
  total: SocketStats['zerocopy'],
  sockets: readonly Pick<SocketStats, 'zerocopy'>[],
): SocketStats['zerocopy'] {
  // The sums and the list are of two moments.
  const rest = (of: (stats: SocketStats['zerocopy']) => number): number =>
    Math.max(0, of(total) - sockets.reduce((sum, { zerocopy }) => sum + of(zerocopy), 0));
  const copied = Object.fromEntries(
    (Object.keys(total.copied) as CopyCause[]).map((cause) => [cause, rest(({ copied }) => copied[cause])]),
  ) as Record<CopyCause, number>;
  return {
    ...total,
    copied,
    lentCalls: rest(({ lentCalls }) => lentCalls),
    lentBytes: rest(({ lentBytes }) => lentBytes),
    kernelCopiedCalls: rest(({ kernelCopiedCalls }) => kernelCopiedCalls),
    kernelCopiedBytes: rest(({ kernelCopiedBytes }) => kernelCopiedBytes),
    fallbackBytes: rest(({ fallbackBytes }) => fallbackBytes),
  };
}
