/** Making, naming and connecting UDP descriptors. Everything throws with the system call, the address and the port. */
import { errnoError, errnoOf } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import {
  AF_INET,
  AF_INET6,
  IPPROTO_IPV6,
  IPV6_V6ONLY,
  SO_RCVBUF,
  SO_REUSEADDR,
  SO_REUSEPORT,
  SO_SNDBUF,
  SOCK_DGRAM,
  SOL_SOCKET,
} from '../sys/constants.ts';
import type { ResolvedUdpOptions } from './udp-options.ts';
import { sockaddrOf, type UdpType } from './udp-target.ts';

const EINVAL = -errnoOf('EINVAL');

/** A socket bound to `ip` and `port`; 0: a port of the kernel's choice. */
export function openUdp(options: ResolvedUdpOptions, ip: string, port: number): number {
  const { type, reuseAddr, reusePort, ipv6Only, recvBufferSize, sendBufferSize } = options;
  const sockaddr = sockaddrFor(type, ip, port, 'bind');
  const fd = calls.socket(type === 'udp4' ? AF_INET : AF_INET6, SOCK_DGRAM);
  try {
    if (reuseAddr) calls.setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (reusePort) calls.setOption(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (type === 'udp6' && ipv6Only) calls.setOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    const result = native().bind(fd, sockaddr);
    if (result < 0) throw errnoError(result, 'bind', { address: ip, port });
    if (recvBufferSize > 0) calls.setOption(fd, SOL_SOCKET, SO_RCVBUF, recvBufferSize);
    if (sendBufferSize > 0) calls.setOption(fd, SOL_SOCKET, SO_SNDBUF, sendBufferSize);
    return fd;
  } catch (error) {
    calls.close(fd);
    throw error;
  }
}

/** Fixes the peer. */
export function connectUdp(fd: number, type: UdpType, ip: string, port: number): void {
  const result = native().connect(fd, sockaddrFor(type, ip, port, 'connect'));
  if (result < 0) throw errnoError(result, 'connect', { address: ip, port });
}

export function disconnectUdp(fd: number): void {
  const result = native().abort(fd);
  if (result < 0) throw errnoError(result, 'connect');
}

function sockaddrFor(type: UdpType, ip: string, port: number, syscall: string): Uint8Array {
  const sockaddr = sockaddrOf(type, ip, port);
  if (sockaddr === undefined) throw errnoError(EINVAL, syscall, { address: ip, port });
  return sockaddr;
}
