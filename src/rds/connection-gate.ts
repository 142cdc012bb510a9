/**
 * The gate of a connection: what may be sent while it is up, and the messages that open it, probes and their pongs. connection.ts
 * says when the connection begins and ends.
 *
 *                                               ──settle()──▶
 *   begin() ──▶ 'probes' ──confirm()──▶ 'resent'             'open' ──▶ end()
 *                                               ◀─unsettle()─
 *
 * - `confirm()`: the peer has taken the connection (connection.ts says when that is known), and time begins to run for its answer.
 * - Each connection begins with the map, what was begun on an earlier one, and a probe. Everything else waits until the peer has answered
 *   that. So the peer knows this generation, and this side the peer's, before anything new is sent, and what came before the probe has
 *   been taken in before anything can go another way.
 * - Who does not answer is waited for as long as the host says, and then the host decides (`unanswered`); while this side does not
 *   read, the peer cannot be blamed.
 * - One probe at a time. While the gate is shut, probes and their answers go before all that waits behind it (sender-queue.ts).
 */
import type { ConnectionHost } from './connection-host.ts';
import type { RdsCounters } from './counters.ts';
import { HANDSHAKE_TIMEOUT_MS } from './handshake.ts';
import type { Gate, LaneSender } from './sender.ts';

const PONGS_QUEUED_MAX = 64;

export class ConnectionGate {
  readonly #host: ConnectionHost;
  readonly #sender: LaneSender;
  readonly #counters: RdsCounters;
  #isConfirmed = false;
  #isSettled = false;
  #isProbing = false;
  #deadlineMs = Number.POSITIVE_INFINITY;

  constructor(host: ConnectionHost, sender: LaneSender, counters: RdsCounters) {
    this.#host = host;
    this.#sender = sender;
    this.#counters = counters;
  }

  /** What it lets through. */
  get lets(): Gate {
    if (!this.#isConfirmed) return 'probes';
    if (this.#isSettled) return 'open';
    return this.#host.mayResend() ? 'resent' : 'probes';
  }

  /** The peer has taken the connection. */
  get isConfirmed(): boolean {
    return this.#isConfirmed;
  }

  /** The peer has answered the probe of this connection, or had the time to. */
  get isSettled(): boolean {
    return this.#isSettled;
  }

  /** A probe is on its way. */
  get isProbing(): boolean {
    return this.#isProbing;
  }

  /** When tick() wants to be called. */
  get deadlineMs(): number {
    return this.#deadlineMs;
  }

  tick(now: number): void {
    if (now < this.#deadlineMs) return;
    this.#deadlineMs = now + HANDSHAKE_TIMEOUT_MS;
    if (!this.#host.heldBack()) this.#host.unanswered();
  }

  /** A connection begins. */
  begin(): void {
    this.#isConfirmed = false;
    this.#isSettled = false;
    this.#isProbing = false;
    this.#host.begins();
    if (this.#host.opensWithMap()) this.#sender.queueMap();
    this.sendProbe(this.#host.opening());
  }

  confirm(now: number): void {
    this.#isConfirmed = true;
    this.#deadlineMs = now + this.#host.patienceMs();
  }

  settle(): void {
    this.#isSettled = true;
    this.#deadlineMs = Number.POSITIVE_INFINITY;
    this.#host.wake();
  }

  unsettle(now: number): void {
    this.#isSettled = false;
    if (this.#isConfirmed) this.#deadlineMs = now + this.#host.patienceMs();
    this.sendProbe(this.#host.opening());
  }

  /** Nothing is written any more, and no answer waited for. */
  stop(): void {
    this.#deadlineMs = Number.POSITIVE_INFINITY;
  }

  /** The connection has ended. */
  end(): void {
    this.#isConfirmed = false;
    this.#isSettled = false;
    this.#deadlineMs = Number.POSITIVE_INFINITY;
  }

  sendProbe(extensions: Uint8Array): void {
    if (this.#isProbing) return;
    this.#isProbing = true;
    this.#sender.queue.addControl(1, 0, extensions, !this.#isSettled);
    this.#host.wake();
  }

  answered(): boolean {
    const was = this.#isProbing;
    this.#isProbing = false;
    return was;
  }

  /** A peer that pings and does not read gets no more than this many pongs queued. */
  pong(dport: number, extensions: Uint8Array | null): void {
    if (this.#sender.queue.controlQueued >= PONGS_QUEUED_MAX) {
      this.#counters.pong_drop_full += 1;
      return;
    }
    this.#counters.send_pong += 1;
    this.#sender.queue.addControl(0, dport, extensions, extensions !== null && !this.#isSettled);
    this.#host.wake();
  }
}
