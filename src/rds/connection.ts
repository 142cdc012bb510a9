/**
 * One RDS connection (a pair of addresses) with its one lane: who dials, when to send, what a loss means. It does no I/O
 * and has no clock: events come in with `now`, wishes go out through ConnectionHost, bytes through `sender` and
 * `receiver`, and `deadline()` says when tick() wants to be called.
 *
 *            dial                      dialed (dialler)
 *   down ───────────▶ dialing ────────────────────────────▶ up ──── drop, FIN ────▶ draining ───▶ down
 *     │                  │ failed: back-off, down            ▲                        (half-closed: reads to the
 *     └──────────────────┴──────── accepted (acceptor) ──────┘                         end, waits for acks, 5 s)
 *
 * - The side with the numerically smaller address dials. The other only pokes: it opens a connection, closes it when it is
 *   established, and sends nothing on it; the dialler resets a poke and dials (rds_tcp_accept_one).
 * - `confirmed`: the dialler counts no acknowledgement and sends no data before the peer's first byte, because an acceptor
 *   without a free lane may reset after its TCP has acknowledged. The acceptor is confirmed at once.
 * - The gate: data waits until the peer has answered a probe of this process (see handshake.ts).
 * - A second inbound connection means that the peer has lost the first: it waits while the first is drained, then takes
 *   its place. Nothing that may hold data is reset.
 * - Back-off: the first attempt is immediate, then uniformly random in [0, cur), cur doubling from 1 ms to 1 s; cur
 *   starts over after a connection that lasted.
 *
 * Who calls: lane.ts, which owns channel and timer. Every method may call the host, never the other way round within
 * one call: the host's wishes are requests, answered by later events.
 */
import type { RdsCounters } from './counters.ts';
import { HANDSHAKE_TIMEOUT_MS, type Handshake } from './handshake.ts';
import type { LaneReceiver } from './receiver.ts';
import type { LaneSender } from './sender.ts';

export interface ConnectionHost {
  /** Open a connection to the peer; dialed() or dialFailed() answers. */
  dial(): void;
  /** Say FIN on the current channel. */
  halfClose(): void;
  /** Bytes of the current channel that the peer's TCP has acknowledged. */
  ackedBytes(): number;
  /** Read what the current channel still holds, whatever holds reading back: its bytes are acknowledged, so they must not be lost. */
  readRest(): void;
  /** Reading is held back because too much waits to be read. */
  heldBack(): boolean;
  /** Close the current channel (or the attempt). */
  closeChannel(how: 'close' | 'reset'): void;
  /** The lane is free: adopt the oldest waiting inbound channel, if any, by calling adopted(). */
  adoptNext(): void;
  /** Something can be sent. */
  wake(): void;
  peerUp(): void;
  peerDown(reason: string): void;
  /** shutdown() is complete. */
  closed(): void;
}

export interface ConnectionOptions {
  /** This side's address is the smaller one. */
  readonly dials: boolean;
  readonly random: () => number;
}

export type ConnectionState = 'down' | 'dialing' | 'up' | 'draining' | 'closed';

const PONGS_QUEUED_MAX = 64;
const DRAIN_MS = 5000;
const DIAL_TIMEOUT_MS = 10_000;
/** A peer that accepts and says nothing (a 7.x acceptor may keep us waiting for its lane for some seconds). */
const CONFIRM_TIMEOUT_MS = 30_000;
const BACKOFF_MIN_MS = 1;
const BACKOFF_MAX_MS = 1000;
/** A connection that lasted this long was a good one: the next attempt is immediate. */
const LASTED_MS = 50;

export class RdsConnection {
  readonly dials: boolean;
  state: ConnectionState = 'down';
  confirmed = false;
  readonly sender: LaneSender;
  readonly receiver: LaneReceiver;
  readonly handshake: Handshake;
  readonly #host: ConnectionHost;
  readonly #counters: RdsCounters;
  readonly #random: () => number;
  #backoffMs = 0;
  #nextDialMs = 0;
  #deadlineMs = Number.POSITIVE_INFINITY;
  #gateDeadlineMs = Number.POSITIVE_INFINITY;
  #upSinceMs = 0;
  #downSinceMs: number;
  #wasUp = false;
  #peerAtEnd = false;
  #shuttingDown = false;
  #announced = false;
  #probeOutstanding = false;
  #wanted = false;

