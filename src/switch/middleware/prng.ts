/** Random numbers that a seed brings back: 32-bit xorshift (Marsaglia, Xorshift RNGs, 2003). Good enough to lose frames by. */
export class Prng {
  #state: number;

  constructor(seed: number) {
    // Neighbouring seeds should not begin alike, and zero would stay zero.
    this.#state = Math.imul(seed ^ 0x5bd1e995, 0x9e3779b1) || 1;
    for (let i = 0; i < 4; i++) this.next();
  }

  /** In [0, 1). */
  next(): number {
    let x = this.#state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    this.#state = x;
    return (x >>> 0) / 0x1_0000_0000;
  }

  /** An integer in [0, n). */
  below(n: number): number {
    return Math.floor(this.next() * n);
  }

  /** True in so many of a hundred cases. Asks for no number when that is none. */
  chance(percent: number): boolean {
    return percent > 0 && this.next() * 100 < percent;
  }
}
