/**
 * One connection of a stream port: the descriptor, its events, and what becomes of it at its end.
 *
 *   connecting ──▶ up ──▶ lost: the peer went, or said something impossible; or closed by the port
 *
 * The descriptor goes to the lingering closer, because the kernel may still send from lent pages. A peer that cannot be
 * followed any further is reset instead: what it still wants from us is of no use to it.
 */

import type { Clock } from '../core/clock.ts';
import { errnoOf } from '../core/errors.ts';
import type { FrameTable } from '../core/frames.ts';
import type { PortCounters } from '../core/port.ts';
import { lingerClosed } from '../net/closer.ts';
import type { ZerocopyCounters } from '../net/counters.ts';
import type { ZerocopyPolicy } from '../net/policy.ts';
import { type Native, native } from '../sys/binding.ts';
import { EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, SO_ERROR, SOL_SOCKET } from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import type { LendChooser } from './chooser.ts';
import { StreamReceiver, type TurnEnd } from './stream-rx.ts';
import { StreamSender } from './stream-tx.ts';

export interface ConnectionOptions {
  readonly fd: number;
  readonly isConnecting: boolean;
  readonly vnet: boolean;
  readonly policy: ZerocopyPolicy;
  readonly zerocopy: ZerocopyCounters;
  readonly chooser: LendChooser | null;
  readonly counters: PortCounters;
  readonly clock: Clock;
  readonly borrower: object;
  readonly handler: ConnectionHandler;
  readonly lingerMs: number;
}

export interface ConnectionHandler {
  up(connection: StreamConnection): void;
  /** It is closed. `errno`: 0 for an end by the peer; EPROTO for a length that no frame has. */
  lost(connection: StreamConnection, errno: number): void;
  /** Nothing of it is lent any more: it was closed before. */
  ended(connection: StreamConnection): void;
  deliver(table: FrameTable): number;
  writable(): void;
}

/** Completions raise events; this is for one that was lost, and costs nothing. */
const DRAIN_MS = 100;
const EPROTO = errnoOf('EPROTO');
const ETIMEDOUT = errnoOf('ETIMEDOUT');

export class StreamConnection {
  readonly #options: ConnectionOptions;
  readonly #sys: Native;
  readonly #registration: Registration;
  readonly #sender: StreamSender;
  readonly #receiver: StreamReceiver;
  #isConnecting: boolean;
  #isClosed = false;
  /** Once it is closed: ends the lingering. */
  #abandon: () => void = () => {};
  #cancelTurn: (() => void) | null = null;
  #cancelDrain: (() => void) | null = null;

  /** Takes over a descriptor, also when it throws (ENOMEM, ENOSPC). */
  constructor(options: ConnectionOptions) {
    const { fd, vnet, handler } = options;
    this.#options = options;
    this.#sys = native();
    this.#isConnecting = options.isConnecting;
    try {
      this.#receiver = new StreamReceiver({
        sys: this.#sys,
        fd,
        vnet,
        deliver: (table) => handler.deliver(table),
      });
      this.#sender = new StreamSender({
        ...options,
        sys: this.#sys,
        // Not now: this may be the middle of somebody's send().
        failed: (errno) => options.clock.soon(() => this.#lose(-errno)),
      });
      const events = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
      this.#registration = reactor().add(fd, events, (seen) => this.#onEvents(seen));
    } catch (error) {
      this.#sys.close(fd);
      throw error;
    }
  }

  /** As Port.send(), of a connection that is up. */
  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const taken = this.#sender.send(table, which, from, count);
    if (this.#sender.engine.outstanding > 0) this.#watchCompletions();
    return taken;
  }

  resume(): void {
    this.#receiver.resume();
    this.#later();
  }

  /** Lent calls that the kernel has not completed. */
  get outstanding(): number {
    return this.#sender.engine.outstanding;
  }

  /** `linger`: what the kernel has taken is delivered. Frames that were begun and wait here are not. */
  close(how: 'linger' | 'abort' = 'linger'): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#receiver.isClosed = true;
    this.#registration.remove();
    this.#cancelTurn?.();
    this.#cancelDrain?.();
    this.#sender.end();
    const { fd, handler, lingerMs } = this.#options;
    const ended = (): void => handler.ended(this);
    this.#abandon = lingerClosed(this.#sys, fd, this.#sender.engine, how, ended, lingerMs);
  }

  /** What is lent comes back now, if it has to: by a reset, or by the end of the lingering. */
  recall(): void {
    if (this.#isClosed) this.#abandon();
    else if (this.outstanding > 0) this.#lose(ETIMEDOUT, 'abort');
  }

  #lose(errno: number, how: 'linger' | 'abort' = 'linger'): void {
    if (this.#isClosed) return;
    this.close(how);
    this.#options.handler.lost(this, errno);
  }

  #onEvents(events: number): void {
    if (this.#isConnecting && !this.#connected(events)) return;
    const { handler } = this.#options;
    // Completions raise EPOLLERR, too: where there were some, it says nothing about the stream. An end shows as EPOLLHUP besides.
    const isError = (events & EPOLLERR) !== 0 && !this.#drain();
    if ((events & EPOLLOUT) !== 0 && this.#sender.isBlocked) {
      this.#sender.writable();
      if (!this.#sender.isBlocked) handler.writable();
    }
    // An error is met by reading: what came before it is still there.
    if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) !== 0 || isError) this.#receiver.readable = true;
    if (this.#receiver.readable && !this.#isClosed) this.#turn();
  }

  #connected(events: number): boolean {
    const errno = this.#sys.getsockoptInt(this.#options.fd, SOL_SOCKET, SO_ERROR);
    if (errno !== 0) this.#lose(Math.abs(errno));
    else if ((events & EPOLLOUT) !== 0) {
      this.#isConnecting = false;
      this.#options.handler.up(this);
    }
    return !this.#isConnecting && !this.#isClosed;
  }

  #turn(): void {
    this.#cancelTurn?.();
    this.#cancelTurn = null;
    const end: TurnEnd = this.#receiver.turn();
    if (end === 'more') this.#later();
    else if (end === 'refused') this.#lose(EPROTO, 'abort');
    else if (end === 'ended') this.#lose(-this.#receiver.error);
  }

  #later(): void {
    if (!this.#isClosed) this.#cancelTurn ??= this.#options.clock.soon(() => this.#turn());
  }

  /** Whether there were completions. */
  #drain(): boolean {
    return this.#sender.engine.drain() > 0;
  }

  #watchCompletions(): void {
    this.#cancelDrain ??= this.#options.clock.after(DRAIN_MS, () => {
      this.#cancelDrain = null;
      this.#drain();
      if (this.#sender.engine.outstanding > 0) this.#watchCompletions();
    });
  }
}
