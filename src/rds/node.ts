/**
 * RdsNode: one IP address of this host as an RDS end point, with its sockets, its lanes to peers and its congestion map.
 *
 * *Local* means an address that is open in this process: a message to it is copied over, without TCP. Every other
 * address, 127/8 included, is reached over TCP; so 127.0.0.1 and 127.0.0.2 in two processes are two hosts.
 */
import { EventEmitter } from 'node:events';
import { checkString } from '../core/arguments.ts';
import type { MemlockBudget } from '../core/budget.ts';
import { Deque } from '../core/deque.ts';
import { ZerotxError } from '../core/errors.ts';
import { sequenceBase } from '../wire/rds.ts';
import { compareIp, formatIp, isMapped, isUnicast, isUnspecified, parseIp } from '../wire/sockaddr.ts';
import { LocalMap } from './congestion.ts';
import { CookieQueue } from './cookies.ts';
import { type RdsCounters, rdsCounters } from './counters.ts';
import { type Memory, processEnvironment, type RdsEnvironment } from './environment.ts';
import { type NodeStats, nodeStats } from './info.ts';
import { Lane, type LaneNode } from './lane.ts';
import { BufferPool, POOLED_BYTES_MIN, ReceiveBuffer } from './memory.ts';
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
import { ReceiveQueue } from './receive-queue.ts';
import { type MessageSource, RdsMessage } from './received.ts';
import { RdsSocket } from './socket.ts';
import type { Channel, Listener, Runtime, Transport } from './transport.ts';

export interface NodeEvents {
  /** A lane to a peer is usable. */
  peerUp: [{ address: string }];
  peerDown: [{ address: string; reason: string }];
  /** Noteworthy and rare, at most once per peer and kind in ten seconds: a refused connection, a broken protocol. */
  warning: [{ event: string; address: string; detail: string }];
  close: [];
}

/** Where a message goes: over a lane, or to a node in this process. */
export interface Destination {
  readonly address: string;
  readonly lane: Lane | null;
  congested(port: number): boolean;
}

const WARNING_INTERVAL_MS = 10_000;
const CLOSE_MS = 6_000;
const FORGET_AFTER_MS = 60_000;

export class RdsNode extends EventEmitter<NodeEvents> implements LaneNode {
  readonly address: string;
  readonly runtime: Runtime;
  readonly transport: Transport;
  readonly budget: MemlockBudget;
  readonly memory: Memory;
  readonly counters: RdsCounters = rdsCounters();
  readonly limits: NodeLimits;
  readonly pool: BufferPool;
  readonly genNum: number;
  readonly localMap: LocalMap;
  readonly #environment: RdsEnvironment;
  readonly #ip: Uint8Array;
  readonly #listener: Listener;
  readonly #sockets = new Map<number, RdsSocket>();
  /** Closed sockets of which something is still queued or lent. */
  readonly #leaving = new Set<RdsSocket>();
  readonly #lanes = new Map<string, Lane>();
  readonly #destinations = new Map<string, Destination>();
  readonly #due = new Set<RdsSocket>();
  /** Lanes that are not read because too much is held. */
  readonly #paused = new Set<Lane>();
  readonly #warned = new Map<string, number>();
  #heldBytes = 0;
  readonly #notices = new Deque<() => void>();
  readonly #emitDue = (): void => this.#emitEvents();
  #eventsScheduled = false;
  #closing: Promise<void> | null = null;
  #allClosed: (() => void) | null = null;

