/** Descriptors of stream ports: how they are made, and the options they get. */
import { errnoOf } from '../core/errors.ts';
import { isLocalAddress } from '../net/local.ts';
import { native } from '../sys/binding.ts';
import {
  AF_INET,
  AF_INET6,
  AF_UNIX,
  IPPROTO_TCP,
  SO_KEEPALIVE,
  SO_SNDBUF,
  SO_ZEROCOPY,
  SOCK_STREAM,
  SOL_SOCKET,
  TCP_KEEPCNT,
  TCP_KEEPIDLE,
  TCP_KEEPINTVL,
  TCP_NODELAY,
} from '../sys/constants.ts';
import { decodeSockaddr, encodeSockaddr, encodeSockaddrUn, SOCKADDR_BYTES } from '../wire/sockaddr.ts';

const EINPROGRESS = -errnoOf('EINPROGRESS');
/** A host that vanished is noticed within 20 s: another may have taken its place, and only one is served. */
const KEEPALIVE = { idleS: 10, intervalS: 5, count: 2 };

/** A descriptor whose connect(2) has begun, or `-errno`; `address` is an IP address. */
export function dialStream(path: string | null, address: string, port: number): number {
  const sys = native();
  const target = path === null ? encodeSockaddr(address, port) : encodeSockaddrUn(path);
  const family = path !== null ? AF_UNIX : address.includes(':') ? AF_INET6 : AF_INET;
  const fd = sys.socket(family, SOCK_STREAM, 0);
  if (fd < 0) return fd;
  const result = sys.connect(fd, target);
  if (result >= 0 || result === EINPROGRESS) return fd;
  sys.close(fd);
  return result;
}

/** Sets what can be set; whether the socket lends. */
export function configureStream(fd: number, isUnix: boolean, sendBufferBytes: number | undefined): boolean {
  const sys = native();
  if (sendBufferBytes !== undefined) sys.setsockoptInt(fd, SOL_SOCKET, SO_SNDBUF, sendBufferBytes);
  if (isUnix) return false;
  sys.setsockoptInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  sys.setsockoptInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  sys.setsockoptInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE.idleS);
  sys.setsockoptInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE.intervalS);
  sys.setsockoptInt(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE.count);
  return sys.setsockoptInt(fd, SOL_SOCKET, SO_ZEROCOPY, 1) === 0;
}

/** Whether the peer of a TCP socket is on this host; also if there is none any more. */
export function isPeerLocal(fd: number): boolean {
  const sockaddr = new Uint8Array(SOCKADDR_BYTES);
  const length = native().getpeername(fd, sockaddr);
  return length < 0 || isLocalAddress(decodeSockaddr(sockaddr, length).address);
}
