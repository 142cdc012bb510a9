/** A node's state as plain numbers: counters, lanes, what is queued, held and lent. */
import { closerStats } from '../net/closer.ts';
import type { ZerocopyCounters } from '../net/counters.ts';
import type { ZerocopyMode } from '../net/policy.ts';
import { snapshot, type ZerocopyStats } from '../net/stats.ts';
import type { ConnectionState } from './connection.ts';
import type { RdsCounters } from './counters.ts';
import type { RdsEnvironment } from './environment.ts';
import type { RdsNode } from './node.ts';
import type { RdsSocket } from './socket.ts';

export interface LaneStats {
  readonly address: string;
  /** Its number, 0 to 7. */
  readonly lane: number;
  readonly state: ConnectionState;
  /** Bytes written to the current connection, and of these acknowledged by the peer's TCP. */
  readonly writtenBytes: number;
  readonly ackedBytes: number;
  /** Received bytes of its peer, over all lanes, that wait to be read. */
  readonly heldBytes: number;
}

/** What was lent to one peer, over all lanes and connections, or to a node of this process. */
export interface PeerStats {
  readonly address: string;
  readonly zerocopy: ZerocopyStats;
}

export interface NodeStats {
  readonly address: string;
  readonly counters: Readonly<RdsCounters>;
  /** When lent messages go to the kernel by MSG_ZEROCOPY, and the smallest pieces that do. */
  readonly mode: ZerocopyMode;
  readonly thresholdBytes: number;
  /** Of all peers, those that are gone included; `pinnedBytesMax` is the most of one peer. */
  readonly zerocopy: Readonly<ZerocopyCounters>;
  readonly peers: readonly PeerStats[];
  readonly lanes: readonly LaneStats[];
  readonly sockets: number;
  /** Payload bytes that sockets, open or closed, have queued or unacknowledged, and that are lent by programs. */
  readonly queuedBytes: number;
  readonly lentBytes: number;
  /** Received bytes that wait to be read. */
  readonly heldBytes: number;
  readonly idlePoolBytes: number;
  /** Closed connections whose pages the kernel still reads; those in quarantine did not let go even after an abort. */
  readonly closing: ReturnType<typeof closerStats>;
  readonly budget: { readonly usedPages: number; readonly limitPages: number };
}

export function nodeStats(
  node: RdsNode,
  environment: RdsEnvironment,
  sockets: readonly RdsSocket[],
  closedSockets: readonly RdsSocket[],
): NodeStats {
  let queuedBytes = 0;
  let lentBytes = 0;
  for (const socket of [...sockets, ...closedSockets]) {
    queuedBytes += socket.queuedBytes;
    lentBytes += socket.lentBytes;
  }
  return {
    address: node.address,
    counters: { ...node.counters },
    mode: environment.lending.mode,
    thresholdBytes: environment.lending.thresholdBytes,
    zerocopy: environment.lending.total(),
    peers: Array.from(environment.lending.peers(), ([address, counters]) => ({
      address,
      zerocopy: snapshot(counters),
    })),
    lanes: node.peers.flatMap((peer) =>
      peer.lanes.map((lane) => ({
        address: peer.address,
        lane: lane.index,
        state: lane.connection.state,
        writtenBytes: lane.connection.sender.writtenBytes,
        ackedBytes: lane.channel?.ackedBytes() ?? 0,
        heldBytes: peer.heldBytes,
      })),
    ),
    sockets: sockets.length,
    queuedBytes,
    lentBytes,
    heldBytes: node.heldBytes,
    idlePoolBytes: node.pool.idleBytes,
    closing: closerStats(),
    budget: { usedPages: environment.budget.used(), limitPages: environment.budget.limitPages },
  };
}
