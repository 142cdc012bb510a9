/**
 * When a node's program hears of what happened: after the batch of work that it came of, never in the middle of it, as handlers may
 * send, close, or throw. Of each socket once, whatever has come for it.
 */
import { Deque } from '../core/deque.ts';
import type { Runtime } from './transport.ts';

/** A socket. */
export interface Emitter {
  emitEvents(): void;
}

export class EventTurns {
  readonly #runtime: Runtime;
  readonly #due = new Set<Emitter>();
  readonly #notices = new Deque<() => void>();
  readonly #run = (): void => this.#emit();
  #scheduled = false;

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
  }

  /** The socket has events to emit at the end of this batch. */
  due(socket: Emitter): void {
    this.#due.add(socket);
    this.#schedule();
  }

  /** The same a turn later: two sockets of this process that answer each other must not starve the event loop. */
  dueLater(socket: Emitter): void {
    this.#due.add(socket);
    if (this.#scheduled) return;
    this.#scheduled = true;
    this.#runtime.yield(this.#run);
  }

  /** Calls `emit` at the end of this batch. */
  notify(emit: () => void): void {
    this.#notices.push(emit);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    this.#runtime.defer(this.#run);
  }

  #emit(): void {
    this.#scheduled = false;
    const due = [...this.#due];
    this.#due.clear();
    let next = 0;
    try {
      for (let emit = this.#notices.shift(); emit !== undefined; emit = this.#notices.shift()) emit();
      while (next < due.length) (due[next++] as Emitter).emitEvents();
    } finally {
      // A handler threw: the others still hear of theirs, and the error surfaces as uncaught.
      for (; next < due.length; next++) this.#due.add(due[next] as Emitter);
      if (this.#notices.length > 0 || this.#due.size > 0) this.#schedule();
    }
  }
}
