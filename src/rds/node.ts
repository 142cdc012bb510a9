/**
 * RdsNode: one IP address of this host as an RDS end point, with its sockets, its lanes to peers and its congestion map.
 *
 * *Local* means an address that is open in this process: a message to it is copied over, without TCP. Every other
 * address, 127/8 included, is reached over TCP; so 127.0.0.1 and 127.0.0.2 in two processes are two hosts.
 */
import { EventEmitter } from 'node:events';
import { checkInteger } from '../core/arguments.ts';
import type { MemlockBudget } from '../core/budget.ts';
import { ZerotxError } from '../core/errors.ts';
import type { Cidr } from '../wire/cidr.ts';
import { sequenceBase } from '../wire/rds.ts';
import { compareIp } from '../wire/sockaddr.ts';
import { ipOf, ownHost, peerHost, type RdsHost } from './address.ts';
import { Admission, peersMax, refusalTexts } from './admission.ts';
import type { KernelNodeOptions } from './api.ts';
import { LocalMap } from './congestion.ts';
import { CookieQueue } from './cookies.ts';
import { type RdsCounters, rdsCounters } from './counters.ts';
import { type Memory, processEnvironment, type RdsEnvironment } from './environment.ts';
import { EventTurns } from './event-turns.ts';
import { LANES_MAX } from './handshake.ts';
import type { RdsInfo } from './info.ts';
import type { KernelRdsNode } from './kernel/node.ts';
import { allowedBlocks, tcpKeys } from './keys.ts';
import { BufferPool, POOLED_BYTES_MIN, ReceiveBuffer } from './memory.ts';
import { nodeInfo, QUEUE_LISTED_MAX } from './node-info.ts';
import {
  type CloseOptions,
  checkNodeOptions,
  checkSocketOptions,
  closeOptionsError,
  DEFAULT_BUFFER_BYTES,
  defaultLimits,
  type NodeLimits,
  type NodeOptions,
  type SocketOptions,
} from './options.ts';
import { Peer, type PeerNode } from './peer.ts';
import type { PeerLending } from './peer-lending.ts';
import { PeerTable } from './peers.ts';
import { copyPieces } from './pieces.ts';
import { ReceiveQueue } from './receive-queue.ts';
import { type MessageSource, RdsMessage } from './received.ts';
import { RdsSocket } from './socket.ts';
import { ReceiveTimes } from './socket-trace.ts';
import { type NodeStats, nodeStats } from './stats.ts';
import type { Channel, Listener, Runtime, Transport } from './transport.ts';
import { Warnings } from './warnings.ts';

export interface NodeEvents {
  /** A lane to a peer is usable. */
  peerUp: [{ address: string }];
  peerDown: [{ address: string; reason: string }];
  /** Noteworthy and rare, at most once per peer and kind in ten seconds: a refused connection, a broken protocol. */
  warning: [{ event: string; address: string; detail: string }];
  close: [];
}

/** Where a message goes: to a peer, or (null) to a node in this process. */
export interface Destination {
  readonly address: string;
  readonly peer: Peer | null;
  congested(port: number): boolean;
}

const CLOSE_MS = 6_000;

export class RdsNode extends EventEmitter<NodeEvents> implements PeerNode {
  readonly address: string;
  readonly runtime: Runtime;
  readonly transport: Transport;
  readonly budget: MemlockBudget;
  readonly memory: Memory;
  readonly lending: PeerLending;
  readonly counters: RdsCounters = rdsCounters();
  readonly limits: NodeLimits;
  readonly pool: BufferPool;
  readonly genNum: number;
  /** Lanes that peers are offered. */
  readonly lanes: number;
  readonly laneSeed: number;
  readonly localMap: LocalMap;
  /** Of the message that is being received: lanes write them if a socket wants them. */
  readonly receiveTimes: ReceiveTimes = new ReceiveTimes();
  readonly #environment: RdsEnvironment;
  readonly #host: RdsHost;
  readonly #admission: Admission;
  readonly #listener: Listener;
  readonly #sockets = new Map<number, RdsSocket>();
  /** Closed sockets of which something is still queued or lent. */
  readonly #leaving = new Set<RdsSocket>();
  readonly #peers: PeerTable;
  readonly #destinations = new Map<string, Destination>();
  readonly #events: EventTurns;
  readonly #warnings = new Warnings();
  #closing: Promise<void> | null = null;
  #allClosed: (() => void) | null = null;

