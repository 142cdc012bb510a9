/**
 * One lane of the connection between two addresses: who dials, when to send, what a loss means. It does no I/O
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
 * - The gate: each connection begins with the map, what was begun on an earlier one, and a probe. Everything else waits until the peer
 *   has answered that (`settled`). So the peer knows this generation, and this side the peer's, before anything new is sent, and what came
 *   before the probe has been taken in before anything can go another way.
 * - Lane 0 goes first; the peer (peer.ts) says when the others may be dialled.
 * - A second inbound connection means that the peer has lost the first: it waits while the first is drained, then takes
 *   its place. Nothing that may hold data is reset.
 * - Back-off: the first attempt is immediate, then uniformly random in [0, cur), cur doubling from 1 ms to 1 s; cur
 *   starts over after a connection that lasted.
 *
 * Who calls: lane.ts, which owns channel and timer. Every method may call the host, never the other way round within
 * one call: the host's wishes are requests, answered by later events.
 */
import type { RdsCounters } from './counters.ts';
import { HANDSHAKE_TIMEOUT_MS } from './handshake.ts';
import type { LaneReceiver } from './receiver.ts';
import type { Gate, LaneSender } from './sender.ts';
import { Expectation, type Sequence, type SequenceRule } from './sequence.ts';

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
  /** May this lane be dialled now. */
  mayDial(): boolean;
  /** Somebody else needs this lane to be up. */
  needed(): boolean;
  /** What was begun on an earlier connection may go before the handshake: this one is the same lane's to the peer, too. */
  mayResend(): boolean;
  /** A connection of this lane begins with our map. */
  opensWithMap(): boolean;
  /** Extension headers for the probe that opens a connection. */
  opening(): Uint8Array;
  /** How long data waits for the answer to it. */
  patienceMs(): number;
  /** It was not answered in that time: settle() is to be called, or this is said again. */
  unanswered(): void;
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
/** A peer that connects or accepts and says nothing (a 7.x acceptor may keep us waiting for its lane for some seconds). */
const CONFIRM_TIMEOUT_MS = 30_000;
const BACKOFF_MIN_MS = 1;
const BACKOFF_MAX_MS = 1000;
/** For a peer that never spoke, and is dialled only because it has poked: anybody can do that, from many addresses. */
const STRANGER_BACKOFF_MAX_MS = 30_000;
/** A connection that lasted this long was a good one: the next attempt is immediate. */
const LASTED_MS = 50;

export class RdsConnection {
  readonly dials: boolean;
  state: ConnectionState = 'down';
  confirmed = false;
  readonly sender: LaneSender;
  readonly receiver: LaneReceiver;
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
  /** The peer has said something on this connection; on any, or on lane 0. */
  #heard = false;
  #isKnown = false;
  #peerAtEnd = false;
  /** Down, but what the last channel still holds is being read: it may bring news that make room for the next. */
  #isEnding = false;
  #shuttingDown = false;
  #announced = false;
  #probeOutstanding = false;
  #settled = false;
  #wanted = false;
  /** What the receiver expected when the connection came. */
  #expectedBefore: Sequence = { hi: 0, lo: 0 };
  /** When it ends this rule holds again, there: it was of a former process of the peer, or of another lane. */
  #restores: { readonly rule: SequenceRule; readonly next: Sequence } | null = null;

  /** It begins down, at `now`. */
  constructor(
    options: ConnectionOptions,
    parts: { sender: LaneSender; receiver: LaneReceiver; counters: RdsCounters },
    host: ConnectionHost,
    now = 0,
  ) {
    this.#downSinceMs = now;
    this.dials = options.dials;
    this.#random = options.random;
    this.sender = parts.sender;
    this.receiver = parts.receiver;
    this.#counters = parts.counters;
    this.#host = host;
  }

  /** May bytes be written now (maps and probes at least). */
  get writable(): boolean {
    return this.state === 'up';
  }