  /** It begins down, at `now`. */
  constructor(
    options: ConnectionOptions,
    parts: { sender: LaneSender; receiver: LaneReceiver; handshake: Handshake; counters: RdsCounters },
    host: ConnectionHost,
    now = 0,
  ) {
    this.#downSinceMs = now;
    this.dials = options.dials;
    this.#random = options.random;
    this.sender = parts.sender;
    this.receiver = parts.receiver;
    this.handshake = parts.handshake;
    this.#counters = parts.counters;
    this.#host = host;
  }

  /** May bytes be written now (maps and probes at least). */
  get writable(): boolean {
    return this.state === 'up';
  }

  /** Only maps and probes may be written. */
  get gateClosed(): boolean {
    return !this.confirmed || !this.handshake.proven;
  }

  /** Nothing is queued, and there has been no connection for `forMs`: the peer's place may be given to another. */
  isForgotten(now: number, forMs: number): boolean {
    const away = this.state === 'down' || this.state === 'dialing';
    return away && this.sender.idle && now - this.#downSinceMs >= forMs;
  }

  /** When tick() wants to be called; Infinity for never. */
  deadline(): number {
    const dialAt = this.#wantsDial() ? this.#nextDialMs : Number.POSITIVE_INFINITY;
    return Math.min(this.#deadlineMs, this.#gateDeadlineMs, dialAt);
  }

  tick(now: number): void {
    if (this.#wantsDial() && now >= this.#nextDialMs) this.#dial(now);
    if (now >= this.#gateDeadlineMs) this.#openGate();
    if (now < this.#deadlineMs) return;
    if (this.state === 'dialing') this.dialFailed(now);
    else if (this.state === 'draining') {
      // What the peer sent may not be dropped, and may not be read now: the peer waits, and so do we.
      if (this.#host.heldBack()) this.#deadlineMs = now + DRAIN_MS;
      else this.#finishDrop(now, 'close');
    } else if (this.state === 'up') this.#finishDrop(now, 'reset');
  }

  /** Something was queued: dial if that is needed. */
  queued(now: number): void {
    if (this.state === 'up') this.#host.wake();
    else this.tick(now);
  }

  /** The program has something to say and cannot even queue it: see that the peer is connected until it sends a map. */
  wanted(now: number): void {
    this.#wanted = true;
    this.tick(now);
  }

  /** A congestion map came: who was refused tries again, and is wanted() again if that is still in vain. */
  mapCame(): void {
    this.#wanted = false;
  }

  /** Our attempt is established. */
  dialed(now: number): void {
    if (this.state !== 'dialing') return;
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    if (this.dials) {
      this.#enterUp(now, false);
      return;
    }
    // The poke was seen. If the peer does not dial back soon, poke again.
    this.state = 'down';
    this.#backOff(now);
    this.#host.closeChannel('close');
  }

  dialFailed(now: number): void {
    if (this.state !== 'dialing') return;
    this.#counters.dial_failed += 1;
    this.state = 'down';
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    this.#backOff(now);
    this.#host.closeChannel('reset');
  }

  /**
   * An inbound connection came. `adopt`: adopted() must follow at once; `wait`: keep it until adoptNext(); `reset`: it is
   * a poke, or this side is closing.
   */
  accepted(now: number): 'adopt' | 'wait' | 'reset' {
    if (this.#shuttingDown || this.state === 'closed') return 'reset';
    if (this.dials) {
      this.#counters.accept_pokes += 1;
      this.#poked(now);
      return 'reset';
    }
    if (this.state === 'dialing') {
      this.state = 'down';
      this.#deadlineMs = Number.POSITIVE_INFINITY;
      this.#host.closeChannel('reset');
    }
    if (this.state === 'down') return 'adopt';
    this.#counters.accept_replaced += 1;
    if (this.state === 'up') this.drop(now, 'the peer opened another connection');
    // drop() may have ended at once (nothing to wait for), and then the lane is free already.
    return (this.state as ConnectionState) === 'down' ? 'adopt' : 'wait';
  }

  adopted(now: number): void {
    this.#enterUp(now, true);
  }

  /** The first bytes of the peer on this connection. */
  receivedFirst(now: number): void {
    if (this.state === 'up' && !this.confirmed) this.#confirm(now);
  }

  /** Reading is not held back any more: what the peer sent meanwhile takes its time. */
  resumed(now: number): void {
    if (this.state === 'draining') this.#deadlineMs = now + DRAIN_MS;
  }

  /** The peer said FIN, and everything before it was read. */
  peerEnded(now: number): void {
    if (this.state !== 'up' && this.state !== 'draining') return;
    this.#peerAtEnd = true;
    if (!this.confirmed) {
      this.#finishDrop(now, 'close');
      return;
    }
    this.#startDrain(now, 'the peer closed the connection');
    this.#settled(now, this.#host.ackedBytes());
  }

  /** The channel failed, and everything before the failure was read. */
  failed(now: number, reason: string): void {
    if (this.state !== 'up' && this.state !== 'draining') return;
    this.#announceDown(reason);
    this.#finishDrop(now, 'close');
  }

  /** The peer broke the protocol: nothing behind this can be read. */
  violated(now: number, reason: string): void {
    if (this.state !== 'up' && this.state !== 'draining') return;
    this.#announceDown(reason);
    this.#upSinceMs = Number.POSITIVE_INFINITY;
    this.#backoffMs = BACKOFF_MAX_MS;
    this.#finishDrop(now, 'reset');
  }

  /** Graceful end of the current connection; what is not acknowledged is sent again on the next. */
  drop(now: number, reason: string): void {
    if (this.state !== 'up') return;
    if (this.confirmed) this.#startDrain(now, reason);
    else this.#finishDrop(now, 'close');
  }

  /** The peer's TCP has the first `bytes` bytes of this connection. Returns messages acknowledged. */
  acked(bytes: number, now: number): number {
    // Before its first byte the peer may not have adopted the connection, whatever its TCP says.
    if (!this.confirmed) return 0;
    const messages = this.sender.acked(bytes);
    this.#settled(now, bytes);
    return messages;
  }

  /** A probe came; `isPing` ones are answered first (rds_recv_incoming: pong, then extensions). */
  probe(isPing: boolean, bytes: Uint8Array, extensionsOffset: number): void {
    if (isPing) {
      this.#counters.recv_ping += 1;
      this.#pong(1, this.handshake.extensions, this.handshake.proven ? null : this.handshake.pongSeq);
    } else {
      this.#probeOutstanding = false;
      if (!this.handshake.proven) this.#openGate();
    }
    if (this.handshake.read(bytes, extensionsOffset)) {
      this.#counters.peer_restarts += 1;
      this.receiver.forgetSequence();
      this.sender.generationChanged();
    }
    this.#host.wake();
  }

  /** A user's ping from `sport`: answered behind what is queued, unless that port of the peer is congested. */
  ping(sport: number, congested: boolean): void {
    this.#counters.recv_ping += 1;
    if (!congested) this.#pong(sport, null, null);
  }

  /** No more connections: drains the current one and then stays closed. */
  shutdown(now: number): void {
    this.#shuttingDown = true;
    if (this.state === 'up') this.#startDrain(now, 'closed by this side');
    else if (this.state === 'dialing' || this.state === 'down') {
      if (this.state === 'dialing') this.#host.closeChannel('reset');
      this.#close();
    }
  }

  #wantsDial(): boolean {
    if (this.state !== 'down' || this.#shuttingDown) return false;
    // The dialler restores what was up; the other side needs the peer only while it has something to say.
    return this.#wanted || !this.sender.idle || (this.dials && this.#wasUp);
  }

  #dial(now: number): void {
    this.state = 'dialing';
    this.#deadlineMs = now + DIAL_TIMEOUT_MS;
    this.#host.dial();
  }

  /** Someone wants this side to dial: at once if down; if up, ask the old connection whether it still lives. */
  #poked(now: number): void {
    if (this.state === 'down') {
      this.#wasUp = true;
      if (now >= this.#nextDialMs) this.#dial(now);
    } else if (this.state === 'up' && this.confirmed) this.#sendProbe();
  }

  #enterUp(now: number, confirmed: boolean): void {
    this.state = 'up';
    this.confirmed = false;
    this.#peerAtEnd = false;
    this.#deadlineMs = now + CONFIRM_TIMEOUT_MS;
    this.#upSinceMs = now;
    this.#wasUp = true;
    this.#probeOutstanding = false;
    this.sender.queueMap();
    this.#sendProbe();
    if (confirmed) this.#confirm(now);
    else this.#host.wake();
  }

  #confirm(now: number): void {
    this.confirmed = true;
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    if (!this.handshake.proven) this.#gateDeadlineMs = now + HANDSHAKE_TIMEOUT_MS;
    this.#announced = true;
    this.#host.peerUp();
    this.#host.wake();
  }

  /** Unproven: with the reserved number, before everything. Proven: behind what must be sent again, in number order. */
  #sendProbe(): void {
    if (this.#probeOutstanding) return;
    this.#probeOutstanding = true;
    const seq = this.handshake.proven ? null : this.handshake.pingSeq;
    this.sender.queueControl(1, 0, this.handshake.extensions, seq);
    this.#host.wake();
  }

  /** A peer that pings and does not read gets no more than this many pongs queued. */
  #pong(dport: number, extensions: Uint8Array | null, seq: { hi: number; lo: number } | null): void {
    if (this.sender.controlQueued >= PONGS_QUEUED_MAX) {
      this.#counters.pong_drop_full += 1;
      return;
    }
    this.#counters.send_pong += 1;
    this.sender.queueControl(0, dport, extensions, seq);
    this.#host.wake();
  }

  #openGate(): void {
    this.handshake.proven = true;
    this.#gateDeadlineMs = Number.POSITIVE_INFINITY;
    this.#host.wake();
  }

  #startDrain(now: number, reason: string): void {
    if (this.state === 'draining') return;
    this.state = 'draining';
    this.#gateDeadlineMs = Number.POSITIVE_INFINITY;
    this.#deadlineMs = now + DRAIN_MS;
    this.#announceDown(reason);
    this.#host.halfClose();
  }

