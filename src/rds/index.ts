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
export type {
  KernelNodeOptions,
  KernelNodeStats,
  RdsNodeApi,
  RdsSocketApi,
  RdsSocketApiEvents,
} from './api.ts';
export {
  askRds,
  askRdsLending,
  askRdsList,
  type RdsLendingAnswer,
  type RdsListAnswer,
  type RdsSummaryAnswer,
} from './control.ts';
export type { RdsCounters } from './counters.ts';
export type { ConnectionInfo, MessageInfo, RdsInfo, SocketInfo, TcpSocketInfo } from './info.ts';
export type { InfoLists } from './info-records.ts';
export type { KernelRdsNode } from './kernel/node.ts';
export type { KernelRdsSocket } from './kernel/socket.ts';
export type { AoNodeKey, Md5NodeKey, NodeKey } from './keys.ts';
export type { NodeLending } from './lending-records.ts';
export { type NodeEvents, RdsNode } from './node.ts';
export type {
  AwaitReceiveOptions,
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
export type { LatencyPoint, RdsOptionValues, RdsSocketCommands, RdsSocketOptions } from './socket-options.ts';
export type { RdsLatency } from './socket-trace.ts';
export type { LaneStats, NodeStats, PeerStats } from './stats.ts';
