/** Descriptors for tests: pairs of sockets, and sending descriptors from one to the other. Calls throw, as those of sys/fds.ts. */
import { errnoError, errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import { AF_UNIX, SOCK_STREAM } from '../../src/sys/constants.ts';
import { MESSAGE_FDS_MAX } from '../../src/sys/fds.ts';

const EAGAIN = -errnoOf('EAGAIN');

// linux/stat.h
export const S_IFSOCK = 0o140000;
export const S_IFDIR = 0o040000;
export const S_IFCHR = 0o020000;

export interface ReceivedMessage {
  /** Bytes in the buffer; 0 at the end of a stream. */
  readonly bytes: number;
  readonly fds: readonly number[];
  /** Descriptors came that could not be taken; all of the message were closed. */
  readonly fdsLost: boolean;
}

/** Both ends of a pair of connected Unix sockets. */
export function socketPair(type: number = SOCK_STREAM): [number, number] {
  const out = new Int32Array(2);
  check(native().socketpair(AF_UNIX, type, out), 'socketpair');
  return [out[0] as number, out[1] as number];
}

/** Sends `bytes` (at least one on a stream) with descriptors, all ours and all still ours afterwards; bytes taken, or undefined for EAGAIN. */
export function sendWithFds(fd: number, bytes: Uint8Array, fds: readonly number[]): number | undefined {
  const sent = native().sendFds(fd, bytes, Int32Array.from(fds), fds.length);
  return sent === EAGAIN ? undefined : check(sent, 'sendmsg');
}

/** The next bytes, and the descriptors that came with them; undefined when none wait. */
export function receiveWithFds(fd: number, buffer: Uint8Array): ReceivedMessage | undefined {
  const fds = new Int32Array(1 + MESSAGE_FDS_MAX);
  const got = native().recvFds(fd, buffer, fds);
  if (got === EAGAIN) return undefined;
  const bytes = check(got, 'recvmsg');
  const count = fds[0] as number;
  return { bytes, fds: count > 0 ? Array.from(fds.subarray(1, 1 + count)) : [], fdsLost: count < 0 };
}

function check(result: number, syscall: string): number {
  if (result < 0) throw errnoError(result, syscall);
  return result;
}

/** TUN_F_... bits of a tap; EINVAL for some that the kernel does not know. */
export function setTapOffloads(fd: number, offloads: number): void {
  check(native().tapSetOffload(fd, offloads), 'TUNSETOFFLOAD');
}

/** Lets a queue of a multi-queue tap take part in the traffic, as it does to begin with, or not. */
export function setTapQueue(fd: number, on: boolean): void {
  check(native().tapSetQueue(fd, on), 'TUNSETQUEUE');
}
