/**
 * One lane of the connection between two addresses, as a state machine: who dials, what an inbound connection means, what a loss
 * means. It does no I/O and has no clock: events come in with `now`, wishes go out through ConnectionHost, bytes through `sender`
 * and `receiver`, and `deadline()` says when tick() wants to be called. Two parts of it are machines of their own: when to dial
 * (connection-dialing.ts), and what may be sent while it is up (connection-gate.ts).
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
 * - Lane 0 goes first; the peer (peer.ts) says when the others may be dialled.
 * - A second inbound connection means that the peer has lost the first: it waits while the first is drained, then takes
 *   its place.
 *
 * Who calls: lane.ts, which owns channel and timer. Every method may call the host. The host answers by later events, but for
 * readRest() and adoptNext(), which come back within the call: the state is final before they are asked for.
 */
import { Dialing } from './connection-dialing.ts';
import { ConnectionGate } from './connection-gate.ts';
import type { ConnectionHost } from './connection-host.ts';
import type { RdsCounters } from './counters.ts';
import type { LaneReceiver } from './receiver.ts';
import type { Gate, LaneSender } from './sender.ts';
import type { Sequence, SequenceRule } from './sequence.ts';

export interface ConnectionOptions {
  /** This side's address is the smaller one. */
  readonly dials: boolean;
  readonly random: () => number;
}

export type ConnectionState = 'down' | 'dialing' | 'up' | 'draining' | 'closed';

const DRAIN_MS = 5000;
const DIAL_TIMEOUT_MS = 10_000;
/** A peer that connects or accepts and says nothing (a 7.x acceptor may keep us waiting for its lane for some seconds). */
const CONFIRM_TIMEOUT_MS = 30_000;

