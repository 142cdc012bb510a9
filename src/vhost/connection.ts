/**
 * A session with its socket: reads a message, has it handled, writes the reply, reads the next.
 *
 *   reading --message waits--> held --done--> reading
 *      |  ^
 *      |  +---------- all written --------+
 *      +--reply does not fit--> writing --+
 *
 * Nothing is read while a message is held or a reply is not written, so there is at most one of each, whatever the
 * front-end does. One that sends without end has BUDGET messages a turn of the event loop, and no more time than TURN_MS and
 * the message that goes over it; after that it rests for three times as long, since a memory table of 32 regions alone takes
 * milliseconds, and others have frames to send meanwhile.
 *
 * A front-end that stops in the middle of a message, or does not read a reply, has PATIENCE_MS. That is not a matter of order alone: the
 * descriptors of half a message, and what waits unread in our own socket, may be the front-end's end of the connection, and
 * while it is there no end of the front-end is ever heard of.
 */
import { assert } from '../core/assert.ts';
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT } from '../sys/constants.ts';
import { closeReceived, MESSAGE_FDS_MAX } from '../sys/fds.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { Framer, type Message } from './framing.ts';
import type { Session } from './session.ts';

const EAGAIN = -errnoOf('EAGAIN');
const EINTR = -errnoOf('EINTR');
const ECONNRESET = -errnoOf('ECONNRESET');
const EPIPE = -errnoOf('EPIPE');
const BUDGET = 64;
const TURN_MS = 0.5;
const REST = 3;
/** Of a turn that took long because somebody else had the processor. */
const REST_MAX_MS = 10;
/** Front-ends send a message in one call, and wait for its reply. */
const PATIENCE_MS = 10_000;
const NOTHING = new Uint8Array(0);

export interface ConnectionOptions {
  /** Owned from here on. */
  readonly fd: number;
  /** Closes a descriptor that came with a message. */
  readonly closeFd: (fd: number) => void;
  /** Makes the session, which gets `reply` to write with. */
  readonly session: (reply: (bytes: Uint8Array) => void) => Session;
  /** Called once, when all is closed. Null: the front-end went away. */
  readonly ended: (error: Error | null) => void;
  readonly patienceMs?: number;
}

export class Connection {
  readonly session: Session;
  readonly #fd: number;
  readonly #framer: Framer;
  readonly #ended: (error: Error | null) => void;
  readonly #patienceMs: number;
  readonly #registration: Registration;
  /** Room for as many descriptors as can come at once: what does not fit is closed where it may wait. */
  readonly #fds = new Int32Array(1 + MESSAGE_FDS_MAX);
  /** What is left of a reply that did not fit. */
  #out: Uint8Array = NOTHING;
  #held = false;
  /** The front-end closed its socket, with or without words in it that were not read yet. */
  #hungUp = false;
  #rest: NodeJS.Timeout | null = null;
  #patience: NodeJS.Timeout | null = null;
  #over = false;

