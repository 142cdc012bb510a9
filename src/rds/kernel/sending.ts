/**
 * How one kernel socket sends. The kernel makes its checks itself, in its own order (rds_sendmsg in net/rds/send.c); what is
 * checked here is what cannot reach it: kinds of arguments, and a cookie that is no 32-bit number. send() tries as often
 * as it takes (../pending.ts).
 */
import { checkObject, checkOptionalBoolean } from '../../core/arguments.ts';
import { errnoError, errnoOf, ZerotxError } from '../../core/errors.ts';
import type { Outcome } from '../../core/ubuf.ts';
import { native } from '../../sys/binding.ts';
import { MSG_ZEROCOPY } from '../../sys/constants.ts';
import {
  type AwaitSendOptions,
  cancelTarget,
  checkTarget,
  checkWaitOptions,
  type RdsAddress,
  type SendOptions,
} from '../options.ts';
import { type Attempt, PendingSends, type Refusal, type Released } from '../pending.ts';
import { toPieces } from '../pieces.ts';
import { cancelled, notConnected, refused, resized } from '../send-errors.ts';
import { checkOpen } from '../socket-closing.ts';
import type { SocketSettings } from '../socket-options.ts';
import type { Timer } from '../transport.ts';
import type { Target } from './address.ts';
import { KernelLender, type LenderOwner, sendError } from './lending.ts';
import type { KernelRdsNode } from './node.ts';

/** Memory of other processes of this user may be let go of without our hearing of it. */
const MEMORY_RETRY_MS = 20;
const EINVAL = -errnoOf('EINVAL');

export interface SenderOwner extends LenderOwner {
  readonly closed: boolean;
  readonly zerocopy: boolean;
  readonly node: Pick<KernelRdsNode, 'runtime' | 'budget' | 'settling' | 'book'>;
  readonly settings: SocketSettings;
  /** Ports of `address`, as far as `port` allows, that messages of this socket are queued for. */
  queuedPorts(address: string, port: number | null): Iterable<number>;
  /** Withdraws what is queued for it (RDS_CANCEL_SENT_TO). */
  cancel(address: string, port: number): void;
  /** There may be room now. */
  eventsDue(): void;
}

export class KernelSender {
  readonly lender: KernelLender;
  readonly pending: PendingSends;
  readonly #owner: SenderOwner;
  #destination: RdsAddress | null = null;
  /** A send was refused since 'writable' was last emitted: the buffer was full or memory short; its port was congested. */
  #wantsRoom = false;
  #wantsNews = false;
  #hasRoom = true;
  #memoryTimer: Timer | null = null;

  constructor(owner: SenderOwner, pin: boolean) {
    this.#owner = owner;
    this.lender = new KernelLender(owner, pin);
    this.pending = new PendingSends(
      (task, delayMs) => owner.node.runtime.timer(task, delayMs),
      () => owner.eventsDue(),
    );
  }

  /** False from EAGAIN on, until the kernel says otherwise. */
  get writable(): boolean {
    return this.#hasRoom;
  }

  /** ENOMEM was met, and what waits for memory was not tried again since. */
  get waitsForMemory(): boolean {
    return this.#memoryTimer !== null;
  }

  /** The default one. */
  get destination(): RdsAddress | null {
    return this.#destination;
  }

