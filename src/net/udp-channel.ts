/**
 * One UDP descriptor with its zero-copy engine: sends in order, and the events of the socket.
 *
 * A send is one or more calls, each of which the kernel takes as a whole or not at all. What it does not take waits here,
 * and everything behind it, until the socket is writable again. Worth lending is a call (not a send): it has the size
 * that the threshold is about, it is one completion, and it may touch 17 pages at most. MSG_MORE is never used: the kernel
 * copies corked datagrams, flagged or not (ip_append_data).
 *
 * A datagram longer than the MTU is copied by the kernel even when it is lent (it is put together again to be cut into
 * fragments); what really goes out from the program's pages is a segmented call on a device that scatters and gathers.
 */
import { Deque } from '../core/deque.ts';
import { errnoError, errnoOf } from '../core/errors.ts';
import type { Ubuf } from '../core/ubuf.ts';
import { type Native, native } from '../sys/binding.ts';
import {
  EPOLLERR,
  EPOLLIN,
  EPOLLOUT,
  SO_ERROR,
  SO_RCVBUF,
  SO_ZEROCOPY,
  SOL_SOCKET,
  SOL_UDP,
  UDP_GRO,
  UDP_SEGMENT,
} from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { processBudget } from './budget.ts';
import { lingerClosed } from './closer.ts';
import type { CopyCause, ZerocopyCounters } from './counters.ts';
import { ZerocopyPolicy } from './policy.ts';
import {
  CALL_PAGES_MAX,
  CALL_VIEWS_MAX,
  type CallLimits,
  datagramCount,
  nextCallBytes,
  UDP_MAX_SEGMENTS,
  UDP4_BYTES_MAX,
  UDP6_BYTES_MAX,
} from './segments.ts';
import { type ReceiveCounters, type ReceiverSink, UdpReceiver } from './udp-receiver.ts';
import type { Target, UdpType } from './udp-target.ts';
import type { Backlog, Transmission } from './udp-transmission.ts';
import { ZerocopyEngine } from './zerocopy.ts';
import type { ResolvedZerocopy } from './zerocopy-options.ts';

export interface UdpCounters extends ReceiveCounters {
  readonly zerocopy: ZerocopyCounters;
  sentDatagrams: number;
  sentBytes: number;
  /** Sends that ended with an error. */
  failedSends: number;
}

export interface UdpChannelOptions {
  readonly type: UdpType;
  readonly zerocopy: ResolvedZerocopy;
  readonly gro: boolean;
  readonly counters: UdpCounters;
}

export interface UdpChannelHandler extends ReceiverSink {
  /** The descriptor is closed and nothing is lent any more. */
  ended(): void;
}

interface Waiting {
  readonly transmission: Transmission;
  readonly target: Target;
}

/**
 * Calls made for what waits before other work gets a turn: loopback takes whatever is sent, at once. A send that finds
 * nothing waiting begins with its calls at once, so a program that makes many small sends makes as many calls.
 */
const TURN_CALLS = 64;

const EAGAIN = -errnoOf('EAGAIN');
const ENOBUFS = -errnoOf('ENOBUFS');
const EIO = -errnoOf('EIO');
const EMSGSIZE = -errnoOf('EMSGSIZE');
const EINVAL = -errnoOf('EINVAL');

export class UdpChannel {
  readonly #sys: Native = native();
  readonly #fd: number;
  readonly #options: UdpChannelOptions;
  readonly #handler: UdpChannelHandler;
  readonly #engine: ZerocopyEngine;
  readonly #receiver: UdpReceiver;
  #registration: Registration;
  readonly #limits: CallLimits;
  readonly #pageBytes: number;
  /** Not accepted yet, in order; those that were aborted stay until it is their turn. */
  readonly #queue = new Deque<Waiting>();
  readonly #backlog: Backlog = { sends: 0, bytes: 0 };
  readonly #views: Uint8Array[] = [];
  /** Of the call being made. */
  #target: Target | null = null;
  #segmentBytes = 0;
  #blocked = false;
  #watchesRoom = false;
  #closed = false;
  #connected = false;
  #refed = true;
  #immediate: NodeJS.Immediate | null = null;

