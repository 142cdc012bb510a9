/**
 * Turns of the devices that have work: each gets one turn after the other, which it gives to one of its queues, and after some of them the
 * event loop has its own. So a guest with sixteen queue pairs has no more of this thread than one with a single pair. A round of
 * the event loop costs as much as a dozen frames, and an object for the garbage collector; so what is alone has several turns first.
 *
 *   device a   [ queue 1, queue 3, queue 5 ]       a1  b1 | a3  b1 | a5  b1 | a1  b1 ...
 *   device b   [ queue 1 ]
 *
 * A queue that has found nothing is asked a few rounds more, as a guest that is sending will have the next frame ready by then:
 * that is cheaper than a notification for both sides. After that it asks to be notified, and costs nothing. The turn of a device that
 * finds nothing in one queue is for the next of its queues, so that idle ones take nothing from busy ones.
 */
export interface Polled {
  /** Whose queue it is: turns are shared among these. */
  readonly device: object;
  /** Does a bounded piece of work. True: there was something. */
  turn(): boolean;
  /** Nothing came for a while: ask to be woken. True: something came meanwhile, go on. */
  rest(): boolean;
}

/** Rounds of the event loop without work before a queue rests: some ten microseconds. */
const IDLE_ROUNDS = 8;
/** After so many turns, all devices together, the event loop has its own: of one queue a millisecond at most (tx-queue.ts). */
const TURNS = 4;

interface Entry {
  readonly polled: Polled;
  idle: number;
  /** The round of the event loop in which it had a turn last. */
  round: number;
}

interface Device {
  readonly device: object;
  readonly entries: Entry[];
  /** Which of them is next. */
  next: number;
}

export class Poller {
  readonly #active: Device[] = [];
  readonly #run = (): void => this.#turns();
  readonly #schedule: (round: () => void) => void;
  #scheduled = false;
  #rounds = 0;

  constructor(schedule: (round: () => void) => void = setImmediate) {
    this.#schedule = schedule;
  }

  /** Gives `polled` turns from now on, until it rests. */
  wake(polled: Polled): void {
    let device = this.#find(polled);
    if (device === undefined) {
      device = { device: polled.device, entries: [], next: 0 };
      this.#active.push(device);
    }
    const entry = device.entries.find((active) => active.polled === polled);
    if (entry === undefined) device.entries.push({ polled, idle: 0, round: -1 });
    else entry.idle = 0;
    this.#later();
  }

  /** No more turns. */
  remove(polled: Polled): void {
    const device = this.#find(polled);
    const at = device?.entries.findIndex((active) => active.polled === polled) ?? -1;
    if (device === undefined || at < 0) return;
    device.entries.splice(at, 1);
    if (device.next > at) device.next -= 1;
    if (device.entries.length === 0) this.#active.splice(this.#active.indexOf(device), 1);
  }

  #find(polled: Polled): Device | undefined {
    return this.#active.find(({ device }) => device === polled.device);
  }

  #later(): void {
    if (this.#scheduled || this.#active.length === 0) return;
    this.#scheduled = true;
    this.#schedule(this.#run);
  }

  #turns(): void {
    this.#scheduled = false;
    this.#rounds += 1;
    try {
      let turns = 0;
      for (let more = true; more && turns < TURNS; turns += this.#active.length) more = this.#round();
    } finally {
      // A program's receiver threw: the others go on.
      this.#later();
    }
  }

  /** A turn for each device; whether one of them had something to do. */
  #round(): boolean {
    let worked = false;
    // Backwards: a turn may remove its own queue, and one that was added has its turn in the next round.
    for (let i = this.#active.length - 1; i >= 0; i--) {
      const device = this.#active[i];
      if (device !== undefined && this.#turn(device)) worked = true;
    }
    return worked;
  }

  /** The next queue of the device that has work has its turn. */
  #turn(device: Device): boolean {
    for (let left = device.entries.length; left > 0; left--) {
      const entry = device.entries[device.next % device.entries.length];
      if (entry === undefined) return false;
      // Before its turn, which may remove it.
      device.next = (device.next + 1) % device.entries.length;
      // Several turns in one round of the event loop say no more of an idle queue than the first.
      const isFirst = entry.round !== this.#rounds;
      entry.round = this.#rounds;
      if (entry.polled.turn()) {
        entry.idle = 0;
        return true;
      }
      if (isFirst && ++entry.idle >= IDLE_ROUNDS && !entry.polled.rest()) this.remove(entry.polled);
    }
    return false;
  }
}

/** This thread's. */
export const poller: Poller = new Poller();
