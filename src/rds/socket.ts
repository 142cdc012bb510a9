/**
 * RdsSocket: reliable, ordered datagrams to any number of peers from one port, as PF_RDS gives them.
 *
 * sendmsg() never blocks and fails with the errors, and in the order of checks, of the kernel's rds_sendmsg. Without
 * `zerocopy` the payload is copied during the call. With it, the buffer is lent: it must not change until its cookie comes
 * back, once per accepted message, in the order in which the messages to that peer were accepted. A peer that is away is no
 * error: the message waits. "Send, then close" may lose data, by design; close({ drain: true }) waits.
 */
import { EventEmitter } from 'node:events';
import {
  checkObject,
  checkOptionalBoolean,
  checkOptionalInteger,
  checkSignal,
  checkString,
} from '../core/arguments.ts';
import { pinnedPages } from '../core/budget.ts';
import { ZerotxError } from '../core/errors.ts';
import { type Outcome, Ubuf } from '../core/ubuf.ts';
import { MAX_PAYLOAD } from '../wire/rds.ts';
import { formatIp, parseIp } from '../wire/sockaddr.ts';
import { type CookieQueue, ReleaseOrder } from './cookies.ts';
import { INLINE_BYTES_MAX } from './memory.ts';
import type { Destination, RdsNode } from './node.ts';
import {
  type AwaitSendOptions,
  type CloseOptions,
  checkTarget,
  closeOptionsError,
  DEFAULT_BUFFER_BYTES,
  type RdsAddress,
  type ReceiveOptions,
  type SendOptions,
  type SocketOptions,
} from './options.ts';
import { type Attempt, PendingSends, type Released } from './pending.ts';
import { fixedView, toPieces } from './pieces.ts';
import type { ReceiveQueue } from './receive-queue.ts';
import type { RdsMessage, RdsReceived } from './received.ts';
import type { SendOwner } from './run.ts';
import type { Timer } from './transport.ts';

export interface SocketEvents {
  /** recvmsg() has something: call it until it returns null. */
  readable: [];
  /** After EAGAIN, ENOBUFS or ENOMEM: worth another try. */
  writable: [];
  peerUp: [{ address: string }];
  peerDown: [{ address: string; reason: string }];
  close: [];
}

const CLOSE_DRAIN_MS = 30_000;
/** Another thread may free the memlock budget without our hearing of it. */
const BUDGET_RETRY_MS = 20;
/** The send buffer holds at most one message for this many bytes, which bounds empty messages. */
const BYTES_PER_MESSAGE = 64;

