/**
 * Whom a node talks to, and which inbound connections it takes. Decisions and counts, without I/O: whoever is refused costs an
 * accept(2), a look here and a close(2), and leaves nothing behind: no peer, no lane, no timer.
 *
 * The source address is all that is known of a connection, and all that RDS knows of a peer at any time. So the decisions
 * are made from it, before the first byte, in this order:
 *
 *   closing       the node is being closed, and the address is no peer: peers may come back for what is still to be said
 *   local         the address is open in this process, whose nodes reach each other without TCP: somebody else's connection
 *   not allowed   `allow` is given, and no block of it has the address
 *   connections   limits.connections are open: lanes, those that wait for theirs, and attempts of our own
 *   peers         it would be a new peer, there are as many as there may be, and none has been away for long with nothing queued
 *
 * Later, for an address that has passed: `waiting`, too many of its connections wait for a lane (peer.ts). A connection that
 * never speaks gives its lane back after a while (connection.ts).
 */
import { type Cidr, cidrHas } from '../wire/cidr.ts';
import type { RdsCounters } from './counters.ts';

export type Refusal = 'closing' | 'local' | 'not allowed' | 'connections' | 'peers' | 'waiting';

/** What the node knows of a connection and of itself. */
export interface Arrival {
  readonly ip: Uint8Array;
  readonly isLocal: boolean;
  readonly isPeer: boolean;
  /** Connections that are open now. */
  readonly connections: number;
  /** There is room for another peer, or one could be forgotten. */
  readonly hasPlace: () => boolean;
}

export class Admission {
  readonly #allow: readonly Cidr[] | null;
  readonly #connectionsMax: number;
  readonly #counters: RdsCounters;
  isClosing = false;

  /** `allow` null: everybody. */
  constructor(allow: readonly Cidr[] | null, connectionsMax: number, counters: RdsCounters) {
    this.#allow = allow;
    this.#connectionsMax = connectionsMax;
    this.#counters = counters;
  }

  /** Whether this node has to do with the address at all. */
  allows(ip: Uint8Array): boolean {
    return this.#allow === null || this.#allow.some((block) => cidrHas(block, ip));
  }

  /** Why the connection is refused, counted; null: it is taken. */
  refuse(arrival: Arrival): Refusal | null {
    const reason = this.#reason(arrival);
    if (reason !== null) countRefusal(this.#counters, reason);
    return reason;
  }

  #reason({ ip, isLocal, isPeer, connections, hasPlace }: Arrival): Refusal | null {
    if (this.isClosing && !isPeer) return 'closing';
    if (isLocal) return 'local';
    if (!this.allows(ip)) return 'not allowed';
    if (connections >= this.#connectionsMax) return 'connections';
    return isPeer || hasPlace() ? null : 'peers';
  }
}

/** Peers that there may be: each must find room for all its lanes. */
export function peersMax(
  limits: { readonly peers: number; readonly connections: number },
  lanes: number,
): number {
  return Math.max(1, Math.min(limits.peers, Math.floor(limits.connections / lanes)));
}

export function countRefusal(counters: RdsCounters, reason: Refusal): void {
  counters.accept_refused += 1;
  counters[counterOf[reason]] += 1;
}

const counterOf = {
  closing: 'accept_refused_closing',
  local: 'accept_refused_local',
  'not allowed': 'accept_refused_allow',
  connections: 'accept_refused_connections',
  peers: 'accept_refused_peers',
  waiting: 'accept_refused_waiting',
} as const satisfies Record<Refusal, keyof RdsCounters>;

/** For people. */
export const refusalTexts: Readonly<Record<Refusal, string>> = {
  closing: 'the node is closing',
  local: 'it comes from an address that is open in this process',
  'not allowed': 'its address is not in options.allow',
  connections: 'too many connections (limits.connections)',
  peers: 'too many peers (limits.peers, and limits.connections for the lanes of each)',
  waiting: 'too many of its connections wait already',
};
