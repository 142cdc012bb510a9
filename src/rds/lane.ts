/**
 * The shell around one RdsConnection: it owns the channel and the timer, moves bytes, and keeps time.
 *
 *   channel.readable ─▶ readv into receiver.targets() ─▶ receiver.filled()
 *   wake()           ─▶ (end of batch) pump: sender.gather() ─▶ channel.send / sendLent ─▶ sender.wrote()
 *   timer            ─▶ connection.tick(), and a look at the acknowledgements
 *
 * TCP does not tell when the peer acknowledges, so while something is unacknowledged this asks: after each read and each
 * zero-copy completion, and from 1 ms on at growing intervals.
 *
 * Two bounds protect us from a peer and a program that do not read: bytes held for the peer, here, and in all, at the
 * node. Over either, the lane is not read any more, and TCP holds the peer back; congestion maps are meant to do so first.
 */
import { errnoName, errnoOf, type ZerotxError } from '../core/errors.ts';
import type { Ubuf } from '../core/ubuf.ts';
import { EXTHDR_OFFSET } from '../wire/rds.ts';
import { PeerMap } from './congestion.ts';
import { RdsConnection } from './connection.ts';
import type { RdsCounters } from './counters.ts';
import { Handshake } from './handshake.ts';
import { type BufferPool, type ReceiveBuffer, Staging } from './memory.ts';
import type { MessageSource } from './received.ts';
import { LaneReceiver } from './receiver.ts';
import { LaneSender } from './sender.ts';
import type { Channel, ChannelHandler, Runtime, Timer, Transport } from './transport.ts';

/** What a lane needs of its node. */
export interface LaneNode {
  readonly address: string;
  readonly runtime: Runtime;
  readonly transport: Transport;
  readonly counters: RdsCounters;
  readonly pool: BufferPool;
  readonly genNum: number;
  readonly limits: { readonly heldBytesPerPeer: number };
  readonly localMap: { readonly bits: Uint8Array };
  /** Where this process begins to number. */
  sequenceBase(): { hi: number; lo: number };
  deliver(
    lane: Lane,
    sport: number,
    dport: number,
    buffer: ReceiveBuffer,
    offset: number,
    length: number,
  ): void;
  /** Bytes held changed; true while the node as a whole holds too many. */
  held(delta: number): boolean;
  /** The lane stopped reading; the node calls resumeIfRoom() when bytes were consumed. */
  paused(lane: Lane): void;
  congestionNews(): void;
  peerUp(lane: Lane): void;
  peerDown(lane: Lane, reason: string): void;
  laneClosed(lane: Lane): void;
  warn(event: string, address: string, detail: string): void;
}

const EAGAIN = -errnoOf('EAGAIN');
/** Bytes moved before other lanes have their turn, and before the program's handlers have theirs. */
const TURN_BYTES = 4 * 1024 * 1024;
const HANDLERS_BYTES = 1024 * 1024;
const ACK_POLL_MIN_MS = 1;
const ACK_POLL_MAX_MS = 64;
const WAITING_MAX = 4;

export class Lane implements MessageSource {
  readonly address: string;
  readonly connection: RdsConnection;
  readonly peerMap: PeerMap = new PeerMap();
  readonly #node: LaneNode;
  #channel: Channel | null = null;
  /** Inbound connections that wait for the lane to be free, oldest first. */
  readonly #waiting: Channel[] = [];
  /** What a write to the current channel met, -errno; 0 while all is well. */
  #brokenBy = 0;
  #pumpScheduled = false;
  #heldBytes = 0;
  #paused = false;
  #readScheduled = false;
  /** Bytes read, and written, since others last had their turn. */
  #turnBytes = 0;
  #turnSentBytes = 0;
  #timer: Timer | null = null;
  #timerAtMs = Number.POSITIVE_INFINITY;
  #ackPollMs = ACK_POLL_MIN_MS;
  #ackPollAtMs = Number.POSITIVE_INFINITY;
  readonly #lends = (bytes: number): boolean => this.#channel?.lends(bytes) ?? false;
  readonly #copied = (ubuf: Ubuf, bytes: number): void => this.#channel?.copied(ubuf, bytes);

