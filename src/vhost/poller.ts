/**
 * Turns of the queues that have work: each gets one turn after the other, and between two rounds the event loop has its own.
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

/** Rounds without work before a queue rests: some ten microseconds. */
const IDLE_ROUNDS = 8;

interface Entry {
  readonly polled: Polled;
  idle: number;
}

export class Poller {
  readonly #active: Entry[] = [];
  readonly #round = (): void => this.#turns();
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
    this.#schedule(this.#round);
  }

  #turns(): void {
    this.#scheduled = false;
    try {
      // Backwards: a turn may remove its own queue, and one that was added has its turn in the next round.
      for (let i = this.#active.length - 1; i >= 0; i--) {
        const entry = this.#active[i];
        if (entry === undefined) continue;
        if (entry.polled.turn()) entry.idle = 0;
        else if (++entry.idle >= IDLE_ROUNDS && !entry.polled.rest()) this.remove(entry.polled);
      }
    } finally {
      // A program's receiver threw: the others go on.
      this.#later();
    }
  }
}

/** This thread's. */
export const poller: Poller = new Poller();
