/**
 * `zerotx/rds`: reliable datagram sockets over TCP in user space, wire-compatible with Linux rds_tcp.
 *
 *   import { RdsNode } from 'zerotx/rds';
 *   const node = await RdsNode.open({ address: '127.0.0.1' });
 *   const socket = node.bind(4000, { zerocopy: true });
 *   const { copiedBytes } = await socket.send(buffer, { address: '127.0.0.2', port: 4000 });
 *
 * Importing this loads no addon; opening a node does.
 */
export { FixedBudget, type MemlockBudget } from '../core/budget.ts';
export { ZerotxError } from '../core/errors.ts';
export { StillLentError } from '../core/still-lent.ts';
export type { Outcome } from '../core/ubuf.ts';
export type { RdsCounters } from './counters.ts';
export type { LaneStats, NodeStats } from './stats.ts';
export { type NodeEvents, RdsNode } from './node.ts';
export type {
  AwaitSendOptions,
  CloseOptions,
  NodeLimits,
  NodeOptions,
  RdsAddress,
  ReceiveOptions,
  SendOptions,
  SocketOptions,
} from './options.ts';
export { type RdsCompletion, type RdsCongestionNews, RdsMessage, type RdsReceived } from './received.ts';
export { RdsSocket, type SocketEvents } from './socket.ts';
