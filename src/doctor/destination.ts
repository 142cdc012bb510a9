/**
 * Where packets to a host would leave: the kernel is asked over netlink, which knows policy rules and namespaces and
 * sends nothing.
 */
import { lookup } from 'node:dns/promises';
import { isIPv6 } from 'node:net';
import { errnoError, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { AF_NETLINK, SOCK_RAW } from '../sys/constants.ts';
import {
  decodeAnswer,
  encodeLinkQuery,
  encodeRouteQuery,
  type LinkAnswer,
  NETLINK_ROUTE,
  type RouteAnswer,
} from '../wire/rtnetlink.ts';
import type { Ip } from '../wire/sockaddr.ts';

export interface HostPort {
  readonly host: string;
  readonly port?: number;
}

export interface Destination {
  /** As it was asked for; undefined for the default route. */
  readonly host: string | undefined;
  readonly address: Ip;
  readonly route: RouteAnswer;
  readonly device: LinkAnswer | undefined;
}

/** RFC 5737 keeps it for documentation: no host has it, so only the default route leads there. */
const NOWHERE = '192.0.2.1';
/** The same of IPv6, by RFC 3849, for hosts without IPv4. */
const NOWHERE6 = '2001:db8::1';
const ANSWER_BYTES = 64 * 1024;

/** `host`, `host:port`, `[address]:port` or an address; throws EINVAL. */
export function parseHostPort(text: string): HostPort {
  const match = /^(?:\[([0-9a-f:.]+)\]|([^:[\]]+))(?::(\d{1,5}))?$/i.exec(text);
  // More than one colon without brackets: an IPv6 address as a whole.
  if (match === null && isIPv6(text)) return { host: text };
  const host = match?.[1] ?? match?.[2];
  const port = match?.[3] === undefined ? undefined : Number(match[3]);
  if (host === undefined || port === 0 || (port ?? 1) > 65_535) {
    throw new ZerotxError('EINVAL', `not a host or host:port: ${JSON.stringify(text)}`);
  }
  return port === undefined ? { host } : { host, port };
}

/** Resolves the name and asks for its route; without a host, for the default route. Throws what either says. */
export async function findDestination(to: HostPort | undefined): Promise<Destination> {
  if (to === undefined) return defaultDestination();
  return ask(to.host, await addressOf(to.host), to.port);
}

async function addressOf(host: string): Promise<Ip> {
  try {
    return (await lookup(host)).address;
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code !== 'ENOTFOUND') throw cause;
    throw new ZerotxError('ENOTFOUND', `there is no host of the name ${host}`, { cause });
  }
}

function defaultDestination(): Destination {
  for (const address of [NOWHERE, NOWHERE6]) {
    try {
      return ask(undefined, address, undefined);
    } catch (error) {
      if ((error as ZerotxError).code !== 'ENETUNREACH') throw error;
    }
  }
  throw new ZerotxError('ENETUNREACH', 'there is no default route');
}

function ask(host: string | undefined, address: Ip, port: number | undefined): Destination {
  const fd = calls.socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
  try {
    const route = exchange(fd, encodeRouteQuery(address, port, 1), 'route', address);
    const device = route.device === 0 ? undefined : exchange(fd, encodeLinkQuery(route.device, 2), 'link');
    return { host, address, route, device };
  } finally {
    calls.close(fd);
  }
}

type Answers = { route: RouteAnswer; link: LinkAnswer };

/** The kernel works on a request within sendmsg(): its answer is there when that returns. */
function exchange<K extends keyof Answers>(fd: number, query: Uint8Array, kind: K, address?: Ip): Answers[K] {
  const sys = native();
  const sent = sys.sendv(fd, [query], 1, 0);
  if (sent < 0) throw errnoError(sent, 'sendmsg');
  const buffer = new Uint8Array(ANSWER_BYTES);
  const length = sys.readv(fd, [buffer], 1);
  if (length < 0) throw errnoError(length, 'readv');
  const answer = decodeAnswer(buffer.subarray(0, length));
  if (answer.kind === 'error') {
    throw errnoError(answer.errno, kind, address === undefined ? {} : { address });
  }
  if (answer.kind !== kind)
    throw new ZerotxError('EPROTO', `netlink: a ${answer.kind} in answer to a ${kind}`);
  return answer as Answers[K];
}
