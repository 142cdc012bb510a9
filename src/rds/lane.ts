/**
 * The shell around one RdsConnection: it owns the channel and the timer, moves bytes, and keeps time.
 *
 *   channel.readable ─▶ readv into receiver.targets() ─▶ receiver.filled()
 *   wake()           ─▶ (end of batch) pump: sender.gather() ─▶ channel.send / sendLent ─▶ sender.wrote()
 *   timer            ─▶ connection.tick(), and a look at the acknowledgements
 *
 * TCP does not tell when the peer acknowledges, so while something is unacknowledged this asks: after each read and each
 * zero-copy completion, and from 1 ms on at growing intervals.
 */
import { errnoName, errnoOf, type ZerotxError } from '../core/errors.ts';
import { EXTHDR_OFFSET } from '../wire/rds.ts';
import { type ConnectionHost, RdsConnection } from './connection.ts';
import type { RdsCounters } from './counters.ts';
import { type BufferPool, type ChunkShelf, type ReceiveBuffer, Staging } from './memory.ts';
import { LaneReceiver, type ReceiverHost } from './receiver.ts';
import { LaneSender, type MapSource } from './sender.ts';
import { LaneTimes, type ReceiveTimes } from './socket-trace.ts';
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
  opening(lane: Lane): Uint8Array;
  patienceMs(): number;
  /** Something is queued for a lane that is not up. */
  waits(lane: Lane): void;
  deliver(sport: number, dport: number, buffer: ReceiveBuffer, offset: number, length: number): void;
  /** A user's ping came. */
  pinged(lane: Lane, sport: number): void;
  /** The peer's map came, 8192 bytes. */
  congestion(map: Uint8Array): void;
  /** The lane is free: the inbound connection that is its next, if one waits, and whether others wait behind it. */
  takeWaiting(lane: Lane): { channel: Channel; more: boolean } | null;
  laneUp(lane: Lane): void;
  laneDown(lane: Lane, reason: string): void;
  laneClosed(lane: Lane): void;
}

const EAGAIN = -errnoOf('EAGAIN');
/** Bytes moved before other lanes have their turn, and before the program's handlers have theirs. */
const TURN_BYTES = 4 * 1024 * 1024;
const HANDLERS_BYTES = 1024 * 1024;
const ACK_POLL_MIN_MS = 1;
const ACK_POLL_MAX_MS = 64;

export class Lane implements ConnectionHost, MapSource, ReceiverHost, ChannelHandler {
  readonly address: string;
  /** Its number, 0 to 7. The peer changes it when the connection turns out to be another lane's. */
  index: number;
  readonly connection: RdsConnection;
  readonly #node: LaneNode;
  readonly #peer: LaneHost;
  /** Of the map that was last written to the current connection. */
  mapVersion = -1;
  #channel: Channel | null = null;
  #times: LaneTimes | null = null;
  /** What a write to the current channel met, -errno; 0 while all is well. */
  #brokenBy = 0;
  #pumpScheduled = false;
  #readScheduled = false;
  /** Bytes read, and written, since others last had their turn. */
  #turnBytes = 0;
  #turnSentBytes = 0;
  #timer: Timer | null = null;
  #timerAtMs = Number.POSITIVE_INFINITY;
  #ackPollMs = ACK_POLL_MIN_MS;
  #ackPollAtMs = Number.POSITIVE_INFINITY;

  constructor(node: LaneNode, peer: LaneHost, index: number) {
    this.#node = node;
    this.#peer = peer;
    this.address = peer.address;
    this.index = index;
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
    this.#readLater();
  }

  /** Reading is not held back any more. */
  resumed(): void {
    this.connection.resumed(this.#node.runtime.now());
    this.#readLater();
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
    this.#turnBytes = 0;
    this.#read();
  }

  writable(): void {
    this.checkAcks();
    this.wake();
  }

  released(): void {
    this.checkAcks();
    this.arm();
  }

  // --- for its sender and its receiver ---

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
    this.#peer.deliver(sport, dport, buffer, offset, length);
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

  ackedBytes(): number {
    return this.#channel?.ackedBytes() ?? 0;
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
    this.#peer.laneUp(this);
  }

  peerDown(reason: string): void {
    this.#peer.laneDown(this, reason);
  }

  closeChannel(how: 'close' | 'reset'): void {
    const channel = this.#channel;
    this.#channel = null;
    this.#times = null;
    this.#brokenBy = 0;
    this.#ackPollAtMs = Number.POSITIVE_INFINITY;
    if (how === 'close') channel?.close();
    else channel?.reset();
  }

  closed(): void {
    this.#timer?.cancel();
    this.#timer = null;
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    this.#peer.laneClosed(this);
  }

  wake(): void {
    if (this.#pumpScheduled) return;
    this.#pumpScheduled = true;
    this.#node.runtime.defer(() => {
      this.#pumpScheduled = false;
      this.#pump();
    });
  }