  constructor(node: LaneNode, address: string, dials: boolean) {
    this.#node = node;
    this.address = address;
    const { counters, pool, runtime } = node;
    const staging = new Staging(pool, runtime.releases);
    const sender = new LaneSender(node.sequenceBase(), staging, counters, () => node.localMap.bits);
    const handshake = new Handshake(node.genNum, () => sender.reserveSeq(1));
    const receiver = new LaneReceiver(
      {
        congestion: (map) => this.#congestion(map),
        probe: (isPing, bytes, header) => this.connection.probe(isPing, bytes, header + EXTHDR_OFFSET),
        ping: (sport) => this.connection.ping(sport, this.peerMap.congested(sport)),
        data: (sport, dport, buffer, offset, length) =>
          node.deliver(this, sport, dport, buffer, offset, length),
      },
      pool,
      runtime.releases,
      counters,
    );
    this.connection = new RdsConnection(
      { dials, random: runtime.random },
      { sender, receiver, handshake, counters },
      {
        dial: () => this.#dial(),
        halfClose: () => this.#channel?.shutdownWrite(),
        ackedBytes: () => this.#channel?.ackedBytes() ?? 0,
        readRest: () => this.#readRest(),
        heldBack: () => this.#paused,
        closeChannel: (how) => this.#closeChannel(how),
        adoptNext: () => this.#adoptNext(),
        wake: () => this.#wake(),
        peerUp: () => node.peerUp(this),
        peerDown: (reason) => node.peerDown(this, reason),
        closed: () => this.#closed(),
      },
      runtime.now(),
    );
  }

  get heldBytes(): number {
    return this.#heldBytes;
  }

  get channel(): Channel | null {
    return this.#channel;
  }