export class RdsSocket extends EventEmitter<SocketEvents> implements SendOwner {
  readonly node: RdsNode;
  readonly port: number;
  readonly #zerocopy: boolean;
  readonly #lendOptions: { readonly pin: boolean };
  readonly sendBufferBytes: number;
  readonly receiveBufferBytes: number;
  readonly #received: ReceiveQueue;
  readonly #cookies: CookieQueue;
  readonly #pending: PendingSends;
  #destination: RdsAddress | null = null;
  /** Messages to this process whose release is due in the next turn. */
  readonly #localReleases: (() => void)[] = [];
  readonly #orders = new Map<string, ReleaseOrder>();
  #queuedBytes = 0;
  #queuedMessages = 0;
  #lentBytes = 0;
  /** A send was refused since 'writable' was last emitted: for want of room, or because its port was congested. */
  #wantsRoom = false;
  #wantsNews = false;
  #closing: Promise<void> | null = null;
  #changed: (() => void) | null = null;
  #budgetTimer: Timer | null = null;
  /** Iterations that wait for a message. */
  readonly #iterators = new Set<() => void>();

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
    this.#zerocopy = options.zerocopy ?? false;
    this.#lendOptions = { pin: options.pin ?? false };
    this.sendBufferBytes = options.sendBufferBytes ?? DEFAULT_BUFFER_BYTES;
    this.receiveBufferBytes = options.receiveBufferBytes ?? DEFAULT_BUFFER_BYTES;
    this.#received = queues.received;
    this.#cookies = queues.cookies;
    this.#pending = new PendingSends(
      (task, delayMs) => node.runtime.timer(task, delayMs),
      () => node.eventsDue(this),
    );
  }

  get address(): string {
    return this.node.address;
  }

  get zerocopy(): boolean {
    return this.#zerocopy;
  }

  get closed(): boolean {
    return this.#closing !== null;
  }

  /** POLLOUT: less is queued than the send buffer holds. */
  get writable(): boolean {
    return (
      this.#queuedBytes < this.sendBufferBytes &&
      this.#queuedMessages * BYTES_PER_MESSAGE < this.sendBufferBytes
    );
  }

  /** POLLIN: recvmsg() would return something. */
  get readable(): boolean {
    return this.#received.readable || (this.#zerocopy && this.#cookies.length > 0);
  }

  /** Payload bytes accepted and neither acknowledged nor given up. */
  get queuedBytes(): number {
    return this.#queuedBytes;
  }

  /** Payload bytes received and not read yet. */
  get unreadBytes(): number {
    return this.#received.queuedBytes;
  }

  /** Bytes of the program's memory that are lent now. */
  get lentBytes(): number {
    return this.#lentBytes;
  }

  /** Sets the default destination. Never blocks; does not filter what is received. Throws EINVAL, EOPNOTSUPP. */
  connect(to: RdsAddress): void {
    this.#checkOpen('connect');
    checkTarget(to, 'connect');
    const { address } = this.node.destination(to.address, 'connect');
    this.#destination = { address, port: to.port };
  }

  /**
   * Queues one message of up to 1 MiB, whole, and returns its length in bytes. Throws ZerotxError: ENOTCONN (no
   * destination), EMSGSIZE (over 1 MiB or the send buffer), EINVAL (zerocopy and cookie do not go together), ENOMEM (memlock
   * budget), ENOBUFS (the destination port is congested), EAGAIN (the send buffer is full); wait for 'writable' after the
   * last three. Source: rds_sendmsg (net/rds/send.c).
   */
  sendmsg(data: Uint8Array | readonly Uint8Array[], to?: RdsAddress, options: SendOptions = {}): number {
    this.#checkOpen('sendmsg');
    checkObject('options', options);
    const { zerocopy = false, cookie }: SendOptions = options;
    checkOptionalBoolean('options.zerocopy', zerocopy);
    const { address, port } = this.#target(to, 'sendmsg');
    const destination = this.node.destination(address, 'sendmsg');
    const pieces = data instanceof Uint8Array ? onePiece(data) : toPieces(data);
    const length = this.#checkLength(pieces, 'sendmsg');
    this.#checkCookie(zerocopy, cookie, length);
    const attempt = zerocopy
      ? this.#lend(destination, port, pieces, length, cookie as number)
      : this.#copy(destination, port, pieces, length);
    if (typeof attempt !== 'string') return length;
    this.#refused(attempt, port);
    throw new ZerotxError(attempt, `sendmsg ${attempt}${reasons[attempt]}`, {
      syscall: 'sendmsg',
      address: destination.address,
      port,
    });
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
    try {
      checkObject('options', options);
      checkSignal('options.signal', options.signal);
      checkOptionalInteger('options.timeoutMs', options.timeoutMs, 0, 2 ** 31 - 1);
      this.#checkOpen('send');
      const { address, port } = this.#target(to, 'send');
      const { address: canonical } = this.node.destination(address, 'send');
      const pieces = toPieces(data);
      const length = this.#checkLength(pieces, 'send');
      const lends = this.#zerocopy && length > 0;
      const attempt = (released: Released): Attempt => {
        // Both may have changed while the message waited: the peer forgotten, the buffer detached.
        const destination = this.node.destination(canonical, 'send');
        if (this.#checkLength(pieces, 'send') !== length) throw resized();
        const result = lends
          ? this.#lend(destination, port, pieces, length, released)
          : this.#copy(destination, port, pieces, length);
        if (typeof result === 'string') this.#refused(result, port);
        return result;
      };
      return this.#pending.add({ address: canonical, port, attempt, bytes: length }, options);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /**
   * The next message, completion record or congestion news, or null. Order: congestion news, then data with up to 8 cookies,
   * then cookies alone (rds_recvmsg).
   */
  recvmsg(options: ReceiveOptions = {}): RdsReceived | null {
    checkObject('options', options);
    const { peek = false, control = true }: ReceiveOptions = options;
    const cookies = control && this.#zerocopy && !peek;
    if (control && !peek) {
      const mask = this.#received.takeNews();
      if (mask !== 0n) return { kind: 'congestion', mask };
    }
    const message = peek ? this.#received.peek() : this.#received.shift();
    if (message !== null) {
      if (cookies && this.#cookies.length > 0) message.cookies = this.#cookies.take();
      return message;
    }
    if (cookies && this.#cookies.length > 0) return { kind: 'completion', cookies: this.#cookies.take() };
    return null;
  }

  /** One error-queue record of origin ZCOOKIE with up to 8 cookies, or null (MSG_ERRQUEUE). */
  recvErrqueue(): { readonly origin: 'ZCOOKIE'; readonly cookies: readonly number[] } | null {
    return this.#cookies.length === 0 ? null : { origin: 'ZCOOKIE', cookies: this.#cookies.take() };
  }

  /** Withdraws everything queued for `address` (RDS_CANCEL_SENT_TO); what is half sent is finished. */
  cancelSentTo(address: string): void {
    this.#checkOpen('cancelSentTo');
    checkString('address', address);
    const lane = this.node.lane(address);
    lane?.checkAcks();
    this.#pending.withdraw(formatIp(parseIp(address)), cancelled('cancelSentTo() was called'));
    lane?.connection.sender.cancel(this);
    this.#madeRoom();
  }

  /** Messages, until close() is called. Cookies come along on them. */
  async *[Symbol.asyncIterator](): AsyncGenerator<RdsMessage, void, void> {
    while (!this.closed) {
      const message = this.#received.shift();
      if (message === null) {
        await new Promise<void>((resolve) => {
          const done = (): void => {
            this.off('readable', done);
            this.#iterators.delete(done);
            resolve();
          };
          this.on('readable', done);
          this.#iterators.add(done);
        });
        continue;
      }
      if (this.#zerocopy && this.#cookies.length > 0) message.cookies = this.#cookies.take();
      yield message;
    }
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
    this.#queuedBytes -= payloadBytes;
    this.#queuedMessages -= messages;
    this.#nothingLeft();
    this.#madeRoom();
  }

  /** For the node: a message for this port. */
  deliver(message: RdsMessage): void {
    this.#received.push(message);
  }

  /** For the node: a congestion map came. */
  congestionNews(): void {
    const news = this.#received.congestionNews();
    if (this.#wantsNews) {
      this.#wantsNews = false;
      this.#wantsRoom = true;
    }
    if (news) this.node.eventsDue(this);
    this.#madeRoom();
  }

  /** For the node: the memlock budget has more room, or a peer's place is free. */
  roomMade(): void {
    this.#madeRoom();
  }

  /** For the node, at the end of a batch. */
  emitEvents(): void {
    if (this.#pending.length > 0) this.#pending.retry();
    this.#changed?.();
    if (this.#wantsRoom && this.writable) {
      this.#wantsRoom = false;
      this.emit('writable');
    }
    if (this.readable) this.emit('readable');
  }

  async #close(drain: boolean, timeoutMs: number): Promise<void> {
    for (const wake of this.#iterators) wake();
    const drained =
      !drain ||
      (await this.#until(() => this.#queuedMessages === 0 && this.#pending.length === 0, timeoutMs));
    this.node.unbind(this);
    this.#budgetTimer?.cancel();
    this.#wantsRoom = false;
    this.#received.close();
    this.node.checkAcks();
    this.#pending.withdraw(null, cancelled('the socket was closed'));
    this.node.cancel(this);
    const released = await this.#until(() => this.#lentBytes === 0, timeoutMs);
    this.#cookies.clear();
    const stillLent = `${this.#lentBytes} bytes lent by this socket may still be read by the kernel`;
    if (!released) this.#pending.abandon(stillLent);
    this.#nothingLeft();
    this.emit('close');
    if (!released) throw new ZerotxError('ZTX_STILL_LENT', stillLent);
    if (drained) return;
    const text = `close ETIMEDOUT: not all was acknowledged within ${timeoutMs} ms; the rest was withdrawn`;
    throw new ZerotxError('ETIMEDOUT', text, { syscall: 'close', next: 'fatal' });
  }

  /** Waits for a condition that uncharge() or a release may change; false after `timeoutMs`. */
  async #until(condition: () => boolean, timeoutMs: number): Promise<boolean> {
    if (condition()) return true;
    return new Promise((resolve) => {
      const timer = this.node.runtime.timer(() => finish(false), timeoutMs);
      const finish = (result: boolean): void => {
        this.#changed = null;
        timer.cancel();
        resolve(result);
      };
      this.#changed = () => {
        if (condition()) finish(true);
      };
    });
  }

  #copy(destination: Destination, port: number, pieces: readonly Uint8Array[], length: number): Attempt {
    const refusal = this.#room(destination, port);
    if (refusal !== null) return refusal;
    if (destination.lane === null) {
      this.node.deliverLocally(destination, this.port, port, pieces, length);
      return copied;
    }
    const { sender } = destination.lane.connection;
    this.#charge(length);
    if (length <= INLINE_BYTES_MAX) sender.queueCopy(this, pieces, length, this.port, port);
    else sender.queuePayload(this, this.#copiedPayload(pieces, length, null), false, this.port, port);
    destination.lane.queued();
    return copied;
  }

  /**
   * Queues `pieces` themselves where they can be lent. `then` is a cookie, which comes back in the order of acceptance, or
   * is called as soon as the buffer is free: nobody should wait for a message before his own that nobody acknowledges.
   */
  #lend(
    destination: Destination,
    port: number,
    pieces: readonly Uint8Array[],
    length: number,
    then: number | Released,
  ): Attempt {
    const { budget, memory, runtime } = this.node;
    const { lane } = destination;
    const waits = typeof then !== 'number';
    let pages = pinnedPages(length, memory.pageBytes);
    const neverFits = waits && budget.limitPages >= 0 && pages > budget.limitPages;
    const lendable =
      lane !== null && !neverFits && pieces.every((piece) => memory.canLend(piece, this.#lendOptions));
    if (!lendable) pages = 0;
    if (pages > 0 && !budget.charge(pages)) return 'ENOMEM';
    const refusal = this.#room(destination, port);
    if (refusal !== null) {
      if (pages > 0) budget.uncharge(pages);
      return refusal;
    }
    const released = waits ? then : (): void => this.#completed(then);
    if (lane === null) {
      // A turn later: a program that sends to itself from here must not starve the event loop.
      this.#localReleases.push(() => released({ bytes: length, copiedBytes: length, exact: true }));
      if (this.#localReleases.length === 1) runtime.yield(() => this.#releaseLocal());
      this.node.deliverLocally(destination, this.port, port, pieces, length);
      return localLent;
    }
    const inTurn = waits ? null : this.#order(destination.address).take();
    this.#charge(length);
    this.#lentBytes += length;
    let payload: Ubuf;
    const onRelease = (outcome: Outcome): void => {
      this.#lentBytes -= length;
      if (pages > 0) this.node.uncharge(pages);
      if (inTurn === null) released(outcome, payload.taken ? taken() : undefined);
      else inTurn(() => released(outcome));
      this.#nothingLeft();
      this.#changed?.();
    };
    if (lendable) {
      for (const piece of pieces) memory.lend(piece, this.#lendOptions);
      payload = new Ubuf(pieces.map(fixedView), onRelease, runtime.releases);
    } else payload = this.#copiedPayload(pieces, length, onRelease);
    const run = lane.connection.sender.queuePayload(this, payload, lendable, this.port, port);
    lane.queued();
    const withdraw = (): boolean => lane.connection.sender.cancelRun(run);
    return { lent: { withdraw, acknowledged: () => run.messages === 0 } };
  }

  #releaseLocal(): void {
    for (const release of this.#localReleases.splice(0)) release();
  }

  /** Completions to one peer come in the order of acceptance, whatever other sockets and peers do. */
  #order(address: string): ReleaseOrder {
    const order = this.#orders.get(address) ?? new ReleaseOrder();
    this.#orders.set(address, order);
    return order;
  }

  /** A payload in memory of the pool, with what is to happen when it is back there. */
  #copiedPayload(
    pieces: readonly Uint8Array[],
    length: number,
    then: ((outcome: Outcome) => void) | null,
  ): Ubuf {
    const { pool, runtime } = this.node;
    const buffer = pool.acquire(length);
    let at = 0;
    for (const piece of pieces) {
      buffer.set(piece, at);
      at += piece.byteLength;
    }
    const onRelease = (): void => {
      pool.release(buffer);
      then?.({ bytes: length, copiedBytes: length, exact: true });
    };
    return new Ubuf([buffer.subarray(0, length)], onRelease, runtime.releases);
  }

  #charge(length: number): void {
    this.#queuedBytes += length;
    this.#queuedMessages += 1;
    // Whoever looks at `writable` before sending must hear of room, too.
    if (!this.writable) this.#wantsRoom = true;
  }

  #room(destination: Destination, port: number): 'EAGAIN' | 'ENOBUFS' | null {
    if (destination.congested(port)) {
      destination.lane?.wanted();
      return 'ENOBUFS';
    }
    if (this.writable) return null;
    // The peer's TCP may have acknowledged more than we know: ask before saying no.
    if (destination.lane !== null && destination.lane.checkAcks() > 0 && this.writable) return null;
    return 'EAGAIN';
  }

  #refused(code: 'EAGAIN' | 'ENOBUFS' | 'ENOMEM', port: number): void {
    if (code === 'ENOBUFS') {
      this.#wantsNews = true;
      this.node.counters.cong_send_error += 1;
      this.#received.watch(port);
      return;
    }
    this.#wantsRoom = true;
    if (code === 'EAGAIN') {
      this.node.counters.send_queue_full += 1;
      return;
    }
    this.node.waitsForBudget(this);
    this.#budgetTimer ??= this.node.runtime.timer(() => {
      this.#budgetTimer = null;
      this.#madeRoom();
    }, BUDGET_RETRY_MS);
  }

  #madeRoom(): void {
    if (this.#wantsRoom || this.#pending.length > 0) this.node.eventsDue(this);
    this.#changed?.();
  }

  /** A closed socket is in the node's books for as long as something of it is queued or lent. */
  #nothingLeft(): void {
    if (this.closed && this.#queuedMessages === 0 && this.#lentBytes === 0) this.node.forget(this);
  }

  #completed(cookie: number): void {
    if (this.closed) return;
    this.#cookies.push(cookie);
    this.node.eventsDue(this);
  }

  /** The way to `to`, or to the connected peer: looked up each time, as an address may become local, or cease to be. */
  #target(to: RdsAddress | undefined, syscall: string): RdsAddress {
    if (to !== undefined) {
      checkTarget(to, syscall);
      return to;
    }
    if (this.#destination !== null) return this.#destination;
    const text = `${syscall} ENOTCONN: no destination given, and the socket is not connected`;
    throw new ZerotxError('ENOTCONN', text, { syscall });
  }

  #checkLength(pieces: readonly Uint8Array[], syscall: string): number {
    let length = 0;
    // An index: this runs for every message, and an iterator shows there.
    for (let i = 0; i < pieces.length; i++) length += (pieces[i] as Uint8Array).byteLength;
    const limit = Math.min(MAX_PAYLOAD, this.sendBufferBytes);
    if (length > limit) {
      const text = `${syscall} EMSGSIZE: ${length} bytes, at most ${limit} fit`;
      throw new ZerotxError('EMSGSIZE', text, { syscall });
    }
    return length;
  }

  #checkCookie(zerocopy: boolean, cookie: number | undefined, length: number): void {
    const effective = zerocopy && this.#zerocopy && length > 0;
    if (cookie === undefined && !zerocopy) return;
    if (effective && Number.isInteger(cookie) && (cookie as number) >= 0 && (cookie as number) <= 0xffffffff)
      return;
    const why = !effective
      ? 'a cookie needs zerocopy on the socket and the message, and a payload'
      : 'zerocopy needs options.cookie, an integer from 0 to 4294967295';
    throw new ZerotxError('EINVAL', `sendmsg EINVAL: ${why}`, { syscall: 'sendmsg' });
  }

  #checkOpen(syscall: string): void {
    if (this.closed)
      throw new ZerotxError('ENOTCONN', `${syscall} ENOTCONN: the socket is closed`, { syscall });
  }
}

const copied: Attempt = { lent: null };
const localLent: Attempt = { lent: { withdraw: () => false, acknowledged: () => true } };

const reasons = {
  EAGAIN: ': the send buffer is full',
  ENOBUFS: ': the destination port is congested',
  ENOMEM: ': the memlock budget is used up',
} as const;

/** sendmsg() keeps no array it is given, so that one piece needs none of its own: at millions a second it would show. */
const single: Uint8Array[] = [new Uint8Array(0)];

function onePiece(piece: Uint8Array): readonly Uint8Array[] {
  single[0] = piece;
  return single;
}

function cancelled(why: string): ZerotxError {
  const text = `send ECANCELED: ${why} before the message was acknowledged`;
  return new ZerotxError('ECANCELED', text, { syscall: 'send' });
}

function resized(): ZerotxError {
  const text = 'send EINVAL: the buffer was detached or resized while the message waited';
  return new ZerotxError('EINVAL', text, { syscall: 'send' });
}

function taken(): ZerotxError {
  const text = 'the lent buffer was detached or resized before the message was acknowledged';
  return new ZerotxError('ZTX_MEMORY_TAKEN', text, { syscall: 'send' });
}
