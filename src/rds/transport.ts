/**
 * What RDS needs from the world: connections, time, and a place to put work behind the current batch.
 *
 * RDS itself does no I/O. Programs run it over TCP (transport-tcp.ts); tests run it over a simulated link with virtual
 * time. Readiness is remembered by the channel: `readable` and `writable` are true until a call found nothing to do.
 */
import type { ZerotxError } from '../core/errors.ts';
import type { ReleaseQueue } from '../core/releases.ts';
import type { Ubuf } from '../core/ubuf.ts';

/** One connection to a peer. After close() or reset() no handler is called and only ackedBytes() may be asked. */
export interface Channel {
  readonly remoteAddress: string;
  readonly remotePort: number;
  /** TCP port of this end. */
  readonly localPort: number;
  readonly readable: boolean;
  readonly writable: boolean;
  handler: ChannelHandler;
  /** Whether a lent piece of this size should go by sendLent() now. */
  lends(bytes: number): boolean;
  /** Bytes taken of the first `count` views; 0 when the buffer is full; -errno when the connection is gone. */
  send(views: readonly Uint8Array[], count: number, more: boolean): number;
  /** The same for views that lie in `ubuf`, from the lender's pages where possible. Holds references as needed. */
  sendLent(ubuf: Ubuf, views: readonly Uint8Array[], count: number): number;
  /** `bytes` of the lent `ubuf` went through send(). */
  copied(ubuf: Ubuf, bytes: number): void;
  /** Bytes read; 0 at the end of the stream; -EAGAIN when there is nothing; another -errno when the connection is gone. */
  readv(views: readonly Uint8Array[], count: number): number;
  /** Bytes that arrived and were not read yet. */
  unreadBytes(): number;
  /** Bytes written here that the peer's transport acknowledged: never too many, never fewer than before. */
  ackedBytes(): number;
  /** Says "no more" behind what was written. */
  shutdownWrite(): void;
  /** Closes; what was written is still delivered. */
  close(): void;
  /** Stops at once. */
  reset(): void;
}

export interface ChannelHandler {
  connected?(): void;
  failed?(error: ZerotxError): void;
  readable(): void;
  writable(): void;
  /** Lent pieces came back; acknowledgements are likely. */
  released(): void;
}

export interface Listener {
  close(): void;
}

export interface Transport {
  /**
   * Accepts connections to `address`, those that `admits` says yes to: asked before a channel is made, with the peer's address
   * and the number of connections that this transport has open. The others are reset. `failed` hears when none could be accepted, mostly
   * for want of descriptors; it is tried again. Throws EADDRINUSE, EADDRNOTAVAIL with a way out, ZTX_NO_TCP_KEYS.
   */
  listen(
    address: string,
    accepted: (channel: Channel) => void,
    admits: (remoteAddress: string, connections: number) => boolean,
    failed: (error: ZerotxError) => void,
  ): Listener;
  /**
   * Opens a connection from a port of which the rest modulo 8 is `lane`; connected() or failed() of `handler` follows. Throws
   * what bind(2) refuses.
   */
  dial(localAddress: string, remoteAddress: string, lane: number, handler: ChannelHandler): Channel;
}

export interface Timer {
  cancel(): void;
}

export interface Runtime {
  /** Milliseconds, monotonic, with fractions. */
  now(): number;
  /** Runs `task` after the current batch. */
  defer(task: () => void): void;
  /** Runs `task` in a later turn, so that others have theirs. */
  yield(task: () => void): void;
  /** Runs `task` after `delayMs` (at least). */
  timer(task: () => void, delayMs: number): Timer;
  /** In [0, 1). */
  random(): number;
  readonly releases: ReleaseQueue;
}
