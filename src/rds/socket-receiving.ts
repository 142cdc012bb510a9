/**
 * How one socket receives. One call gives one thing, in the order of the kernel's rds_recvmsg (net/rds/recv.c): congestion
 * news, then data with up to 8 cookies, then cookies alone. Who waits is served before 'readable' is emitted; cookies
 * alone end no wait.
 */
import type { CookieQueue } from './cookies.ts';
import type { RdsNode } from './node.ts';
import {
  type AwaitReceiveOptions,
  checkReceiveOptions,
  checkWaitOptions,
  type ReceiveOptions,
} from './options.ts';
import type { ReceiveQueue } from './receive-queue.ts';
import type { RdsMessage, RdsReceived } from './received.ts';
import type { RdsSocket } from './socket.ts';
import { checkOpen, closedMeanwhile } from './socket-closing.ts';
import type { SocketSettings } from './socket-options.ts';
import { MessageTrace, WallClock } from './socket-trace.ts';
import { ReceiveWaiters } from './socket-waiting.ts';

export class SocketReceiver {
  readonly queue: ReceiveQueue;
  readonly cookies: CookieQueue;
  readonly #socket: RdsSocket;
  readonly #node: RdsNode;
  readonly #settings: SocketSettings;
  readonly #waiters: ReceiveWaiters;
  readonly #wallClock: WallClock;
  /** Something came since 'readable' was last due. */
  #fresh = false;
  /** `timestamp` or `latency` is asked for. */
  #traces = false;
  #timesWanted = false;

  constructor(
    socket: RdsSocket,
    queues: { readonly received: ReceiveQueue; readonly cookies: CookieQueue },
    settings: SocketSettings,
  ) {
    this.#socket = socket;
    this.#node = socket.node;
    this.queue = queues.received;
    this.cookies = queues.cookies;
    this.#settings = settings;
    this.#waiters = new ReceiveWaiters(socket.node.runtime);
    this.#wallClock = new WallClock(() => this.#node.epochMs(), this.#node.runtime.now);
  }

  get readable(): boolean {
    return this.queue.readable || (this.#socket.zerocopy && this.cookies.length > 0);
  }

  /** A message for this port. */
  deliver(message: RdsMessage): void {
    if (this.#traces) {
      const { timestamp, latency } = this.#settings;
      const times = this.#node.receiveTimes;
      message.stamp(new MessageTrace(timestamp ? this.#wallClock.read() : null, latency, times));
    }
    this.queue.push(message);
    this.#fresh = true;
  }

  /** A cookie came back. */
  completed(cookie: number): void {
    this.cookies.push(cookie);
    this.#fresh = true;
  }

  /** A congestion map came; true if that is news to the program. */
  congestionNews(): boolean {
    if (!this.queue.congestionNews()) return false;
    this.#fresh = true;
    return true;
  }

  recvmsg(options: ReceiveOptions | undefined): RdsReceived | null {
    // Nearly always there are none: at millions of messages a second, looking into them would show.
    if (options === undefined) return this.#take(false, true, undefined, false, true);
    checkReceiveOptions(options);
    const { peek = false, control = true, maxBytes, trunc = false } = options;
    return this.#take(peek, control, maxBytes, trunc, true);
  }

  receive(options: AwaitReceiveOptions): Promise<RdsReceived> {
    try {
      checkReceiveOptions(options);
      checkWaitOptions(options);
      checkOpen(this.#socket, 'receive');
      const { receiveTimeoutMs } = this.#settings;
      const timeoutMs = options.timeoutMs ?? (receiveTimeoutMs > 0 ? receiveTimeoutMs : undefined);
      // What the caller's object says later is of no concern.
      const { signal, peek = false, control = true, maxBytes, trunc = false } = options;
      const take = (): RdsReceived | null => this.#take(peek, control, maxBytes, trunc, false);
      return this.#waiters.add(take, { signal, timeoutMs });
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Messages, until the socket is closed. */
  async *messages(): AsyncGenerator<RdsMessage, void, void> {
    const take = (): { readonly message: RdsMessage | null } | null => {
      const message = this.#message(false, true, undefined, false);
      return message === null ? null : { message };
    };
    while (!this.#socket.closed) {
      const { message } = await this.#waiters.add(take, {}, { message: null });
      if (message !== null) yield message;
    }
  }

  /** At the end of a batch: who waits has his turn. True if 'readable' is due, once for what came since the last time. */
  serve(): boolean {
    if (this.#waiters.length > 0 && this.queue.readable) this.#waiters.serve();
    const due = this.#fresh && this.readable;
    this.#fresh = false;
    return due;
  }

  /** The socket asks for other traces than before. */
  tracingChanged(): void {
    const { timestamp, latency } = this.#settings;
    this.#wantTimes(latency.length > 0);
    this.#traces = timestamp || latency.length > 0;
  }

  /** The socket closes: who waits hears of it. */
  end(): void {
    this.#waiters.end(closedMeanwhile());
  }

  close(): void {
    this.#wantTimes(false);
    this.queue.close();
  }

  /** Congestion news, or data, or cookies alone where they may come so. No object of options: see recvmsg(). */
  #take(
    peek: boolean,
    control: boolean,
    maxBytes: number | undefined,
    trunc: boolean,
    cookiesAlone: boolean,
  ): RdsReceived | null {
    if (control && !peek) {
      const mask = this.queue.takeNews();
      if (mask !== 0n) return { kind: 'congestion', mask };
    }
    const message = this.#message(peek, control, maxBytes, trunc);
    if (message !== null) return message;
    if (!cookiesAlone || peek || !control || this.cookies.length === 0 || !this.#socket.zerocopy) return null;
    return { kind: 'completion', cookies: this.cookies.take() };
  }

  /** The next message, with the cookies there are unless they are to stay. */
  #message(peek: boolean, control: boolean, maxBytes: number | undefined, trunc: boolean): RdsMessage | null {
    const message = peek ? this.queue.peek() : this.queue.shift();
    if (message === null) return null;
    // A message that was peeked at with less room has all of it again.
    if (maxBytes !== undefined || message.truncated)
      message.show(maxBytes ?? Number.POSITIVE_INFINITY, trunc);
    if (this.#traces) message.readAt(this.#node.runtime.now());
    if (this.cookies.length > 0 && control && !peek && this.#socket.zerocopy)
      message.cookies = this.cookies.take();
    return message;
  }

  #wantTimes(wanted: boolean): void {
    if (wanted === this.#timesWanted) return;
    this.#timesWanted = wanted;
    this.#node.receiveTimes.wanted += wanted ? 1 : -1;
  }
}
