/**
 * A transmit device, written down a second time: it takes chains, keeps some for a while, and gives them back in order.
 * Slow and plain: the ring is read through DataView, what is out is a list.
 */
import { judge, type ModelOptions, type Verdict } from './chain-model.ts';
import type { GuestRam, MockDriver } from './vring.ts';

interface Held {
  readonly head: number;
  done: boolean;
}

export class DeviceModel {
  readonly #driver: MockDriver;
  readonly #ram: GuestRam;
  readonly #options: ModelOptions;
  #last: number;
  isBroken = false;
  held: Held[] = [];

  constructor(driver: MockDriver, ram: GuestRam, options: ModelOptions, start: number) {
    this.#driver = driver;
    this.#ram = ram;
    this.#options = options;
    this.#last = start;
  }

  get last(): number {
    return this.#last;
  }

  /** Takes all that is there. What each chain is, in order; the queue may break on the way. */
  take(): { head: number; verdict: Verdict }[] {
    const taken: { head: number; verdict: Verdict }[] = [];
    const { size, memory } = this.#driver;
    const avail = new DataView(memory.avail);
    const ahead = (avail.getUint16(2, true) - this.#last + 65_536) % 65_536;
    if (this.isBroken || ahead > size) {
      this.isBroken = true;
      return taken;
    }
    for (let i = 0; i < ahead; i++) {
      const head = avail.getUint16(4 + 2 * (this.#last % size), true);
      const isBad = head >= size;
      const verdict = isBad ? null : judge(new DataView(memory.desc), this.#ram, head, this.#options);
      const isOut = this.held.some((one) => one.head === head);
      if (verdict === null || verdict.kind === 'broken' || isOut) {
        this.isBroken = true;
        return taken;
      }
      this.held.push({ head, done: verdict.kind === 'skip' });
      taken.push({ head, verdict });
      this.#last = (this.#last + 1) % 65_536;
    }
    return taken;
  }

  finish(head: number): void {
    for (const one of this.held) if (one.head === head) one.done = true;
  }

  /** Heads that go back now. */
  report(): number[] {
    const heads: number[] = [];
    while (this.held[0]?.done) heads.push((this.held.shift() as Held).head);
    return heads;
  }
}