  get gate(): Gate {
    if (!this.confirmed) return 'probes';
    if (this.#settled) return 'open';
    return this.#host.mayResend() ? 'resent' : 'probes';
  }

  /** The peer has answered the probe of this connection, or had the time to. */
  get settled(): boolean {
    return this.#settled && this.state === 'up';
  }

  /** There is no connection. */
  get isAway(): boolean {
    return this.state === 'down' || this.state === 'dialing';
  }

  /** It is down, and has something to say. */
  get waits(): boolean {
    return this.state === 'down' && !this.sender.idle;
  }

  /** Nothing is queued, and there has been no connection for `forMs`: the peer's place may be given to another. */
  isForgotten(now: number, forMs: number): boolean {
    return this.isAway && this.sender.idle && now - this.#downSinceMs >= forMs;
  }

  /** When tick() wants to be called; Infinity for never. */
  deadline(): number {
    const dialAt = this.#wantsDial() ? this.#nextDialMs : Number.POSITIVE_INFINITY;
    return Math.min(this.#deadlineMs, this.#gateDeadlineMs, dialAt);
  }

  tick(now: number): void {
    if (this.#wantsDial() && now >= this.#nextDialMs) this.#dial(now);
    if (now >= this.#gateDeadlineMs) this.#giveUpWaiting(now);
    if (now < this.#deadlineMs) return;
    if (this.state === 'dialing') this.dialFailed(now);
    else if (this.state === 'draining') {
      // What the peer sent may not be dropped, and may not be read now: the peer waits, and so do we.
      if (this.#host.heldBack() && !this.#peerAtEnd) this.#deadlineMs = now + DRAIN_MS;
      else this.#finishDrop(now, 'close');
    } else if (this.state === 'up') this.#silent(now);
  }

  /** Something was queued: dial if that is needed. */
  queued(now: number): void {
    if (this.state === 'up') this.#host.wake();
    else {
      this.#sooner(now);
      this.tick(now);
    }
  }

  /** The program has something to say and cannot even queue it: see that the peer is connected until it sends a map. */
  wanted(now: number): void {
    this.#wanted = true;
    this.#sooner(now);
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
    if (this.state === 'down') return this.#isEnding ? 'wait' : 'adopt';
    this.#counters.accept_replaced += 1;
    if (this.state === 'up') this.drop(now, 'the peer opened another connection');
    // drop() may have ended at once (nothing to wait for), and then the lane is free already.
    return (this.state as ConnectionState) === 'down' && !this.#isEnding ? 'adopt' : 'wait';
  }

  adopted(now: number): void {
    this.#enterUp(now, true);
  }

  /** The first bytes of the peer on this connection. */
  receivedFirst(now: number): void {
    if (this.#heard || this.state !== 'up') return;
    this.#heard = true;
    this.#isKnown = true;
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    if (!this.confirmed) this.#confirm(now);
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
    this.#endIfDrained(now, this.#host.ackedBytes());
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
    this.#endIfDrained(now, bytes);
    return messages;
  }

  /** Sends a probe, unless one is on its way. */
  sendProbe(extensions: Uint8Array): void {
    if (this.#probeOutstanding || this.state !== 'up') return;
    this.#probeOutstanding = true;
    this.sender.queueControl(1, 0, extensions, !this.#settled);
    this.#host.wake();
  }

  /** A probe's pong came; false if none was asked for. */
  answered(): boolean {
    const was = this.#probeOutstanding;
    this.#probeOutstanding = false;
    return was;
  }

  /** Answers the peer's probe. */
  answer(extensions: Uint8Array): void {
    this.#counters.recv_ping += 1;
    this.#pong(1, extensions);
  }

  /** The probe of this connection is answered, or was waited for in vain: all may be sent. */
  settle(): void {
    if (this.state !== 'up') return;
    this.#settled = true;
    this.#gateDeadlineMs = Number.POSITIVE_INFINITY;
    this.#host.wake();
  }

  /** Nothing new is sent before the peer has answered another probe. */
  unsettle(now: number): void {
    if (!this.settled) return;
    this.#settled = false;
    if (this.confirmed) this.#gateDeadlineMs = now + this.#host.patienceMs();
    this.sendProbe(this.#host.opening());
  }

  /** The peer has restarted, and numbers afresh. */
  numberAfresh(): void {
    this.#restores = null;
    this.receiver.rule = new Expectation();
  }

  /** The peer is another one by now: what its connection still holds is read, and then it is gone. */
  abandon(now: number, reason: string): void {
    if (this.state === 'dialing') {
      this.state = 'down';
      this.#deadlineMs = Number.POSITIVE_INFINITY;
      this.#host.closeChannel('reset');
    } else this.failed(now, reason);
  }

  /** The connection is one that the peer's former process left: what it says is taken, its numbers are not. */
  endLate(now: number): void {
    this.#restores = { rule: this.receiver.rule, next: this.#expectedBefore };
    this.drop(now, 'the connection is of a process before');
  }

  /** The connection is another lane's, and so is its receiver's rule: what it still says is taken, and then `own` holds. */
  endMisplaced(now: number, own: SequenceRule): void {
    this.#restores = { rule: own, next: own.next };
    this.drop(now, 'the connection belongs to another lane');
  }

  /** The lane is to be up from now on: for whoever dials. */
  keepUp(now: number): void {
    this.#wasUp = true;
    this.#isKnown = true;
    this.tick(now);
  }

  /** A user's ping from `sport`: answered behind what is queued, unless that port of the peer is congested. */
  ping(sport: number, congested: boolean): void {
    this.#counters.recv_ping += 1;
    if (!congested) this.#pong(sport, null);
  }

  /** No more connections: drains the current one and then stays closed. */
  shutdown(now: number): void {
    this.#shuttingDown = true;
    if (this.#isEnding) return;
    if (this.state === 'up') this.#startDrain(now, 'closed by this side');
    else if (this.state === 'dialing' || this.state === 'down') {
      if (this.state === 'dialing') this.#host.closeChannel('reset');
      this.#close();
    }
  }

  #wantsDial(): boolean {
    if (this.state !== 'down' || this.#isEnding || this.#shuttingDown || !this.#host.mayDial()) return false;
    // The dialler restores what was up; the other side needs the peer only while it has something to say.
    return this.#wanted || !this.sender.idle || (this.dials && this.#wasUp) || this.#host.needed();
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
      this.#sooner(now);
      if (now >= this.#nextDialMs && !this.#isEnding) this.#dial(now);
    } else if (this.state === 'up' && this.confirmed) this.sendProbe(this.#host.opening());
  }

  #enterUp(now: number, confirmed: boolean): void {
    this.state = 'up';
    this.confirmed = false;
    this.#heard = false;
    this.#peerAtEnd = false;
    this.#deadlineMs = now + CONFIRM_TIMEOUT_MS;
    this.#upSinceMs = now;
    this.#wasUp = true;
    this.#probeOutstanding = false;
    this.#settled = false;
    this.#expectedBefore = this.receiver.rule.next;
    this.#restores = null;
    if (this.#host.opensWithMap()) this.sender.queueMap();
    this.sendProbe(this.#host.opening());
    if (confirmed) this.#confirm(now);
    else this.#host.wake();
  }

  /** Established for long, and not a byte: an RDS peer sends its map, or answers our probe. Nobody holds a lane for nothing. */
  #silent(now: number): void {
    if (this.confirmed && this.#host.heldBack()) {
      // It may have spoken: nothing is read now.
      this.#deadlineMs = now + CONFIRM_TIMEOUT_MS;
      return;
    }
    this.#counters.conn_silent += 1;
    this.#announceDown('the peer said nothing');
    // An acceptor looks once more, in case that this process stood still: the peer's TCP takes what came for delivered.
    this.#finishDrop(now, this.confirmed ? 'close' : 'reset');
  }

  #confirm(now: number): void {
    this.confirmed = true;
    this.#gateDeadlineMs = now + this.#host.patienceMs();
    this.#announced = true;
    this.#host.peerUp();
    this.#host.wake();
  }

  /** A peer that pings and does not read gets no more than this many pongs queued. */
  #pong(dport: number, extensions: Uint8Array | null): void {
    if (this.sender.controlQueued >= PONGS_QUEUED_MAX) {
      this.#counters.pong_drop_full += 1;
      return;
    }
    this.#counters.send_pong += 1;
    this.sender.queueControl(0, dport, extensions, extensions !== null && !this.#settled);
    this.#host.wake();
  }

  #giveUpWaiting(now: number): void {
    // While this side does not read, the peer cannot be blamed: it is given as long again.
    this.#gateDeadlineMs = now + HANDSHAKE_TIMEOUT_MS;
    if (!this.#host.heldBack()) this.#host.unanswered();
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
  #endIfDrained(now: number, ackedBytes: number): void {
    if (this.state !== 'draining' || !this.#peerAtEnd || ackedBytes < this.sender.writtenBytes) return;
    this.#finishDrop(now, 'close');
  }

  #finishDrop(now: number, how: 'close' | 'reset'): void {
    this.#announceDown('connection lost');
    // Settle: what the peer's TCP has need not be sent again. After the state, so that #endIfDrained() does not come back here.
    this.state = 'down';
    this.#isEnding = true;
    this.#downSinceMs = now;
    if (how === 'close' && !this.#peerAtEnd) this.#host.readRest();
    if (this.confirmed) this.sender.acked(this.#host.ackedBytes());
    this.#counters.conn_reset += 1;
    this.#settled = false;
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    this.#gateDeadlineMs = Number.POSITIVE_INFINITY;
    const lasted = this.confirmed && now - this.#upSinceMs >= LASTED_MS;
    this.confirmed = false;
    this.#host.closeChannel(how);
    this.receiver.reset();
    if (this.#restores !== null) {
      this.receiver.rule = this.#restores.rule;
      this.receiver.rule.expect(this.#restores.next);
    }
    this.sender.requeue();
    this.#isEnding = false;
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
    const isStranger = !this.#isKnown && !this.#wanted && this.sender.idle;
    const maxMs = isStranger ? STRANGER_BACKOFF_MAX_MS : BACKOFF_MAX_MS;
    this.#backoffMs = Math.min(Math.max(this.#backoffMs * 2, BACKOFF_MIN_MS), maxMs);
  }

  /** There is more reason to dial than a poke long ago. */
  #sooner(now: number): void {
    if (this.#backoffMs <= BACKOFF_MAX_MS) return;
    this.#backoffMs = BACKOFF_MAX_MS;
    this.#nextDialMs = Math.min(this.#nextDialMs, now + this.#random() * BACKOFF_MAX_MS);
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