  /** Programs use open(); tests bring an environment of their own. Throws EADDRINUSE, EADDRNOTAVAIL. */
  constructor(address: string, environment: RdsEnvironment, limits: Partial<NodeLimits> = {}) {
    super();
    this.#ip = parseIp(address);
    this.address = formatIp(this.#ip);
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
    this.transport = environment.transport;
    this.budget = environment.budget;
    this.memory = environment.memory;
    this.limits = { ...defaultLimits, ...limits };
    this.pool = new BufferPool(this.limits.idlePoolBytes);
    this.genNum = 1 + Math.floor(this.runtime.random() * 0xfffffffe);
    this.localMap = new LocalMap(() => this.#mapChanged());
    this.#listener = this.transport.listen(this.address, (channel) => this.#accepted(channel));
    environment.nodes.set(this.address, this);
    // To the others this address is local from now on.
    for (const node of environment.nodes.values()) node.#destinations.clear();
  }

  get closed(): boolean {
    return this.#closing !== null;
  }

  get peers(): readonly Lane[] {
    return [...this.#lanes.values()];
  }

  get heldBytes(): number {
    return this.#heldBytes;
  }

  /** What this node did and holds, as plain numbers. */
  stats(): NodeStats {
    return nodeStats(this, this.#environment, [...this.#sockets.values()], [...this.#leaving]);
  }

  /**
   * Opens `options.address`, an IP address of this host: RDS listens on its TCP port 16385. Rejects with EADDRINUSE,
   * EADDRNOTAVAIL, EINVAL (not the address of one host), ZTX_NO_ADDON, or a TypeError or RangeError for a wrong argument.
   */
  static async open(options: NodeOptions): Promise<RdsNode> {
    checkNodeOptions(options);
    const { mode = 'auto', thresholdBytes } = options;
    const environment = processEnvironment(
      thresholdBytes === undefined ? { mode } : { mode, thresholdBytes },
    );
    const budget = options.budget ?? environment.budget;
    return new RdsNode(options.address, { ...environment, budget }, options.limits);
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

  /** For sockets: the way to an address. Throws EINVAL (no unicast address) and EOPNOTSUPP (IPv4 and IPv6 do not mix). */
  destination(address: string, syscall: string): Destination {
    const known = this.#destinations.get(address);
    if (known !== undefined) return known;
    const destination = this.#makeDestination(address, syscall);
    // Texts that name one peer in many ways must not fill the table.
    if (this.#destinations.size >= 4 * this.limits.peers) this.#destinations.clear();
    if (destination.lane !== null) this.#destinations.set(address, destination);
    return destination;
  }

  lane(address: string): Lane | undefined {
    return this.#lanes.get(formatIp(parseIp(address)));
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
      // A ping: the pong comes from port 0 of this address.
      this.counters.recv_ping += 1;
      this.#environment.nodes.get(from)?.receiveLocally(this.address, 0, sport, [], 0);
      return;
    }
    const socket = this.#socketFor(dport);
    if (socket === null) return;
    const bytes = length < POOLED_BYTES_MIN ? Buffer.allocUnsafeSlow(length) : this.pool.acquire(length);
    let at = 0;
    for (const piece of pieces) {
      bytes.set(piece, at);
      at += piece.byteLength;
    }
    const buffer = new ReceiveBuffer(bytes, this.pool, this.runtime.releases);
    const source: MessageSource = { address: from, held: (delta) => this.held(delta) };
    socket.deliver(new RdsMessage(source, sport, buffer, 0, length));
    this.#due.add(socket);
    if (this.#eventsScheduled) return;
    // A turn later, unlike what comes over the wire: two sockets that answer each other must not starve the event loop.
    this.#eventsScheduled = true;
    this.runtime.yield(this.#emitDue);
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
    for (const lane of this.#lanes.values()) lane.checkAcks();
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
    for (const lane of this.#lanes.values()) lane.connection.sender.cancel(socket);
  }

  /** The socket has events to emit at the end of this batch. */
  eventsDue(socket: RdsSocket): void {
    this.#due.add(socket);
    this.#scheduleEvents();
  }

  // --- for lanes ---

  sequenceBase(): { hi: number; lo: number } {
    return sequenceBase(this.#environment.epochMs());
  }

  deliver(
    lane: Lane,
    sport: number,
    dport: number,
    buffer: ReceiveBuffer,
    offset: number,
    length: number,
  ): void {
    const socket = this.#socketFor(dport);
    if (socket === null) return;
    socket.deliver(new RdsMessage(lane, sport, buffer.ref(), offset, length));
    this.eventsDue(socket);
  }

  held(delta: number): boolean {
    this.#heldBytes += delta;
    if (delta < 0 && this.#paused.size > 0) {
      // Resume at three quarters, so that lanes do not stop and go with every message.
      const nodeFull = this.#heldBytes * 4 > this.limits.heldBytes * 3;
      for (const lane of this.#paused) if (lane.resumeIfRoom(nodeFull)) this.#paused.delete(lane);
    }
    return this.#heldBytes > this.limits.heldBytes;
  }

  paused(lane: Lane): void {
    this.counters.recv_held_back += 1;
    this.#paused.add(lane);
  }

  congestionNews(): void {
    for (const socket of this.#sockets.values()) socket.congestionNews();
  }

  peerUp(lane: Lane): void {
    const event = { address: lane.address };
    this.#notify(() => {
      this.emit('peerUp', event);
      for (const socket of this.#sockets.values()) socket.emit('peerUp', event);
    });
  }

  peerDown(lane: Lane, reason: string): void {
    const event = { address: lane.address, reason };
    this.#notify(() => {
      this.emit('peerDown', event);
      for (const socket of this.#sockets.values()) socket.emit('peerDown', event);
    });
  }

  laneClosed(lane: Lane): void {
    this.#lanes.delete(lane.address);
    this.#paused.delete(lane);
    this.#destinations.clear();
    // A send that waited for this lane gets a new one.
    for (const socket of this.#sockets.values()) socket.roomMade();
    if (this.#lanes.size === 0) this.#allClosed?.();
  }

  warn(event: string, address: string, detail: string): void {
    const key = `${address} ${event}`;
    const now = this.runtime.now();
    const last = this.#warned.get(key);
    if (last !== undefined && now - last < WARNING_INTERVAL_MS) return;
    if (this.#warned.size >= this.limits.peers) this.#warned.clear();
    this.#warned.set(key, now);
    this.#notify(() => this.emit('warning', { event, address, detail }));
  }

  async #close(options: CloseOptions): Promise<void> {
    const sockets = [...this.#sockets.values(), ...this.#leaving];
    const results = await Promise.allSettled(sockets.map((socket) => socket.close(options)));
    this.#listener.close();
    this.#environment.nodes.delete(this.address);
    if (this.#lanes.size > 0) {
      await new Promise<void>((resolve) => {
        // Each lane ends by itself within the drain time; this is the net below it.
        const timer = this.runtime.timer(resolve, CLOSE_MS);
        this.#allClosed = () => {
          timer.cancel();
          resolve();
        };
        for (const lane of [...this.#lanes.values()]) lane.shutdown();
      });
    }
    this.emit('close');
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  #accepted(channel: Channel): void {
    const address = channel.remoteAddress;
    if (address === this.address || this.#isForged(address)) {
      this.counters.accept_refused += 1;
      this.warn('connection refused', address, 'it comes from an address that is open in this process');
      channel.reset();
      return;
    }
    const lane = this.#laneTo(address);
    if (lane === null || this.closed) {
      this.counters.accept_refused += 1;
      this.warn('connection refused', address, this.closed ? 'the node is closing' : 'too many peers');
      channel.reset();
      return;
    }
    lane.accepted(channel);
  }

  /** Makes room for a peer by forgetting one that has been away for long and has nothing queued. */
  #forgetPeer(): boolean {
    const now = this.runtime.now();
    for (const lane of this.#lanes.values()) {
      if (!lane.connection.isForgotten(now, FORGET_AFTER_MS)) continue;
      this.counters.peers_forgotten += 1;
      lane.shutdown();
      return true;
    }
    return false;
  }

  /** A connection from an address of this process, whose node there did not open it: somebody else's. */
  #isForged(address: string): boolean {
    const node = this.#environment.nodes.get(address);
    return node !== undefined && !node.#lanes.has(this.address);
  }

  #laneTo(address: string): Lane | null {
    const known = this.#lanes.get(address);
    if (known !== undefined) return known;
    if (this.#lanes.size >= this.limits.peers && !this.#forgetPeer()) return null;
    const lane = new Lane(this, address, compareIp(this.#ip, parseIp(address)) < 0);
    this.#lanes.set(address, lane);
    return lane;
  }

  #makeDestination(text: string, syscall: string): Destination {
    checkString('to.address', text);
    let ip: Uint8Array;
    try {
      ip = parseIp(text);
    } catch (cause) {
      throw new ZerotxError('EINVAL', `${syscall} EINVAL: to.address "${text}" is not an IP address`, {
        syscall,
        cause,
      });
    }
    if (!isUnicast(ip)) {
      const code = syscall === 'connect' && isUnspecified(ip) ? 'EDESTADDRREQ' : 'EINVAL';
      throw new ZerotxError(code, `${syscall} ${code}: to.address ${text} is not a unicast address`, {
        syscall,
      });
    }
    if (isMapped(ip) !== isMapped(this.#ip)) {
      throw new ZerotxError(
        'EOPNOTSUPP',
        `${syscall} EOPNOTSUPP: ${this.address} cannot reach ${text}: IPv4 and IPv6 do not mix`,
        {
          syscall,
        },
      );
    }
    const address = formatIp(ip);
    const local = this.#lanes.has(address) ? undefined : this.#environment.nodes.get(address);
    if (local !== undefined)
      return { address, lane: null, congested: (port) => local.localMap.congested(port) };
    const lane = this.#laneTo(address);
    if (lane === null) {
      throw new ZerotxError(
        'ENOBUFS',
        `${syscall} ENOBUFS: already ${this.limits.peers} peers (limits.peers)`,
        { syscall },
      );
    }
    return { address, lane, congested: (port) => lane.peerMap.congested(port) };
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
    for (const lane of this.#lanes.values()) lane.queueMap();
    // Senders in this process look at the map itself; they, too, must hear of it.
    for (const node of this.#environment.nodes.values()) node.congestionNews();
  }

  /** The program's handlers never run in the middle of our work: they may send, close, or throw. */
  #notify(emit: () => void): void {
    this.#notices.push(emit);
    this.#scheduleEvents();
  }

  #scheduleEvents(): void {
    if (this.#eventsScheduled) return;
    this.#eventsScheduled = true;
    this.runtime.defer(this.#emitDue);
  }

  #emitEvents(): void {
    this.#eventsScheduled = false;
    const due = [...this.#due];
    this.#due.clear();
    let next = 0;
    try {
      for (let emit = this.#notices.shift(); emit !== undefined; emit = this.#notices.shift()) emit();
      while (next < due.length) (due[next++] as RdsSocket).emitEvents();
    } finally {
      // A handler threw: the others still hear of theirs, and the error surfaces as uncaught.
      for (; next < due.length; next++) this.#due.add(due[next] as RdsSocket);
      if (this.#notices.length > 0 || this.#due.size > 0) this.#scheduleEvents();
    }
  }
}
