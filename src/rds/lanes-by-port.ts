/**
 * The numbers of several lanes that come, one connection after the other, on what is lane 0 until it is known how many lanes there are:
 * each source port, modulo the lanes, has its own (rds_tcp_accept_one).
 */
import { Expectation, type Sequence, type SequenceRule } from './sequence.ts';

export class LanesByPort implements SequenceRule {
  readonly #modulus: number;
  readonly #rules = new Map<number, Expectation>();
  #residue = 0;

  constructor(lanes: number) {
    this.#modulus = lanes;
  }

  get next(): Sequence {
    return this.#current.next;
  }

  /** From now on what comes is from source port `port`. */
  comesFrom(port: number): void {
    this.#residue = port % this.#modulus;
  }

  /** What comes is another lane's than lane 0's, and not all has been. */
  get isOneOfSeveral(): boolean {
    return this.#residue !== 0 && this.#rules.size > 1;
  }

  expect(next: Sequence): void {
    this.#current.expect(next);
  }

  /** What came from source port `port` has this rule already. */
  follow(port: number, rule: Expectation): void {
    this.#rules.set(port % this.#modulus, rule);
  }

  isDuplicate(hi: number, lo: number, flagged: boolean): boolean {
    return this.#current.isDuplicate(hi, lo, flagged);
  }

  /** There are so many lanes, and what comes now is lane `current`'s: what each expects that has been heard of. */
  lanes(count: number, current: number): Map<number, Expectation> {
    const rules = new Map<number, Expectation>();
    if (count > 1) for (const [residue, rule] of this.#rules) rules.set(residue % count, rule);
    return rules.set(current, this.#current);
  }

  get #current(): Expectation {
    return this.#of(this.#residue);
  }

  #of(residue: number): Expectation {
    let rule = this.#rules.get(residue);
    if (rule === undefined) {
      rule = new Expectation();
      this.#rules.set(residue, rule);
    }
    return rule;
  }
}
