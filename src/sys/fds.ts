/**
 * Descriptors that come from elsewhere or are handed on: set-up calls that throw, as those of calls.ts.
 *
 * What a peer sends over a Unix socket may be a descriptor of anything. Three things follow. Its flags are shared with the
 * peer, and nothing may rely on them. Nothing may be asked of it that its file system answers, as that may be a program of the
 * peer's (FUSE) that never does, be it fstat(2), fstatfs(2) or epoll_ctl(2): fileKind() is free of that. And closing it may
 * wait, too, for such a program, for a lingering socket, or for a lock of the peer's: closeReceived() leaves that to other threads.
 */
import { errnoError, errnoOf } from '../core/errors.ts';
import { native } from './binding.ts';
import { AF_UNIX, SO_DOMAIN, SOL_SOCKET } from './constants.ts';

const EAGAIN = -errnoOf('EAGAIN');

/** Descriptors that one message can carry (SCM_MAX_FD). */
export const MESSAGE_FDS_MAX = 253;

// linux/fcntl.h
export const F_SEAL_SEAL = 0x1;
export const F_SEAL_SHRINK = 0x2;
export const F_SEAL_GROW = 0x4;

// linux/stat.h
const S_IFSOCK = 0o140000;
export const S_IFREG = 0o100000;
const S_IFIFO = 0o010000;

/** A file in memory of `bytes` zeroes, sealed with `seals` (F_SEAL_... bits). */
export function memfd(name: string, bytes: number, seals = 0): number {
  return check(native().memfdCreate(new TextEncoder().encode(name), bytes, seals), 'memfd_create');
}

export function eventfd(): number {
  return check(native().eventfdCreate(), 'eventfd');
}

/** Makes a descriptor of node:fs ours, non-blocking and close-on-exec: only native().close() may close it afterwards. */
export function adopt(fd: number): number {
  return check(native().adopt(fd), 'fcntl');
}

/** The S_IF... kind, or 0 for what has none, like an eventfd. */
export function fileKind(fd: number): number {
  return check(native().fdStat(fd), 'statx');
}

/**
 * Whether a descriptor that a peer sent can be watched without waiting for whoever is behind it: an eventfd, a Unix socket, or
 * a pipe. Polling a file or a device may be a question to a program of the peer's (FUSE, CUSE). So may an epoll descriptor, which
 * polls all that it watches, under a lock that the peer can keep; and some other sockets (AF_VSOCK) poll under a lock, too.
 */
export function isSafeToWatch(fd: number): boolean {
  const kind = fileKind(fd);
  if (kind === S_IFSOCK) return native().getsockoptInt(fd, SOL_SOCKET, SO_DOMAIN) === AF_UNIX;
  return kind === S_IFIFO || isEventfd(fd);
}

export function isEventfd(fd: number): boolean {
  return fileKind(fd) === 0 && native().isEventfd(fd) === 1;
}

/** Has a descriptor that a peer sent, or has as well, closed by another thread, as it may take as long as the peer likes. */
export function closeReceived(fd: number): void {
  check(native().closeReceived(fd), 'close');
}

/** Throws, with the way out, when eventfds cannot be signalled here: for the start of whoever will have to. */
export function requireSignals(): void {
  const result = native().signalsReady();
  if (result === 0) return;
  const hint =
    result === EAGAIN
      ? 'the host allows no more asynchronous I/O: raise the sysctl fs.aio-max-nr'
      : 'guests are signalled by asynchronous I/O (CONFIG_AIO), which the kernel lacks or a seccomp filter forbids';
  throw errnoError(result, 'io_setup', { hint });
}

function check(result: number, syscall: string): number {
  if (result < 0) throw errnoError(result, syscall);
  return result;
}
