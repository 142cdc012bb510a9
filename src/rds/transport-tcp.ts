/** RDS over TCP: port 16385, TCP_NODELAY, keepalive 5 s / 5 s / 5, backlog 64, as rds_tcp does (net/rds/tcp.c). */
import { ZerotxError } from '../core/errors.ts';
import { addressText } from '../net/endpoint.ts';
import type { ZerocopyMode } from '../net/policy.ts';
import { TcpChannel, type TcpOptions } from '../net/tcp.ts';
import { listenTcp, refuseAtOnce } from '../net/tcp-listener.ts';
import { hasIpv6Address } from '../net/zones.ts';
import { RDS_TCP_PORT } from '../wire/rds.ts';
import type { SocketAddress } from '../wire/sockaddr.ts';
import type { TcpKey } from '../wire/tcp-keys.ts';
import { PeerLending } from './peer-lending.ts';
import { dialFromLane } from './source-port.ts';
import type { Channel, ChannelHandler, Transport } from './transport.ts';

const KEEP_ALIVE = { idleS: 5, intervalS: 5, count: 5 };
const BACKLOG = 64;

export interface TcpTransport extends Transport {
  /** What the zero-copy engines of this transport's connections did. */
  readonly lending: PeerLending;
}

export interface TcpTransportOptions {
  readonly mode: ZerocopyMode;
  readonly thresholdBytes?: number;
  /** What signs the segments of every connection (net/tcp-keys.ts). */
  readonly keys?: readonly TcpKey[];
}

export function tcpTransport(options: TcpTransportOptions): TcpTransport {
  const lending = new PeerLending(options.mode, options.thresholdBytes);
  /** Channels that are not closed yet, of either direction. */
  let connections = 0;
  const optionsFor = (remoteAddress: string): TcpOptions => ({
    ...options,
    counters: lending.with(remoteAddress),
    closed: () => {
      connections -= 1;
      lending.closed(remoteAddress);
    },
    keepAlive: KEEP_ALIVE,
    noDelay: true,
    unpacedLoopback: true,
  });
  const opened = (remoteAddress: string): void => {
    connections += 1;
    lending.opened(remoteAddress);
  };
  return {
    lending,
    listen(address, accepted, admits, failed) {
      const { keys = [] } = options;
      try {
        const options = { address, port: RDS_TCP_PORT, backlog: BACKLOG, keys };
        const accept = (fd: number, peer: SocketAddress): void => {
          const remote = { address: addressText(peer), port: peer.port };
          if (!admits(remote.address, connections)) {
            refuseAtOnce(fd);
            return;
          }
          const channel = TcpChannel.adopt(fd, remote, optionsFor(remote.address), unhandled);
          opened(remote.address);
          accepted(channel);
        };
        return listenTcp(options, accept, failed);
      } catch (error) {
        throw explained(error, address);
      }
    },
    dial(localAddress: string, remoteAddress: string, lane: number, handler: ChannelHandler): Channel {
      const remote = { address: remoteAddress, port: RDS_TCP_PORT };
      const tcp = optionsFor(remoteAddress);
      const channel = dialFromLane(lane, (port) =>
        TcpChannel.dial({ address: localAddress, port }, remote, tcp, handler),
      );
      opened(remoteAddress);
      return channel;
    },
  };
}

/** Until the lane takes the channel over, readiness is only remembered. */
const unhandled: ChannelHandler = { readable() {}, writable() {}, released() {} };

/** One clear sentence with the way out for what operators meet first. */
function explained(error: unknown, address: string): unknown {
  if (!(error instanceof ZerotxError)) return error;
  const details = { syscall: 'listen', address, port: RDS_TCP_PORT, cause: error };
  if (error.code === 'EADDRINUSE') {
    const text = `TCP port ${RDS_TCP_PORT} is taken on ${address}: another RDS node has it, or the kernel module rds_tcp (rmmod rds_tcp, or use another address)`;
    return new ZerotxError('EADDRINUSE', text, { ...details, next: 'fatal' });
  }
  if (error.code === 'EACCES') {
    const text = `this user may not listen at TCP port ${RDS_TCP_PORT}: the sysctl net.ipv4.ip_unprivileged_port_start is above it (lower it, or run with CAP_NET_BIND_SERVICE)`;
    return new ZerotxError('EACCES', text, { ...details, next: 'fatal' });
  }
  // EAFNOSUPPORT: the host was started without IPv6, so it has no such address either. ENODEV: the interface has gone.
  if (['EADDRNOTAVAIL', 'EAFNOSUPPORT', 'ENODEV'].includes(error.code)) {
    if (address.includes(':') && !hasIpv6Address()) {
      const text = `${address} cannot be opened: no interface of this host has an IPv6 address (the sysctl net.ipv6.conf.all.disable_ipv6, or ipv6.disable=1 at boot, switches them off)`;
      return new ZerotxError('EADDRNOTAVAIL', text, details);
    }
    const text = `${address} is not an address of this host: open an RdsNode with one that "ip address" lists`;
    return new ZerotxError('EADDRNOTAVAIL', text, details);
  }
  return error;
}
