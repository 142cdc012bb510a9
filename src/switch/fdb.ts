/**
 * The forwarding database: behind which port is this address of this VLAN (IEEE 802.1Q, section 8.8).
 *
 * A hash table with open addressing in typed arrays, as every frame asks twice and may add an entry:
 *
 *   slot   0        1        2        3 ...
 *   key    VLAN, address (64 bits, two words)
 *   port   -1: empty
 *   seen   milliseconds; Infinity: an entry that was configured and neither ages nor moves
 *
 * Entries lie in the first free slot from where their hash says; taking one out moves the ones behind it up, so that there are no
 * graves. The hash is seeded: who does not know the seed cannot choose addresses that collide. Old entries count as absent and are
 * taken out when their room is needed. The number of entries is limited in all and per port, so that one port that makes up
 * addresses cannot push out, or keep out, those of others.
 */
import { assert } from '../core/assert.ts';

/** What learn() did. */
export const LEARN_KNOWN = 0;
export const LEARN_NEW = 1;
export const LEARN_MOVED = 2;
/** No room, in all or for that port: nothing is remembered. */
export const LEARN_FULL = 3;
/** The address was given to another port by configuration. */
export const LEARN_REFUSED = 4;

/** A sweep looks at every slot: not more often than this. */
const SWEEP_MS_MIN = 1000;

export interface FdbOptions {
  readonly limit: number;
  readonly ageMs: number;
  readonly ports: number;
  /** Of the hash; a random number unless told. */
  readonly seed?: number;
}

export interface FdbEntry {
  readonly vlan: number;
  readonly macUpper: number;
  readonly macLower: number;
  readonly port: number;
  readonly seenMs: number;
}

export class Fdb {
  /** Entries, old ones included until they are swept. */
  size = 0;
  moves = 0;
  aged = 0;
  readonly #limit: number;
  readonly #ageMs: number;
  readonly #seed: number;
  readonly #mask: number;
  /** VLAN << 16 | the upper 16 bits of the address. */
  readonly #upper: Int32Array;
  readonly #lower: Int32Array;
  readonly #port: Int16Array;
  readonly #seenMs: Float64Array;
  readonly #portSize: Int32Array;
  readonly #portLimit: Int32Array;
  #sweptMs = Number.NEGATIVE_INFINITY;
  /**
   * The time of what follows. Set once a batch: as an argument of calls that are not inlined it would be an object on the heap each
   * time. Not an integer, so that the field is made for numbers that are none.
   */
  nowMs = 0.5;

  constructor({ limit, ageMs, ports, seed }: FdbOptions) {
    let slots = 16;
    while (slots < limit * 2) slots *= 2;
    this.#limit = limit;
    this.#ageMs = ageMs;
    this.#seed = seed ?? crypto.getRandomValues(new Int32Array(1))[0]!;
    this.#mask = slots - 1;
    this.#upper = new Int32Array(slots);
    this.#lower = new Int32Array(slots);
    this.#port = new Int16Array(slots).fill(-1);
    this.#seenMs = new Float64Array(slots);
    this.#portSize = new Int32Array(ports);
    this.#portLimit = new Int32Array(ports).fill(limit);
  }

  setPortLimit(port: number, limit: number): void {
    this.#portLimit[port] = limit;
  }

  /** Entries of a port. */
  portSize(port: number): number {
    return this.#portSize[port]!;
  }

  /** The port, or -1 when the address is not known or has not been seen for too long. Addresses are two signed words. */
  find(vlan: number, macUpper: number, macLower: number): number {
    const slot = this.#slotOf((vlan << 16) | macUpper, macLower);
    const port = this.#port[slot]!;
    return port >= 0 && this.nowMs - this.#seenMs[slot]! <= this.#ageMs ? port : -1;
  }

