/** A node's RdsInfo: walks sockets, peers, lanes and their queues, and reads the headers of queued messages where they lie. */
import { dport, HEADER_BYTES, payloadLength, seqHi, seqLo, sport } from '../wire/rds.ts';
import type { RdsCounters } from './counters.ts';
import type { ConnectionInfo, MessageInfo, RdsInfo, SocketInfo, TcpSocketInfo } from './info.ts';
import type { Lane } from './lane.ts';
import type { Peer } from './peer.ts';
import type { Run } from './run.ts';
import type { RdsSocket } from './socket.ts';

/** Messages listed of each queue. */
export const QUEUE_LISTED_MAX = 1000;

const U32 = 2 ** 32;

/** What is walked. */
export interface InfoSource {
  readonly address: string;
  readonly counters: RdsCounters;
  readonly peers: readonly Peer[];
}

/** Lists up to `limit` messages of each queue; the others are counted. */
export function nodeInfo(source: InfoSource, sockets: readonly RdsSocket[], limit: number): RdsInfo {
  const sendQueue = new Listing(limit);
  const retransmitQueue = new Listing(limit);
  const receiveQueue = new Listing(limit);
  const connections: ConnectionInfo[] = [];
  const tcpSockets: TcpSocketInfo[] = [];
  for (const peer of source.peers) {
    for (const lane of peer.lanes) {
      const { queued, unacked } = lane.connection.sender.runs();
      for (const run of queued) listRun(sendQueue, source.address, peer.address, run);
      for (const run of unacked) listRun(retransmitQueue, source.address, peer.address, run);
      connections.push(connectionInfo(source.address, peer, lane));
      const tcp = tcpInfo(source.address, peer, lane);
      if (tcp !== null) tcpSockets.push(tcp);
    }
  }
  for (const socket of sockets) listReceived(receiveQueue, socket);
  return {
    counters: { ...source.counters },
    sockets: sockets.map(socketInfo),
    connections,
    sendQueue: sendQueue.records,
    retransmitQueue: retransmitQueue.records,
    receiveQueue: receiveQueue.records,
    tcpSockets,
    leftOut: {
      sendQueue: sendQueue.leftOut,
      retransmitQueue: retransmitQueue.leftOut,
      receiveQueue: receiveQueue.leftOut,
    },
  };
}

class Listing {
  readonly records: MessageInfo[] = [];
  leftOut = 0;
  readonly #limit: number;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get isFull(): boolean {
    return this.records.length >= this.#limit;
  }

  add(record: MessageInfo): void {
    this.records.push(record);
  }
}

function socketInfo(socket: RdsSocket): SocketInfo {
  const peer = socket.remote;
  return {
    address: socket.address,
    port: socket.port,
    peerAddress: peer?.address ?? '',
    peerPort: peer?.port ?? 0,
    sendBufferBytes: socket.sendBufferBytes,
    receiveBufferBytes: socket.receiveBufferBytes,
    inode: 0,
  };
}

function connectionInfo(localAddress: string, peer: Peer, lane: Lane): ConnectionInfo {
  const { state, sender, receiver } = lane.connection;
  return {
    localAddress,
    remoteAddress: peer.address,
    lane: lane.index,
    transport: 'tcp',
    nextTx: sequence(sender.queue.nextSeq),
    nextRx: sequence(receiver.rule.next),
    sending: state === 'up' && isSending(sender.runs().queued),
    connecting: state === 'dialing',
    connected: state === 'up',
    npaths: peer.npaths,
    peerGeneration: peer.generation,
  };
}

function isSending(queued: Iterable<Run>): boolean {
  return queued[Symbol.iterator]().next().done !== true;
}

/** Null without a connection. */
function tcpInfo(localAddress: string, peer: Peer, lane: Lane): TcpSocketInfo | null {
  const { channel } = lane;
  if (channel === null || lane.connection.state === 'dialing') return null;
  const { headerBytes, payloadBytes } = lane.connection.receiver.missing;
  const { startBytes, ackPointBytes } = lane.connection.sender.lastMessage();
  return {
    localAddress,
    localPort: channel.localPort,
    remoteAddress: peer.address,
    remotePort: channel.remotePort,
    headerBytesLeft: headerBytes,
    dataBytesLeft: payloadBytes,
    lastSentNext: startBytes % U32,
    lastExpectedUna: ackPointBytes % U32,
    lastSeenUna: channel.ackedBytes() % U32,
  };
}

function listRun(listing: Listing, localAddress: string, remoteAddress: string, run: Run): void {
  if (listing.isFull) {
    listing.leftOut += run.messages;
    return;
  }
  const { bytes } = run;
  let left = run.messages;
  // Only the last header of a run has its payload elsewhere.
  for (let at = run.start; left > 0; left--) {
    if (listing.isFull) {
      listing.leftOut += left;
      return;
    }
    const length = payloadLength(bytes, at);
    listing.add({
      sequence: sequence({ hi: seqHi(bytes, at), lo: seqLo(bytes, at) }),
      bytes: length,
      localAddress,
      localPort: sport(bytes, at),
      remoteAddress,
      remotePort: dport(bytes, at),
    });
    at += HEADER_BYTES + length;
  }
}

function listReceived(listing: Listing, socket: RdsSocket): void {
  for (const message of socket.unread()) {
    if (listing.isFull) {
      listing.leftOut += 1;
      continue;
    }
    listing.add({
      sequence: 0n,
      bytes: message.length,
      localAddress: socket.address,
      localPort: socket.port,
      remoteAddress: message.address,
      remotePort: message.port,
    });
  }
}

function sequence({ hi, lo }: { readonly hi: number; readonly lo: number }): bigint {
  return (BigInt(hi) << 32n) | BigInt(lo);
}
