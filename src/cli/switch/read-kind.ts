/** The part of a port that says what it is: `vhost: {...}`, `tap: tap0`, `stream: {...}`. */
import { resolve } from 'node:path';
import { OFFLOAD_ALL, OFFLOAD_CSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../../ports/index.ts';
import { given, type Kind, type PortSpec } from './lab.ts';
import {
  type Address,
  accessRights,
  address,
  bytes,
  choice,
  flag,
  integer,
  ipAddress,
  mac,
  number,
  type Quantity,
  text,
  time,
} from './quantities.ts';
import type { Section } from './section.ts';

/** What a reader has to know besides its section. */
export interface Naming {
  /** Of the port. */
  readonly name: string;
  /** Where paths that are not absolute begin. */
  readonly folder: string;
}

type Reader = (section: Section, naming: Naming) => PortSpec | undefined;

export const readers: Readonly<Record<Kind, Reader>> = {
  vhost: readVhost,
  tap: (section, naming) => readTap('tap', section, naming),
  macvtap: (section, naming) => readTap('macvtap', section, naming),
  stream: readStream,
  dgram: readDgram,
  vxlan: readVxlan,
  pcap: readPcap,
};

/** sockaddr_un.sun_path, less the byte that ends it. */
const SOCKET_PATH_BYTES_MAX = 107;
/** IFNAMSIZ, less the byte that ends it; a macvtap may be given by a path. */
const DEVICE = text('the name of a device', 15);
const DEVICE_OR_PATH = text('the name of a device or the path of its file', 255);
const SOCKET = text('the path of a Unix socket', 4095);
const FILE = text('the path of a file', 4095);
const MTU = integer(68, 65_535);
const BUFFER = bytes('4KiB', '1GiB');
const LENDING = choice('auto', 'force', 'off');

const OFFLOADS: Readonly<Record<string, number>> = {
  csum: OFFLOAD_CSUM,
  tso4: OFFLOAD_TSO4,
  tso6: OFFLOAD_TSO6,
  ecn: OFFLOAD_ECN,
  all: OFFLOAD_ALL,
  none: 0,
};

/** The most important value of a kind may stand alone, as in `tap: tap0`. */
function short<T>(
  section: Section,
  kind: Kind,
  key: string,
  quantity: Quantity<T>,
): { readonly own: Section | undefined; readonly value: T | undefined } {
  if (!section.hasSection(kind)) return { own: undefined, value: section.take(kind, quantity) };
  const own = section.section(kind);
  return { own, value: own?.need(key, quantity) };
}

function readVhost(section: Section, { name, folder }: Naming): PortSpec | undefined {
  const { own, value } = short(section, 'vhost', 'socket', SOCKET);
  const offloads = own?.list('offloads', choice(...Object.keys(OFFLOADS)));
  const read = given({
    role: own?.take('mode', choice('listen', 'connect')),
    socketMode: own?.take('socketMode', accessRights),
    frontend: own?.take('frontEnd', choice('qemu', 'uml')),
    queues: own?.take('queues', integer(1, 16)),
    mtu: own?.take('mtu', MTU),
    mac: own?.take('mac', mac),
    offloads: offloads?.reduce((sum, one) => sum | (OFFLOADS[one] as number), 0),
    zerocopy: own?.take('zerocopy', choice('auto', 'off')),
    completion: own?.take('completion', choice('in-order', 'copies-first')),
    holdMs: own?.take('hold', time('1ms', '1min')),
    drainMs: own?.take('drain', time('1ms', '1min')),
    regionBytesMax: own?.take('memoryMax', bytes('1MiB', '64TiB')),
  });
  own?.end();
  if (value === undefined) return undefined;
  const path = socketPath(section, 'vhost', folder, value);
  return { kind: 'vhost', options: { name, path, ...read } };
}

function readTap(kind: 'tap' | 'macvtap', section: Section, { name }: Naming): PortSpec | undefined {
  const { own, value } = short(section, kind, 'device', kind === 'tap' ? DEVICE : DEVICE_OR_PATH);
  const read = given({ queues: own?.take('queues', integer(1, 256)), mtu: own?.take('mtu', MTU) });
  own?.end();
  if (value === undefined) return undefined;
  // The host may leave segments and checksums to us: the switch does for each port what it does not take.
  return { kind, options: { name, device: value, offloads: OFFLOAD_ALL, ...read } };
}

function readStream(section: Section, { name, folder }: Naming): PortSpec | undefined {
  const own = section.section('stream');
  if (own === undefined) return undefined;
  const [listen, connect] = [own.take('listen', address), own.take('connect', address)];
  if (own.has('listen') === own.has('connect'))
    own.document.report(own.place, `${own.path} needs listen or connect: ${address.expected}`);
  const read = given({
    vnet: own.take('vnet', flag),
    mtu: own.take('mtu', MTU),
    zerocopy: own.take('zerocopy', LENDING),
    sendBufferBytes: own.take('sendBuffer', BUFFER),
    lingerMs: own.take('linger', time('1ms', '30s')),
  });
  own.end();
  const place = listen ?? connect;
  if (place === undefined) return undefined;
  return {
    kind: 'stream',
    options: { name, ...located(own, folder, place), listen: listen !== undefined, ...read },
  };
}

function readDgram(section: Section, { name, folder }: Naming): PortSpec | undefined {
  const own = section.section('dgram');
  if (own === undefined) return undefined;
  const [local, remote] = [own.need('local', address), own.need('remote', address)];
  const read = given({ mtu: own.take('mtu', integer(68, 65_489)), bufferBytes: own.take('buffer', BUFFER) });
  own.end();
  if (local === undefined || remote === undefined) return undefined;
  if ('path' in local !== 'path' in remote)
    own.document.report(own.place, `${own.path}: local and remote are both HOST:PORT, or both unix:PATH`);
  const ends = { local: located(own, folder, local), remote: located(own, folder, remote) };
  return { kind: 'dgram', options: { name, ...ends, ...read } };
}

function readVxlan(section: Section, { name }: Naming): PortSpec | undefined {
  const own = section.section('vxlan');
  if (own === undefined) return undefined;
  const vni = own.need('vni', integer(0, 2 ** 24 - 1));
  const remotes = own.list('remote', ipAddress);
  if (!own.has('remote')) own.document.report(own.place, `${own.path} needs remote: IP addresses`);
  const local = own.take('local', ipAddress);
  const read = given({
    local,
    port: own.take('port', integer(1, 0xffff)),
    mtu: own.take('mtu', MTU),
    sockets: own.take('sockets', integer(1, 16)),
    zerocopy: own.take('zerocopy', LENDING),
    bufferBytes: own.take('buffer', BUFFER),
  });
  own.end();
  if (vni === undefined || remotes === undefined) return undefined;
  if (own.has('remote') && (remotes.length === 0 || remotes.length > 64))
    own.report('remote', 'there are 1 to 64 remote ends');
  const families = new Set(
    [...remotes, ...(local === undefined ? [] : [local])].map((ip) => ip.includes(':')),
  );
  if (families.size > 1) own.report('remote', 'all addresses of a tunnel are IPv4, or all are IPv6');
  return { kind: 'vxlan', options: { name, vni, remotes, ...read } };
}

function readPcap(section: Section, { name, folder }: Naming): PortSpec | undefined {
  const own = section.hasSection('pcap') ? section.section('pcap') : undefined;
  const file = own === undefined ? section.take('pcap', FILE) : own.take('write', FILE);
  const replay = own?.take('replay', FILE);
  const read = given({ speed: own?.take('speed', number(0.001, 1e6)), snapBytes: own?.take('snap', SNAP) });
  own?.end();
  if (own !== undefined && !own.has('write') && !own.has('replay'))
    own.document.report(own.place, `${own.path} needs write or replay: ${FILE.expected}`);
  const [written, replayed] = [file, replay].map((one) =>
    one === undefined ? undefined : resolve(folder, one),
  );
  return { kind: 'pcap', options: { name, ...given({ file: written, replay: replayed }), ...read } };
}

/** Of each frame that is captured. */
export const SNAP: Quantity<number> = bytes('1B', '256KiB');

function located(own: Section, folder: string, place: Address): Address {
  if (!('path' in place)) return place;
  return { path: socketPath(own, null, folder, place.path) };
}

/** The absolute path; `key`: where it stands, null for the section. */
function socketPath(section: Section, key: string | null, folder: string, path: string): string {
  const absolute = resolve(folder, path);
  if (Buffer.byteLength(absolute) > SOCKET_PATH_BYTES_MAX) {
    const place = key === null ? section.place : section.valuePlace(key);
    const problem = `a path of a socket has ${SOCKET_PATH_BYTES_MAX} bytes at most, and this is ${absolute}`;
    section.document.report(place, problem);
  }
  return absolute;
}
