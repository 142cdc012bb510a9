/**
 * RdsSocket: reliable, ordered datagrams to any number of peers from one port, as PF_RDS gives them.
 *
 *   sendmsg(), send() ─▶ socket-sending.ts ─┬─▶ socket-room.ts     is there room, who waits for some
 *                                           └─▶ socket-lending.ts  buffers that are lent, and their way back
 *   recvmsg()         ─▶ socket-receiving.ts ─▶ receive-queue.ts, cookies.ts
 *
 * sendmsg() never blocks and fails with the errors, and in the order of checks, of the kernel's rds_sendmsg. Without
 * `zerocopy` the payload is copied during the call. With it, the buffer is lent: it must not change until its cookie comes
 * back, once per accepted message, in the order in which the messages to that peer were accepted. A peer that is away is no
 * error: the message waits. "Send, then close" may lose data, by design; close({ drain: true }) waits.
 */
import { EventEmitter } from 'node:events';
import type { Outcome } from '../core/ubuf.ts';
import type { CookieQueue } from './cookies.ts';
import type { RdsNode } from './node.ts';
import {
  type AwaitReceiveOptions,
  type AwaitSendOptions,
  type CloseOptions,
  closeOptionsError,
  DEFAULT_BUFFER_BYTES,
  type RdsAddress,
  type ReceiveOptions,
  type SendOptions,
  type SocketOptions,
} from './options.ts';
import type { ReceiveQueue } from './receive-queue.ts';
import type { RdsMessage, RdsReceived } from './received.ts';
import type { SendOwner } from './run.ts';
import { Change, CLOSE_DRAIN_MS, checkOpen, closeError, stillLentText } from './socket-closing.ts';
import {
  getOption,
  type OptionTarget,
  type RdsOptionValues,
  type RdsSocketOptions,
  SocketSettings,
  setOption,
} from './socket-options.ts';
import { SocketReceiver } from './socket-receiving.ts';
import { SendRoom } from './socket-room.ts';
import { SocketSender } from './socket-sending.ts';

export interface SocketEvents {
  /** recvmsg() has something: call it until it returns null. */
  readable: [];
  /** After EAGAIN, ENOBUFS or ENOMEM: worth another try. */
  writable: [];
  peerUp: [{ address: string }];
  peerDown: [{ address: string; reason: string }];
  close: [];
}

export class RdsSocket extends EventEmitter<SocketEvents> implements SendOwner {
  readonly node: RdsNode;
  readonly port: number;
  readonly #settings = new SocketSettings();
  readonly #room: SendRoom;
  readonly #sender: SocketSender;
  readonly #receiver: SocketReceiver;
  readonly #change: Change;
  #closing: Promise<void> | null = null;