  /** Messages were queued by a socket. */
  queued(): void {
    if (this.connection.state === 'up') {
      this.#wake();
      return;
    }
    this.connection.queued(this.#node.runtime.now());
    this.#arm();
  }

  /** A send was refused because the peer's port is congested: only a connection can bring news of it. */
  wanted(): void {
    this.connection.wanted(this.#node.runtime.now());
    this.#arm();
  }

  /** Our own map changed. */
  queueMap(): void {
    if (this.connection.state !== 'up') return;
    this.connection.sender.queueMap();
    this.#wake();
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

  /** Takes an inbound connection from this peer. */
  accepted(channel: Channel): void {
    const verdict = this.connection.accepted(this.#node.runtime.now());
    if (verdict === 'adopt') this.#adopt(channel);
    else if (verdict === 'wait' && this.#waiting.length < WAITING_MAX) this.#waiting.push(channel);
    else {
      if (verdict === 'wait') {
        this.#node.counters.accept_refused += 1;
        this.#node.warn('connection refused', this.address, `${WAITING_MAX} of its connections wait already`);
      }
      channel.reset();
    }
    this.#arm();
  }

  /** Memory of messages that wait to be read changed. */
  held(deltaBytes: number): void {
    this.#heldBytes += deltaBytes;
    const nodeFull = this.#node.held(deltaBytes);
    if (deltaBytes < 0 || this.#paused) return;
    if (!nodeFull && this.#heldBytes <= this.#node.limits.heldBytesPerPeer) return;
    this.#paused = true;
    this.#node.paused(this);
  }

  /** Reads again, and returns true, if neither bound holds it back any more. */
  resumeIfRoom(nodeFull: boolean): boolean {
    if (this.#paused && (nodeFull || this.#heldBytes * 2 > this.#node.limits.heldBytesPerPeer)) return false;
    this.#paused = false;
    this.connection.resumed(this.#node.runtime.now());
    this.#readLater();
    return true;
  }

  /** Ends the lane: drains the connection, then closed. */
  shutdown(): void {
    for (const channel of this.#waiting.splice(0)) channel.reset();
    this.connection.shutdown(this.#node.runtime.now());
    this.#paused = false;
    this.#arm();
  }

  #dial(): void {
    const handler: ChannelHandler = {
      ...this.#handler(),
      connected: () => {
        this.connection.dialed(this.#node.runtime.now());
        this.#arm();
      },
      failed: (error) => this.#dialFailed(error),
    };
    try {
      this.#channel = this.#node.transport.dial(this.#node.address, this.address, handler);
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
    this.#arm();
  }

  #adopt(channel: Channel): void {
    this.#channel = channel;
    channel.handler = this.#handler();
    this.connection.adopted(this.#node.runtime.now());
    // What came before the handler was set raises no event any more.
    this.#readLater();
  }

  #adoptNext(): void {
    const channel = this.#waiting.shift();
    if (channel === undefined) return;
    this.#adopt(channel);
    // Only the newest can be alive: what the others still hold is read, and no data goes to them.
    if (this.#waiting.length > 0) {
      this.connection.drop(this.#node.runtime.now(), 'the peer opened another connection');
    }
  }

  #handler(): ChannelHandler {
    return {
      readable: () => {
        this.#turnBytes = 0;
        this.#read();
      },
      writable: () => {
        this.checkAcks();
        this.#wake();
      },
      released: () => {
        this.checkAcks();
        this.#arm();
      },
    };
  }

  #closeChannel(how: 'close' | 'reset'): void {
    const channel = this.#channel;
    this.#channel = null;
    this.#brokenBy = 0;
    this.#ackPollAtMs = Number.POSITIVE_INFINITY;
    if (how === 'close') channel?.close();
    else channel?.reset();
  }

  #closed(): void {
    this.#timer?.cancel();
    this.#timer = null;
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    this.#node.laneClosed(this);
  }

  #congestion(map: Uint8Array): void {
    this.#node.counters.cong_update_received += 1;
    this.peerMap.replace(map);
    this.connection.mapCame();
    this.#node.congestionNews();
  }

  #wake(): void {
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
      const offer = sender.gather(this.#lends, this.connection.gateClosed);
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
      sender.wrote(n, this.#copied);
      moved += n;
      if (moved >= HANDLERS_BYTES) {
        this.#pumpOn(moved);
        break;
      }
    }
    this.#arm();
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
      runtime.defer(() => this.#wake());
      return;
    }
    this.#turnSentBytes = 0;
    runtime.yield(() => this.#wake());
  }

  /** A write met an error. What the peer sent before it is still to be read; the read then meets the error, too. */
  #broken(result: number): void {
    const before = this.#channel;
    this.#brokenBy = result;
    this.#read();
    if (this.#channel !== before || before === null) return;
    if (!this.#paused) this.connection.failed(this.#node.runtime.now(), errnoName(result));
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
    // Paused or not, the first bytes are read: until they come the connection counts as not accepted by the peer.
    while (!this.#paused || !this.connection.confirmed) {
      const channel = this.#channel;
      if (channel === null || this.connection.state === 'dialing') break;
      const targets = receiver.targets();
      const n = channel.readv(targets, targets.length);
      if (n <= 0) {
        if (n !== EAGAIN) this.#readEnded(n);
        break;
      }
      const now = this.#node.runtime.now();
      this.connection.receivedFirst(now);
      if (!receiver.filled(n)) {
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
    this.checkAcks();
    this.#arm();
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

  /** Before closing: what is there now. A peer that goes on sending behind our FIN does not keep us. */
  #readRest(): void {
    const { receiver } = this.connection;
    let left = this.#channel?.unreadBytes() ?? 0;
    while (left > 0) {
      const targets = receiver.targets();
      const n = this.#channel?.readv(targets, targets.length) ?? 0;
      if (n <= 0 || !receiver.filled(n)) return;
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

  #arm(): void {
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

  #onTimer(): void {
    this.#timer = null;
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    const now = this.#node.runtime.now();
    if (now >= this.#ackPollAtMs) {
      this.#ackPollAtMs = Number.POSITIVE_INFINITY;
      if (this.checkAcks() === 0) this.#ackPollMs = Math.min(this.#ackPollMs * 2, ACK_POLL_MAX_MS);
    }
    this.connection.tick(now);
    this.#arm();
  }
}
