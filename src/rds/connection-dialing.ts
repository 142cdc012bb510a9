/**
 * When a lane that is down dials its peer, or pokes it: whether there is a reason to, and how long the next attempt must wait.
 * connection.ts says how attempts and connections went; nothing else is known of them here.
 *
 * - Reasons: something is queued, or could not even be queued (`wanted`); and the side that dials restores what was up, and comes when
 *   it is poked, while the other side needs the peer only as long as it has something to say.
 * - Back-off (rds_queue_reconnect): the first attempt is immediate, then uniformly random in [0, cur), cur doubling from 1 ms to
 *   1 s; cur starts over after a connection that lasted.
 * - Anybody can poke, from many addresses. For a peer that never spoke, and to which nothing is to be said, cur goes on to 30 s, until
 *   there is a better reason.
 */
const BACKOFF_MIN_MS = 1;
const BACKOFF_MAX_MS = 1000;
const STRANGER_BACKOFF_MAX_MS = 30_000;
/** A connection that lasted this long was a good one: the next attempt is immediate. */
const LASTED_MS = 50;

export class Dialing {
  /** This side's address is the smaller one. */
  readonly dials: boolean;
  readonly #random: () => number;
  #backoffMs = 0;
  #nextMs = 0;
  #upSinceMs = 0;
  /** There was a connection, or there is to be one. */
  #wasUp = false;
  /** The peer has said something, on any connection or on lane 0. */
  #isKnown = false;
  #wanted = false;

  constructor(dials: boolean, random: () => number) {
    this.dials = dials;
    this.#random = random;
  }

  /** The next attempt is not before. */
  get nextMs(): number {
    return this.#nextMs;
  }

  /** There is a reason to dial. `idle`: nothing is queued. */
  hasReason(idle: boolean): boolean {
    return this.#wanted || !idle || (this.dials && this.#wasUp);
  }

  /** There is more reason than a poke long ago. */
  sooner(now: number): void {
    if (this.#backoffMs <= BACKOFF_MAX_MS) return;
    this.#backoffMs = BACKOFF_MAX_MS;
    this.#nextMs = Math.min(this.#nextMs, now + this.#random() * BACKOFF_MAX_MS);
  }

  /** The program has something to say that cannot even be queued. */
  wanted(now: number): void {
    this.#wanted = true;
    this.sooner(now);
  }

  /** A congestion map came: who was refused tries again, and is wanted() again if that is still in vain. */
  mapCame(): void {
    this.#wanted = false;
  }

  /** The other side asks for a connection while there is none. */
  poked(now: number): void {
    this.#wasUp = true;
    this.sooner(now);
  }

  /** The lane is to be up from now on, as lane 0 is: the peer is no stranger. */
  keepUp(): void {
    this.#wasUp = true;
    this.#isKnown = true;
  }

  /** A connection is established. */
  up(now: number): void {
    this.#wasUp = true;
    this.#upSinceMs = now;
  }

  /** The peer has spoken. */
  heard(): void {
    this.#isKnown = true;
  }

  /** The peer broke the protocol: the connection that ends now was not a good one, however long it lasted. */
  violated(): void {
    this.#upSinceMs = Number.POSITIVE_INFINITY;
    this.#backoffMs = BACKOFF_MAX_MS;
  }

  /** A connection has ended, `confirmed` or not. */
  ended(now: number, confirmed: boolean, idle: boolean): void {
    if (confirmed && now - this.#upSinceMs >= LASTED_MS) {
      this.#backoffMs = 0;
      this.#nextMs = now;
    } else this.backOff(now, idle);
  }

  /** An attempt came to nothing, or was a poke. */
  backOff(now: number, idle: boolean): void {
    this.#nextMs = now + this.#random() * this.#backoffMs;
    const isStranger = !this.#isKnown && !this.#wanted && idle;
    const maxMs = isStranger ? STRANGER_BACKOFF_MAX_MS : BACKOFF_MAX_MS;
    this.#backoffMs = Math.min(Math.max(this.#backoffMs * 2, BACKOFF_MIN_MS), maxMs);
  }
}
