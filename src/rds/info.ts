/**
 * What RDS_INFO_* shows of a kernel's RDS (getsockopt(2) at level SOL_RDS; include/uapi/linux/rds.h), of a node: sockets,
 * connections, the messages in its queues, and its TCP sockets. Unlike the kernel's it shows every lane, and IPv6 and IPv4 alike.
 *
 * A snapshot, for observers: `rds-info` prints it, and nothing of RDS itself depends on it.
 */

/** One RDS socket. */
export interface SocketInfo {
  readonly address: string;
  readonly port: number;
  /** The default destination; an empty text, and 0, where there is none. */
  readonly peerAddress: string;
  readonly peerPort: number;
  /** Payload bytes that may be queued for sending, and for reading. */
  readonly sendBufferBytes: number;
  readonly receiveBufferBytes: number;
  /** Of the kernel's socket; 0 for a socket of this library, which has none. */
  readonly inode: number;
}

/** One lane of the connection between two addresses. */
export interface ConnectionInfo {
  readonly localAddress: string;
  readonly remoteAddress: string;
  readonly lane: number;
  readonly transport: 'tcp' | 'loopback' | 'ib';
  /** The sequence number of the next message sent, and the one expected next. */
  readonly nextTx: bigint;
  readonly nextRx: bigint;
  /** Something is being written; the transport is connecting; the lane carries messages. */
  readonly sending: boolean;
  readonly connecting: boolean;
  readonly connected: boolean;
  /** Lanes agreed with the peer, 0 while unknown; null where the kernel does not tell. */
  readonly npaths: number | null;
  /** The peer's generation number, 0 while unknown; null where the kernel does not tell. */
  readonly peerGeneration: number | null;
}

/** One message in a queue. In the receive queue `local` is the receiver; sequence numbers are not kept there, and are 0. */
export interface MessageInfo {
  readonly sequence: bigint;
  readonly bytes: number;
  readonly localAddress: string;
  readonly localPort: number;
  readonly remoteAddress: string;
  readonly remotePort: number;
}

/** One TCP connection. */
export interface TcpSocketInfo {
  readonly localAddress: string;
  readonly localPort: number;
  readonly remoteAddress: string;
  readonly remotePort: number;
  /** Bytes of the message being received that have not come yet: of its header, and of its payload. */
  readonly headerBytesLeft: number;
  readonly dataBytesLeft: number;
  /**
   * Positions in the stream sent, modulo 2^32: where the last message began, what the peer's TCP will have acknowledged when it
   * has all of it, and what it was last seen to have acknowledged. The kernel counts from TCP's initial sequence number; this library counts from 0, and
   * the three are equal when nothing is on its way.
   */
  readonly lastSentNext: number;
  readonly lastExpectedUna: number;
  readonly lastSeenUna: number;
}

export interface RdsInfo {
  /** By name: the kernel's first, in its order, then those of this library. */
  readonly counters: Readonly<Record<string, number>>;
  readonly sockets: readonly SocketInfo[];
  readonly connections: readonly ConnectionInfo[];
  /** Accepted and not written, and written and not acknowledged. */
  readonly sendQueue: readonly MessageInfo[];
  readonly retransmitQueue: readonly MessageInfo[];
  /** Received and not read. */
  readonly receiveQueue: readonly MessageInfo[];
  readonly tcpSockets: readonly TcpSocketInfo[];
  /** Messages of each queue that are not listed: there is a limit. */
  readonly leftOut: Readonly<Record<QueueName, number>>;
}

export type QueueName = 'sendQueue' | 'retransmitQueue' | 'receiveQueue';
