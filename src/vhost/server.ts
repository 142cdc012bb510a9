/**
 * Where front-ends come from: a Unix socket that we listen at, or one that we connect to.
 *
 *   listen    closed -> listening -> connected -> listening -> ...
 *   connect   closed -> waiting -> connected -> waiting (with growing delays) -> ...
 *
 * A device has one front-end at a time. Whoever else connects is closed at once and counted; unless the one we have has gone
 * and we have not heard yet. Each connection gets a new session and a new host, and the whole negotiation: nothing of the last one is
 * kept, but frames that are still lent, which are the last host's.
 *
 * Delays double from retryMinMs to retryMaxMs, and begin anew after a connection that the front-end ended in good order.
 */
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { EPOLLIN } from '../sys/constants.ts';
import { closeReceived } from '../sys/fds.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { SOCKADDR_UN_BYTES } from '../wire/sockaddr.ts';
import { type After, realTime } from './after.ts';
import { Connection } from './connection.ts';
import { Session } from './session.ts';
import { sessionCalls } from './session-calls.ts';
import type { SessionHost } from './session-host.ts';
import type { SessionOptions } from './session-state.ts';
import { connectTo, listenAt, type SocketFile } from './socket-file.ts';

const EAGAIN = -errnoOf('EAGAIN');
const ECONNABORTED = -errnoOf('ECONNABORTED');
const EINTR = -errnoOf('EINTR');
/** Out of descriptors: the edge is used up, so accept(2) is tried again by the clock. */
const ACCEPT_RETRY_MS = 100;
const ACCEPTS_PER_TURN = 64;

export interface ServerOptions extends SessionOptions {
  readonly path: string;
  readonly role: 'listen' | 'connect';
  /** Access rights of the socket file; 0600. Whoever can connect hands us memory and gets our frames. */
  readonly socketMode?: number;
  readonly retryMinMs?: number;
  readonly retryMaxMs?: number;
  /** How long a front-end may leave a message half sent, or a reply unread. */
  readonly patienceMs?: number;
  /** The host of a new connection. */
  readonly connected: () => SessionHost;
  readonly after?: After;
}

export type ServerState = 'closed' | 'listening' | 'waiting' | 'connected';

export interface ServerCounters {
  connections: number;
  /** Ended by the front-end, and by us for what it did. */
  disconnects: number;
  failures: number;
  /** Second front-ends. */
  rejected: number;
  /** connect(2) or accept(2) that failed. */
  refusals: number;
}

export class VhostServer {
  readonly counters: ServerCounters = {
    connections: 0,
    disconnects: 0,
    failures: 0,
    rejected: 0,
    refusals: 0,
  };
  /** Why the last connection ended or could not be made; null when the front-end just closed it. */
  lastError: Error | null = null;
  /** Told of each change of `state`. */
  onState: ((state: ServerState) => void) | null = null;
  readonly #options: ServerOptions;
  readonly #after: After;
  readonly #sockaddr = new Uint8Array(SOCKADDR_UN_BYTES);
  #state: ServerState = 'closed';
  #listener: SocketFile | null = null;
  #registration: Registration | null = null;
  #connection: Connection | null = null;
  #cancelRetry: (() => void) | null = null;
  #delayMs = 0;

  constructor(options: ServerOptions) {
    this.#options = options;
    this.#after = options.after ?? realTime;
  }

  get state(): ServerState {
    return this.#state;
  }

  /** Of the front-end that is connected. */
  get session(): Session | null {
    return this.#connection?.session ?? null;
  }

