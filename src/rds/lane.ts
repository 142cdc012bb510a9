/**
 * The shell around one RdsConnection: it owns the channel and the timer, and brings together the state machine, the peer that
 * all lanes share, and the two that move bytes, lane-reading.ts and lane-pump.ts.
 *
 *   channel events ─▶ lane ─▶ reading, pump ─▶ RdsConnection: receiver, sender
 *   timer          ─▶ connection.tick(), and a look at the acknowledgements
 *
 * TCP does not tell when the peer acknowledges, so while something is unacknowledged this asks: after each read and each
 * zero-copy completion, and from 1 ms on at growing intervals.
 */
import type { ZerotxError } from '../core/errors.ts';
import { EXTHDR_OFFSET } from '../wire/rds.ts';
import { RdsConnection } from './connection.ts';
import type { ConnectionHost } from './connection-host.ts';
import type { RdsCounters } from './counters.ts';
import type { ProcessDoubt } from './doubts.ts';
import { LanePump } from './lane-pump.ts';
import { LaneReading } from './lane-reading.ts';
import { type BufferPool, type ChunkShelf, type ReceiveBuffer, Staging } from './memory.ts';
import { LaneReceiver, type ReceiverHost } from './receiver.ts';
import { LaneSender, type MapSource } from './sender.ts';
import type { ReceiveTimes } from './socket-trace.ts';
import type { Channel, ChannelHandler, Runtime, Timer, Transport } from './transport.ts';

/** What a lane needs of its node. */
export interface LaneNode {
  readonly address: string;
  readonly runtime: Runtime;
  readonly transport: Transport;
  readonly counters: RdsCounters;
  readonly pool: BufferPool;
  readonly localMap: { readonly bits: Uint8Array; readonly isEmpty: boolean };
  readonly receiveTimes: ReceiveTimes;
  /** Where this process begins to number. */
  sequenceBase(): { hi: number; lo: number };
  warn(event: string, address: string, detail: string): void;
}

/** What a lane needs of its peer. */
export interface LaneHost {
  readonly address: string;
  readonly dials: boolean;
  readonly shelf: ChunkShelf;
  held(deltaBytes: number): void;
  /** Either bound is reached; nothing more is read until it is not. */
  isFull(): boolean;
  pause(): void;
  /** Too much waits to be read: lanes are not read. */
  readonly isPaused: boolean;
  /** Counts the changes of our own map. */
  readonly mapVersion: number;
  /** A probe ping came, or a probe pong; its extension headers are at `offset`. */
  probe(lane: Lane, isPing: boolean, bytes: Uint8Array, offset: number): void;
  /** The peer did not answer this lane's probe in time. */
  unanswered(lane: Lane): void;
  mayDial(lane: Lane): boolean;
  needed(lane: Lane): boolean;
  mayResend(lane: Lane): boolean;
  opensWithMap(lane: Lane): boolean;
  begins(lane: Lane): void;
  opening(lane: Lane): Uint8Array;
  patienceMs(): number;
  /** Something is queued for a lane that is not up. */
  waits(lane: Lane): void;
  deliver(
    lane: Lane,
    sport: number,
    dport: number,
    buffer: ReceiveBuffer,
    offset: number,
    length: number,
  ): void;
  /** What has come on lane 0 is older than what was just read. */
  readLane0(): void;
  /** A user's ping came. */
  pinged(lane: Lane, sport: number): void;
  /** The peer's map came, 8192 bytes. */
  congestion(map: Uint8Array): void;
  /** The lane is free: the inbound connection that is its next, if one waits, and whether others wait behind it. */
  takeWaiting(lane: Lane): { channel: Channel; more: boolean } | null;
  laneUp(): void;
  laneDown(reason: string): void;
  laneClosed(): void;
}

const ACK_POLL_MIN_MS = 1;
const ACK_POLL_MAX_MS = 64;

export class Lane implements ConnectionHost, MapSource, ReceiverHost, ChannelHandler {
  readonly address: string;
  /** Its number, 0 to 7. The peer changes it when the connection turns out to be another lane's. */
  index: number;
  readonly connection: RdsConnection;
  readonly #node: LaneNode;
  readonly #peer: LaneHost;
  readonly #reading: LaneReading;
  readonly #pump: LanePump;
  /** What makes it unclear which messages are duplicates. The peer sees to it. */
  doubt: ProcessDoubt | null = null;
  /** What came on lane 0 may be older than the next message here. Set by the peer, for other lanes, until there is one. */
  followsLane0 = false;
  /** Of the map that was last written to the current connection. */
  mapVersion = -1;
  #channel: Channel | null = null;
  #timer: Timer | null = null;
  #timerAtMs = Number.POSITIVE_INFINITY;
  #ackPollMs = ACK_POLL_MIN_MS;
  #ackPollAtMs = Number.POSITIVE_INFINITY;

