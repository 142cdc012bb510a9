/**
 * Asking a live program for its statistics, over its control socket (control.ts).
 *
 *   for (const { path } of controlSockets()) console.log(await askSockets(path));
 *
 * Root may ask anybody's program, so an answer is read as one reads a stranger's: it has a limit, each field must be of its
 * kind, and who answers is asked of the kernel.
 */
import { errnoError, ZerotxError } from '../core/errors.ts';
import { LATENCY_BOUNDS_US } from '../core/histogram.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { AF_UNIX, SOCK_STREAM } from '../sys/constants.ts';
import { encodeSockaddrUn } from '../wire/sockaddr.ts';
import { PROTOCOL } from './control.ts';
import { type Credentials, LineConnection, peerCredentials } from './control-line.ts';
import { zerocopyCounters } from './counters.ts';
import type { PoolSums } from './pool-stats.ts';
import { type NetStats, type SocketStats, stats, type ZerocopyStats } from './stats.ts';

/** One thread of one program. */
export interface ControlAnswer {
  /** Of the process that listens, as the kernel says. 0: it is not visible from here. */
  readonly pid: number;
  readonly uid: number;
  readonly threadId: number;
}

export interface StatsAnswer extends ControlAnswer {
  readonly stats: NetStats;
}

export interface SocketsAnswer extends ControlAnswer {
  /** Those that copied most come first. */
  readonly sockets: readonly SocketStats[];
  /** Further ones, that the program did not list. */
  readonly leftOut: number;
}

const ANSWER_BYTES_MAX = 8 * 1024 * 1024;
const LIMIT_MS = 3000;
const TEXT_MAX = 256;

/** Any request of any door: who answered, and the fields of the answer as they came. Rejects as askSockets(). */
export async function askControl(
  path: string,
  request: Readonly<Record<string, unknown>>,
): Promise<{ readonly from: ControlAnswer; readonly body: Readonly<Record<string, unknown>> }> {
  const { peer, body } = await ask(path, request);
  return { from: answerOf(peer, body), body };
}

/** stats() of the program behind this socket. Rejects as askSockets(). */
export async function askStats(path: string): Promise<StatsAnswer> {
  const { peer, body } = await ask(path, { get: 'stats' });
  return { ...answerOf(peer, body), stats: netStats(body.stats) };
}

/**
 * socketStats() of the program behind this socket: of one `address`, as `192.0.2.1:80`, if it is given. Rejects with
 * ECONNREFUSED or ENOENT if no program listens there, EACCES if it is another user's, ETIMEDOUT if it does not
 * answer, EPROTO if what answers speaks another language.
 */
export async function askSockets(path: string, address?: string): Promise<SocketsAnswer> {
  const { peer, body } = await ask(path, { get: 'sockets', address });
  const { sockets } = body;
  if (!Array.isArray(sockets)) throw broken('sockets');
  return {
    ...answerOf(peer, body),
    sockets: sockets.map(socketStats),
    leftOut: num(body.leftOut, 'leftOut'),
  };
}

interface Reply {
  readonly peer: Credentials;
  readonly body: Fields;
}

function ask(path: string, request: object): Promise<Reply> {
  const fd = calls.socket(AF_UNIX, SOCK_STREAM);
  let peer: Credentials;
  try {
    const result = native().connect(fd, encodeSockaddrUn(path));
    if (result < 0) throw errnoError(result, 'connect', { address: path });
    peer = peerCredentials(fd);
  } catch (error) {
    calls.close(fd);
    return Promise.reject(error);
  }
  return new Promise((resolve, reject) => {
    let reply: Reply | undefined;
    const connection = new LineConnection(fd, {
      bytesMax: ANSWER_BYTES_MAX,
      limitMs: LIMIT_MS,
      refed: true,
      line: (text) => {
        try {
          reply = { peer, body: bodyOf(text) };
          connection.close();
        } catch (error) {
          reject(error);
          connection.close();
        }
      },
      ended: (error) => {
        if (reply !== undefined) resolve(reply);
        else reject(error ?? broken('a line'));
      },
    });
    connection.send(JSON.stringify(request), false);
  });
}