  /** Programs use open(); tests bring an environment of their own. Throws EADDRINUSE, EADDRNOTAVAIL. */
  constructor(
    address: string,
    environment: RdsEnvironment,
    limits: Partial<NodeLimits> = {},
    allow: readonly Cidr[] | null = null,
    lanes: number = LANES_MAX,
  ) {
    super();
    this.#host = ownHost(address);
    this.address = this.#host.address;
    if (environment.nodes.has(this.address)) {
      throw new ZerotxError(
        'EADDRINUSE',
        `${this.address} is open in this process already: share that RdsNode`,
        {
          syscall: 'open',
          next: 'fatal',
        },
      );
    }
    this.#environment = environment;
    this.runtime = environment.runtime;
    this.#events = new EventTurns(this.runtime);
    this.transport = environment.transport;
    this.budget = environment.budget;
    this.memory = environment.memory;
    this.lending = environment.lending;
    this.limits = { ...defaultLimits, ...limits };
    this.#peers = new PeerTable({ ...this.limits, peers: peersMax(this.limits, lanes) });
    this.#admission = new Admission(allow, this.limits.connections, this.counters);
    this.pool = new BufferPool(this.limits.idlePoolBytes);
    this.lanes = lanes;
    this.laneSeed = Math.floor(this.runtime.random() * 2 ** 32);
    this.genNum = 1 + Math.floor(this.runtime.random() * 0xfffffffe);
    this.localMap = new LocalMap(() => this.#mapChanged());
    this.#listener = this.transport.listen(
      this.address,
      (channel) => this.#accepted(channel),
      (from, connections) => this.#admits(from, connections),
      (error) => {
        this.counters.accept_failed += 1;
        this.warn('accept failed', this.address, error.message);
      },
    );
    environment.nodes.set(this.address, this);
    // To the others this address is local from now on.
    for (const node of environment.nodes.values()) node.#destinations.clear();
  }

  get closed(): boolean {
    return this.#closing !== null;
  }

