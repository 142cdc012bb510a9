/**
 * The way out: the device that packets to the destination leave by, whether it can send from scattered pages, and who
 * listens in on it. Any of these makes the kernel copy what was lent, late and cold, without a word but COPIED.
 */
import { native } from '../../sys/binding.ts';
import type { LinkAnswer } from '../../wire/rtnetlink.ts';
import type { Destination } from '../destination.ts';
import { type Owner, readText, socketOwners } from '../files.ts';
import { type Check, type Result, result, type Surroundings } from '../finding.ts';
import { type PacketSocket, packetSockets, tapsSends } from '../proc.ts';

const IFF_LOOPBACK = 0x8;
const IFF_UP = 0x1;

/** Bits of ifFeatures(). */
const featureBits = {
  scatterGather: 1,
  transmitChecksum: 2,
  tcpSegmentation: 4,
  genericSegmentation: 8,
} as const;

type Features = Record<keyof typeof featureBits, boolean>;

/** The route's device, or why there is none to look at. */
type Way = { device: LinkAnswer; destination: Destination } | { skip: Result };

async function wayOut(surroundings: Surroundings): Promise<Way> {
  let destination: Destination;
  try {
    destination = await surroundings.destination();
  } catch {
    return { skip: result('skip', 'there is no way to look at: device.route says why') };
  }
  const { device, route } = destination;
  if (device === undefined) return { skip: result('skip', `packets end there: the route is ${route.type}`) };
  if (staysHere(destination)) {
    return { skip: result('skip', 'the destination is on this host, where everything is copied') };
  }
  return { device, destination };
}

function staysHere({ route, device }: Destination): boolean {
  return route.type === 'local' || ((device?.flags ?? 0) & IFF_LOOPBACK) !== 0;
}

async function route(surroundings: Surroundings): Promise<Result> {
  let destination: Destination;
  try {
    destination = await surroundings.destination();
  } catch (error) {
    return routeTrouble(error, surroundings.asked);
  }
  const { device, address, host } = destination;
  const to = host === undefined ? 'the default route' : host === address ? host : `${host} (${address})`;
  const data = {
    address: host === undefined ? null : address,
    device: device?.name ?? null,
    deviceIndex: device?.index ?? null,
    deviceType: device?.type ?? null,
    mtu: device?.mtu ?? null,
    source: destination.route.source ?? null,
    gateway: destination.route.gateway ?? null,
    routeType: destination.route.type,
  };
  if (device === undefined)
    return result('warn', `${to}: packets end in a ${destination.route.type} route`, { data });
  if (staysHere(destination)) {
    const found = `${to} is on this host: the kernel copies all that is sent there`;
    return result('warn', found, {
      remedy: 'name another host with --to; sends on this host are copied by default',
      data,
    });
  }
  const kind = device.type === undefined ? '' : ` (${device.type})`;
  const found = `${to} goes out by ${device.name}${kind}, MTU ${device.mtu}`;
  if ((device.flags & IFF_UP) === 0) return result('warn', `${found}, which is down`, { data });
  return result('ok', found, { data });
}

function routeTrouble(error: unknown, asked: boolean): Result {
  if (!(error instanceof Error) || !('code' in error)) throw error;
  const data = { code: error.code };
  if (asked) {
    const remedy = error.code === 'ENOTFOUND' ? 'check the name after --to, or give an address' : undefined;
    return result('fail', error.message, { remedy, data });
  }
  return result('skip', error.message, { remedy: 'name a host with --to', data });
}

async function offload(surroundings: Surroundings): Promise<Result> {
  const way = await wayOut(surroundings);
  if ('skip' in way) return way.skip;
  const { name } = way.device;
  const bits = native().ifFeatures(new TextEncoder().encode(name));
  if (bits < 0) return result('skip', `${name} does not tell what it can do (${bits})`);
  const features = Object.fromEntries(
    Object.entries(featureBits).map(([key, bit]) => [key, (bits & bit) !== 0]),
  ) as Features;
  const data = { device: name, ...features };
  const missing = [
    ...(features.scatterGather ? [] : ['scatter-gather']),
    ...(features.transmitChecksum ? [] : ['checksums']),
  ];
  if (missing.length === 0) {
    return result('ok', `${name} gathers from pages and makes the checksums`, { data });
  }
  return result('warn', `${name} lacks ${missing.join(' and ')}: the kernel copies every lent packet`, {
    remedy: `ethtool -K ${name} tx on sg on, if the device can`,
    data,
  });
}

async function taps(surroundings: Surroundings): Promise<Result> {
  const way = await wayOut(surroundings);
  if ('skip' in way) return way.skip;
  const text = readText('/proc/net/packet');
  if (text === undefined) return result('skip', 'no packet sockets in this kernel');
  const { name, index } = way.device;
  const listening = packetSockets(text).filter((socket) => tapsSends(socket, index));
  if (listening.length === 0)
    return result('ok', `nobody listens in on ${name}`, { data: { device: name, taps: [] } });
  const owners = socketOwners(listening.map(({ inode }) => inode));
  const listed = listening.map((socket) => describeTap(socket, owners.get(socket.inode)));
  const unknown = listening.some(({ inode }) => !owners.has(inode));
  return result(
    'warn',
    `${listening.length} packet socket${listening.length === 1 ? '' : 's'} on ${name}: ${listed.join(', ')}; ` +
      `while one is open the kernel copies every lent packet${unknown ? ' (root would see whose it is)' : ''}`,
    {
      remedy: 'end the capture (tcpdump, an agent, a DHCP client), or let it set PACKET_IGNORE_OUTGOING',
      data: {
        device: name,
        taps: listening.map((socket) => ({
          ...socket,
          pid: owners.get(socket.inode)?.pid ?? null,
          command: owners.get(socket.inode)?.command ?? null,
        })),
      },
    },
  );
}

function describeTap(socket: PacketSocket, owner: Owner | undefined): string {
  return owner === undefined ? `one of uid ${socket.user}` : `${owner.command} (pid ${owner.pid})`;
}

export const deviceChecks: readonly Check[] = [
  { id: 'device.route', title: 'Way to the destination', run: route },
  { id: 'device.offload', title: 'Scatter-gather and checksums', run: offload },
  { id: 'device.taps', title: 'Packet taps', run: taps },
];
