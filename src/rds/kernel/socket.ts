/**
 * KernelRdsSocket: a socket of the kernel's own RDS (AF_RDS), with the methods of RdsSocket.
 *
 *   sendmsg(), send() ─▶ sending.ts ─▶ lending.ts ─▶ settling.ts   memory that is lent, until kernel and TCP have let go of it
 *   recvmsg()         ─▶ receiving.ts                              messages wait in the kernel; cookies and news wait here
 *   setsockopt()      ─▶ options.ts
 *
 * Queues, congestion, retransmission and buffers are the kernel's. What it does not tell, nobody can: there are no events about
 * peers, and queuedBytes and unreadBytes cost a look at its tables.
 *
 * Closing: close(2) would throw the outstanding cookies away, and with them the knowledge of when the memory is free. So what is
 * lent is withdrawn first (RDS_CANCEL_SENT_TO), its cookies are waited for, and then TCP is; the port is taken until
 * then. A message that is half sent to a peer that does not read stays with the kernel: after the deadline close() rejects
 * with ZTX_STILL_LENT, and the descriptor stays open, with its memory, until the kernel lets go.
 */
import { EventEmitter } from 'node:events';
import { errnoError } from '../../core/errors.ts';
import type { Outcome } from '../../core/ubuf.ts';
import { native } from '../../sys/binding.ts';
import { EPOLLIN, EPOLLOUT, RDS_CANCEL_SENT_TO, SOL_RDS } from '../../sys/constants.ts';
import { type Registration, reactor } from '../../sys/reactor.ts';
import type { RdsSocketApi, RdsSocketApiEvents } from '../api.ts';
import {
  type AwaitReceiveOptions,
  type AwaitSendOptions,
  type CloseOptions,
  checkReceiveOptions,
  checkWaitOptions,
  closeOptionsError,
  DEFAULT_BUFFER_BYTES,
  type RdsAddress,
  type ReceiveOptions,
  type SendOptions,
  type SocketOptions,
} from '../options.ts';
import type { RdsMessage, RdsReceived } from '../received.ts';
import {
  Change,
  CLOSE_DRAIN_MS,
  checkOpen,
  closedMeanwhile,
  closeError,
  stillLentText,
} from '../socket-closing.ts';
import type { RdsOptionValues, RdsSocketOptions, SocketSettings } from '../socket-options.ts';
import { ReceiveWaiters } from '../socket-waiting.ts';
import type { Timer } from '../transport.ts';
import { withoutZone } from './address.ts';
import type { KernelRdsNode } from './node.ts';
import { KernelOptions } from './options.ts';
import { KernelReceiver, type Reading, type ReceiverOwner } from './receiving.ts';
import { KernelSender, type SenderOwner } from './sending.ts';

/** While close({ drain }) waits, the kernel's tables are looked at this often: no event tells of the last acknowledgement. */
const DRAIN_LOOK_MS = 10;

