/**
 * Where control sockets lie, and whether a folder may be trusted with one.
 *
 *   $XDG_RUNTIME_DIR/zerotx/4711.sock        the main thread of process 4711
 *   /tmp/zerotx-1000/4711.3.sock             its worker with threadId 3; there if the system gives users no folder
 *
 * Whoever looks for one may have another environment than the program (cron, su, sudo): it looks below its own XDG_RUNTIME_DIR, in
 * /run/user/<uid>, where that is on most systems, and in /tmp; root in those of all users, and wherever else such a socket is listened at
 * (control-listeners.ts).
 *
 * The folder is its owner's alone (0700). One that anybody else could have made, or could exchange for another, is refused, and
 * symbolic links are not followed: /tmp is open to everyone.
 */
import { type Dirent, lstatSync, mkdirSync, readdirSync, type Stats, unlinkSync } from 'node:fs';
import { dirname, isAbsolute, join } from 'node:path';
import { threadId } from 'node:worker_threads';
import { errnoOf, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { AF_UNIX, SOCK_STREAM } from '../sys/constants.ts';
import { encodeSockaddrUn } from '../wire/sockaddr.ts';
import { listeningFolders } from './control-listeners.ts';

const FOLDER_MODE = 0o700;
const STICKY = 0o1000;
const WRITABLE_BY_OTHERS = 0o022;
const ROOT = 0;
const TMP = '/tmp';
const RUN = '/run/user';

export interface ControlSocket {
  readonly pid: number;
  /** 0: the main thread. */
  readonly threadId: number;
  readonly path: string;
  /** Owner of the folder. */
  readonly uid: number;
}

export interface ControlFolder {
  readonly path: string;
  /** Whose programs have their sockets in it. */
  readonly uid: number;
  /** Why nothing in it may be asked: it is not there, or not to be trusted. */
  readonly refused?: string;
}

/** The path of this thread's socket; makes the folder if need be. Throws EPERM on one that is not to be trusted. */
export function ownSocketPath(): string {
  const uid = userId();
  const folder = runtimeFolder(uid) ?? join(TMP, `zerotx-${uid}`);
  makeFolder(folder, uid);
  const thread = threadId === 0 ? '' : `.${threadId}`;
  return join(folder, `${process.pid}${thread}.sock`);
}

/** Makes the folder, or finds it made; throws EPERM unless it belongs to `uid` and to nobody else. */
export function makeFolder(folder: string, uid: number): void {
  const parent = lstatSync(dirname(folder));
  const shared = (parent.mode & WRITABLE_BY_OTHERS) !== 0 && (parent.mode & STICKY) === 0;
  if (!parent.isDirectory() || shared || (parent.uid !== uid && parent.uid !== ROOT)) {
    throw untrusted(folder, `others may change ${dirname(folder)}`);
  }
  try {
    mkdirSync(folder, { mode: FOLDER_MODE });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  const why = distrust(lstatSync(folder), uid);
  if (why !== undefined) throw untrusted(folder, why);
}

/** Removes sockets of processes that are gone, which had no time to do it. */
export function removeStale(folder: string): void {
  for (const { path, pid } of socketsIn(folder, userId())) {
    // Both: a process of another PID namespace is not seen, and one of ours may be about to listen.
    if (!isAlive(pid) && isStale(path)) unlinkQuietly(path);
  }
}

/** Nobody listens at this path, though there is a socket. */
export function isStale(path: string): boolean {
  if (statOf(path)?.isSocket() !== true) return false;
  const fd = calls.socket(AF_UNIX, SOCK_STREAM);
  const result = native().connect(fd, encodeSockaddrUn(path));
  calls.close(fd);
  return result === -errnoOf('ECONNREFUSED');
}

export function unlinkQuietly(path: string): void {
  try {
    unlinkSync(path);
  } catch {
    // Somebody else did.
  }
}

/** Control sockets that this user may ask: its own; for root all. Some may be of processes that are gone. */
export function controlSockets(): ControlSocket[] {
  return controlFolders().flatMap(({ path, uid, refused }) =>
    refused === undefined ? socketsIn(path, uid) : [],
  );
}

/** Where controlSockets() looks, in this order; and why it does not, where it does not. Each folder once, by whichever name. */
export function controlFolders(): ControlFolder[] {
  const own = userId();
  const folders = new Map<string, number>();
  const runtime = process.env.XDG_RUNTIME_DIR;
  const inRuntime = runtime !== undefined && isAbsolute(runtime) ? join(runtime, 'zerotx') : undefined;
  // Root has it of somebody else after `sudo -E`.
  if (inRuntime !== undefined) folders.set(inRuntime, own === ROOT ? ownerOf(inRuntime) : own);
  const users = new Set([own]);
  if (own === ROOT) for (const user of numbers(RUN, /^(\d+)$/)) users.add(user);
  for (const user of users) folders.set(join(RUN, `${user}`, 'zerotx'), user);
  if (own === ROOT) for (const user of numbers(TMP, /^zerotx-(\d+)$/)) users.add(user);
  for (const user of users) {
    const folder = join(TMP, `zerotx-${user}`);
    if (user === own || statOf(folder) !== undefined) folders.set(folder, user);
  }
  const listeners = own === ROOT ? listeningFolders() : [];
  for (const folder of listeners) if (!folders.has(folder)) folders.set(folder, ownerOf(folder));
  const seen = new Set<string>();
  return [...folders].flatMap(([path, uid]) => {
    const stats = statOf(path);
    const file = stats === undefined ? path : `${stats.dev}:${stats.ino}`;
    if (seen.has(file)) return [];
    seen.add(file);
    const missing = path === inRuntime ? missingBecause(dirname(path), uid) : 'it is not there';
    const refused = stats === undefined ? missing : distrust(stats, uid);
    return { path, uid, ...(refused === undefined ? {} : { refused }) };
  });
}

/** After su(1) XDG_RUNTIME_DIR may be another user's. */
function missingBecause(runtime: string, uid: number): string {
  const owner = statOf(runtime)?.uid ?? uid;
  return owner === uid ? 'it is not there' : `XDG_RUNTIME_DIR belongs to uid ${owner}`;
}

function ownerOf(folder: string): number {
  return statOf(folder)?.uid ?? ROOT;
}

function socketsIn(folder: string, uid: number): ControlSocket[] {
  const stats = statOf(folder);
  if (stats === undefined || distrust(stats, uid) !== undefined) return [];
  return entries(folder).flatMap((entry) => {
    const [, pid, thread = '0'] = /^([1-9]\d{0,9})(?:\.([1-9]\d{0,9}))?\.sock$/.exec(entry.name) ?? [];
    if (pid === undefined || !entry.isSocket()) return [];
    return { pid: Number(pid), threadId: Number(thread), path: join(folder, entry.name), uid };
  });
}

/** Below XDG_RUNTIME_DIR, if that is this user's own: after sudo it may be somebody else's. */
function runtimeFolder(uid: number): string | undefined {
  const runtime = process.env.XDG_RUNTIME_DIR;
  if (runtime === undefined || !isAbsolute(runtime)) return undefined;
  const stats = statOf(runtime);
  return stats?.isDirectory() && stats.uid === uid ? join(runtime, 'zerotx') : undefined;
}

function distrust(stats: Stats, uid: number): string | undefined {
  if (!stats.isDirectory()) return 'it is not a directory';
  if (stats.uid !== uid) return `it belongs to uid ${stats.uid}`;
  const mode = stats.mode & 0o777;
  return mode === FOLDER_MODE ? undefined : `its mode is ${mode.toString(8)} and not 700`;
}

function untrusted(folder: string, why: string): ZerotxError {
  return new ZerotxError('EPERM', `no control socket in ${folder}: ${why}`);
}

function userId(): number {
  return process.geteuid?.() ?? ROOT;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code !== 'ESRCH';
  }
}

function statOf(path: string): Stats | undefined {
  try {
    return lstatSync(path);
  } catch {
    return undefined;
  }
}

function entries(folder: string): Dirent[] {
  try {
    return readdirSync(folder, { withFileTypes: true });
  } catch {
    return [];
  }
}

function numbers(folder: string, pattern: RegExp): number[] {
  return entries(folder).flatMap(({ name }) => {
    const digits = pattern.exec(name)?.[1];
    return digits === undefined ? [] : Number(digits);
  });
}