  /** Throws what listening meets: EADDRINUSE and its like. A connection that fails is tried again. */
  open(): void {
    if (this.#state !== 'closed') return;
    if (this.#options.role === 'connect') {
      this.#setState('waiting');
      this.#connect();
      return;
    }
    const listener = listenAt(this.#options.path, this.#options.socketMode ?? 0o600);
    this.#listener = listener;
    this.#registration = reactor().add(listener.fd, EPOLLIN, () => this.#accept());
    this.#setState('listening');
    this.#accept();
  }

  /** Ends the connection, and removes the socket file. All descriptors are closed when it returns, but those in lent frames. */
  close(): void {
    if (this.#state === 'closed') return;
    this.#setState('closed');
    this.#cancel();
    this.#registration?.remove();
    this.#registration = null;
    if (this.#listener !== null) {
      this.#listener.unlink();
      native().close(this.#listener.fd);
      this.#listener = null;
    }
    this.#connection?.end(null);
  }

  /** Ends the connection for something that the front-end or its guest did; it may come again. Not from within a call to the host. */
  disconnect(error: Error): void {
    this.#connection?.end(error);
  }

  #setState(state: ServerState): void {
    this.#state = state;
    this.onState?.(state);
  }

  #retry(ms: number, again: () => void): void {
    this.#cancelRetry ??= this.#after(ms, () => {
      this.#cancelRetry = null;
      again();
    });
  }

  #cancel(): void {
    this.#cancelRetry?.();
    this.#cancelRetry = null;
  }

  #accept(): void {
    for (let i = 0; i < ACCEPTS_PER_TURN; i++) {
      const { fd } = this.#listener ?? {};
      if (fd === undefined) return;
      const accepted = native().accept(fd, this.#sockaddr);
      if (accepted === EAGAIN) return;
      if (accepted === ECONNABORTED || accepted === EINTR) continue;
      if (accepted < 0) {
        this.#failed(accepted, 'accept');
        this.#retry(ACCEPT_RETRY_MS, () => this.#accept());
        return;
      }
      // One session a turn: whoever comes and goes and comes again is not alone here.
      if (this.#take(accepted)) break;
    }
    this.#retry(0, () => this.#accept());
  }

  /** True: it is the front-end now. */
  #take(fd: number): boolean {
    const current = this.#connection;
    if (current?.isGone === true) current.end(null);
    if (this.#connection === null) {
      this.#begin(fd);
      return true;
    }
    this.counters.rejected++;
    closeReceived(fd);
    return false;
  }

  #connect(): void {
    const fd = connectTo(this.#options.path);
    if (fd >= 0) {
      this.#begin(fd);
      return;
    }
    this.#failed(fd, 'connect');
    this.#wait();
  }

  #wait(): void {
    const { retryMinMs = 100, retryMaxMs = 3000 } = this.#options;
    this.#delayMs = Math.min(Math.max(2 * this.#delayMs, retryMinMs), retryMaxMs);
    this.#retry(this.#delayMs, () => this.#connect());
  }

  #failed(errno: number, syscall: string): void {
    this.counters.refusals++;
    this.lastError = errnoError(errno, syscall, { address: this.#options.path });
  }

  #begin(fd: number): void {
    const made = this.#make(fd);
    if (made === null) return;
    this.counters.connections++;
    this.#connection = made;
    this.#setState('connected');
    made.start();
  }

  /** Null when this process has no room for a session: `fd` is closed, and the front-end may try again. */
  #make(fd: number): Connection | null {
    try {
      const connection: Connection = new Connection({
        fd,
        closeFd: sessionCalls.close,
        session: (reply) => new Session(this.#options.connected(), this.#options, sessionCalls, reply),
        ended: (error) => this.#ended(connection, error),
        ...(this.#options.patienceMs === undefined ? {} : { patienceMs: this.#options.patienceMs }),
      });
      return connection;
    } catch (error) {
      if (!(error instanceof ZerotxError)) throw error;
      this.counters.failures++;
      this.lastError = error;
      if (this.#options.role === 'connect') this.#wait();
      return null;
    }
  }

  #ended(connection: Connection, error: Error | null): void {
    if (this.#connection !== connection) return;
    this.#connection = null;
    this.lastError = error;
    if (error === null) this.counters.disconnects++;
    else this.counters.failures++;
    if (this.#state === 'closed') return;
    if (this.#options.role === 'listen') {
      this.#setState('listening');
      return;
    }
    if (error === null) this.#delayMs = 0;
    this.#setState('waiting');
    // Told of it, the owner may have closed us.
    if (this.#state === 'waiting') this.#wait();
  }
}