  /** Takes over a descriptor that is bound. */
  constructor(fd: number, options: UdpChannelOptions, handler: UdpChannelHandler) {
    const { zerocopy, counters, type } = options;
    this.#fd = fd;
    this.#options = options;
    this.#handler = handler;
    this.#pageBytes = this.#sys.pageSize();
    const cuts = this.#sys.getsockoptInt(fd, SOL_UDP, UDP_SEGMENT) >= 0;
    this.#limits = {
      segmentsMax: cuts ? UDP_MAX_SEGMENTS : 1,
      bytesMax: type === 'udp4' ? UDP4_BYTES_MAX : UDP6_BYTES_MAX,
    };
    // Not fatal on a kernel that does not know it: every datagram comes by itself then.
    if (options.gro) this.#sys.setsockoptInt(fd, SOL_UDP, UDP_GRO, 1);
    // Loopback is decided by destination, in #why.
    const policy = new ZerocopyPolicy({ ...zerocopy, loopback: () => false });
    if (zerocopy.mode !== 'off' && this.#sys.setsockoptInt(fd, SOL_SOCKET, SO_ZEROCOPY, 1) !== 0) {
      policy.unsupported();
    }
    this.#engine = new ZerocopyEngine({
      sys: this.#sys,
      fd,
      policy,
      counters: counters.zerocopy,
      now: () => performance.now(),
      budget: processBudget(),
      call: (views, count, flags) => this.#call(views, count, flags),
    });
    this.#receiver = new UdpReceiver(this.#sys, fd, counters, handler);
    this.#registration = reactor().add(fd, EPOLLIN, this.#onEvents);
  }

  /** For options and addresses; closing it is the channel's affair. */
  get fd(): number {
    return this.#fd;
  }

  get lending(): boolean {
    return this.#engine.policy.lending;
  }

  /** Sends that wait, and their bytes. */
  get queuedCount(): number {
    return this.#backlog.sends;
  }

  get queuedBytes(): number {
    return this.#backlog.bytes;
  }

  /** Whether datagrams come from one peer only: then errors that it causes are reported to us. */
  set connected(on: boolean) {
    this.#connected = on;
  }

  submit(transmission: Transmission, target: Target): void {
    if (transmission.ended) return;
    transmission.join(this.#backlog);
    this.#queue.push({ transmission, target });
    if (this.#queue.length === 1 && !this.#blocked && this.#immediate === null) this.#pump();
  }

  ref(): void {
    this.#setRef(true);
  }

  unref(): void {
    this.#setRef(false);
  }

  /** What waits ends with `error`; what the kernel has is sent, and its memory stays lent until it was. */
  close(error: Error): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#receiver.stop();
    this.#registration.remove();
    if (this.#immediate !== null) clearImmediate(this.#immediate);
    for (const { transmission } of this.#queue) transmission.end(error);
    this.#queue.clear();
    if (this.#engine.outstanding > 0) {
      // What was sent stays sent. A port that the kernel chose is given up by this; another one stays taken while memory is
      // lent (__udp_disconnect), and what still arrives there is not worth more than the least buffer.
      this.#sys.abort(this.#fd);
      this.#sys.setsockoptInt(this.#fd, SOL_SOCKET, SO_RCVBUF, 0);
    }
    lingerClosed(this.#sys, this.#fd, this.#engine, 'linger', () => this.#handler.ended());
  }

  #setRef(on: boolean): void {
    this.#refed = on;
    this.#receiver.refed = on;
    if (on) this.#registration.ref();
    else this.#registration.unref();
    if (on) this.#immediate?.ref();
    else this.#immediate?.unref();
  }

  /**
   * Every packet that leaves the send buffer is an event for who waits for room, and would wake the event loop: so only while
   * it is full. Nothing is missed in between, as a new registration reports what is there.
   */
  #watchRoom(on: boolean): void {
    if (this.#watchesRoom === on) return;
    this.#watchesRoom = on;
    this.#registration.remove();
    this.#registration = reactor().add(this.#fd, on ? EPOLLIN | EPOLLOUT : EPOLLIN, this.#onEvents);
    if (!this.#refed) this.#registration.unref();
  }

  readonly #onEvents = (events: number): void => {
    if ((events & EPOLLERR) !== 0) {
      // The error queue first: a pending record raises EPOLLERR, too.
      this.#engine.drain();
      const errno = this.#connected ? this.#sys.getsockoptInt(this.#fd, SOL_SOCKET, SO_ERROR) : 0;
      if (errno > 0) this.#handler.receiveFailed(-errno);
      if (this.#closed) return;
    }
    if ((events & EPOLLOUT) !== 0 && this.#blocked) {
      this.#blocked = false;
      this.#pump();
      if (!this.#blocked) this.#watchRoom(false);
    }
    if ((events & EPOLLIN) !== 0) this.#receiver.readable();
  };

  /** Makes calls until nothing waits, the socket is full, or the turn is over. No program code runs in here. */
  #pump(): void {
    for (let made = 0; this.#queue.length > 0 && !this.#blocked; made++) {
      if (made === TURN_CALLS) {
        this.#later();
        break;
      }
      const { transmission, target } = this.#queue.first as Waiting;
      if (transmission.ended || this.#step(transmission, target)) this.#queue.shift();
    }
  }

  #later(): void {
    this.#immediate = setImmediate(() => {
      this.#immediate = null;
      this.#pump();
    });
    if (!this.#refed) this.#immediate.unref();
  }

  /** One call. True: the transmission is over. */
  #step(transmission: Transmission, target: Target): boolean {
    const { cursor, segmentBytes } = transmission;
    const { counters } = this.#options;
    if (cursor.taken)
      return this.#failed(transmission, target, -errnoOf('EFAULT'), 'the memory was transferred away');
    const bytes =
      segmentBytes === 0
        ? cursor.remaining
        : nextCallBytes(cursor.remaining, segmentBytes, this.#limitsTo(target));
    this.#target = target;
    // A single datagram needs no cutting, and the kernel may fragment it where it would refuse a long segment.
    this.#segmentBytes = segmentBytes < bytes ? segmentBytes : 0;
    const n = this.#send(transmission, target, bytes);
    if (n === bytes) {
      transmission.advance(bytes);
      counters.sentBytes += bytes;
      counters.sentDatagrams += datagramCount(bytes, segmentBytes);
      if (cursor.remaining > 0) return false;
      transmission.end(null);
      return true;
    }
    if (n === EAGAIN || (n === ENOBUFS && this.#sys.outq(this.#fd) > 0)) {
      this.#blocked = true;
      this.#watchRoom(true);
      return false;
    }
    // Without checksum offload, or through IPsec, the kernel does not cut (udp_send_skb).
    if (n === EIO && this.#segmentBytes > 0) {
      target.uncut = true;
      return false;
    }
    const tooLong = this.#segmentBytes > 0 && (n === EMSGSIZE || n === EINVAL);
    return this.#failed(
      transmission,
      target,
      n,
      tooLong ? `datagrams of ${segmentBytes} bytes may exceed the MTU of the path` : undefined,
    );
  }

  #limitsTo(target: Target): CallLimits {
    return target.uncut ? { ...this.#limits, segmentsMax: 1 } : this.#limits;
  }

  #failed(transmission: Transmission, { address, port }: Target, errno: number, hint?: string): true {
    this.#options.counters.failedSends += 1;
    transmission.end(errnoError(errno, 'send', { address, port, ...(hint === undefined ? {} : { hint }) }));
    return true;
  }

  /** Sends the next `bytes`: their number, or `-errno`. */
  #send(transmission: Transmission, target: Target, bytes: number): number {
    const { cursor } = transmission;
    const views = this.#views;
    let count = cursor.peek(bytes, views);
    const cause = this.#why(transmission, target, bytes, count);
    let n: number;
    if (cause === null) {
      count = cursor.peek(bytes, views); // lending may have changed the views
      n = this.#sendLent(transmission, count);
    } else {
      if (count > CALL_VIEWS_MAX) {
        views[0] = Buffer.concat(views.slice(0, count));
        count = 1;
      }
      n = this.#call(views, count, 0);
      if (n > 0) this.#engine.copied(transmission.ubuf, n, cause);
    }
    views.length = 0;
    return n;
  }

  #sendLent(transmission: Transmission, count: number): number {
    return this.#engine.send(transmission.ubuf as Ubuf, this.#views, count, 0);
  }

  #call(views: readonly Uint8Array[], count: number, flags: number): number {
    const sockaddr = this.#target?.sockaddr ?? null;
    return this.#sys.sendGso(this.#fd, views, count, flags, this.#segmentBytes, sockaddr);
  }

  /** Why the call with the first `count` views is an ordinary one; null: its memory is ready to be lent. */
  #why(transmission: Transmission, target: Target, bytes: number, count: number): CopyCause | null {
    const { mode, pin } = this.#options.zerocopy;
    const cause = this.#engine.policy.never(bytes);
    if (cause !== null) return cause;
    if (mode === 'auto' && target.local) return 'loopback';
    if (this.#pages(count) > CALL_PAGES_MAX) return 'fragments';
    return this.#engine.why(bytes) ?? (transmission.lend(pin) ? null : 'foreign');
  }

  /** Pages that the views touch, at most; neighbours in memory may share some. */
  #pages(count: number): number {
    if (count > CALL_PAGES_MAX) return count;
    let pages = 0;
    for (let i = 0; i < count; i++) {
      const view = this.#views[i] as Uint8Array;
      pages += Math.ceil((this.#sys.pageOffset(view) + view.byteLength) / this.#pageBytes);
    }
    return pages;
  }
}