  get peers(): readonly Peer[] {
    return [...this.#peers.values()];
  }

  get heldBytes(): number {
    return this.#peers.heldBytes;
  }

  /** What this node did and holds, as plain numbers. */
  stats(): NodeStats {
    return nodeStats(this, this.#environment, [...this.#sockets.values()], [...this.#leaving]);
  }

  /** What RDS_INFO_* shows of a kernel's RDS; of each queue up to `limit` messages (default 1000). */
  info({ limit = QUEUE_LISTED_MAX }: { readonly limit?: number } = {}): RdsInfo {
    checkInteger('options.limit', limit, 0, Number.MAX_SAFE_INTEGER);
    return nodeInfo(this, [...this.#sockets.values()], limit);
  }

  /**
   * Opens `options.address`, an IP address of this host: RDS listens on its TCP port 16385. Rejects with EADDRINUSE,
   * EADDRNOTAVAIL, EINVAL (not the address of one host, no zone, no block, no key), ZTX_NO_TCP_KEYS, ZTX_NO_ADDON, or a TypeError or
   * RangeError for a wrong argument.
   */
  static open(options: NodeOptions): Promise<RdsNode>;
  /**
   * The kernel's own RDS instead, which must be loaded (kernel/node.ts); ESOCKTNOSUPPORT or EAFNOSUPPORT where it is not. What is
   * otherwise there: api.ts.
   */
  static open(options: KernelNodeOptions): Promise<KernelRdsNode>;
  static open(options: NodeOptions | KernelNodeOptions): Promise<RdsNode | KernelRdsNode>;
  static async open(options: NodeOptions | KernelNodeOptions): Promise<RdsNode | KernelRdsNode> {
    if (options?.transport === 'kernel')
      return (await import('./kernel/node.ts')).KernelRdsNode.open(options);
    checkNodeOptions(options);
    const { address, mode = 'auto', thresholdBytes } = options;
    const keys = tcpKeys(options.keys, ownHost(address).ip);
    const allow = allowedBlocks(options.allow, keys);
    const environment = processEnvironment(
      thresholdBytes === undefined ? { mode, keys } : { mode, keys, thresholdBytes },
    );
    const budget = options.budget ?? environment.budget;
    return new RdsNode(address, { ...environment, budget }, options.limits, allow, options.lanes);
  }

  /** Binds RDS port `port` (0: a free one). Throws EADDRINUSE, EINVAL (port 1 is the protocol's). Source: rds_bind. */
  bind(port: number, options: SocketOptions = {}): RdsSocket {
    checkSocketOptions(port, options);
    if (this.closed)
      throw new ZerotxError('ENOTCONN', 'bind ENOTCONN: the node is closed', { syscall: 'bind' });
    if (port === 1)
      throw new ZerotxError('EINVAL', 'bind EINVAL: port 1 is reserved for the handshake', {
        syscall: 'bind',
      });
    const bound = port === 0 ? this.#freePort() : port;
    if (this.#sockets.has(bound)) {
      const text = `bind EADDRINUSE: another socket of this node has RDS port ${bound}; 0 takes a free one`;
      throw new ZerotxError('EADDRINUSE', text, { syscall: 'bind', next: 'fatal' });
    }
    const limit = options.receiveBufferBytes ?? DEFAULT_BUFFER_BYTES;
    const received = new ReceiveQueue(bound, limit, this.localMap, options.congestionMonitor ?? false);
    const socket = new RdsSocket(this, bound, options, { received, cookies: new CookieQueue() });
    this.#sockets.set(bound, socket);
    return socket;
  }

  /**
   * Closes all sockets (with `drain`, after all they sent is acknowledged), says FIN to every peer, reads what they still send
   * (5 s at most), and frees the address. Resolves when all is closed; memory that the kernel still reads stays lent.
   */
  close(options: CloseOptions = {}): Promise<void> {
    const wrong = closeOptionsError(options);
    if (wrong !== null) return Promise.reject(wrong);
    this.#closing ??= this.#close(options);
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** For sockets: milliseconds since the epoch. */
  epochMs(): number {
    return this.#environment.epochMs();
  }

  /** For sockets: an address of a peer as messages and events name it. Throws EINVAL, EOPNOTSUPP. */
  canonical(address: string, syscall: string): string {
    return peerHost(this.#host, address, syscall).address;
  }

  /** For sockets: the way to an address. Throws EINVAL (no unicast address) and EOPNOTSUPP (IPv4 and IPv6 do not mix). */
  destination(address: string, syscall: string): Destination {
    const known = this.#destinations.get(address);
    if (known !== undefined) return known;
    const destination = this.#makeDestination(address, syscall);
    // Texts that name one peer in many ways must not fill the table.
    if (this.#destinations.size >= 4 * this.limits.peers) this.#destinations.clear();
    if (destination.peer !== null) this.#destinations.set(address, destination);
    return destination;
  }

  peer(address: string): Peer | undefined {
    return this.#peers.get(peerHost(this.#host, address, 'peer').address);
  }

  /** For sockets: a message to a node of this process; the payload is copied. */
  deliverLocally(
    destination: Destination,
    sport: number,
    dport: number,
    pieces: readonly Uint8Array[],
    length: number,
  ): void {
    const target = this.#environment.nodes.get(destination.address);
    this.counters.local_delivered += 1;
    target?.receiveLocally(this.address, sport, dport, pieces, length);
  }

  receiveLocally(
    from: string,
    sport: number,
    dport: number,
    pieces: readonly Uint8Array[],
    length: number,
  ): void {
    if (dport === 0) {
      // A ping: the pong comes from port 0 of this address, and not to a port that is full (rds_send_pong).
      this.counters.recv_ping += 1;
      const pinger = this.#environment.nodes.get(from);
      if (pinger?.localMap.congested(sport) === false) pinger.receiveLocally(this.address, 0, sport, [], 0);
      return;
    }
    const socket = this.#socketFor(dport);
    if (socket === null) return;
    const bytes = length < POOLED_BYTES_MIN ? Buffer.allocUnsafeSlow(length) : this.pool.acquire(length);
    copyPieces(pieces, bytes);
    const buffer = new ReceiveBuffer(bytes, this.pool, this.runtime.releases);
    const source: MessageSource = { address: from, held: (delta) => this.held(delta) };
    if (this.receiveTimes.wanted > 0) this.receiveTimes.at(this.runtime.now());
    socket.deliver(new RdsMessage(source, sport, buffer, 0, length));
    this.#events.dueLater(socket);
  }

  uncharge(pages: number): void {
    this.budget.uncharge(pages);
    const waiting = this.#environment.budgetWaiters;
    if (waiting.size === 0) return;
    for (const socket of waiting) socket.roomMade();
    waiting.clear();
  }

  /** The socket met ENOMEM: it hears of the next pages that come back to the budget. */
  waitsForBudget(socket: RdsSocket): void {
    this.#environment.budgetWaiters.add(socket);
  }

  /** Learns what peers have acknowledged by now. */
  checkAcks(): void {
    for (const peer of this.#peers.values()) peer.checkAcks();
  }

  unbind(socket: RdsSocket): void {
    if (this.#sockets.get(socket.port) !== socket) return;
    this.#sockets.delete(socket.port);
    this.#leaving.add(socket);
  }

  /** For sockets: closed, and nothing is queued or lent any more. */
  forget(socket: RdsSocket): void {
    this.#leaving.delete(socket);
  }

  cancel(socket: RdsSocket): void {
    for (const peer of this.#peers.values()) peer.cancel(socket);
  }

  /** The socket has events to emit at the end of this batch. */
  eventsDue(socket: RdsSocket): void {
    this.#events.due(socket);
  }

  // --- for peers and lanes ---

  sequenceBase(): { hi: number; lo: number } {
    return sequenceBase(this.#environment.epochMs());
  }

  deliver(
    peer: Peer,
    sport: number,
    dport: number,
    buffer: ReceiveBuffer,
    offset: number,
    length: number,
  ): void {
    const socket = this.#socketFor(dport);
    if (socket !== null) {
      socket.deliver(new RdsMessage(peer, sport, buffer.ref(), offset, length));
      this.eventsDue(socket);
    }
    if (this.receiveTimes.wanted > 0) this.receiveTimes.delivered();
  }

  held(delta: number): number {
    return this.#peers.held(delta);
  }

  paused(peer: Peer): void {
    this.counters.recv_held_back += 1;
    this.#peers.paused(peer);
  }

  congestionNews(): void {
    for (const socket of this.#sockets.values()) socket.congestionNews();
  }

  peerUp(peer: Peer): void {
    const event = { address: peer.address };
    this.#events.notify(() => {
      this.emit('peerUp', event);
      for (const socket of this.#sockets.values()) socket.emit('peerUp', event);
    });
  }

  peerDown(peer: Peer, reason: string): void {
    const event = { address: peer.address, reason };
    this.#events.notify(() => {
      this.emit('peerDown', event);
      for (const socket of this.#sockets.values()) socket.emit('peerDown', event);
    });
  }

  peerClosed(peer: Peer): void {
    this.#peers.delete(peer);
    this.#destinations.clear();
    // A send that waited for this peer gets a new one.
    for (const socket of this.#sockets.values()) socket.roomMade();
    if (this.#peers.size === 0) this.#allClosed?.();
  }

  warn(event: string, address: string, detail: string): void {
    const warning = this.#warnings.admit({ event, address, detail }, this.runtime.now());
    if (warning === null) return;
    this.#events.notify(() => this.emit('warning', warning));
  }

  async #close(options: CloseOptions): Promise<void> {
    this.#admission.isClosing = true;
    const sockets = [...this.#sockets.values(), ...this.#leaving];
    const results = await Promise.allSettled(sockets.map((socket) => socket.close(options)));
    this.#listener.close();
    this.#environment.nodes.delete(this.address);
    if (this.#peers.size > 0) {
      await new Promise<void>((resolve) => {
        // Each lane ends by itself within the drain time; this is the net below it.
        const timer = this.runtime.timer(resolve, CLOSE_MS);
        this.#allClosed = () => {
          timer.cancel();
          resolve();
        };
        for (const peer of [...this.#peers.values()]) peer.shutdown();
      });
    }
    this.emit('close');
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  /** Asked before there is a channel: who is refused leaves nothing behind. */
  #admits(address: string, connections: number): boolean {
    const reason = this.#admission.refuse({
      ip: ipOf(address),
      isLocal: address === this.address || this.#isForged(address),
      isPeer: this.#peers.has(address),
      connections,
      hasPlace: () => this.#peers.hasPlace(this.runtime.now()),
    });
    if (reason !== null) this.warn('connection refused', address, refusalTexts[reason]);
    return reason === null;
  }

  #accepted(channel: Channel): void {
    const peer = this.#peerTo(channel.remoteAddress);
    if (peer === null) channel.reset();
    else peer.accepted(channel);
  }

  /** A connection from an address of this process, whose node there did not open it: somebody else's. */
  #isForged(address: string): boolean {
    const node = this.#environment.nodes.get(address);
    return node !== undefined && !node.#peers.has(this.address);
  }

  #peerTo(address: string): Peer | null {
    const known = this.#peers.get(address);
    if (known !== undefined) return known;
    if (!this.#peers.makePlace(this.runtime.now(), this.counters)) return null;
    const peer = new Peer(this, address, compareIp(this.#host.ip, ipOf(address)) < 0);
    this.#peers.add(peer);
    return peer;
  }

  #makeDestination(text: string, syscall: string): Destination {
    const { ip, address } = peerHost(this.#host, text, syscall);
    const local = this.#peers.has(address) ? undefined : this.#environment.nodes.get(address);
    if (local !== undefined)
      return { address, peer: null, congested: (port) => local.localMap.congested(port) };
    if (!this.#admission.allows(ip)) {
      const why = `${address} is not in options.allow of ${this.address}`;
      throw new ZerotxError('EACCES', `${syscall} EACCES: ${why}`, { syscall, next: 'fatal' });
    }
    const peer = this.#peerTo(address);
    if (peer === null) {
      throw new ZerotxError(
        'ENOBUFS',
        `${syscall} ENOBUFS: already ${this.#peers.size} peers (limits.peers, and limits.connections for the lanes of each)`,
        { syscall },
      );
    }
    return { address, peer, congested: (port) => peer.map.congested(port) };
  }

  #socketFor(dport: number): RdsSocket | null {
    const socket = this.#sockets.get(dport);
    if (socket !== undefined) {
      this.counters.recv_delivered += 1;
      return socket;
    }
    this.counters.recv_drop_no_sock += 1;
    return null;
  }

  #freePort(): number {
    const first = 2 + Math.floor(this.runtime.random() * 65534);
    for (let i = 0; i < 65534; i++) {
      const port = 2 + ((first - 2 + i) % 65534);
      if (!this.#sockets.has(port)) return port;
    }
    throw new ZerotxError('EADDRINUSE', 'bind EADDRINUSE: every port is taken', { syscall: 'bind' });
  }

  #mapChanged(): void {
    for (const peer of this.#peers.values()) peer.queueMap();
    // Senders in this process look at the map itself; they, too, must hear of it.
    for (const node of this.#environment.nodes.values()) node.congestionNews();
  }
}