  /** Made by RdsNode.bind(). */
  constructor(
    node: RdsNode,
    port: number,
    options: SocketOptions,
    queues: { received: ReceiveQueue; cookies: CookieQueue },
  ) {
    super();
    this.node = node;
    this.port = port;
    this.#change = new Change(node.runtime);
    this.#receiver = new SocketReceiver(this, queues, this.#settings);
    this.#room = new SendRoom(this, queues.received, options.sendBufferBytes ?? DEFAULT_BUFFER_BYTES);
    const { zerocopy = false, pin = false } = options;
    this.#sender = new SocketSender(
      this,
      this.#room,
      this.#settings,
      { zerocopy, pin },
      {
        completed: (cookie) => this.#completed(cookie),
        released: () => this.#lentCameBack(),
      },
    );
    this.#setAtBind(options);
  }

  get address(): string {
    return this.node.address;
  }

  get zerocopy(): boolean {
    return this.#sender.zerocopy;
  }

  get sendBufferBytes(): number {
    return this.#room.limitBytes;
  }

  get receiveBufferBytes(): number {
    return this.#receiver.queue.limitBytes;
  }

  get closed(): boolean {
    return this.#closing !== null;
  }

  /** POLLOUT: less is queued than the send buffer holds. */
  get writable(): boolean {
    return this.#room.writable;
  }

  /** POLLIN: recvmsg() would return something. */
  get readable(): boolean {
    return this.#receiver.readable;
  }

  /** Payload bytes accepted and neither acknowledged nor given up. */
  get queuedBytes(): number {
    return this.#room.queuedBytes;
  }

  /** Payload bytes received and not read yet. */
  get unreadBytes(): number {
    return this.#receiver.queue.queuedBytes;
  }

  /** Bytes of the program's memory that are lent now. */
  get lentBytes(): number {
    return this.#sender.lender.lentBytes;
  }

  /** The default destination; null before connect(). */
  get remote(): RdsAddress | null {
    return this.#sender.destination;
  }

  /** For observers: messages that wait to be read. */
  unread(): Iterable<RdsMessage> {
    return this.#receiver.queue.messages();
  }

  /**
   * Sets the default destination. Never blocks; does not filter what is received. Throws EINVAL, EDESTADDRREQ, EPROTOTYPE (no address of
   * one host), EOPNOTSUPP, EACCES (not in the node's `allow`), ENOBUFS (too many peers). Source: rds_connect (net/rds/af_rds.c).
   */
  connect(to: RdsAddress): void {
    this.#sender.connect(to);
  }

  /**
   * Queues one message of up to 1 MiB, whole, and returns its length in bytes. Throws ZerotxError: ENOTCONN (no
   * destination), EMSGSIZE (over 1 MiB or the send buffer), EINVAL (zerocopy and cookie do not go together), ENOMEM (memlock
   * budget), ENOBUFS (the destination port is congested), EAGAIN (the send buffer is full); wait for 'writable' after the
   * last three. Source: rds_sendmsg (net/rds/send.c).
   */
  sendmsg(data: Uint8Array | readonly Uint8Array[], to?: RdsAddress, options?: SendOptions): number {
    return this.#sender.sendmsg(data, to, options);
  }

  /**
   * Sends one message and resolves when the buffer is the caller's again, with how much of it was copied. On a socket
   * with zerocopy that is when the message's last reference is gone (acknowledged, and let go by the kernel); without, as soon as
   * it was copied into the send queue. Waits for room where sendmsg() would fail. Rejects with the signal's reason, ETIMEDOUT,
   * ECANCELED (withdrawn by close() or cancelSentTo() before it was acknowledged; the buffer is the caller's),
   * ZTX_STILL_LENT (given up, but the buffer may still be read: it is not the caller's), or as sendmsg(). A message that
   * the whole memlock budget could not hold is copied.
   */
  send(
    data: Uint8Array | readonly Uint8Array[],
    to?: RdsAddress,
    options: AwaitSendOptions = {},
  ): Promise<Outcome> {
    return this.#sender.send(data, to, options);
  }

  /**
   * The next message, completion record or congestion news, or null. Order: congestion news, then data with up to 8 cookies,
   * then cookies alone (rds_recvmsg).
   */
  recvmsg(options?: ReceiveOptions): RdsReceived | null {
    return this.#receiver.recvmsg(options);
  }

  /**
   * Waits until recvmsg() would return data or congestion news, and resolves with that; calls are served in their order. Cookies
   * alone end no wait: they come along on data, or by recvmsg() (rds_recvmsg). Rejects with ETIMEDOUT (after `timeoutMs`, or
   * SO_RCVTIMEO), the signal's reason, ENOTCONN (the socket is closed), ECANCELED (it was closed meanwhile).
   */
  receive(options: AwaitReceiveOptions = {}): Promise<RdsReceived> {
    return this.#receiver.receive(options);
  }

  /** One error-queue record of origin ZCOOKIE with up to 8 cookies, or null (MSG_ERRQUEUE). */
  recvErrqueue(): { readonly origin: 'ZCOOKIE'; readonly cookies: readonly number[] } | null {
    const { cookies } = this.#receiver;
    return cookies.length === 0 ? null : { origin: 'ZCOOKIE', cookies: cookies.take() };
  }

  /**
   * Withdraws what is queued for an address and port (RDS_CANCEL_SENT_TO), or for all ports of an address; what is half sent is
   * finished, and lent memory comes back when the kernel has let go of it.
   */
  cancelSentTo(to: RdsAddress | string): void {
    this.#sender.cancelSentTo(to);
  }

  /**
   * Sets an option by the kernel's name. Throws ENOPROTOOPT (there is none of that name to set), EOPNOTSUPP (SO_RDS_TRANSPORT of
   * a bound socket), EFAULT (SO_RDS_MSG_RXPATH_LATENCY), EINVAL (an address), or a TypeError or RangeError for a wrong value.
   */
  setsockopt<Name extends keyof RdsOptionValues>(name: Name, value: RdsOptionValues[Name]): void {
    checkOpen(this, 'setsockopt');
    setOption(this.#optionTarget, name, value);
  }

  /** What an option is now. Throws ENOPROTOOPT (there is none of that name to read). */
  getsockopt<Name extends keyof RdsSocketOptions>(name: Name): RdsSocketOptions[Name] {
    checkOpen(this, 'getsockopt');
    return getOption(this.#optionTarget, name) as RdsSocketOptions[Name];
  }

  /** Messages, until close() is called. Cookies come along on them. */
  [Symbol.asyncIterator](): AsyncGenerator<RdsMessage, void, void> {
    return this.#receiver.messages();
  }

  /**
   * Closes: the port is free at once, what waits to be received is discarded, what is unsent or unacknowledged is withdrawn;
   * with `drain` that waits until all is acknowledged. Resolves when no buffer is lent any more; rejects with
   * ZTX_STILL_LENT if that takes longer than `timeoutMs` (default 30 s).
   */
  close(options: CloseOptions = {}): Promise<void> {
    const wrong = closeOptionsError(options);
    if (wrong !== null) return Promise.reject(wrong);
    this.#closing ??= this.#close(options.drain ?? false, options.timeoutMs ?? CLOSE_DRAIN_MS);
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** For runs: bytes were acknowledged or given up. */
  uncharge(payloadBytes: number, messages: number): void {
    this.#room.uncharge(payloadBytes, messages);
    this.#nothingLeft();
    this.roomMade();
  }

  /** For the node: a message for this port. */
  deliver(message: RdsMessage): void {
    this.#receiver.deliver(message);
  }

  /** For the node: a congestion map came. */
  congestionNews(): void {
    const news = this.#receiver.congestionNews();
    this.#room.newsCame();
    if (news) this.node.eventsDue(this);
    this.roomMade();
  }

  /** For the node: the memlock budget has more room, or a peer's place is free; for the socket, its send buffer has. */
  roomMade(): void {
    if (this.#room.wanted || this.#sender.pending.length > 0) this.node.eventsDue(this);
    this.#change.happened();
  }

  /** For the node, at the end of a batch. */
  emitEvents(): void {
    if (this.#sender.pending.length > 0) this.#sender.pending.retry();
    this.#change.happened();
    if (this.#room.takeWritable()) this.emit('writable');
    if (this.#receiver.serve()) this.emit('readable');
  }

  /** What the parts of this socket look like to its options. */
  get #optionTarget(): OptionTarget {
    const room = this.#room;
    const sender = this.#sender;
    const { queue } = this.#receiver;
    const raised = (): void => this.roomMade();
    return {
      settings: this.#settings,
      get zerocopy() {
        return sender.zerocopy;
      },
      set zerocopy(on) {
        sender.zerocopy = on;
      },
      get sendBufferBytes() {
        return room.limitBytes;
      },
      set sendBufferBytes(bytes) {
        room.limitBytes = bytes;
        raised();
      },
      get receiveBufferBytes() {
        return queue.limitBytes;
      },
      set receiveBufferBytes(bytes) {
        queue.limitBytes = bytes;
      },
      get congestionMonitor() {
        return queue.monitors;
      },
      set congestionMonitor(on) {
        queue.monitors = on;
      },
      cancelSentTo: (to) => sender.cancelSentTo(to),
      tracingChanged: () => this.#receiver.tracingChanged(),
    };
  }

  #setAtBind(options: SocketOptions): void {
    const settings = this.#settings;
    settings.timestamp = options.timestamp ?? false;
    settings.receiveErrors = options.receiveErrors ?? false;
    settings.sendTimeoutMs = options.sendTimeoutMs ?? 0;
    settings.receiveTimeoutMs = options.receiveTimeoutMs ?? 0;
    if (options.receiveLatency !== undefined)
      setOption(this.#optionTarget, 'SO_RDS_MSG_RXPATH_LATENCY', options.receiveLatency);
    else this.#receiver.tracingChanged();
  }

  async #close(drain: boolean, timeoutMs: number): Promise<void> {
    const { lender, pending } = this.#sender;
    this.#receiver.end();
    const sent = (): boolean => this.#room.queuedMessages === 0 && pending.length === 0;
    const drained = !drain || (await this.#change.until(sent, timeoutMs));
    this.node.unbind(this);
    this.#receiver.close();
    this.#sender.close();
    const released = await this.#change.until(() => lender.lentBytes === 0, timeoutMs);
    this.#receiver.cookies.clear();
    const stillLent = stillLentText(lender.lentBytes);
    if (!released) pending.abandon(stillLent);
    this.#nothingLeft();
    this.emit('close');
    const error = closeError({ released, drained }, stillLent, timeoutMs);
    if (error !== null) throw error;
  }

  #lentCameBack(): void {
    this.#nothingLeft();
    this.#change.happened();
  }

  /** A closed socket is in the node's books for as long as something of it is queued or lent. */
  #nothingLeft(): void {
    if (this.closed && this.#room.queuedMessages === 0 && this.lentBytes === 0) this.node.forget(this);
  }

  #completed(cookie: number): void {
    if (this.closed) return;
    this.#receiver.completed(cookie);
    this.node.eventsDue(this);
  }
}