  connect(to: RdsAddress): void {
    checkOpen(this.#owner, 'connect');
    checkTarget(to, 'connect');
    const { node, fd } = this.#owner;
    const { address, port, sockaddr } = node.book.target(to.address, to.port, 'connect');
    const result = native().connect(fd, sockaddr);
    if (result < 0) throw errnoError(result, 'connect', { address, port });
    this.#destination = { address, port };
  }

  sendmsg(
    data: Uint8Array | readonly Uint8Array[],
    to: RdsAddress | undefined,
    options: SendOptions,
  ): number {
    checkOpen(this.#owner, 'sendmsg');
    checkObject('options', options);
    const { zerocopy = false, cookie }: SendOptions = options;
    checkOptionalBoolean('options.zerocopy', zerocopy);
    const target = this.#target(to, 'sendmsg');
    const pieces = toPieces(data);
    const length = lengthOf(pieces);
    const isCookie = Number.isInteger(cookie) && (cookie as number) >= 0 && (cookie as number) <= 0xffffffff;
    let attempt: Attempt;
    if (cookie !== undefined && !isCookie)
      throw invalid('options.cookie must be an integer from 0 to 4294967295');
    // The kernel's own flag stays once it was set (options.ts).
    if (zerocopy && isCookie && !this.#owner.zerocopy) throw invalid('the socket is without SO_ZEROCOPY');
    if (zerocopy && isCookie && length > 0)
      attempt = this.lender.lend(target, pieces, length, cookie as number);
    else if (zerocopy || isCookie) throw this.#refusedFlags(target, pieces, zerocopy, isCookie);
    else attempt = this.lender.copy(target, pieces, length);
    if (typeof attempt !== 'string') return length;
    this.#refused(attempt);
    throw refused(attempt, target);
  }

  send(
    data: Uint8Array | readonly Uint8Array[],
    to: RdsAddress | undefined,
    options: AwaitSendOptions,
  ): Promise<Outcome> {
    try {
      checkWaitOptions(options);
      checkOpen(this.#owner, 'send');
      const { address, port } = this.#target(to, 'send');
      const pieces = toPieces(data);
      const length = lengthOf(pieces);
      const lends = this.#owner.zerocopy && length > 0;
      const attempt = (released: Released): Attempt => {
        // The buffer may have been detached while the message waited.
        if (lengthOf(pieces) !== length) throw resized();
        const target = this.#owner.node.book.target(address, port, 'send');
        const result = lends
          ? this.lender.lend(target, pieces, length, released)
          : this.lender.copy(target, pieces, length);
        if (typeof result === 'string') this.#refused(result);
        return result;
      };
      const { signal, timeoutMs }: AwaitSendOptions = options;
      const { sendTimeoutMs } = this.#owner.settings;
      return this.pending.add(
        { address, port, attempt, bytes: length },
        { signal, timeoutMs, roomTimeoutMs: sendTimeoutMs },
      );
    } catch (error) {
      return Promise.reject(error);
    }
  }

  cancelSentTo(to: RdsAddress | string): void {
    checkOpen(this.#owner, 'cancelSentTo');
    const { address: text, port } = cancelTarget(to);
    const { address } = this.#owner.node.book.target(text, port ?? 0, 'cancelSentTo');
    this.pending.withdraw(address, port, cancelled('cancelSentTo() was called', 'known to be acknowledged'));
    this.lender.withdraw(address, port);
    for (const each of this.#owner.queuedPorts(address, port)) this.#owner.cancel(address, each);
    // If it was not that which filled the buffer, the next call says so.
    this.#hasRoom = true;
    this.#owner.eventsDue();
  }

  /** The socket closes: nothing waits any more, and what is lent is asked back. */
  close(): void {
    this.#memoryTimer?.cancel();
    this.#wantsRoom = false;
    this.pending.withdraw(null, null, cancelled('the socket was closed', 'known to be acknowledged'));
    for (const [address, ports] of this.lender.withdraw(null, null)) {
      for (const port of ports) this.#owner.cancel(address, port);
    }
  }

  /** The kernel says that less is queued than the send buffer holds. */
  roomMade(): void {
    this.#hasRoom = true;
  }

  /** Some port is not congested any more. */
  newsCame(): void {
    if (!this.#wantsNews) return;
    this.#wantsNews = false;
    this.#wantsRoom = true;
  }

  /** Whether 'writable' is to be emitted now. */
  takeWritable(): boolean {
    if (!this.#wantsRoom || !this.#hasRoom) return false;
    this.#wantsRoom = false;
    return true;
  }

  #refused(code: Refusal): void {
    if (code === 'ENOBUFS') {
      this.#wantsNews = true;
      return;
    }
    this.#wantsRoom = true;
    if (code === 'EAGAIN') {
      this.#hasRoom = false;
      return;
    }
    this.#memoryTimer ??= this.#owner.node.runtime.timer(() => {
      this.#memoryTimer = null;
      this.#owner.eventsDue();
    }, MEMORY_RETRY_MS);
  }

  /** Zero-copy without a cookie, or a cookie without: the kernel says what is wrong, which need not be that. */
  #refusedFlags(
    target: Target,
    pieces: readonly Uint8Array[],
    zerocopy: boolean,
    withCookie: boolean,
  ): ZerotxError {
    const { fd } = this.#owner;
    const { sockaddr } = target;
    const flags = zerocopy ? MSG_ZEROCOPY : 0;
    // One piece may be more than the kernel reads; it never comes to reading.
    const views = pieces.slice(0, 64);
    const result = native().rdsSendmsg(fd, views, views.length, sockaddr, flags, withCookie ? 0 : -1);
    return sendError(result < 0 ? result : EINVAL, target);
  }

  #target(to: RdsAddress | undefined, syscall: string): Target {
    if (to !== undefined) checkTarget(to, syscall);
    const given = to ?? this.#destination;
    if (given !== null) return this.#owner.node.book.target(given.address, given.port, syscall);
    throw notConnected(syscall);
  }
}

function lengthOf(pieces: readonly Uint8Array[]): number {
  let length = 0;
  for (const piece of pieces) length += piece.byteLength;
  return length;
}

function invalid(why: string): ZerotxError {
  return new ZerotxError('EINVAL', `sendmsg EINVAL: ${why}`, { syscall: 'sendmsg' });
}
