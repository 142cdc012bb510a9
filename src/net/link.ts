/** What belongs to one connection of a socket, from connect() or accept() on: a socket that connects again gets a new one. */
import { AsyncResource } from 'node:async_hooks';
import type { Connecting } from './connecting.ts';
import { type ZerocopyCounters, zerocopyCounters } from './counters.ts';
import type { Incoming } from './incoming.ts';
import type { Outgoing } from './outgoing.ts';
import { nextSocketId } from './stats.ts';
import type { TcpChannel } from './tcp.ts';

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
}