export class KernelRdsSocket
  extends EventEmitter<RdsSocketApiEvents>
  implements RdsSocketApi, SenderOwner, ReceiverOwner
{
  readonly node: KernelRdsNode;
  readonly port: number;
  readonly fd: number;
  readonly #options: KernelOptions;
  readonly #sender: KernelSender;
  readonly #receiver: KernelReceiver;
  readonly #waiters: ReceiveWaiters;
  readonly #change: Change;
  readonly #registration: Registration;
  #eventsScheduled = false;
  #fresh = false;
  /** Lingering: close() gave up, and the descriptor goes when the kernel has let go of the rest. */
  #state: 'open' | 'closing' | 'lingering' | 'closed' = 'open';
  #closing: Promise<void> | null = null;

  /** Made by KernelRdsNode.bind(), of a bound descriptor, which becomes this socket's. */
  constructor(node: KernelRdsNode, fd: number, port: number, options: SocketOptions) {
    super();
    this.node = node;
    this.fd = fd;
    this.port = port;
    this.#sender = new KernelSender(this, options.pin ?? false);
    this.#receiver = new KernelReceiver(this);
    this.#options = new KernelOptions(
      fd,
      (to) => this.#sender.cancelSentTo(to),
      () => this.#receiver.forgetNews(),
    );
    this.#options.setAtBind(options, DEFAULT_BUFFER_BYTES);
    this.#waiters = new ReceiveWaiters(node.runtime);
    this.#change = new Change(node.runtime);
    this.#registration = reactor().add(fd, EPOLLIN | EPOLLOUT, (events) => this.#ready(events));
  }

  get address(): string {
    return this.node.address;
  }

  get zerocopy(): boolean {
    return this.#options.zerocopy;
  }

  get sendBufferBytes(): number {
    return this.#options.sendBufferBytes;
  }

  get receiveBufferBytes(): number {
    return this.#options.receiveBufferBytes;
  }

  get closed(): boolean {
    return this.#state !== 'open';
  }

  /** False from EAGAIN until the kernel says that there is room. */
  get writable(): boolean {
    return this.#sender.writable;
  }

  get readable(): boolean {
    return !this.closed && this.#receiver.readable;
  }

  get queuedBytes(): number {
    if (this.#state === 'closed') return 0;
    return this.node.queued(this.port).reduce((sum, { bytes }) => sum + bytes, 0);
  }

  get unreadBytes(): number {
    if (this.closed) return 0;
    return this.node.unread(this.port).reduce((sum, { bytes }) => sum + bytes, 0);
  }

  get lentBytes(): number {
    return this.#sender.lender.lentBytes;
  }

  get remote(): RdsAddress | null {
    return this.#sender.destination;
  }

  connect(to: RdsAddress): void {
    this.#sender.connect(to);
  }

  sendmsg(data: Uint8Array | readonly Uint8Array[], to?: RdsAddress, options: SendOptions = {}): number {
    return this.#sender.sendmsg(data, to, options);
  }

  send(
    data: Uint8Array | readonly Uint8Array[],
    to?: RdsAddress,
    options: AwaitSendOptions = {},
  ): Promise<Outcome> {
    return this.#sender.send(data, to, options);
  }

  recvmsg(options: ReceiveOptions = {}): RdsReceived | null {
    checkReceiveOptions(options);
    return this.closed ? null : this.#receiver.next(reading(options));
  }

  receive(options: AwaitReceiveOptions = {}): Promise<RdsReceived> {
    try {
      checkReceiveOptions(options);
      checkWaitOptions(options);
      checkOpen(this, 'receive');
      const { receiveTimeoutMs } = this.settings;
      const timeoutMs = options.timeoutMs ?? (receiveTimeoutMs > 0 ? receiveTimeoutMs : undefined);
      const now = reading(options);
      return this.#waiters.add(() => this.#receiver.dataOrNews(now), { signal: options.signal, timeoutMs });
    } catch (error) {
      return Promise.reject(error);
    }
  }

  recvErrqueue(): { readonly origin: 'ZCOOKIE'; readonly cookies: readonly number[] } | null {
    if (!this.closed) this.#receiver.reap();
    const { cookies } = this.#receiver;
    return cookies.length === 0 ? null : { origin: 'ZCOOKIE', cookies: cookies.take() };
  }

  cancelSentTo(to: RdsAddress | string): void {
    checkOpen(this, 'cancelSentTo');
    this.#receiver.reap();
    this.#sender.cancelSentTo(to);
  }

  setsockopt<Name extends keyof RdsOptionValues>(name: Name, value: RdsOptionValues[Name]): void {
    checkOpen(this, 'setsockopt');
    this.#options.set(name, value);
    this.eventsDue();
  }

  getsockopt<Name extends keyof RdsSocketOptions>(name: Name): RdsSocketOptions[Name] {
    checkOpen(this, 'getsockopt');
    return this.#options.get(name);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<RdsMessage, void, void> {
    const take = (): { readonly message: RdsMessage | null } | null => {
      const message = this.#receiver.message();
      return message === null ? null : { message };
    };
    while (!this.closed) {
      const { message } = await this.#waiters.add(take, {}, { message: null });
      if (message !== null) yield message;
    }
  }

  close(options: CloseOptions = {}): Promise<void> {
    const wrong = closeOptionsError(options);
    if (wrong !== null) return Promise.reject(wrong);
    // Before anything else: a part of it runs at once.
    if (this.#state === 'open') this.#state = 'closing';
    this.#closing ??= this.#close(options.drain ?? false, options.timeoutMs ?? CLOSE_DRAIN_MS);
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  // --- for the parts of this socket ---

  get settings(): SocketSettings {
    return this.#options.settings;
  }

  get waitsForMemory(): boolean {
    return this.#sender.waitsForMemory;
  }

  get monitors(): boolean {
    return this.#options.congestionMonitor;
  }

  queuedPorts(address: string, port: number | null): Iterable<number> {
    const to = this.node.queued(this.port).filter(({ remoteAddress, remotePort }) => {
      return withoutZone(address) === remoteAddress && (port === null || remotePort === port);
    });
    return new Set(to.map(({ remotePort }) => remotePort));
  }

  cancel(address: string, port: number): void {
    const { sockaddr } = this.node.book.target(address, port, 'setsockopt');
    const result = native().setsockopt(this.fd, SOL_RDS, RDS_CANCEL_SENT_TO, sockaddr);
    if (result < 0) throw errnoError(result, 'setsockopt', { address, port });
  }

  cameBack(cookie: number): void {
    this.#sender.lender.cameBack(cookie);
  }

  /** A cookie of the program's is due. */
  completed(cookie: number): void {
    if (this.closed) return;
    this.#receiver.cookies.push(cookie);
    this.#fresh = true;
    this.eventsDue();
  }

  released(): void {
    this.#change.happened();
    if (this.#state === 'lingering' && this.lentBytes === 0) this.#closeFd();
    this.node.memoryCameBack();
  }

  congestionNews(): void {
    this.#sender.newsCame();
    if (this.monitors) this.#fresh = true;
    this.eventsDue();
  }

  /** Something may be worth another try, or an event: at the end of this batch. */
  eventsDue(): void {
    if (this.#eventsScheduled) return;
    this.#eventsScheduled = true;
    this.node.runtime.defer(() => {
      this.#eventsScheduled = false;
      this.#emitEvents();
    });
  }

  // --- events of the kernel ---

  #ready(events: number): void {
    if ((events & EPOLLOUT) !== 0) this.#sender.roomMade();
    if ((events & EPOLLIN) !== 0) {
      this.#receiver.reap();
      this.#fresh = true;
    }
    this.#emitEvents();
  }

  #emitEvents(): void {
    if (this.#state === 'closed') return;
    if (this.#sender.pending.length > 0) this.#sender.pending.retry();
    this.#change.happened();
    if (this.closed) return;
    if (this.#sender.takeWritable()) this.emit('writable');
    if (this.#waiters.length > 0) this.#waiters.serve();
    const isDue = this.#fresh && this.readable;
    this.#fresh = false;
    if (isDue) this.emit('readable');
  }

  async #close(drain: boolean, timeoutMs: number): Promise<void> {
    this.#waiters.end(closedMeanwhile());
    const { pending, lender } = this.#sender;
    const drained = !drain || (await this.#drained(timeoutMs));
    this.#receiver.reap();
    this.#sender.close();
    this.#receiver.reap();
    // At once, if it can be: the port is free then.
    const isFree = (): boolean => lender.lentBytes === 0;
    const released = isFree() || (await this.#change.until(isFree, timeoutMs));
    this.#receiver.cookies.clear();
    const stillLent = stillLentText(lender.lentBytes);
    if (released) this.#closeFd();
    else {
      pending.abandon(stillLent);
      this.#linger();
    }
    // Nobody hears of it from within the call.
    await null;
    this.emit('close');
    const error = closeError({ released, drained }, stillLent, timeoutMs);
    if (error !== null) throw error;
  }

  /** Nothing waits to be sent or acknowledged any more. */
  async #drained(timeoutMs: number): Promise<boolean> {
    const { pending, lender } = this.#sender;
    let timer: Timer | null = null;
    const look = (): void => {
      timer = this.node.runtime.timer(() => {
        look();
        this.#change.happened();
      }, DRAIN_LOOK_MS);
    };
    look();
    const isDrained = (): boolean =>
      pending.length === 0 && lender.lentBytes === 0 && this.node.queued(this.port).length === 0;
    const result = await this.#change.until(isDrained, timeoutMs);
    (timer as Timer | null)?.cancel();
    return result;
  }

  /** The kernel has not let go of all: the descriptor stays, and does not keep the process. */
  #linger(): void {
    this.#state = 'lingering';
    this.#registration.unref();
  }

  #closeFd(): void {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.#registration.remove();
    native().close(this.fd);
    this.node.forget(this);
  }
}

/** What the caller's object says later is of no concern. */
function reading(options: ReceiveOptions): Reading {
  const { peek = false, control = true, maxBytes = Number.POSITIVE_INFINITY, trunc = false } = options;
  return { peek, control, maxBytes, trunc };
}
