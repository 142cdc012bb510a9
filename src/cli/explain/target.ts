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
  const programs = await askAll(
    controlSockets().filter((socket) => socket.pid === pid),
    ({ path }) => everything(path),
  );
  return programs.length > 0 ? { programs } : { nothing: whyNothing(pid) };
}

async function ofAddress(host: string, port: number): Promise<Found> {
  const names = new Set(
    (await lookup(host, { all: true })).flatMap(({ address }) => spellings(address, port)),
  );
  const known = controlSockets();
  const programs = await askAll(known, async ({ path }) => {
    for (const name of names) {
      const answer = await askSockets(path, name);
      if (answer.sockets.length > 0) return { ...answer, stats: (await askStats(path)).stats };
    }
    return undefined;
  });
  if (programs.length > 0) return { programs };
  const asked =
    known.length === 0
      ? `no program of ${process.geteuid?.() === 0 ? 'anybody' : 'yours'} shows its statistics`
      : 'no program that shows its statistics has it';
  return { nothing: `no socket with ${host}:${port} at either end: ${asked}; ${REMEDY}` };
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
  const [{ stats }, answer] = await Promise.all([askStats(path), askSockets(path)]);
  return { ...answer, stats };
}

/** Those that answer, and are who their socket's name says. */
async function askAll(
  sockets: readonly ControlSocket[],
  ask: (socket: ControlSocket) => Promise<Program | undefined>,
): Promise<Program[]> {
  const answers = await Promise.all(
    sockets.map(async (socket) => {
      try {
        return { socket, program: await ask(socket) };
      } catch {
        // Gone meanwhile, or long ago, or not willing: there may be others.
        return { socket, program: undefined };
      }
    }),
  );
  return answers.flatMap(({ socket, program }) => (program?.pid === socket.pid ? program : []));
}

function whyNothing(pid: number): string {
  try {
    process.kill(pid, 0);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ESRCH') return `there is no process ${pid}`;
    if (code === 'EPERM') return `process ${pid} belongs to another user: only root may look`;
  }
  return `process ${pid} does not show its statistics: ${REMEDY}`;
}