  /** The address was seen behind `port`. LEARN_. */
  learn(vlan: number, macUpper: number, macLower: number, port: number): number {
    const upper = (vlan << 16) | macUpper;
    const slot = this.#slotOf(upper, macLower);
    const had = this.#port[slot]!;
    if (had < 0) return this.#insert(upper, macLower, port);
    const { nowMs } = this;
    const seenMs = this.#seenMs[slot]!;
    if (had === port) {
      if (seenMs < nowMs) this.#seenMs[slot] = nowMs;
      return LEARN_KNOWN;
    }
    if (seenMs === Number.POSITIVE_INFINITY) return LEARN_REFUSED;
    if (this.#portSize[port]! >= this.#portLimit[port]!) return LEARN_FULL;
    this.#portSize[had]! -= 1;
    this.#portSize[port]! += 1;
    this.#port[slot] = port;
    this.#seenMs[slot] = nowMs;
    if (nowMs - seenMs > this.#ageMs) return LEARN_NEW;
    this.moves += 1;
    return LEARN_MOVED;
  }

  /** Ties an address to a port. False: there is no room, or it is tied to another. */
  pin(vlan: number, macUpper: number, macLower: number, port: number): boolean {
    const upper = (vlan << 16) | macUpper;
    const slot = this.#slotOf(upper, macLower);
    if (this.#port[slot]! >= 0) {
      if (this.#port[slot]! !== port && this.#seenMs[slot] === Number.POSITIVE_INFINITY) return false;
      this.#remove(slot);
    }
    if (this.size >= this.#limit) return false;
    this.#put(upper, macLower, port, Number.POSITIVE_INFINITY);
    return true;
  }

  /** Forgets what was learned behind a port, and with `pinned` what was tied to it. */
  flush(port: number, pinned: boolean): void {
    if (this.#portSize[port] === 0) return;
    this.#removeIf(
      (slot) => this.#port[slot] === port && (pinned || this.#seenMs[slot] !== Number.POSITIVE_INFINITY),
    );
  }

  /** What is in it and not too old. */
  *entries(): Generator<FdbEntry> {
    for (let slot = 0; slot <= this.#mask; slot++) {
      const seenMs = this.#seenMs[slot]!;
      if (this.#port[slot]! < 0 || this.nowMs - seenMs > this.#ageMs) continue;
      const upper = this.#upper[slot]!;
      yield {
        vlan: upper >>> 16,
        macUpper: upper & 0xffff,
        macLower: this.#lower[slot]!,
        port: this.#port[slot]!,
        seenMs,
      };
    }
  }

  #insert(upper: number, lower: number, port: number): number {
    if (!this.#hasRoom(port)) {
      this.#sweep();
      if (!this.#hasRoom(port)) return LEARN_FULL;
    }
    this.#put(upper, lower, port, this.nowMs);
    return LEARN_NEW;
  }

  #hasRoom(port: number): boolean {
    return this.size < this.#limit && this.#portSize[port]! < this.#portLimit[port]!;
  }

  #sweep(): void {
    const { nowMs } = this;
    if (nowMs - this.#sweptMs < SWEEP_MS_MIN) return;
    this.#sweptMs = nowMs;
    const before = this.size;
    this.#removeIf((slot) => nowMs - this.#seenMs[slot]! > this.#ageMs);
    this.aged += before - this.size;
  }

  #removeIf(condition: (slot: number) => boolean): void {
    // Taking one out may move another into its slot, so the slot is looked at again. Ones that come around the end have been looked at.
    for (let slot = 0; slot <= this.#mask; ) {
      if (this.#port[slot]! >= 0 && condition(slot)) this.#remove(slot);
      else slot += 1;
    }
  }

  #put(upper: number, lower: number, port: number, seenMs: number): void {
    const slot = this.#slotOf(upper, lower);
    assert(this.#port[slot]! < 0, 'the address is new');
    this.#upper[slot] = upper;
    this.#lower[slot] = lower;
    this.#port[slot] = port;
    this.#seenMs[slot] = seenMs;
    this.#portSize[port]! += 1;
    this.size += 1;
  }

  #remove(slot: number): void {
    this.#portSize[this.#port[slot]!]! -= 1;
    this.size -= 1;
    const mask = this.#mask;
    //   hole . . next: moves up unless its home lies behind the hole, counted around the end
    let hole = slot;
    for (let next = (hole + 1) & mask; this.#port[next]! >= 0; next = (next + 1) & mask) {
      const home = this.#hash(this.#upper[next]!, this.#lower[next]!);
      if (((next - home) & mask) < ((next - hole) & mask)) continue;
      this.#upper[hole] = this.#upper[next]!;
      this.#lower[hole] = this.#lower[next]!;
      this.#port[hole] = this.#port[next]!;
      this.#seenMs[hole] = this.#seenMs[next]!;
      hole = next;
    }
    this.#port[hole] = -1;
  }

  /** Where the key is, or the free slot where it would be. There is one: half of the slots are. */
  #slotOf(upper: number, lower: number): number {
    const mask = this.#mask;
    let slot = this.#hash(upper, lower);
    while (this.#port[slot]! >= 0 && (this.#lower[slot] !== lower || this.#upper[slot] !== upper)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  /** Multiplications by odd numbers carry differences up, shifts down. */
  #hash(upper: number, lower: number): number {
    let h = Math.imul(lower ^ this.#seed, 0x9e3779b1);
    h = Math.imul(h ^ (h >>> 15) ^ upper ^ (this.#seed >>> 7), 0x27d4eb2f);
    return (h ^ (h >>> 13)) & this.#mask;
  }
}
