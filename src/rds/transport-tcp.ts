/** RDS over TCP: port 16385, TCP_NODELAY, keepalive 5 s / 5 s / 5, backlog 64, as rds_tcp does (net/rds/tcp.c). */
import { ZerotxError } from '../core/errors.ts';
import { type ZerocopyCounters, zerocopyCounters } from '../net/counters.ts';
import type { ZerocopyMode } from '../net/policy.ts';
import { TcpChannel, type TcpOptions } from '../net/tcp.ts';
import { listenTcp } from '../net/tcp-listener.ts';
import { RDS_TCP_PORT } from '../wire/rds.ts';
import type { Channel, ChannelHandler, Transport } from './transport.ts';

const KEEP_ALIVE = { idleS: 5, intervalS: 5, count: 5 };
const BACKLOG = 64;

export interface TcpTransport extends Transport {
  /** What the zero-copy engines of this transport's connections did. */
  readonly zerocopy: ZerocopyCounters;
}

export function tcpTransport(options: { mode: ZerocopyMode; thresholdBytes?: number }): TcpTransport {
  const counters = zerocopyCounters();
  const tcp: TcpOptions = {
    ...options,
    counters,
    keepAlive: KEEP_ALIVE,
    noDelay: true,
    unpacedLoopback: true,
  };
  return {
    zerocopy: counters,
    listen(address, accepted) {
      try {
        return listenTcp({ address, port: RDS_TCP_PORT, backlog: BACKLOG }, (fd, peer) =>
          accepted(TcpChannel.adopt(fd, peer, tcp, unhandled)),
        );
      } catch (error) {
        throw explained(error, address);
      }
    },
    dial(localAddress: string, remoteAddress: string, handler: ChannelHandler): Channel {
      const local = { address: localAddress, port: 0 };
      return TcpChannel.dial(local, { address: remoteAddress, port: RDS_TCP_PORT }, tcp, handler);
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
  // EAFNOSUPPORT: the host was started without IPv6, so it has no such address either.
  if (error.code === 'EADDRNOTAVAIL' || error.code === 'EAFNOSUPPORT') {
    const text = `${address} is not an address of this host: open an RdsNode with one that "ip address" lists`;
    return new ZerotxError('EADDRNOTAVAIL', text, details);
  }
  return error;
}
