/**
 * One vhost-user connection, without its socket: takes messages one by one, and gives replies.
 *
 *   framing.ts -> Message -> handle() -> handlers.ts -> rings.ts, memory.ts -> SessionHost
 *                               |
 *                               +-> reply(bytes)
 *
 * Order is strict: while the work of a message waits (a ring that drains before it stops), handle() has returned a
 * promise, and the next message must not come before that. The stream then waits in the socket.
 *
 * Replies. A message that asks for an acknowledgement (need_reply) gets exactly one reply: its own kind if it has one, else a
 * number, 0 or an errno. Whether the front-end accepted REPLY_ACK is not asked: whoever sets the flag waits, be it on SET_PROTOCOL_FEATURES
 * itself. A request that we do not know is refused and the connection goes on, as front-ends try what is new.
 *
 * Descriptors. Each belongs to the message until a handler takes it; what is left when the handler has returned is closed.
 */
import { constants } from 'node:os';
import {
  encodeMessage,
  encodeReply,
  encodeU64,
  VHOST_USER_BACKEND_CONFIG_CHANGE_MSG,
  VHOST_USER_NEED_REPLY,
  VHOST_USER_PROTOCOL_F_CONFIG,
} from '../wire/vhost-user.ts';
import { has } from '../wire/virtio.ts';
import type { Message } from './framing.ts';
import { CONFIG_HANDLERS, HANDLERS, type Handler, type Outcome } from './handlers.ts';
import type { SessionHost } from './session-host.ts';
import { type SessionCalls, type SessionOptions, SessionState } from './session-state.ts';

const { EINVAL, ENOSYS } = constants.errno;

export interface SessionCounters {
  messages: number;
  /** Answered, or that would have been answered, with an errno; unknown ones too. */
  refused: number;
  unknown: number;
  /** Descriptors that came where none are taken. */
  strayFds: number;
}

export class Session {
  readonly counters: SessionCounters = { messages: 0, refused: 0, unknown: 0, strayFds: 0 };
  /** Told of each message when it is done: its request, and 0 or an errno. For a trace. */
  onMessage: ((request: number, errno: number) => void) | null = null;
  readonly #state: SessionState;
  readonly #reply: (bytes: Uint8Array) => void;
  #over = false;

  /** `reply` is given what goes to the front-end, in order. */
  constructor(
    host: SessionHost,
    options: SessionOptions,
    calls: SessionCalls,
    reply: (bytes: Uint8Array) => void,
  ) {
    this.#state = new SessionState(host, options, calls);
    this.#reply = reply;
  }

  get state(): Readonly<SessionState> {
    return this.#state;
  }

  /**
   * Does what the message says. Null: done. A promise: its work waits for something, and no other message may come before; it never
   * settles when the session ends meanwhile. Throws EPROTO when the connection cannot go on.
   */
  handle(message: Message): Promise<void> | null {
    this.counters.messages++;
    let outcome: Outcome;
    try {
      outcome = this.#run(message);
    } finally {
      this.#closeRest(message);
    }
    if (!(outcome instanceof Promise)) {
      this.#finish(message, outcome);
      return null;
    }
    return outcome.then((value) => {
      // What comes after the end goes nowhere: the promise of a session that is over is for nobody.
      if (this.#over) return new Promise<void>(() => {});
      this.#finish(message, value);
      return undefined;
    });
  }

  /** The device's configuration has changed: tells a front-end that reads it from us. False: nobody to tell. */
  configChanged(): boolean {
    const { backendFd, protocolFeatures, calls } = this.#state;
    if (this.#over || backendFd < 0 || !has(protocolFeatures, VHOST_USER_PROTOCOL_F_CONFIG)) return false;
    calls.notify(backendFd, encodeMessage(VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, 0));
    return true;
  }

  /** The connection is over. Safe to call twice, and while handle() waits. */
  end(error: Error | null): void {
    if (this.#over) return;
    this.#over = true;
    const { host, rings, memory } = this.#state;
    host.closed(error);
    rings.end();
    memory.close();
    this.#state.setBackendFd(-1);
  }

  #run(message: Message): Outcome {
    const handler = this.#handler(message.request);
    if (handler === undefined) {
      this.counters.unknown++;
      return ENOSYS;
    }
    if (message.fds.length > handler.fds) {
      // Where a reply is awaited it is given all the same: there is no way to refuse.
      this.#closeRest(message);
      if (!handler.replies) return EINVAL;
    }
    return handler.run(this.#state, message);
  }

  #handler(request: number): Handler | undefined {
    const config = this.#state.offer.frontend === 'uml' ? CONFIG_HANDLERS.get(request) : undefined;
    return config ?? HANDLERS.get(request);
  }

  #finish({ request, flags }: Message, outcome: number | Uint8Array): void {
    if (typeof outcome !== 'number') {
      this.#reply(encodeReply(request, outcome));
    } else {
      if (outcome !== 0) this.counters.refused++;
      if ((flags & VHOST_USER_NEED_REPLY) !== 0) {
        this.#reply(encodeReply(request, encodeU64({ lo: outcome, hi: 0 })));
      }
    }
    this.onMessage?.(request, typeof outcome === 'number' ? outcome : 0);
  }

  #closeRest({ fds }: Message): void {
    for (const fd of fds.splice(0)) {
      this.counters.strayFds++;
      this.#state.calls.close(fd);
    }
  }
}