  /** Throws, and closes `fd`, when there can be no session or the descriptor cannot be watched. */
  constructor(options: ConnectionOptions) {
    this.#fd = options.fd;
    this.#ended = options.ended;
    this.#patienceMs = options.patienceMs ?? PATIENCE_MS;
    this.#framer = new Framer(options.closeFd);
    try {
      this.session = options.session((bytes) => this.#write(bytes));
      this.#registration = this.#watch();
    } catch (error) {
      closeReceived(this.#fd);
      throw error;
    }
  }

  get isOver(): boolean {
    return this.#over;
  }

  /** Whether the front-end closed its end, though it may not have been read yet: an empty send(2) says so. */
  get isGone(): boolean {
    if (this.#over) return true;
    const sent = native().sendv(this.#fd, [NOTHING], 1, 0);
    return sent < 0 && sent !== EAGAIN;
  }

  /** Reads what is there; to be called once, when everybody knows of the connection. */
  start(): void {
    this.#read();
  }

  /** Ends it from our side. Safe to call twice. */
  end(error: Error | null): void {
    if (this.#over) return;
    this.#over = true;
    if (this.#rest !== null) clearTimeout(this.#rest);
    this.#haveEnough();
    this.#registration.remove();
    this.#framer.end();
    this.session.end(error);
    // With what was sent and not read: nobody knows what is among that.
    closeReceived(this.#fd);
    this.#ended(error);
  }

  #watch(): Registration {
    try {
      return reactor().add(this.#fd, EPOLLIN | EPOLLOUT, (events) => this.#onEvents(events));
    } catch (error) {
      this.session.end(error as Error);
      throw error;
    }
  }

  #onEvents(events: number): void {
    if (this.#over) return;
    if (this.#out.length > 0 && (events & (EPOLLOUT | EPOLLERR)) !== 0) this.#flush();
    this.#hungUp ||= (events & EPOLLHUP) !== 0;
    if (this.#held && this.#hungUp) this.end(null);
    this.#read();
  }

  #read(): void {
    if (this.#rest !== null) return;
    const start = performance.now();
    const all = this.#readUntil(start + TURN_MS);
    const spent = performance.now() - start;
    this.#wait();
    if (this.#over || (all && spent < TURN_MS)) return;
    // The edge is used up, so what is left would not be told of.
    this.#rest = setTimeout(
      () => {
        this.#rest = null;
        this.#read();
      },
      Math.min(REST * spent, REST_MAX_MS),
    );
  }

  /** False: there may be more. */
  #readUntil(end: number): boolean {
    for (let left = BUDGET; !this.#over && !this.#held && this.#out.length === 0; left--) {
      if (left === 0 || (left < BUDGET && performance.now() > end)) return false;
      const message = this.#next();
      if (message === null) return true;
      this.#handle(message);
    }
    return true;
  }

  /** The next whole message, or null: it is not there yet, or the connection is over. */
  #next(): Message | null {
    for (;;) {
      const got = native().recvFds(this.#fd, this.#framer.wanted(), this.#fds);
      if (got === EAGAIN) return null;
      if (got === EINTR) continue;
      if (got <= 0) {
        // ECONNRESET: it left before it had read all replies, as one does that is killed.
        this.end(got === 0 || got === ECONNRESET ? null : errnoError(got, 'recvmsg'));
        return null;
      }
      const count = this.#fds[0] as number;
      if (count < 0) {
        this.end(
          new ZerotxError('EMFILE', 'vhost-user front-end sent descriptors that could not be received'),
        );
        return null;
      }
      const message = this.#took(got, count);
      if (message !== null || this.#over) return message;
    }
  }

  #took(bytes: number, count: number): Message | null {
    try {
      return this.#framer.took(bytes, count === 0 ? [] : Array.from(this.#fds.subarray(1, 1 + count)));
    } catch (error) {
      this.#fail(error);
      return null;
    }
  }

  #handle(message: Message): void {
    this.#haveEnough();
    try {
      const held = this.session.handle(message);
      if (held === null) return;
      this.#held = true;
      // Nobody is there to read a reply: what the message waits for is not waited for.
      if (this.#hungUp) this.end(null);
      held.then(
        () => {
          this.#held = false;
          this.#read();
        },
        (error: unknown) => this.#fail(error),
      );
    } catch (error) {
      this.#fail(error);
    }
  }

  /** What the front-end did wrong ends its connection; anything else is a bug, and is thrown after that. */
  #fail(error: unknown): void {
    this.end(error as Error);
    if (!(error instanceof ZerotxError)) throw error;
  }

  /** Half a message, or a reply that is not read, has so much time, and what comes after it as much again. */
  #wait(): void {
    const isOwed = this.#out.length > 0 || !this.#framer.isIdle;
    if (this.#over || !isOwed) this.#haveEnough();
    else this.#patience ??= setTimeout(() => this.#giveUp(), this.#patienceMs);
  }

  #haveEnough(): void {
    if (this.#patience !== null) clearTimeout(this.#patience);
    this.#patience = null;
  }

  #giveUp(): void {
    const what = this.#out.length > 0 ? 'does not read a reply' : 'stopped in the middle of a message';
    this.end(new ZerotxError('EPROTO', `vhost-user front-end ${what}`));
  }

  #write(bytes: Uint8Array): void {
    if (this.#over) return;
    assert(this.#out.length === 0, 'a message was handled before the last reply was written');
    this.#out = bytes;
    this.#flush();
  }

  #flush(): void {
    while (this.#out.length > 0) {
      const sent = native().sendv(this.#fd, [this.#out], 1, 0);
      if (sent === EAGAIN) return;
      if (sent === EINTR) continue;
      // EPIPE: it is gone. What it sent before may matter no more than the reply does.
      if (sent < 0) {
        this.end(sent === EPIPE ? null : errnoError(sent, 'sendmsg'));
        return;
      }
      this.#out = this.#out.subarray(sent);
    }
  }
}