type Fields = Readonly<Record<string, unknown>>;

function bodyOf(text: string): Fields {
  let body: Fields;
  try {
    body = fields(JSON.parse(text), 'a line');
  } catch {
    throw broken('a line');
  }
  if (body.protocol !== PROTOCOL) throw broken(`protocol ${String(body.protocol).slice(0, TEXT_MAX)}`);
  if (body.error !== undefined) throw new ZerotxError('EPROTO', str(body.error, 'error'));
  return body;
}

function answerOf({ pid, uid }: Credentials, body: Fields): ControlAnswer {
  return { pid, uid, threadId: num(body.threadId, 'threadId') };
}

/** As many numbers as `like` has, by the same names. */
function numbersLike<T extends object>(value: unknown, like: T, name: string): Record<keyof T, number> {
  const found = fields(value, name);
  return Object.fromEntries(
    Object.keys(like).map((key) => [key, num(found[key], `${name}.${key}`)]),
  ) as Record<keyof T, number>;
}

function netStats(value: unknown): NetStats {
  const found = fields(value, 'stats');
  const { zerocopy: _zerocopy, pools, ...like } = stats();
  return {
    ...numbersLike(found, like, 'stats'),
    pools: numbersLike(found.pools, pools, 'stats.pools') as PoolSums,
    zerocopy: zerocopyStatsFrom(found.zerocopy),
  };
}

function socketStats(value: unknown): SocketStats {
  const found = fields(value, 'socket');
  const number = (name: string): number => num(found[name], name);
  return {
    id: number('id'),
    kind: oneOf(found.kind, ['tcp', 'unix', 'udp']),
    local: str(found.local, 'local'),
    remote: str(found.remote, 'remote'),
    mode: oneOf(found.mode, ['auto', 'force', 'off']),
    thresholdBytes: number('thresholdBytes'),
    lending: found.lending === true,
    bytesRead: number('bytesRead'),
    bytesWritten: number('bytesWritten'),
    zerocopy: zerocopyStatsFrom(found.zerocopy),
  };
}

/** For further doors, too. Throws EPROTO. */
export function zerocopyStatsFrom(value: unknown): ZerocopyStats {
  const found = fields(value, 'zerocopy');
  const { latency: _latency, copied, ...like } = zerocopyCounters();
  const latency = fields(found.latency, 'latency');
  if (!Array.isArray(latency.buckets) || latency.buckets.length > LATENCY_BOUNDS_US.length) {
    throw broken('latency');
  }
  return {
    ...numbersLike(found, like, 'zerocopy'),
    copied: numbersLike(found.copied, copied, 'copied'),
    latency: {
      count: num(latency.count, 'count'),
      sumUs: num(latency.sumUs, 'sumUs'),
      maxUs: num(latency.maxUs, 'maxUs'),
      buckets: latency.buckets.map((bucket) => {
        const { belowUs, count } = fields(bucket, 'bucket');
        return {
          belowUs: belowUs === null ? Number.POSITIVE_INFINITY : num(belowUs, 'belowUs'),
          count: num(count, 'count'),
        };
      }),
    },
  };
}

function fields(value: unknown, name: string): Fields {
  if (typeof value !== 'object' || value === null) throw broken(name);
  return value as Fields;
}

function num(value: unknown, name: string): number {
  if (typeof value !== 'number') throw broken(name);
  return value;
}

function str(value: unknown, name: string): string {
  if (typeof value !== 'string') throw broken(name);
  return value.slice(0, TEXT_MAX);
}

function oneOf<T extends string>(value: unknown, known: readonly T[]): T {
  const found = known.find((one) => one === value);
  if (found === undefined) throw broken(known.join(' or '));
  return found;
}

function broken(what: string): ZerotxError {
  return new ZerotxError('EPROTO', `the program's answer has no ${what} that can be read`);
}
