/** Whom `zerotx explain` is about, and asking them: all threads of a process, or those with a socket of an address. */
import { lookup } from 'node:dns/promises';
import { isIPv6 } from 'node:net';
import {
  askSockets,
  askStats,
  type ControlSocket,
  controlSockets,
  type SocketsAnswer,
  type StatsAnswer,
} from '../../net/index.ts';
import { askRdsLending, type NodeLending } from '../../rds/index.ts';
import { lookedIn } from '../control-places.ts';
import { RDS_TCP_PORT } from './rds.ts';

export type Target =
  | { readonly kind: 'process'; readonly pid: number }
  | { readonly kind: 'address'; readonly host: string; readonly port: number }
  /** A control socket at a place of the program's choice. */
  | { readonly kind: 'path'; readonly path: string };

/** One thread of a program. */
export interface Program {
  readonly pid: number;
  readonly uid: number;
  readonly threadId: number;
  readonly stats: StatsAnswer['stats'];
  readonly sockets: SocketsAnswer['sockets'];
  readonly leftOut: number;
  readonly rds: readonly NodeLending[];
}

/** What was found, or why there is nothing and what to do about it. */
export type Found = { readonly programs: readonly Program[] } | { readonly nothing: string };

const REMEDY = 'start it with ZEROTX_CONTROL=1, or let it call openControl() of zerotx/net';
const PID_MAX = 2 ** 22;
const PORT_MAX = 65_535;

/** Undefined for what is none of them. */
export function parseTarget(text: string): Target | undefined {
  if (text.includes('/')) return { kind: 'path', path: text };
  if (/^\d+$/.test(text)) {
    const pid = Number(text);
    return pid > 0 && pid <= PID_MAX ? { kind: 'process', pid } : undefined;
  }
  const [, bracketed, plain, digits] = /^(?:\[([0-9a-f:.]+)\]|([^:[\]]+)):(\d{1,5})$/i.exec(text) ?? [];
  const host = bracketed ?? plain;
  const port = Number(digits);
  if (host === undefined || port === 0 || port > PORT_MAX) return undefined;
  return { kind: 'address', host, port };
}

export async function findPrograms(target: Target): Promise<Found> {
  switch (target.kind) {
    case 'process':
      return ofProcess(target.pid);
    case 'address':
      return ofAddress(target.host, target.port);
    case 'path':
      return { programs: [await everything(target.path)] };
  }
}

async function ofProcess(pid: number): Promise<Found> {
  const sockets = controlSockets().filter((socket) => socket.pid === pid);
  const failures: string[] = [];
  const programs = await askAll(sockets, ({ path }) => everything(path), failures);
  return programs.length > 0 ? { programs } : { nothing: whyNothing(pid, failures[0]) };
}

async function ofAddress(host: string, port: number): Promise<Found> {
  const addresses = (await lookup(host, { all: true })).map(({ address }) => address);
  const names = new Set(addresses.flatMap((address) => spellings(address, port)));
  const known = controlSockets();
  const programs = await askAll(known, async ({ path }) => {
    const rds = port === RDS_TCP_PORT ? withAddress(await nodesOf(path), addresses) : [];
    let answer: SocketsAnswer | undefined;
    for (const name of names) {
      answer = await askSockets(path, name);
      if (answer.sockets.length > 0) break;
    }
    if (answer === undefined || answer.sockets.length + rds.length === 0) return undefined;
    return { ...answer, stats: (await askStats(path)).stats, rds };
  });
  if (programs.length > 0) return { programs };
  const asked =
    known.length === 0
      ? `no program of ${process.geteuid?.() === 0 ? 'anybody' : 'yours'} shows its statistics`
      : 'no program that shows its statistics has it';
  return { nothing: `no socket with ${host}:${port} at either end: ${asked}; ${REMEDY}; ${lookedIn()}` };
}

/** As socketStats() writes an address: an IPv4 peer of an IPv6 socket is a mapped one. */
function spellings(address: string, port: number): string[] {
  if (!isIPv6(address)) return [`${address}:${port}`, `[::ffff:${address}]:${port}`];
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1];
  if (mapped !== undefined) return spellings(mapped, port);
  // Its canonical form.
  return [`${new URL(`http://[${address}]`).hostname}:${port}`];
}

async function everything(path: string): Promise<Program> {
  const [{ stats }, answer, rds] = await Promise.all([askStats(path), askSockets(path), nodesOf(path)]);
  return { ...answer, stats, rds };
}

/** None of a program that knows nothing of RDS. */
async function nodesOf(path: string): Promise<readonly NodeLending[]> {
  try {
    return (await askRdsLending(path)).nodes;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EPROTO') return [];
    throw error;
  }
}

/** Nodes at one of the addresses, and of other nodes the peers at them. */
function withAddress(nodes: readonly NodeLending[], addresses: readonly string[]): NodeLending[] {
  const isMeant = ({ address }: { readonly address: string }): boolean => addresses.includes(address);
  return nodes.flatMap((node) => {
    if (isMeant(node)) return node;
    const peers = node.peers.filter(isMeant);
    return peers.length === 0 ? [] : { ...node, peers };
  });
}

/** Those that answer, and are who their socket's name says. */
async function askAll(
  sockets: readonly ControlSocket[],
  ask: (socket: ControlSocket) => Promise<Program | undefined>,
  failures: string[] = [],
): Promise<Program[]> {
  const answers = await Promise.all(
    sockets.map(async (socket) => {
      try {
        return { socket, program: await ask(socket) };
      } catch (error) {
        // Gone meanwhile, or long ago, or not willing: there may be others.
        failures.push(`${socket.path}: ${(error as Error).message}`);
        return { socket, program: undefined };
      }
    }),
  );
  return answers.flatMap(({ socket, program }) => (program?.pid === socket.pid ? program : []));
}

function whyNothing(pid: number, failure: string | undefined): string {
  try {
    process.kill(pid, 0);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ESRCH') return `there is no process ${pid}`;
    if (code === 'EPERM')
      return `process ${pid} belongs to another user: only that user and root may look (sudo)`;
  }
  if (failure !== undefined) return `process ${pid} does not answer (it is stopped, or busy): ${failure}`;
  return `process ${pid} does not show its statistics: ${REMEDY}; ${lookedIn()}`;
}
