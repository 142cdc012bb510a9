/**
 * What sockets tell diagnostics_channel, for tracing and for one's own logs:
 *
 *   import { subscribe } from 'node:diagnostics_channel';
 *   subscribe('zerotx.net.fallback', ({ socket, bytes, cause }) => console.log(socket, bytes, cause));
 *
 * Messages are made only while somebody listens, and delivered behind the work that caused them, in order: a subscriber may
 * write to a socket or close it. `socket` is the number that stats() of the socket has as `id`.
 */
import { type Channel, channel } from 'node:diagnostics_channel';
import { releases } from '../core/releases.ts';
import type { Outcome } from '../core/ubuf.ts';
import type { CopyCause, ZerocopyCounters } from './counters.ts';
import type { SocketStats } from './stats.ts';

/** All channels; the messages are the interfaces below. */
export const channels: Readonly<Record<'open' | 'release' | 'fallback' | 'close', Channel>> = {
  /** A socket has a connection, or an address for datagrams. */
  open: channel('zerotx.net.open'),
  /** The kernel has let go of what one flagged call lent. */
  release: channel('zerotx.net.release'),
  /** Bytes went in an ordinary call, which copies: everything that is counted by cause. */
  fallback: channel('zerotx.net.fallback'),
  /** A socket is gone, and nothing of it is lent any more. */
  close: channel('zerotx.net.close'),
};

/** Of zerotx.net.open and zerotx.net.close. */
export interface SocketMessage {
  readonly socket: number;
  readonly stats: SocketStats;
}

export interface ReleaseMessage {
  readonly socket: number;
  readonly outcome: Outcome;
  /** From the call to its completion. */
  readonly latencyUs: number;
}

export interface FallbackMessage {
  readonly socket: number;
  readonly bytes: number;
  readonly cause: CopyCause;
}

/** Engines know their counters, and not whose these are. */
const socketOf = new WeakMap<Readonly<ZerocopyCounters>, number>();

/** Bytes that are counted in `counters` from now on are told as those of `socket`. */
export function nameCounters(counters: ZerocopyCounters, socket: number): void {
  socketOf.set(counters, socket);
}

export function publishOpen(socket: number, source: { stats(): SocketStats }): void {
  if (channels.open.hasSubscribers) later(channels.open, { socket, stats: source.stats() });
}

export function publishClose(socket: number, source: { stats(): SocketStats }): void {
  if (channels.close.hasSubscribers) later(channels.close, { socket, stats: source.stats() });
}

/** `copied` as the kernel said; not `exact` if it said so of several calls at once. */
export function publishRelease(
  counters: ZerocopyCounters,
  bytes: number,
  copied: boolean,
  exact: boolean,
  latencyUs: number,
): void {
  if (!channels.release.hasSubscribers) return;
  const socket = socketOf.get(counters);
  if (socket === undefined) return;
  const outcome: Outcome = { bytes, copiedBytes: copied ? bytes : 0, exact };
  later(channels.release, { socket, outcome, latencyUs } satisfies ReleaseMessage);
}

export function publishFallback(counters: ZerocopyCounters, bytes: number, cause: CopyCause): void {
  if (!channels.fallback.hasSubscribers) return;
  const socket = socketOf.get(counters);
  if (socket === undefined) return;
  later(channels.fallback, { socket, bytes, cause } satisfies FallbackMessage);
}

/** Not at once: this is the middle of a send. */
function later(to: Channel, message: object): void {
  releases.run(() => to.publish(message));
}
