/**
 * Inbound connections of one peer that wait: for their lane to be free, or to be known. What may hold data is not reset, so they are
 * kept as they are, unread. A peer opens another one for a lane when it has lost the one before; so of those of a lane only the newest can
 * be alive, and the others are kept for what they have brought. In the kernel's words: t_accept, and the stash of rds_tcp_accept_one.
 */
import type { Lane } from './lane.ts';
import type { Channel, Runtime, Timer } from './transport.ts';

/** Connections that wait for one lane: more only if all have brought something, which the peer takes for delivered. */
const WAITING_PER_LANE_MAX = 8;
const FULL_PER_LANE_MAX = 64;
/** One that is not of lane 0 waits so long for lane 0. */
const LANE_0_TIMEOUT_MS = 5000;

interface Waiting {
  readonly channel: Channel;
  readonly sinceMs: number;
  /** This lane knows of it, and takes it when it is free. */
  lane: Lane | null;
}

export interface StashHost {
  /** The lane of an inbound connection; null while that is not to be said. */
  laneOf(channel: Channel): Lane | null;
  /** A lane takes the connection now. */
  comes(channel: Channel): void;
  /** One has waited for long: what laneOf() says may change now. */
  waitedForLane0(): void;
}

export class Stash {
  readonly #host: StashHost;
  readonly #runtime: Runtime;
  /** Oldest first. */
  #waiting: Waiting[] = [];
  #timer: Timer | null = null;

  constructor(host: StashHost, runtime: Runtime) {
    this.#host = host;
    this.#runtime = runtime;
  }

  /**
   * Takes a connection, and leads it to its lane if that can be. Returns the one that is too many, if one is: an older one that has brought nothing, or, if
   * all have, this one. `lanes` is how many there may be: they are told apart by source port, whatever lane that turns out to be, as those of one
   * lane must not keep out another's, lane 0's least of all.
   */
  add(channel: Channel, lanes: number): Channel | null {
    const alike = this.#waiting.filter(
      (other) => (other.channel.remotePort - channel.remotePort) % lanes === 0,
    );
    const isFull = alike.length >= WAITING_PER_LANE_MAX;
    const empty = isFull ? alike.find((other) => other.channel.unreadBytes() === 0) : undefined;
    if (empty === undefined && alike.length >= FULL_PER_LANE_MAX) return channel;
    if (empty !== undefined) this.#remove(empty);
    this.#waiting.push({ channel, sinceMs: this.#runtime.now(), lane: null });
    this.route();
    return empty?.channel ?? null;
  }

  /** The lane is free: the connection that is its next, if one waits, and whether others wait behind it. */
  take(lane: Lane): { channel: Channel; more: boolean } | null {
    const next = this.#waiting.find(({ channel }) => this.#host.laneOf(channel) === lane);
    if (next === undefined) return null;
    this.#host.comes(next.channel);
    this.#remove(next);
    return { channel: next.channel, more: this.#waiting.some((other) => other.lane === lane) };
  }

  /** Leads those that wait to their lanes, as far as these are known now. */
  route(): void {
    const now = this.#runtime.now();
    for (const waiting of [...this.#waiting]) {
      const { channel } = waiting;
      const lane = this.#host.laneOf(channel);
      if (lane === null || !this.#waiting.includes(waiting)) continue;
      if (lane === waiting.lane && lane.connection.state !== 'down') continue;
      const verdict = lane.connection.accepted(now);
      waiting.lane = lane;
      if (verdict !== 'wait') this.#remove(waiting);
      if (verdict === 'adopt') {
        this.#host.comes(channel);
        lane.adopt(channel);
      } else if (verdict === 'reset') channel.reset();
      lane.arm();
    }
    this.#arm();
  }

  get isEmpty(): boolean {
    return this.#waiting.length === 0;
  }

  close(): void {
    for (const { channel } of this.#waiting.splice(0)) channel.reset();
    this.#timer?.cancel();
    this.#timer = null;
  }

  #remove(waiting: Waiting): void {
    this.#waiting = this.#waiting.filter((other) => other !== waiting);
  }

  #arm(): void {
    if (this.#timer !== null || this.#waiting.length === 0) return;
    this.#timer = this.#runtime.timer(() => {
      this.#timer = null;
      this.#lookForLane0();
      this.#arm();
    }, LANE_0_TIMEOUT_MS);
  }

  #lookForLane0(): void {
    const [oldest] = this.#waiting;
    if (oldest === undefined || this.#runtime.now() - oldest.sinceMs < LANE_0_TIMEOUT_MS) return;
    this.#host.waitedForLane0();
    this.route();
  }
}
