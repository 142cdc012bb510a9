/**
 * The file of a listening Unix socket: made where nobody listens, and removed only if it is still ours.
 *
 * A server that was killed leaves its file behind, which nobody can bind to again. Whether somebody listens there is found out
 * by connecting: refused means that it is stale. Access rights are set between bind(2) and listen(2), when a connection is
 * still refused; umask(2) would be the whole process's.
 */
import { chmodSync, lstatSync, type Stats, unlinkSync } from 'node:fs';
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { AF_UNIX, SOCK_STREAM } from '../sys/constants.ts';
import { encodeSockaddrUn } from '../wire/sockaddr.ts';

const EAGAIN = -errnoOf('EAGAIN');
const ECONNREFUSED = -errnoOf('ECONNREFUSED');
const ENOENT = -errnoOf('ENOENT');
/** A device has one front-end; the rest wait no longer than it takes to close them. */
const BACKLOG = 16;

export interface SocketFile {
  readonly fd: number;
  /** Removes the file, unless another took its place. The descriptor stays. */
  unlink(): void;
}

/** Throws EADDRINUSE when somebody listens there or the file is no socket, and what the system says otherwise. */
export function listenAt(path: string, mode: number): SocketFile {
  const address = encodeSockaddrUn(path);
  removeStale(path, address);
  const fd = calls.socket(AF_UNIX, SOCK_STREAM);
  try {
    const bound = native().bind(fd, address);
    if (bound < 0) throw errnoError(bound, 'bind', { address: path });
    chmodSync(path, mode);
    const made = lstatSync(path);
    calls.listen(fd, BACKLOG);
    return { fd, unlink: () => removeSame(path, made) };
  } catch (error) {
    calls.close(fd);
    throw error;
  }
}

/** A connected descriptor, or a negative errno: EAGAIN when the queue of the listener is full. */
export function connectTo(path: string): number {
  const fd = native().socket(AF_UNIX, SOCK_STREAM, 0);
  if (fd < 0) return fd;
  const result = native().connect(fd, encodeSockaddrUn(path));
  if (result === 0) return fd;
  calls.close(fd);
  return result;
}

function removeStale(path: string, address: Uint8Array): void {
  const before = lstatSync(path, { throwIfNoEntry: false });
  if (before === undefined) return;
  if (!before.isSocket()) throw inUse(path, 'is no socket');
  const fd = calls.socket(AF_UNIX, SOCK_STREAM);
  const result = native().connect(fd, address);
  calls.close(fd);
  if (result === 0 || result === EAGAIN) throw inUse(path, 'has somebody listening');
  if (result !== ECONNREFUSED && result !== ENOENT) throw errnoError(result, 'connect', { address: path });
  removeSame(path, before);
}

/** Removes the file at `path` if it is the one that `known` describes. */
function removeSame(path: string, known: Stats): void {
  const now = lstatSync(path, { throwIfNoEntry: false });
  if (now?.ino === known.ino && now.dev === known.dev && now.ctimeMs === known.ctimeMs) unlinkSync(path);
}

function inUse(path: string, why: string): ZerotxError {
  return new ZerotxError('EADDRINUSE', `bind EADDRINUSE ${path}: the file ${why}`, {
    syscall: 'bind',
    address: path,
  });
}
