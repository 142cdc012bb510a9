/** The command line of `zerotx vhost`, checked, as pairs of a device and its uplink: plain data, which workers are given. */
import { basename, resolve } from 'node:path';
import { parsePort } from '../../ports/index.ts';
import { stableMac } from '../lab/qemu.ts';

export interface GivenOptions {
  socket?: string[];
  uplink?: string[];
  mac?: string[];
  pcap?: string[];
  queues: number;
  mtu?: number;
  mode: 'listen' | 'connect';
  frontEnd: 'qemu' | 'uml';
  zerocopy: 'auto' | 'off';
  completion: 'in-order' | 'copies-first';
  holdMs?: number;
  workers?: number;
  user?: string;
  stats?: number;
  json?: boolean;
}

export interface PairSettings {
  /** Of the device, as messages and counters call it. */
  readonly name: string;
  /** Absolute path. */
  readonly socket: string;
  readonly role: 'listen' | 'connect';
  readonly frontend: 'qemu' | 'uml';
  readonly queues: number;
  readonly mtu: number;
  readonly mac: string;
  readonly zerocopy: 'auto' | 'off';
  readonly completion: 'in-order' | 'copies-first';
  readonly holdMs?: number;
  /** What parsePort() makes the uplink of. */
  readonly uplink: string;
  /** Absolute path of a capture. */
  readonly pcap?: string;
}

const MTU_DEFAULT = 1500;
const MAC = /^[0-9a-f][02468ace](?::[0-9a-f]{2}){5}$/i;
/** sockaddr_un.sun_path, less the byte that ends it. */
const SOCKET_PATH_BYTES_MAX = 107;

/** The pairs, or what is wrong. */
export function pairsOf(options: GivenOptions): readonly PairSettings[] | string {
  const { socket: sockets = [], uplink: uplinks = [], mac: macs = [], pcap: captures = [] } = options;
  if (sockets.length === 0) return '--socket and --uplink are needed; zerotx vhost --help has examples';
  if (uplinks.length !== sockets.length)
    return `each --socket has its --uplink: there are ${sockets.length} and ${uplinks.length}`;
  for (const [name, values] of [
    ['--mac', macs],
    ['--pcap', captures],
  ] as const) {
    if (values.length === 0 || values.length === sockets.length) continue;
    return `${name} is given once for each --socket, or not at all`;
  }
  const wrong = macs.find((mac) => !MAC.test(mac));
  if (wrong !== undefined) return `--mac ${wrong}: not the address of one card, such as 52:54:00:12:34:56`;
  try {
    return checked(sockets.map((_, i) => pairOf(options, i)));
  } catch (error) {
    // What a port says of its text.
    if ((error as NodeJS.ErrnoException).code === 'EINVAL') return (error as Error).message;
    throw error;
  }
}

function pairOf(options: GivenOptions, index: number): PairSettings {
  const { queues, mode, frontEnd, zerocopy, completion, mtu, holdMs } = options;
  const given = options.socket?.[index] as string;
  const socket = resolve(given);
  const uplink = uplinkText(options, index);
  const pcap = options.pcap?.[index];
  return {
    name: basename(given).replace(/\.sock(et)?$/, ''),
    socket,
    role: mode,
    frontend: frontEnd,
    queues,
    mtu: mtu ?? Math.min(MTU_DEFAULT, parsePort(uplink).capability.mtu),
    mac: options.mac?.[index] ?? stableMac(socket),
    zerocopy,
    completion,
    uplink,
    ...(holdMs === undefined ? {} : { holdMs }),
    ...(pcap === undefined ? {} : { pcap: resolve(pcap) }),
  };
}

/** The uplink as it was asked for, with what goes without saying. */
function uplinkText({ uplink = [], mtu }: GivenOptions, index: number): string {
  const text = uplink[index] as string;
  // What is wrong in it is told in its own words.
  parsePort(text);
  let complete = text;
  // The host may leave segments and checksums to us: the link does for the guest what it does not take.
  if (/^(?:macv)?tap:/.test(text) && !/,offloads(?:,|$)/.test(text)) complete += ',offloads';
  if (mtu !== undefined && !/,mtu=/.test(text) && !/^pcap:/.test(text)) complete += `,mtu=${mtu}`;
  if (/,name=/.test(text)) return complete;
  // Short, unless that is another one's too.
  const short = shortName(text);
  const isOnly = uplink.filter((one) => shortName(one) === short).length === 1;
  return `${complete},name=${isOnly ? short : `${short}#${index + 1}`}`;
}

function shortName(uplink: string): string {
  return uplink.split(',', 1)[0] as string;
}

/** Pairs that do not get into each other's way. */
function checked(pairs: readonly PairSettings[]): readonly PairSettings[] | string {
  const seen = new Set<string>();
  for (const { socket, uplink, mac, pcap } of pairs) {
    const { name } = parsePort(uplink);
    if (Buffer.byteLength(socket) > SOCKET_PATH_BYTES_MAX)
      return `--socket ${socket}: a path of a socket has ${SOCKET_PATH_BYTES_MAX} bytes at most`;
    for (const [option, value] of [
      ['--socket', socket],
      ['--uplink name', name],
      ['--mac', mac],
      ['--pcap', pcap],
    ] as const) {
      if (value === undefined) continue;
      if (seen.has(`${option} ${value}`)) return `${option} ${value} is there twice`;
      seen.add(`${option} ${value}`);
    }
  }
  return unambiguous(pairs);
}

/** Counters are told by name: where the short one is not unique, the path is. */
function unambiguous(pairs: readonly PairSettings[]): readonly PairSettings[] {
  const names = new Map<string, number>();
  for (const { name, uplink } of pairs)
    for (const one of [name, parsePort(uplink).name]) names.set(one, (names.get(one) ?? 0) + 1);
  return pairs.map((pair) => (names.get(pair.name) === 1 ? pair : { ...pair, name: pair.socket }));
}
