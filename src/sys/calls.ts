/**
 * Set-up calls that throw: the native functions with text addresses, and errors instead of `-errno`.
 *
 * Only for what happens once per socket. The data path (sendv, readv, drainErrors, outq) calls native() itself, where a
 * negative number is an everyday answer and an Error object would cost more than the call.
 */
import { errnoError, errnoOf } from '../core/errors.ts';
import { decodeSockaddr, encodeSockaddr, SOCKADDR_BYTES, type SocketAddress } from '../wire/sockaddr.ts';
import { native } from './binding.ts';
import { AF_INET, AF_INET6 } from './constants.ts';

const EAGAIN = -errnoOf('EAGAIN');
const EINPROGRESS = -errnoOf('EINPROGRESS');

export interface Accepted {
  readonly fd: number;
  readonly peer: SocketAddress;
}

/** socket(2), non-blocking and close-on-exec. */
export function socket(domain: number, type: number, protocol = 0): number {
  return check(native().socket(domain, type, protocol), 'socket');
}

/** A socket of the family that `address` belongs to. */
export function socketFor(address: string, type: number, protocol = 0): number {
  return socket(address.includes(':') ? AF_INET6 : AF_INET, type, protocol);
}

export function bind(fd: number, address: string, port: number, scopeId = 0): void {
  const result = native().bind(fd, encodeSockaddr(address, port, scopeId));
  if (result < 0) throw errnoError(result, 'bind', { address, port });
}

/** True when connected at once, false when EPOLLOUT will tell; SO_ERROR then has the outcome. */
export function connect(fd: number, address: string, port: number, scopeId = 0): boolean {
  const result = native().connect(fd, encodeSockaddr(address, port, scopeId));
  if (result === EINPROGRESS) return false;
  if (result < 0) throw errnoError(result, 'connect', { address, port });
  return true;
}

export function listen(fd: number, backlog: number): void {
  check(native().listen(fd, backlog), 'listen');
}

/** The next connection, or undefined when none waits. */
export function accept(fd: number): Accepted | undefined {
  const out = new Uint8Array(SOCKADDR_BYTES);
  const accepted = native().accept(fd, out);
  if (accepted === EAGAIN) return undefined;
  return { fd: check(accepted, 'accept'), peer: decodeSockaddr(out, out.length) };
}

/** The address this end is bound to. */
export function localAddress(fd: number): SocketAddress {
  const out = new Uint8Array(SOCKADDR_BYTES);
  return decodeSockaddr(out, check(native().getsockname(fd, out), 'getsockname'));
}

/** The address of the other end; throws ENOTCONN when there is none. */
export function peerAddress(fd: number): SocketAddress {
  const out = new Uint8Array(SOCKADDR_BYTES);
  return decodeSockaddr(out, check(native().getpeername(fd, out), 'getpeername'));
}

export function setOption(fd: number, level: number, name: number, value: number): void {
  check(native().setsockoptInt(fd, level, name, value), 'setsockopt');
}

export function getOption(fd: number, level: number, name: number): number {
  return check(native().getsockoptInt(fd, level, name), 'getsockopt');
}

/** For options that are structures: fills `out` and returns the length written. */
export function getOptionBytes(fd: number, level: number, name: number, out: Uint8Array): number {
  return check(native().getsockopt(fd, level, name, out), 'getsockopt');
}

export function shutdown(fd: number, how: number): void {
  check(native().shutdown(fd, how), 'shutdown');
}

/** Closing twice, or closing what is not ours, throws EBADF: that is a bug, and it would hit somebody else's file. */
export function close(fd: number): void {
  check(native().close(fd), 'close');
}

function check(result: number, syscall: string): number {
  if (result < 0) throw errnoError(result, syscall);
  return result;
}
