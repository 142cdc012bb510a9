/**
 * Turns of the queues that have work: each gets one turn after the other, and after some of them the event loop has its own. A round of
 * that costs as much as a dozen frames, and an object for the garbage collector; so a queue that is alone has several turns first.
 *
 * A queue that has found nothing is asked a few rounds more, as a guest that is sending will have the next frame ready by then:
 * that is cheaper than a notification for both sides. After that it asks to be notified, and costs nothing.
 */
export interface Polled {
  /** Does a bounded piece of work. True: there was something. */
  turn(): boolean;
  /** Nothing came for a while: ask to be woken. True: something came meanwhile, go on. */
  rest(): boolean;
}

/** Rounds of the event loop without work before a queue rests: some ten microseconds. */
const IDLE_ROUNDS = 8;
/** After so many turns, all queues together, the event loop has its own: of one queue a millisecond at most (tx-queue.ts). */
const TURNS = 4;

interface Entry {
  readonly polled: Polled;
  idle: number;
}

export class Poller {
  readonly #active: Entry[] = [];
  readonly #run = (): void => this.#turns();
  readonly #schedule: (round: () => void) => void;
  #scheduled = false;

  constructor(schedule: (round: () => void) => void = setImmediate) {
    this.#schedule = schedule;
  }

  /** Gives `polled` turns from now on, until it rests. */
  wake(polled: Polled): void {
    const entry = this.#active.find((active) => active.polled === polled);
    if (entry === undefined) this.#active.push({ polled, idle: 0 });
    else entry.idle = 0;
    this.#later();
  }

  /** No more turns. */
  remove(polled: Polled): void {
    const at = this.#active.findIndex((active) => active.polled === polled);
    if (at >= 0) this.#active.splice(at, 1);
  }

  #later(): void {
    if (this.#scheduled || this.#active.length === 0) return;
    this.#scheduled = true;
    this.#schedule(this.#run);
  }

  #turns(): void {
    this.#scheduled = false;
    try {
      let more = this.#round(true);
      for (let turns = this.#active.length; more && turns < TURNS; turns += this.#active.length) {
        more = this.#round(false);
      }
    } finally {
      // A program's receiver threw: the others go on.
      this.#later();
    }
  }

  /** A turn for each; whether there was something to do. Only the first of several says that a queue is idle. */
  #round(isFirst: boolean): boolean {
    let worked = false;
    // Backwards: a turn may remove its own queue, and one that was added has its turn in the next round.
    for (let i = this.#active.length - 1; i >= 0; i--) {
      const entry = this.#active[i];
      if (entry === undefined) continue;
      if (entry.polled.turn()) {
        entry.idle = 0;
        worked = true;
      } else if (isFirst && ++entry.idle >= IDLE_ROUNDS && !entry.polled.rest()) this.remove(entry.polled);
    }
    return worked;
  }
}

/** This thread's. */
export const poller: Poller = new Poller();
