/**
 * TCP descriptors before a channel has them: dialled from an address of the caller's choice, and set up as the channel's options
 * say. What listens and accepts is tcp-listener.ts; sockets dial by themselves, one address after the other (connecting.ts).
 */
import { errnoError, errnoOf } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import {
  IPPROTO_TCP,
  SO_KEEPALIVE,
  SO_REUSEADDR,
  SO_ZEROCOPY,
  SOCK_STREAM,
  SOL_SOCKET,
  TCP_CONGESTION,
  TCP_KEEPCNT,
  TCP_KEEPIDLE,
  TCP_KEEPINTVL,
  TCP_NODELAY,
} from '../sys/constants.ts';
import { encodeSockaddr, splitZone } from '../wire/sockaddr.ts';
import type { TcpKey } from '../wire/tcp-keys.ts';
import { isLoopback } from './local.ts';
import type { TcpOptions } from './tcp.ts';
import { keysFor, setTcpKeys } from './tcp-keys.ts';
import { scopeIdOf } from './zones.ts';

const EINPROGRESS = -errnoOf('EINPROGRESS');
const RENO = Buffer.from('reno');

/**
 * A descriptor whose connect(2) from `local` (port 0: any) to `remote` has begun, its segments signed by `keys`. Throws what the
 * system refuses at once.
 */
export function dialTcp(
  local: { address: string; port: number },
  remote: { address: string; port: number },
  keys: readonly TcpKey[] | undefined,
): number {
  const { host, zone } = splitZone(remote.address);
  const target = encodeSockaddr(host, remote.port, scopeIdOf(zone));
  const from = splitZone(local.address);
  const fd = calls.socketFor(host, SOCK_STREAM);
  try {
    if (keys !== undefined) setTcpKeys(fd, keysFor(keys, host));
    // Otherwise a fixed source port would be refused while an earlier connection is in TIME_WAIT.
    calls.setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    calls.bind(fd, from.host, local.port, scopeIdOf(from.zone));
    const result = native().connect(fd, target);
    if (result < 0 && result !== EINPROGRESS) {
      throw errnoError(result, 'connect', { address: remote.address, port: remote.port });
    }
    return fd;
  } catch (error) {
    native().close(fd);
    throw error;
  }
}

/**
 * Sets what the options ask for. False if flagged calls would never complete: the kernel ignores the flag on a socket that refused
 * the option.
 */
export function configureTcp(fd: number, options: TcpOptions, remoteAddress: string): boolean {
  if (options.unpacedLoopback === true && isLoopback(remoteAddress)) {
    native().setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, RENO);
  }
  if (options.noDelay === true) calls.setOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  const keepAlive = options.keepAlive;
  if (keepAlive !== undefined) {
    calls.setOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    calls.setOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, keepAlive.idleS);
    calls.setOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, keepAlive.intervalS);
    calls.setOption(fd, IPPROTO_TCP, TCP_KEEPCNT, keepAlive.count);
  }
  return options.mode !== 'off' && native().setsockoptInt(fd, SOL_SOCKET, SO_ZEROCOPY, 1) === 0;
}
