/**
 * Which of rds-ping's sockets sends next, and what a pong answers. A pong says nothing but which port it is for, so each socket has one
 * ping under way at most; when all of them wait, a ping is left out. A pong can be lost for good: RDS does not say it again when the
 * other side has restarted in between. So a ping is given up after a while, and its socket with it: on a new one, of another port, a
 * pong that comes late is not taken for the next ping's. No I/O and no clock.
 */
export interface Answer {
  /** Number of the ping, from 0. */
  readonly id: number;
  readonly us: number;
  /** Nothing was under way: the pong came twice. */
  readonly duplicate: boolean;
}

export interface PingSums {
  readonly sent: number;
  readonly received: number;
  /** Not sent, as all sockets waited. */
  readonly skipped: number;
  /** Microseconds; 0 without an answer. */
  readonly minUs: number;
  readonly averageUs: number;
  readonly maxUs: number;
}

interface Slot {
  id: number;
  sentUs: number;
  waiting: boolean;
}

export class Pings {
  readonly #slots: Slot[];
  #next = 0;
  #sent = 0;
  #received = 0;
  #skipped = 0;
  #sumUs = 0;
  #minUs = Number.POSITIVE_INFINITY;
  #maxUs = 0;

  constructor(sockets: number) {
    this.#slots = Array.from({ length: sockets }, () => ({ id: 0, sentUs: 0, waiting: false }));
  }

  /** Those that were left out count, too. */
  get attempts(): number {
    return this.#sent + this.#skipped;
  }

  /** Pings that wait for their pong. */
  get waiting(): number {
    return this.#slots.filter((slot) => slot.waiting).length;
  }

  /** The socket to ping from now; null if all of them wait. */
  next(nowUs: number): number | null {
    for (let i = 0; i < this.#slots.length; i++) {
      const at = (this.#next + i) % this.#slots.length;
      const slot = this.#slots[at];
      if (slot === undefined || slot.waiting) continue;
      slot.waiting = true;
      slot.id = this.#sent;
      slot.sentUs = nowUs;
      this.#sent += 1;
      this.#next = (at + 1) % this.#slots.length;
      return at;
    }
    this.#skipped += 1;
    return null;
  }

  /** Sockets that have waited for `waitUs`: their pings are given up, and they are free once the caller has exchanged them. */
  giveUp(nowUs: number, waitUs: number): number[] {
    return this.#slots.flatMap((slot, at) => {
      if (!slot.waiting || nowUs - slot.sentUs < waitUs) return [];
      slot.waiting = false;
      return at;
    });
  }

  /** A pong for socket `at`. */
  answered(at: number, nowUs: number): Answer {
    const slot = this.#slots[at] as Slot;
    const us = Math.max(0, nowUs - slot.sentUs);
    const duplicate = !slot.waiting;
    if (!duplicate) {
      slot.waiting = false;
      this.#received += 1;
      this.#sumUs += us;
      this.#minUs = Math.min(this.#minUs, us);
      this.#maxUs = Math.max(this.#maxUs, us);
    }
    return { id: slot.id, us, duplicate };
  }

  sums(): PingSums {
    const received = this.#received;
    return {
      sent: this.#sent,
      received,
      skipped: this.#skipped,
      minUs: received === 0 ? 0 : this.#minUs,
      averageUs: received === 0 ? 0 : this.#sumUs / received,
      maxUs: this.#maxUs,
    };
  }
}