  constructor(node: LaneNode, peer: LaneHost, index: number) {
    this.#node = node;
    this.#peer = peer;
    this.address = peer.address;
    this.index = index;
    this.#reading = new LaneReading(this, node, peer);
    this.#pump = new LanePump(this, node);
    const { counters, pool, runtime } = node;
    const staging = new Staging(pool, runtime.releases);
    const sender = new LaneSender(node.sequenceBase(), staging, counters, this);
    const receiver = new LaneReceiver(this, pool, runtime.releases, counters, peer.shelf);
    const { dials } = peer;
    const parts = { sender, receiver, counters };
    this.connection = new RdsConnection({ dials, random: runtime.random }, parts, this, runtime.now());
  }

  get channel(): Channel | null {
    return this.#channel;
  }

  /** Messages were queued by a socket. */
  queued(): void {
    if (this.connection.state === 'up') {
      this.wake();
      return;
    }
    this.connection.queued(this.#node.runtime.now());
    this.arm();
    this.#peer.waits(this);
  }

  /** What the peer's state allows may have changed. */
  look(): void {
    if (this.connection.state === 'up') this.wake();
    else this.connection.tick(this.#node.runtime.now());
    this.arm();
  }

  /** A send was refused because the peer's port is congested: only a connection can bring news of it. */
  wanted(): void {
    this.connection.wanted(this.#node.runtime.now());
    this.arm();
  }

  /** Our own map changed. */
  queueMap(): void {
    if (this.connection.state !== 'up') return;
    this.connection.sender.queueMap();
    this.wake();
  }

  /** Looks at what was acknowledged; returns the number of messages. */
  checkAcks(): number {
    const channel = this.#channel;
    if (channel === null || (!this.connection.sender.hasUnacked && this.connection.state !== 'draining'))
      return 0;
    const messages = this.connection.acked(channel.ackedBytes(), this.#node.runtime.now());
    if (messages > 0) this.#ackPollMs = ACK_POLL_MIN_MS;
    return messages;
  }

  /** Takes over an inbound connection: the lane is free. */
  adopt(channel: Channel): void {
    this.#channel = channel;
    this.mapVersion = -1;
    channel.handler = this;
    this.connection.adopted(this.#node.runtime.now());
    // What came before the handler was set raises no event any more.
    this.#reading.later();
  }

  /** Reading is not held back any more. */
  resumed(): void {
    this.connection.resumed(this.#node.runtime.now());
    this.#reading.later();
  }

  /** Sets the timer for what is due next. */
  arm(): void {
    const { runtime } = this.#node;
    const now = runtime.now();
    if (
      this.#channel !== null &&
      (this.connection.sender.hasUnacked || this.connection.state === 'draining')
    ) {
      if (this.#ackPollAtMs === Number.POSITIVE_INFINITY) this.#ackPollAtMs = now + this.#ackPollMs;
    } else {
      this.#ackPollAtMs = Number.POSITIVE_INFINITY;
      this.#ackPollMs = ACK_POLL_MIN_MS;
    }
    const at = Math.min(this.connection.deadline(), this.#ackPollAtMs);
    // A timer that fires too early costs a look; so an earlier one is kept, which spares most calls to set one.
    if (at >= this.#timerAtMs) return;
    this.#timer?.cancel();
    this.#timerAtMs = at;
    this.#timer = runtime.timer(() => this.#onTimer(), Math.max(0, at - now));
  }

  /** Ends the lane: drains the connection, then closed. */
  shutdown(): void {
    this.connection.shutdown(this.#node.runtime.now());
    this.arm();
  }

  // --- for its channel ---

  connected(): void {
    this.connection.dialed(this.#node.runtime.now());
    this.arm();
  }

  failed(error: ZerotxError): void {
    this.#dialFailed(error);
  }

  readable(): void {
    this.#reading.turn();
  }

  writable(): void {
    this.checkAcks();
    this.wake();
  }

  released(): void {
    this.checkAcks();
    this.arm();
  }

  // --- for its pump, its sender and its receiver ---

  writeFailed(result: number): void {
    this.#reading.writeFailed(result);
  }

  readMap(): Uint8Array {
    this.mapVersion = this.#peer.mapVersion;
    return this.#node.localMap.bits;
  }

  congestion(map: Uint8Array): void {
    this.#peer.congestion(map);
  }

  probe(isPing: boolean, bytes: Uint8Array, header: number): void {
    this.#peer.probe(this, isPing, bytes, header + EXTHDR_OFFSET);
  }

  ping(sport: number): void {
    this.#peer.pinged(this, sport);
  }

  data(sport: number, dport: number, buffer: ReceiveBuffer, offset: number, length: number): void {
    this.followsLane0 = false;
    this.#peer.deliver(this, sport, dport, buffer, offset, length);
  }

  held(deltaBytes: number): void {
    this.#peer.held(deltaBytes);
  }

  isFull(): boolean {
    return this.#peer.isFull();
  }

  // --- for its connection ---

  dial(): void {
    this.mapVersion = -1;
    try {
      this.#channel = this.#node.transport.dial(this.#node.address, this.address, this.index, this);
    } catch (error) {
      // Answered later, as every other failure: the connection is in the middle of asking.
      this.#node.runtime.defer(() => this.#dialFailed(error as ZerotxError));
    }
  }

  #dialFailed(error: ZerotxError): void {
    const now = this.#node.runtime.now();
    // A reset is how the dialler answers a poke, and may come before we see it established.
    const wasPoke = !this.connection.dials && (error.code === 'ECONNRESET' || error.code === 'EPIPE');
    if (wasPoke) this.connection.dialed(now);
    else {
      this.#node.warn('dial failed', this.address, error.message);
      this.connection.dialFailed(now);
    }
    this.arm();
  }

  adoptNext(): void {
    const next = this.#peer.takeWaiting(this);
    if (next === null) return;
    this.adopt(next.channel);
    // Only the newest can be alive: what the others still hold is read, and no data goes to them.
    if (next.more) this.connection.drop(this.#node.runtime.now(), 'the peer opened another connection');
  }

  halfClose(): void {
    this.#channel?.shutdownWrite();
  }

  hasUnread(): boolean {
    return (this.#channel?.unreadBytes() ?? 0) > 0;
  }

  ackedBytes(): number {
    return this.#channel?.ackedBytes() ?? 0;
  }

  readRest(): void {
    this.#reading.rest();
  }

  /** Before another lane goes on: what is there now. */
  catchUp(): void {
    this.#reading.catchUp();
  }

  heldBack(): boolean {
    return this.#peer.isPaused;
  }

  mayDial(): boolean {
    return this.#peer.mayDial(this);
  }

  needed(): boolean {
    return this.#peer.needed(this);
  }

  mayResend(): boolean {
    return this.#peer.mayResend(this);
  }

  opensWithMap(): boolean {
    return this.#peer.opensWithMap(this);
  }

  begins(): void {
    this.#peer.begins(this);
  }

  opening(): Uint8Array {
    return this.#peer.opening(this);
  }

  patienceMs(): number {
    return this.#peer.patienceMs();
  }

  unanswered(): void {
    this.#peer.unanswered(this);
  }

  peerUp(): void {
    this.#peer.laneUp();
  }

  peerDown(reason: string): void {
    this.#peer.laneDown(reason);
  }

  closeChannel(how: 'close' | 'reset'): void {
    const channel = this.#channel;
    this.#channel = null;
    this.#reading.end();
    this.#ackPollAtMs = Number.POSITIVE_INFINITY;
    if (how === 'close') channel?.close();
    else channel?.reset();
  }

  closed(): void {
    this.#timer?.cancel();
    this.#timer = null;
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    this.#peer.laneClosed();
  }

  wake(): void {
    this.#pump.wake();
  }

  #onTimer(): void {
    this.#timer = null;
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    const now = this.#node.runtime.now();
    if (now >= this.#ackPollAtMs) {
      this.#ackPollAtMs = Number.POSITIVE_INFINITY;
      if (this.checkAcks() === 0) this.#ackPollMs = Math.min(this.#ackPollMs * 2, ACK_POLL_MAX_MS);
    }
    const attempt = this.connection.state === 'dialing' ? this.#channel : null;
    this.connection.tick(now);
    if (attempt !== null && this.#channel !== attempt)
      this.#node.warn('dial failed', this.address, 'no answer: a filter on the way, or keys that differ');
    this.arm();
  }
}
