/**
 * The front-end's end of a vhost-user connection, without the connection: requests go out one after the other, and each
 * reply is checked against the request that waits for it.
 *
 * What is said is written as generators (frontend-protocol.ts): a talk yields a request and gets the payload of the
 * reply, or nothing at once if the request has none. Talks run strictly one after the other, in the order of run().
 *
 *   run(talk) ──▶ [ talk | talk | ... ]    the first one: request ──▶ send()
 *                                                         reply   ◀── receive()
 *
 * A back-end that answers what nobody asked, or in another form than the protocol has, cannot be understood any more:
 * the line is broken, all talks fail, and the connection is to be closed. A talk may also fail by itself, since the
 * back-end refused something, and the line goes on.
 */
import { Deque } from '../core/deque.ts';
import { ZerotxError } from '../core/errors.ts';
import {
  encodeMessage,
  type MessageHeader,
  VHOST_USER_NEED_REPLY,
  VHOST_USER_REPLY,
  VHOST_USER_VERSION,
  VHOST_USER_VERSION_MASK,
} from '../wire/vhost-user.ts';

export interface Request {
  readonly request: number;
  readonly payload: Uint8Array;
  /** They stay the caller's. */
  readonly fds: readonly number[];
  /**
   * Bytes of the reply's payload, at least and at most; null: there is none. A reply that a request has only because it
   * asked for an acknowledgement is `isAck`.
   */
  readonly reply: { readonly bytesMin: number; readonly bytesMax: number; readonly isAck: boolean } | null;
}

/** Yields requests, gets payloads of replies (empty where there is none). */
export type Talk<T> = Generator<Request, T, Uint8Array>;

interface Running {
  readonly talk: Talk<unknown>;
  resolve(value: unknown): void;
  reject(error: Error): void;
}

const NOTHING = new Uint8Array(0);

export class RequestLine {
  readonly #send: (bytes: Uint8Array, fds: readonly number[]) => void;
  readonly #talks = new Deque<Running>();
  #current: Running | null = null;
  /** The request whose reply is waited for. */
  #asked: Request | null = null;
  #broken: Error | null = null;

  /** `send` takes a whole message, and keeps what the socket does not take now. */
  constructor(send: (bytes: Uint8Array, fds: readonly number[]) => void) {
    this.#send = send;
  }

  /** Whether a reply is due. */
  get isWaiting(): boolean {
    return this.#asked !== null;
  }

  /** Runs `talk` after those before it. Rejects with what it throws, or with what broke the line. */
  run<T>(talk: Talk<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#broken !== null) return reject(this.#broken);
      this.#talks.push({ talk, resolve: resolve as (value: unknown) => void, reject });
      if (this.#current === null) this.#next();
    });
  }

  /** Takes a message of the back-end. Not null: it was none that can be; the line is broken. */
  receive(header: MessageHeader, payload: Uint8Array, descriptors: number): Error | null {
    const asked = this.#asked;
    const problem = this.#broken !== null ? null : judge(asked, header, payload, descriptors);
    if (problem !== null) this.break(new ZerotxError('EPROTO', `the back-end ${problem}`));
    if (this.#broken !== null) return this.#broken;
    this.#asked = null;
    // Copied: the caller's buffer goes on to be received into.
    this.#advance(Uint8Array.from(payload));
    return null;
  }

  /** Ends all talks with `error`; later ones fail with it at once. */
  break(error: Error): void {
    if (this.#broken !== null) return;
    this.#broken = error;
    this.#asked = null;
    const current = this.#current;
    this.#current = null;
    current?.reject(error);
    for (let next = this.#talks.shift(); next !== undefined; next = this.#talks.shift()) next.reject(error);
  }

  #next(): void {
    this.#current = this.#talks.shift() ?? null;
    if (this.#current !== null) this.#advance(NOTHING);
  }

  /** Lets the current talk go on with the reply to what it asked, until it asks again or ends. */
  #advance(reply: Uint8Array): void {
    const running = this.#current as Running;
    try {
      for (let given = reply; ; given = NOTHING) {
        const { done, value } = running.talk.next(given);
        // send() may have found the connection gone.
        if (this.#current !== running) return;
        if (done === true) {
          running.resolve(value);
          break;
        }
        this.#ask(value as Request);
        if (this.#current !== running || this.#asked !== null) return;
      }
    } catch (error) {
      running.reject(error as Error);
    }
    this.#next();
  }

  #ask(request: Request): void {
    const needsReply = request.reply?.isAck === true ? VHOST_USER_NEED_REPLY : 0;
    this.#asked = request.reply === null ? null : request;
    this.#send(encodeMessage(request.request, needsReply, request.payload), request.fds);
  }
}

/** What is wrong with a message as the reply to `asked`; null if nothing is. */
function judge(
  asked: Request | null,
  { request, flags }: MessageHeader,
  payload: Uint8Array,
  descriptors: number,
): string | null {
  if (descriptors !== 0) return `sent ${descriptors} descriptors, which no reply has`;
  if (asked === null) return `sent message ${request}, which nobody asked for`;
  if (request !== asked.request) return `answered request ${asked.request} with ${request}`;
  if ((flags & VHOST_USER_VERSION_MASK) !== VHOST_USER_VERSION || (flags & VHOST_USER_REPLY) === 0) {
    return `answered request ${request} with flags 0x${flags.toString(16)}`;
  }
  const { bytesMin, bytesMax } = asked.reply as NonNullable<Request['reply']>;
  if (payload.length < bytesMin || payload.length > bytesMax) {
    return `answered request ${request} with ${payload.length} bytes`;
  }
  return null;
}
