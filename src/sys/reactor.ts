/**
 * Readiness of descriptors, delivered to handlers: one reactor per environment, over the addon's edge-triggered epoll
 * set.
 *
 * Every registration has a token of its own, which is what comes back with events. So an event that was fetched for a
 * descriptor before it was closed, and whose number was reused since, finds no handler: it is dropped.
 *
 * Edge-triggered means that an event tells of a change, once: a handler goes on until EAGAIN, or remembers that it did
 * not. On a zero-copy socket EPOLLERR comes with each completion; drain the error queue, then ask SO_ERROR.
 *
 * The event loop stays alive while at least one registration is ref()ed, as it is to begin with.
 */
import { errnoError } from '../core/errors.ts';
import { type Native, native } from './binding.ts';

export type EventHandler = (events: number) => void;

export interface Registration {
  /** Stops events; safe to call twice, and before or after close(2). */
  remove(): void;
  /** Lets this registration keep the event loop alive, as it does to begin with. */
  ref(): void;
  unref(): void;
}

/** Events fetched in one turn; the rest come in the next. */
const EVENTS_PER_TURN = 256;

let shared: Reactor | undefined;

/** The reactor of this environment, made on first use. */
export function reactor(): Reactor {
  shared ??= new Reactor(native());
  return shared;
}

/** What the reactor does for a registration. */
interface Owner {
  remove(entry: Entry): void;
  setRef(entry: Entry, on: boolean): void;
}

/** A class, not an object of closures: there are thousands of them in a program with many connections. */
class Entry implements Registration {
  readonly fd: number;
  readonly token: number;
  readonly handler: EventHandler;
  refed = false;
  active = true;
  readonly #owner: Owner;

  constructor(fd: number, token: number, handler: EventHandler, owner: Owner) {
    this.fd = fd;
    this.token = token;
    this.handler = handler;
    this.#owner = owner;
  }

  remove(): void {
    this.#owner.remove(this);
  }

  ref(): void {
    this.#owner.setRef(this, true);
  }

  unref(): void {
    this.#owner.setRef(this, false);
  }
}

export class Reactor {
  readonly #sys: Native;
  readonly #events = new Uint32Array(2 * EVENTS_PER_TURN);
  readonly #byToken = new Map<number, Entry>();
  readonly #byFd = new Map<number, Entry>();
  readonly #owner: Owner = {
    remove: (entry) => this.#remove(entry),
    setRef: (entry, on) => this.#setRef(entry, on),
  };
  #nextToken = 0;
  #refs = 0;

  constructor(sys: Native) {
    this.#sys = sys;
    const result = sys.reactorStart(this.#events, (count) => this.#deliver(count));
    if (result < 0) throw errnoError(result, 'epoll_create1');
  }

  /** Registrations now. */
  get size(): number {
    return this.#byToken.size;
  }

  /** Watches `fd` for `events` (EPOLLERR and EPOLLHUP always come); throws if the kernel refuses. */
  add(fd: number, events: number, handler: EventHandler): Registration {
    const token = this.#freeToken();
    const result = this.#sys.reactorAdd(fd, token, events);
    if (result < 0) throw errnoError(result, 'epoll_ctl');
    // The kernel would have said EEXIST if the old one were still in the set: its descriptor was closed and reused.
    const stale = this.#byFd.get(fd);
    if (stale !== undefined) this.#forget(stale);
    const entry = new Entry(fd, token, handler, this.#owner);
    this.#byToken.set(token, entry);
    this.#byFd.set(fd, entry);
    this.#setRef(entry, true);
    return entry;
  }

  #remove(entry: Entry): void {
    if (!entry.active) return;
    this.#forget(entry);
    // EBADF and ENOENT: the descriptor was closed first, which also takes it out of the set.
    this.#sys.reactorRemove(entry.fd);
  }

  #forget(entry: Entry): void {
    this.#setRef(entry, false);
    entry.active = false;
    this.#byToken.delete(entry.token);
    if (this.#byFd.get(entry.fd) === entry) this.#byFd.delete(entry.fd);
  }

  #setRef(entry: Entry, on: boolean): void {
    if (!entry.active || entry.refed === on) return;
    entry.refed = on;
    this.#refs += on ? 1 : -1;
    if (this.#refs === (on ? 1 : 0)) this.#sys.reactorRef(on);
  }

  #freeToken(): number {
    do this.#nextToken = (this.#nextToken + 1) >>> 0;
    while (this.#byToken.has(this.#nextToken));
    return this.#nextToken;
  }

  #deliver(count: number): void {
    for (let i = 0; i < count; i++) {
      const entry = this.#byToken.get(this.#events[2 * i] as number);
      if (entry === undefined) continue;
      try {
        entry.handler(this.#events[2 * i + 1] as number);
      } catch (error) {
        // Edges do not come again: the rest of the batch must be delivered. The error is uncaught all the same.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}
