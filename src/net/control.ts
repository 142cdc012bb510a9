/**
 * The control socket: a live program shows its statistics to those who may see them. It is there only if the program calls
 * openControl(), or is started with ZEROTX_CONTROL=1, which does that when its first socket or server is made; `zerotx explain` asks.
 *
 * It only shows: nothing can be changed through it. It is a Unix socket in a folder of mode 0700 (control-folder.ts); whoever
 * connects must be of the same user or root (SO_PEERCRED). It does not keep the process alive, and its file goes
 * when the process exits; what a killed one left behind is removed by the next.
 *
 * The protocol: one line of JSON, one line back, and the connection is closed.
 *
 *   {"get":"stats"}                                  {"protocol":1,"pid":4711,"threadId":0,"stats":{...}}
 *   {"get":"sockets"}                                {"protocol":1,"pid":4711,"threadId":0,"sockets":[...],"leftOut":0}
 *   {"get":"sockets","address":"192.0.2.1:80"}       the same, of sockets with this address at either end
 *   {"get":"rds",...}                                what another door shows (showThroughControl())
 *   anything else                                    {"protocol":1,"error":"..."}
 *
 * `stats` is stats(), `sockets` are socketStats(): those that copied most come first, 500 at most. JSON has no infinity:
 * the bound of the last bucket of a histogram is null. A request has 1024 bytes at most and two seconds in all; eight clients
 * are served at a time, further ones are turned away.
 */

import { dirname, resolve } from 'node:path';
import { emitWarning } from 'node:process';
import { threadId } from 'node:worker_threads';
import { checkObject, checkString } from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { isStale, ownSocketPath, removeStale, unlinkQuietly } from './control-folder.ts';
import { LineConnection, peerCredentials } from './control-line.ts';
import { beforeFirstSocket, type SocketStats, socketStats, stats } from './stats.ts';
import { listenTcp } from './tcp-listener.ts';

export interface ControlOptions {
  /** Where to; the program answers for the folder then. Where `zerotx explain` looks for it, if left out. */
  readonly path?: string;
}

export interface Control {
  readonly path: string;
  close(): void;
}

export const PROTOCOL = 1;
const REQUEST_BYTES_MAX = 1024;
const LIMIT_MS = 2000;
const CLIENTS_MAX = 8;
const SOCKETS_MAX = 500;
const ROOT = 0;

/** What other doors of the package show, by the name that is asked for. */
const shown = new Map<string, (request: Readonly<Record<string, unknown>>) => object>();

/** Those of this thread, by path. */
const controls = new Map<string, Control>();

/**
 * Opens the control socket of this thread; once for each path, further calls return what there is. Throws EPERM if the folder
 * is not to be trusted, EADDRINUSE if another process listens there, and what mkdir(2) and bind(2) refuse.
 */
export function openControl(options: ControlOptions = {}): Control {
  checkObject('options', options);
  if (options.path !== undefined) checkString('options.path', options.path);
  const path = options.path === undefined ? ownSocketPath() : resolve(options.path);
  const known = controls.get(path);
  if (known !== undefined) return known;
  if (options.path === undefined) removeStale(dirname(path));
  // Of an earlier process with this number.
  if (isStale(path)) unlinkQuietly(path);
  const clients = new Set<LineConnection>();
  const listener = listenTcp({ path, backlog: CLIENTS_MAX }, (fd) => serve(fd, clients));
  listener.unref();
  const close = (): void => {
    if (!controls.delete(path)) return;
    process.removeListener('exit', close);
    listener.close();
    for (const client of clients) client.close();
  };
  process.on('exit', close);
  const control = { path, close };
  controls.set(path, control);
  return control;
}

/** From now on the answer to {"get":`name`} is what `show` returns for the request, or the message of what it throws. */
export function showThroughControl(
  name: string,
  show: (request: Readonly<Record<string, unknown>>) => object,
): void {
  shown.set(name, show);
}

function serve(fd: number, clients: Set<LineConnection>): void {
  if (clients.size >= CLIENTS_MAX || !mayAsk(fd)) {
    native().close(fd);
    return;
  }
  const client = new LineConnection(fd, {
    bytesMax: REQUEST_BYTES_MAX,
    limitMs: LIMIT_MS,
    refed: false,
    line: (text) => client.send(answer(text), true),
    ended: () => clients.delete(client),
  });
  clients.add(client);
}

function mayAsk(fd: number): boolean {
  const { uid } = peerCredentials(fd);
  return uid === ROOT || uid === process.geteuid?.();
}

/** The answer to a request, whatever it is. */
export function answer(text: string): string {
  const header = { protocol: PROTOCOL, pid: process.pid, threadId };
  try {
    return JSON.stringify({ ...header, ...respond(parse(text)) });
  } catch (error) {
    return JSON.stringify({ ...header, error: (error as Error).message });
  }
}

function parse(text: string): Record<string, unknown> {
  const request: unknown = JSON.parse(text);
  if (typeof request !== 'object' || request === null) throw new ZerotxError('EINVAL', 'not an object');
  return request as Record<string, unknown>;
}

function respond(request: Record<string, unknown>): object {
  const { get, address } = request;
  if (get === 'stats') return { stats: stats() };
  if (get !== 'sockets') {
    const show = typeof get === 'string' ? shown.get(get) : undefined;
    if (show === undefined) throw new ZerotxError('EINVAL', 'get: "stats" or "sockets"');
    return show(request);
  }
  const found = socketStats().filter(
    ({ local, remote }) => address === undefined || address === local || address === remote,
  );
  found.sort((a, b) => copiedBytes(b) - copiedBytes(a));
  return { sockets: found.slice(0, SOCKETS_MAX), leftOut: Math.max(0, found.length - SOCKETS_MAX) };
}

function copiedBytes({ zerocopy }: SocketStats): number {
  return zerocopy.fallbackBytes + zerocopy.kernelCopiedBytes;
}

/** Somebody wants to look at a program that knows nothing of it: that must not break it. */
function openOrWarn(): void {
  try {
    openControl();
  } catch (error) {
    emitWarning((error as Error).message, 'ZerotxWarning', 'ZTX_NO_CONTROL');
  }
}

if (process.env.ZEROTX_CONTROL === '1') beforeFirstSocket(openOrWarn);