  /** Writes what there is until the channel is full. */
  #pump(): void {
    const { sender } = this.connection;
    let moved = 0;
    while (this.connection.state === 'up') {
      const channel = this.#channel;
      if (channel === null || !channel.writable) break;
      const offer = sender.gather(channel, this.connection.gate);
      if (sender.memoryTaken) {
        this.#node.warn(
          'lent memory taken',
          this.address,
          'a lent buffer was detached or resized while it was sent',
        );
        this.connection.failed(this.#node.runtime.now(), 'lent memory was taken away');
        break;
      }
      if (offer === null) break;
      const n =
        offer.lent === null
          ? channel.send(offer.views, offer.count, offer.more)
          : channel.sendLent(offer.lent, offer.views, offer.count);
      if (n < 0) {
        this.#broken(n);
        break;
      }
      if (n === 0) {
        this.#node.counters.tcp_sndbuf_full += 1;
        break;
      }
      sender.wrote(n, channel);
      moved += n;
      if (moved >= HANDLERS_BYTES) {
        this.#pumpOn(moved);
        break;
      }
    }
    this.arm();
  }

  /**
   * Goes on behind the program's handlers: a fast receiver acknowledges while we write, and a program that hears of it now
   * fills the queue before it is empty (measured: a stream of 1 MiB messages otherwise stops for the next timer every time).
   */
  #pumpOn(moved: number): void {
    const { runtime } = this.#node;
    this.checkAcks();
    this.#turnSentBytes += moved;
    if (this.#turnSentBytes < TURN_BYTES) {
      runtime.defer(() => this.wake());
      return;
    }
    this.#turnSentBytes = 0;
    runtime.yield(() => this.wake());
  }

  /** A write met an error. What the peer sent before it is still to be read; the read then meets the error, too. */
  #broken(result: number): void {
    const before = this.#channel;
    this.#brokenBy = result;
    this.#read();
    if (this.#channel !== before || before === null) return;
    if (!this.#peer.isPaused) this.connection.failed(this.#node.runtime.now(), errnoName(result));
  }

  #readLater(): void {
    if (this.#readScheduled) return;
    this.#readScheduled = true;
    this.#node.runtime.yield(() => {
      this.#readScheduled = false;
      this.#turnBytes = 0;
      this.#read();
    });
  }

  #read(): void {
    const { receiver } = this.connection;
    for (;;) {
      const channel = this.#channel;
      if (channel === null || this.connection.state === 'dialing') break;
      // Paused or not, the first bytes are read: until they come the connection counts as not accepted by the peer. And so is
      // the rest of a message that has its memory already: else many beginnings could hold it all, and nothing would move.
      if (receiver.needsMemory && this.#peer.isFull()) this.#peer.pause();
      const isHeld = this.#peer.isPaused && this.connection.confirmed;
      if (isHeld) receiver.rest();
      if (isHeld && !receiver.hasBegun) break;
      const targets = receiver.targets(isHeld);
      const n = channel.readv(targets, targets.length);
      if (n <= 0) {
        if (n !== EAGAIN) this.#readEnded(n);
        break;
      }
      const now = this.#node.runtime.now();
      this.connection.receivedFirst(now);
      if (!this.#filled(n, now)) {
        this.#node.warn('protocol violation', this.address, 'announced a message over 1 MiB');
        this.connection.violated(now, 'the peer announced a message over 1 MiB');
        break;
      }
      if (this.#channel !== channel || !channel.readable) break;
      this.#turnBytes += n;
      if (this.#turnBytes >= TURN_BYTES) {
        this.#readLater();
        break;
      }
      if (receiver.deliveredLarge) {
        this.#readSoon();
        break;
      }
    }
    receiver.rest();
    this.checkAcks();
    this.arm();
  }

  /**
   * Goes on behind the program's handlers and the releases they cause: when they recycle what came, the next large message
   * is read into the same memory, so that one buffer serves a stream instead of one for each message of a turn.
   */
  #readSoon(): void {
    if (this.#readScheduled) return;
    this.#readScheduled = true;
    const { runtime } = this.#node;
    runtime.defer(() =>
      runtime.defer(() => {
        this.#readScheduled = false;
        this.#read();
      }),
    );
  }

  /** Bytes were read. When is measured where a socket asks for it. */
  #filled(n: number, now: number): boolean {
    const { receiver } = this.connection;
    const { receiveTimes } = this.#node;
    if (receiveTimes.wanted === 0) {
      this.#times = null;
      return receiver.filled(n);
    }
    const times = this.#times ?? new LaneTimes(receiveTimes);
    this.#times = times;
    times.before(now);
    const sane = receiver.filled(n);
    times.after(now, receiver);
    return sane;
  }

  /** Before closing: what is there now. A peer that goes on sending behind our FIN does not keep us. */
  readRest(): void {
    const { receiver } = this.connection;
    let left = this.#channel?.unreadBytes() ?? 0;
    while (left > 0) {
      const targets = receiver.targets();
      const n = this.#channel?.readv(targets, targets.length) ?? 0;
      if (n <= 0 || !this.#filled(n, this.#node.runtime.now())) return;
      left -= n;
    }
  }

  #readEnded(result: number): void {
    const now = this.#node.runtime.now();
    this.checkAcks();
    // The socket reports an error once: if a write met it, reading ends as if the peer had said FIN.
    const failure = result === 0 ? this.#brokenBy : result;
    if (failure === 0) this.connection.peerEnded(now);
    else this.connection.failed(now, errnoName(failure));
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