  /** Drained: the peer has nothing more to say, and all that was written to it has arrived. */
  #settled(now: number, ackedBytes: number): void {
    if (this.state !== 'draining' || !this.#peerAtEnd || ackedBytes < this.sender.writtenBytes) return;
    this.#finishDrop(now, 'close');
  }

  #finishDrop(now: number, how: 'close' | 'reset'): void {
    this.#announceDown('connection lost');
    // Settle: what the peer's TCP has need not be sent again. After the state, so that settled() does not come back here.
    this.state = 'down';
    this.#downSinceMs = now;
    if (how === 'close' && !this.#peerAtEnd) this.#host.readRest();
    if (this.confirmed) this.sender.acked(this.#host.ackedBytes());
    this.#counters.conn_reset += 1;
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    this.#gateDeadlineMs = Number.POSITIVE_INFINITY;
    const lasted = this.confirmed && now - this.#upSinceMs >= LASTED_MS;
    this.confirmed = false;
    this.#host.closeChannel(how);
    this.receiver.reset();
    this.sender.requeue();
    if (this.#shuttingDown) {
      this.#close();
      return;
    }
    if (lasted) {
      this.#backoffMs = 0;
      this.#nextDialMs = now;
    } else this.#backOff(now);
    this.#host.adoptNext();
    if ((this.state as ConnectionState) === 'down') this.tick(now);
  }

  #backOff(now: number): void {
    this.#nextDialMs = now + this.#random() * this.#backoffMs;
    this.#backoffMs = Math.min(Math.max(this.#backoffMs * 2, BACKOFF_MIN_MS), BACKOFF_MAX_MS);
  }

  #announceDown(reason: string): void {
    if (!this.#announced) return;
    this.#announced = false;
    this.#host.peerDown(reason);
  }

  #close(): void {
    this.state = 'closed';
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    this.sender.close();
    this.receiver.close();
    this.#host.closed();
  }
}
