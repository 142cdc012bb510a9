/**
 * A link joins exactly two ports, as a cable does: everything that comes in by one leaves by the other, and nothing is learned.
 *
 * Unlike a switch it passes back-pressure on. What the port out does not take is left with the port in, which asks again when it is
 * told to; frames that were being reworked for the port out (egress.ts) wait here meanwhile, and nothing overtakes them.
 *
 *   in.receiver() ─▶ Egress.send() ─▶ out.send()          returns fewer ◀── full
 *   in.resume()   ◀─ Egress.flush() ◀─ out.onWritable()
 *
 * A port out without carrier takes everything, as a cable with a loose end does: it is dropped and counted. VLAN tags are payload.
 * Like a switch, a link neither opens nor closes ports.
 */

import type { Clock } from '../core/clock.ts';
import { ZerotxError } from '../core/errors.ts';
import { FRAME_BYTES, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
import type { Port } from '../core/port.ts';
import { Egress, type EgressCounters } from './egress.ts';
import { ADMITTED, admit, MALFORMED } from './ingress.ts';

export interface LinkCounters {
  /** Frames that the link is done with: handed on, or dropped by it. */
  frames: number;
  bytes: number;
  dropped: { malformed: number; badOffload: number };
  readonly egress: EgressCounters;
}

export interface LinkOptions {
  readonly clock: Clock;
}

/** One way through the link. */
class Direction {
  readonly from: Port;
  readonly egress: Egress;
  readonly counters: LinkCounters;
  readonly #clock: Clock;
  #which = new Uint32Array(64);
  /** The port in keeps frames back, and waits for resume(). */
  #isWaiting = false;
  #isBusy = false;
  #cancelWake: (() => void) | null = null;

  constructor(from: Port, to: Port, clock: Clock) {
    this.from = from;
    this.egress = new Egress(to);
    this.#clock = clock;
    this.counters = {
      frames: 0,
      bytes: 0,
      dropped: { malformed: 0, badOffload: 0 },
      egress: this.egress.counters,
    };
  }

  receive(table: FrameTable): number {
    if (this.#isBusy) {
      // From within the port's own send(): it is asked again when that has returned.
      this.#isWaiting = true;
      this.wake();
      return 0;
    }
    this.#isBusy = true;
    try {
      return this.#forward(table);
    } finally {
      this.#isBusy = false;
    }
  }

  /** The port out takes frames again, or has gone down and so takes all. */
  wake(): void {
    if (this.#isBusy) {
      this.#cancelWake ??= this.#clock.after(0, () => {
        this.#cancelWake = null;
        this.wake();
      });
      return;
    }
    if (!this.egress.port.isUp) this.egress.discard();
    else if (!this.egress.flush()) return;
    if (!this.#isWaiting) return;
    this.#isWaiting = false;
    this.from.resume();
  }

  close(): void {
    this.#cancelWake?.();
    this.egress.discard();
  }

  #forward(table: FrameTable): number {
    const total = table.count;
    if (this.#which.length < total) this.#which = new Uint32Array(total);
    const which = this.#which;
    let kept = 0;
    for (let frame = 0; frame < total; frame++) {
      if (admit(table, frame) !== ADMITTED) continue;
      which[kept] = frame;
      kept += 1;
    }
    const stop = this.egress.send(table, which, 0, kept);
    const done = stop === kept ? total : which[stop]!;
    this.#count(table, done, stop);
    if (done < total) this.#isWaiting = true;
    return done;
  }

  /** Frames offered again are looked at again: only those done with are counted. */
  #count(table: FrameTable, done: number, sent: number): void {
    const { counters } = this;
    let bytes = 0;
    for (let frame = 0; frame < done; frame++) {
      bytes += table.records[frame * FRAME_WORDS + FRAME_BYTES]!;
      if (done === sent) continue;
      const verdict = admit(table, frame);
      if (verdict !== ADMITTED) counters.dropped[verdict === MALFORMED ? 'malformed' : 'badOffload'] += 1;
    }
    counters.frames += done;
    counters.bytes += bytes;
  }
}

export class Link {
  readonly #directions: readonly [Direction, Direction];

  /** Throws `ZTX_PORT_TAKEN` for a port that somebody else has joined, and for the same port twice. */
  constructor(a: Port, b: Port, options: LinkOptions) {
    for (const port of [a, b]) {
      if (port.receiver === null && a !== b) continue;
      throw new ZerotxError('ZTX_PORT_TAKEN', `port ${port.name}: it is joined already`);
    }
    const { clock } = options;
    this.#directions = [new Direction(a, b, clock), new Direction(b, a, clock)];
    for (const direction of this.#directions) {
      const { from, egress } = direction;
      from.receiver = (table) => direction.receive(table);
      egress.port.onWritable = () => direction.wake();
      egress.port.onChange = () => {
        egress.refresh();
        direction.wake();
      };
    }
  }

  /** From the first port to the second, and back. The same objects each time. */
  get counters(): readonly [LinkCounters, LinkCounters] {
    return [this.#directions[0].counters, this.#directions[1].counters];
  }

  /** Lets both ports go. */
  close(): void {
    for (const direction of this.#directions) {
      const { port } = direction.egress;
      port.receiver = null;
      port.onWritable = null;
      port.onChange = null;
      direction.close();
    }
  }
}
