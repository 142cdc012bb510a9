/**
 * How a front-end comes by a back-end, and keeps one: connects to a Unix socket, or listens at one, says hello within a
 * deadline, and does it again when the connection is lost, if that is wanted.
 *
 *   closed ─open()─▶ seeking ──connected──▶ greeting ──done──▶ up
 *                      ▲  ▲                     │ failed         │ lost
 *                      │  └──── reconnect ◀─────┴────────────────┘
 *                      └ delays doubling from retryMinMs to retryMaxMs; a listener just waits for the next
 *
 * What cannot get better by trying again (the back-end lacks what is needed) ends it, as does any failure without
 * `reconnect`. Listening, it takes one back-end at a time; others wait in the socket's queue, as with QEMU.
 */
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { EPOLLIN } from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { SOCKADDR_UN_BYTES } from '../wire/sockaddr.ts';
import { type After, realTime } from './after.ts';
import { FrontendChannel } from './frontend-channel.ts';
import type { RequestLine, Talk } from './frontend-line.ts';
import { connectTo, listenAt, type SocketFile } from './socket-file.ts';

const EAGAIN = -errnoOf('EAGAIN');

export interface LinkOptions {
  readonly path: string;
  readonly listen: boolean;
  readonly socketMode: number;
  readonly reconnect: boolean;
  readonly retryMinMs: number;
  readonly retryMaxMs: number;
  /** For the greeting, and for each talk later. */
  readonly timeoutMs: number;
  readonly after?: After;
  /** Everything up to running rings. */
  greet(line: RequestLine): Promise<void>;
  listening(): void;
  up(): void;
  /** The back-end is gone, and was up. */
  lost(error: Error): void;
  /** It is over, and not by close(). */
  failed(error: Error): void;
}

/** Codes of failures that another attempt would only repeat. */
const FINAL = new Set(['ZTX_FEATURES']);

export class FrontendLink {
  readonly #options: LinkOptions;
  readonly #after: After;
  readonly #sockaddr = new Uint8Array(SOCKADDR_UN_BYTES);
  #state: 'closed' | 'seeking' | 'greeting' | 'up' = 'closed';
  #listener: SocketFile | null = null;
  #registration: Registration | null = null;
  #channel: FrontendChannel | null = null;
  #cancelRetry: (() => void) | null = null;
  #delayMs = 0;

  constructor(options: LinkOptions) {
    this.#options = options;
    this.#after = options.after ?? realTime;
  }

  get isUp(): boolean {
    return this.#state === 'up';
  }

  get isClosed(): boolean {
    return this.#state === 'closed';
  }

  /** Throws what listening meets; what connecting meets is failed(), or tried again. */
  open(): void {
    this.#state = 'seeking';
    if (!this.#options.listen) {
      this.#connect();
      return;
    }
    const listener = listenAt(this.#options.path, this.#options.socketMode);
    this.#listener = listener;
    this.#registration = reactor().add(listener.fd, EPOLLIN, () => this.#accept());
    this.#options.listening();
  }

  /** Runs a talk with the back-end that is up; ends the connection when it takes too long. */
  async run<T>(talk: Talk<T>): Promise<T> {
    const channel = this.#channel;
    if (channel === null) throw new ZerotxError('ENOTCONN', 'no back-end is connected');
    return await this.#inTime(channel, channel.line.run(talk));
  }

  /** Ends the connection for something that the back-end did. */
  fail(error: Error): void {
    const channel = this.#channel;
    if (channel === null) return;
    channel.end(error);
    this.#ended(channel, error);
  }

  close(error: Error): void {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.#cancelRetry?.();
    this.#cancelRetry = null;
    this.#registration?.remove();
    this.#registration = null;
    if (this.#listener !== null) {
      this.#listener.unlink();
      native().close(this.#listener.fd);
      this.#listener = null;
    }
    const channel = this.#channel;
    this.#channel = null;
    channel?.end(error);
  }

  #connect(): void {
    const fd = connectTo(this.#options.path);
    if (fd >= 0) this.#begin(fd);
    else this.#again(errnoError(fd, 'connect', { address: this.#options.path }));
  }

  #accept(): void {
    if (this.#listener === null || this.#channel !== null) return;
    const fd = native().accept(this.#listener.fd, this.#sockaddr);
    if (fd >= 0) this.#begin(fd);
    // Out of descriptors, or the back-end gave up meanwhile: the edge is used up all the same.
    else if (fd !== EAGAIN) this.#retry();
  }

  #begin(fd: number): void {
    let channel: FrontendChannel;
    try {
      channel = new FrontendChannel(fd, (error) => this.#ended(channel, error));
    } catch (error) {
      this.#again(error as Error);
      return;
    }
    this.#channel = channel;
    this.#state = 'greeting';
    this.#inTime(channel, this.#options.greet(channel.line)).then(
      () => this.#greeted(channel),
      (error: Error) => {
        channel.end(error);
        this.#ended(channel, error);
      },
    );
  }

  #greeted(channel: FrontendChannel): void {
    if (this.#channel !== channel) return;
    this.#state = 'up';
    this.#delayMs = 0;
    this.#options.up();
  }

  /** `work`, or the end of the channel when it takes too long. */
  async #inTime<T>(channel: FrontendChannel, work: Promise<T>): Promise<T> {
    const { timeoutMs } = this.#options;
    const cancel = this.#after(timeoutMs, () => {
      const error = new ZerotxError('ETIMEDOUT', `the back-end did not answer within ${timeoutMs} ms`);
      channel.end(error);
      this.#ended(channel, error);
    });
    try {
      return await work;
    } finally {
      cancel();
    }
  }

  #ended(channel: FrontendChannel, error: Error): void {
    if (this.#channel !== channel) return;
    this.#channel = null;
    const wasUp = this.#state === 'up';
    this.#state = 'seeking';
    if (wasUp) this.#options.lost(error);
    // Told of it, the owner may have closed us.
    if (!this.isClosed) this.#again(error);
  }

  /** After a failure: once more, or never. */
  #again(error: Error): void {
    const isFinal = error instanceof ZerotxError && FINAL.has(error.code);
    if (!this.#options.reconnect || isFinal) {
      this.close(error);
      this.#options.failed(error);
      return;
    }
    this.#retry();
  }

  #retry(): void {
    const { retryMinMs, retryMaxMs, listen } = this.#options;
    this.#delayMs = Math.min(Math.max(2 * this.#delayMs, retryMinMs), retryMaxMs);
    this.#cancelRetry ??= this.#after(this.#delayMs, () => {
      this.#cancelRetry = null;
      if (listen) this.#accept();
      else this.#connect();
    });
  }
}