export class RdsConnection {
  state: ConnectionState = 'down';
  readonly sender: LaneSender;
  readonly receiver: LaneReceiver;
  readonly #host: ConnectionHost;
  readonly #counters: RdsCounters;
  readonly #dialing: Dialing;
  readonly #gate: ConnectionGate;
  #deadlineMs = Number.POSITIVE_INFINITY;
  #downSinceMs: number;
  /** The peer has said something on this connection. */
  #heard = false;
  #peerAtEnd = false;
  /** Down, but what the last channel still holds is being read: it may bring news that make room for the next. */
  #isEnding = false;
  #shuttingDown = false;
  #announced = false;
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
    this.#dialing = new Dialing(options.dials, options.random);
    this.#gate = new ConnectionGate(host, parts.sender, parts.counters);
    this.sender = parts.sender;
    this.receiver = parts.receiver;
    this.#counters = parts.counters;
    this.#host = host;
  }

  /** This side's address is the smaller one. */
  get dials(): boolean {
    return this.#dialing.dials;
  }

  /** The peer has taken the connection. */
  get confirmed(): boolean {
    return this.#gate.isConfirmed;
  }

  /** What may be sent while it is up. */
  get gate(): Gate {
    return this.#gate.lets;
  }

  /** The peer has answered the probe of this connection, or had the time to. */
  get settled(): boolean {
    return this.#gate.isSettled && this.state === 'up';
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
    const dialAt = this.#wantsDial() ? this.#dialing.nextMs : Number.POSITIVE_INFINITY;
    return Math.min(this.#deadlineMs, this.#gate.deadlineMs, dialAt);
  }

  tick(now: number): void {
    if (this.#wantsDial() && now >= this.#dialing.nextMs) this.#dial(now);
    this.#gate.tick(now);
    if (now < this.#deadlineMs) return;
    if (this.state === 'dialing') {
      // If this process stood still, the connection may be there, and the peer's TCP takes what came for delivered.
      if (this.#host.hasUnread()) this.#deadlineMs = now + DIAL_TIMEOUT_MS;
      else this.dialFailed(now);
    } else if (this.state === 'draining') {
      // What the peer sent may not be dropped, and may not be read now: the peer waits, and so do we.
      if (this.#host.heldBack() && !this.#peerAtEnd) this.#deadlineMs = now + DRAIN_MS;
      else this.#finishDrop(now, 'close');
    } else if (this.state === 'up') this.#silent(now);
  }

  /** Something was queued: dial if that is needed. */
  queued(now: number): void {
    if (this.state === 'up') this.#host.wake();
    else {
      this.#dialing.sooner(now);
      this.tick(now);
    }
  }

  /** The program has something to say and cannot even queue it: see that the peer is connected until it sends a map. */
  wanted(now: number): void {
    this.#dialing.wanted(now);
    this.tick(now);
  }

  /** A congestion map came: who was refused tries again, and is wanted() again if that is still in vain. */
  mapCame(): void {
    this.#dialing.mapCame();
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
    this.#dialing.backOff(now, this.sender.idle);
    this.#host.closeChannel('close');
  }

  dialFailed(now: number): void {
    if (this.state !== 'dialing') return;
    this.#counters.dial_failed += 1;
    this.state = 'down';
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    this.#dialing.backOff(now, this.sender.idle);
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
    this.#dialing.heard();
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
    this.#dialing.violated();
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
    if (this.state === 'up') this.#gate.sendProbe(extensions);
  }

  /** A probe's pong came; false if none was asked for. */
  answered(): boolean {
    return this.#gate.answered();
  }

  /** Answers the peer's probe. */
  answer(extensions: Uint8Array): void {
    this.#counters.recv_ping += 1;
    this.#gate.pong(1, extensions);
  }

  /** The probe of this connection is answered, or was waited for in vain: all may be sent. */
  settle(): void {
    if (this.state === 'up') this.#gate.settle();
  }

  /** Nothing new is sent before the peer has answered another probe. */
  unsettle(now: number): void {
    if (this.settled) this.#gate.unsettle(now);
  }

  /** The peer has restarted: what it sends follows this rule from now on. */
  numberAfresh(rule: SequenceRule): void {
    this.#restores = null;
    this.receiver.rule = rule;
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
    this.#dialing.keepUp();
    this.tick(now);
  }

  /** A user's ping from `sport`: answered behind what is queued, unless that port of the peer is congested. */
  ping(sport: number, congested: boolean): void {
    this.#counters.recv_ping += 1;
    if (!congested) this.#gate.pong(sport, null);
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
    return this.#dialing.hasReason(this.sender.idle) || this.#host.needed();
  }

  #dial(now: number): void {
    this.state = 'dialing';
    this.#deadlineMs = now + DIAL_TIMEOUT_MS;
    this.#host.dial();
  }

  /** Someone wants this side to dial: at once if down; if up, ask the old connection whether it still lives. */
  #poked(now: number): void {
    if (this.state === 'down') {
      this.#dialing.poked(now);
      if (now >= this.#dialing.nextMs && !this.#isEnding) this.#dial(now);
    } else if (this.state === 'up' && this.confirmed && !this.#gate.isProbing)
      this.sendProbe(this.#host.opening());
  }

  #enterUp(now: number, confirmed: boolean): void {
    this.state = 'up';
    this.#heard = false;
    this.#peerAtEnd = false;
    this.#deadlineMs = now + CONFIRM_TIMEOUT_MS;
    this.#dialing.up(now);
    // Before the host hears that it begins, and puts another rule there.
    this.#expectedBefore = this.receiver.rule.next;
    this.#restores = null;
    this.#gate.begin();
    if (confirmed) this.#confirm(now);
    else this.#host.wake();
  }

  /** Established for long, and not a byte: an RDS peer sends its map, or answers our probe. Nobody holds a lane for nothing. */
  #silent(now: number): void {
    if ((this.confirmed && this.#host.heldBack()) || this.#host.hasUnread()) {
      // It may have spoken: nothing is read now. Or it has, while this process stood still.
      this.#deadlineMs = now + CONFIRM_TIMEOUT_MS;
      return;
    }
    this.#counters.conn_silent += 1;
    this.#announceDown('the peer said nothing');
    this.#finishDrop(now, this.confirmed ? 'close' : 'reset');
  }

  #confirm(now: number): void {
    this.#gate.confirm(now);
    this.#announced = true;
    this.#host.peerUp();
    this.#host.wake();
  }

  #startDrain(now: number, reason: string): void {
    if (this.state === 'draining') return;
    this.state = 'draining';
    this.#gate.stop();
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
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    const wasConfirmed = this.confirmed;
    this.#gate.end();
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
    this.#dialing.ended(now, wasConfirmed, this.sender.idle);
    this.#host.adoptNext();
    if ((this.state as ConnectionState) === 'down') this.tick(now);
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
