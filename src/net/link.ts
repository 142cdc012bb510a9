/**
 * What belongs to one connection of a socket, from connect() or accept() until it ends: a socket that connects again gets a new
 * one.
 */
import { AsyncResource } from 'node:async_hooks';
import { processBudget } from './budget.ts';
import type { Connecting } from './connecting.ts';
import { type ZerocopyCounters, zerocopyCounters } from './counters.ts';
import type { Incoming } from './incoming.ts';
import type { Outgoing } from './outgoing.ts';
import { nextSocketId } from './stats.ts';
import type { TcpChannel, TcpOptions } from './tcp.ts';
import type { ResolvedZerocopy } from './zerocopy-options.ts';

export class Link {
  readonly id: number = nextSocketId();
  readonly counters: ZerocopyCounters = zerocopyCounters();
  /** Listeners run in the asynchronous context of whoever made the connection, not of whichever socket woke the thread. */
  readonly scope: AsyncResource = new AsyncResource('ZTXSOCKET');
  /** Path of a Unix socket, empty for an accepted one; null: TCP. */
  readonly path: string | null;
  /** While it comes about. */
  connecting: Connecting | null = null;
  /** While there is one. */
  channel: TcpChannel | null = null;
  outgoing: Outgoing | null = null;
  incoming: Incoming | null = null;
  /** Ends the counting. */
  unwatch: () => void = () => {};

  constructor(path: string | null) {
    this.path = path;
  }

  get isUnix(): boolean {
    return this.path !== null;
  }

  /** Null for a Unix socket, too: it has none of TCP's options. */
  get tcpChannel(): TcpChannel | null {
    return this.isUnix ? null : this.channel;
  }

  /** For the channel that is to be made. */
  tcpOptions({ mode, thresholdBytes }: ResolvedZerocopy): TcpOptions {
    const { isUnix, counters } = this;
    // The kernel would accept the flag on a Unix socket, copy, and never say that it did.
    return { mode: isUnix ? 'off' : mode, isUnix, thresholdBytes, counters, budget: processBudget() };
  }

  /** Whether it keeps the event loop alive. */
  ref(on: boolean): void {
    this.connecting?.ref(on);
    if (on) this.channel?.ref();
    else this.channel?.unref();
  }

  /** Nothing more is read, and what was not begun fails with `error`. What was written is still sent, unless this is a reset. */
  end(how: 'close' | 'reset', error: Error, pinTimeoutMs: number): void {
    this.connecting?.cancel();
    this.connecting = null;
    this.incoming?.stop();
    this.outgoing?.abandon(error);
    const { channel } = this;
    this.channel = null;
    if (how === 'reset') channel?.reset(this.unwatch);
    else channel?.close(this.unwatch, pinTimeoutMs || undefined);
  }
}
