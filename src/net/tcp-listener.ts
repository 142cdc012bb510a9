/**
 * A listening stream socket: accepts until there is nothing to accept, and is gentle when descriptors run out; and what becomes of
 * a descriptor that was accepted and that nobody serves.
 */
import { chmodSync, statSync, unlinkSync } from 'node:fs';
import { errnoError, errnoOf, type ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import {
  AF_INET,
  AF_INET6,
  AF_UNIX,
  EPOLLIN,
  IPPROTO_IPV6,
  IPV6_V6ONLY,
  SO_LINGER,
  SO_REUSEADDR,
  SO_REUSEPORT,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { decodeSockaddr, encodeSockaddrUn, SOCKADDR_UN_BYTES, type SocketAddress } from '../wire/sockaddr.ts';
import type { TcpKey } from '../wire/tcp-keys.ts';
import { setTcpKeys } from './tcp-keys.ts';
import { scopeIdOf } from './zones.ts';

export interface ListenerOptions {
  /** IP address and port, or the path of a Unix socket. */
  readonly address?: string;
  readonly port?: number;
  readonly path?: string;
  readonly backlog: number;
  readonly ipv6Only?: boolean;
  readonly reusePort?: boolean;
  /** Lets all users connect to a Unix socket, beyond what umask(2) leaves. */
  readonly readableAll?: boolean;
  readonly writableAll?: boolean;
  /** What signs the segments of the connections. */
  readonly keys?: readonly TcpKey[];
}

export interface Listener {
  /** Null for a Unix socket. */
  readonly address: SocketAddress | null;
  close(): void;
  ref(): void;
  unref(): void;
}

/** Peer of a Unix connection: it has no address. */
const NO_ADDRESS: SocketAddress = { address: '', port: 0, family: AF_UNIX, scopeId: 0 };
const EAGAIN = -errnoOf('EAGAIN');
const ECONNABORTED = -errnoOf('ECONNABORTED');
const EINTR = -errnoOf('EINTR');
/** Connections taken before other descriptors have their turn. */
const ACCEPTS_PER_TURN = 64;
/** Out of descriptors: try again then, instead of losing the edge. */
const RETRY_MS = 100;
/** struct linger { on, seconds }. */
const LINGER_ZERO = new Uint8Array(Int32Array.of(1, 0).buffer);

/**
 * Throws what bind(2) and listen(2) refuse. `accepted` owns the descriptors it is given; `failed` hears of each accept(2) that met an
 * error, mostly that there are no descriptors left (EMFILE, ENFILE), and will be tried again.
 */
export function listenTcp(
  options: ListenerOptions,
  accepted: (fd: number, peer: SocketAddress) => void,
  failed: (error: ZerotxError) => void = () => {},
): Listener {
  const { fd, address } = open(options);
  let closed = false;
  let retry: NodeJS.Immediate | NodeJS.Timeout | null = null;
  let refed = true;
  const sockaddr = new Uint8Array(SOCKADDR_UN_BYTES);
  const acceptAll = (): void => {
    let isOver = false;
    try {
      for (let i = 0; i < ACCEPTS_PER_TURN && !closed; i++) {
        const result = native().accept(fd, sockaddr);
        isOver = result === EAGAIN;
        if (isOver) return;
        if (result === ECONNABORTED || result === EINTR) continue;
        if (result < 0) {
          // EMFILE and its kind: the edge is used up, so come back by the clock.
          retry ??= setTimeout(again, RETRY_MS);
          if (!refed) retry.unref();
          failed(errnoError(-result, 'accept'));
          return;
        }
        accepted(result, address === null ? NO_ADDRESS : decodeSockaddr(sockaddr, sockaddr.byteLength));
      }
    } finally {
      // Also when a listener threw: the edge is used up, and those who wait raise none.
      if (!closed && !isOver) retry ??= setImmediate(again);
    }
  };
  const again = (): void => {
    retry = null;
    acceptAll();
  };
  let registration: Registration;
  try {
    registration = reactor().add(fd, EPOLLIN, acceptAll);
  } catch (error) {
    native().close(fd);
    if (options.path !== undefined) unlink(options.path);
    throw error;
  }
  return {
    address,
    close() {
      if (closed) return;
      closed = true;
      if (retry !== null) {
        clearTimeout(retry as NodeJS.Timeout);
        clearImmediate(retry as NodeJS.Immediate);
      }
      registration.remove();
      native().close(fd);
      if (options.path !== undefined) unlink(options.path);
    },
    ref() {
      refed = true;
      registration.ref();
    },
    unref() {
      refed = false;
      registration.unref();
    },
  };
}

function bindIp({ address = '0.0.0.0', port = 0, ipv6Only, reusePort, keys }: ListenerOptions): number {
  const isIpv6 = address.includes(':');
  const [host, zone] = address.split('%') as [string, string?];
  const fd = calls.socket(isIpv6 ? AF_INET6 : AF_INET, SOCK_STREAM);
  try {
    calls.setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (reusePort === true) calls.setOption(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (isIpv6) calls.setOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, ipv6Only === true ? 1 : 0);
    calls.bind(fd, host, port, scopeIdOf(zone));
    if (keys !== undefined) setTcpKeys(fd, keys);
    return fd;
  } catch (error) {
    native().close(fd);
    throw error;
  }
}

/** Bound and listening; the address is null for a Unix socket. */
function open(options: ListenerOptions): { fd: number; address: SocketAddress | null } {
  const { path } = options;
  const fd = path === undefined ? bindIp(options) : bindPath(path, options);
  try {
    calls.listen(fd, options.backlog);
    return { fd, address: path === undefined ? calls.localAddress(fd) : null };
  } catch (error) {
    native().close(fd);
    throw error;
  }
}

/** As libuv does: the name of a server that is closed is free again. */
function unlink(path: string): void {
  if (path.startsWith('\0')) return;
  try {
    unlinkSync(path);
  } catch {
    // Somebody has removed or replaced it: not ours to mend.
  }
}

function bindPath(path: string, { readableAll, writableAll }: ListenerOptions): number {
  const sockaddr = encodeSockaddrUn(path);
  const fd = calls.socket(AF_UNIX, SOCK_STREAM);
  const result = native().bind(fd, sockaddr);
  if (result === 0) {
    const wanted = (readableAll ? 0o444 : 0) | (writableAll ? 0o222 : 0);
    try {
      if (wanted !== 0 && !path.startsWith('\0')) chmodSync(path, (statSync(path).mode & 0o777) | wanted);
    } catch (error) {
      native().close(fd);
      throw error;
    }
    return fd;
  }
  native().close(fd);
  throw errnoError(result, 'listen', { address: path });
}

/** Closes an accepted descriptor that nobody serves; returns the address it was for, unless it is a Unix one. */
export function refuse(fd: number, isIp: boolean): SocketAddress | null {
  const local = isIp ? calls.localAddress(fd) : null;
  native().close(fd);
  return local;
}

/** Closes an accepted descriptor by a reset, which leaves nothing behind: neither TIME_WAIT nor bytes to be delivered. */
export function refuseAtOnce(fd: number): void {
  native().setsockopt(fd, SOL_SOCKET, SO_LINGER, LINGER_ZERO);
  native().close(fd);
}
