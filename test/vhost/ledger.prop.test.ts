/** The ledger, driven at random beside a model of it: a plain list, looked through each time. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ReleaseQueue } from '../../src/core/releases.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { HOLD_MS, TxLedger } from '../../src/vhost/ledger.ts';
import { SplitQueue } from '../../src/vhost/queue.ts';
import { Borrowers } from '../../src/vhost/selector.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { MockDriver } from '../support/vring.ts';

interface Loan {
  readonly ubuf: Ubuf;
  readonly sinceMs: number;
}

interface Chain {
  readonly slot: number;
  finished: boolean;
  late: boolean;
  readonly loans: Set<Loan>;
}

class Run {
  readonly random: Random;
  readonly driver: MockDriver;
  readonly queue: SplitQueue;
  readonly ledger: TxLedger;
  readonly inOrder: boolean;
  readonly copiesFirst: boolean;
  readonly lentMax: number;
  nowMs = 0;
  held = 0;
  work = 0;
  draining = false;
  /** Chains in the order of avail, and those that were overtaken. */
  order: Chain[] = [];
  aside: Chain[] = [];
  /** Of all: heads as they were taken and as they went back. */
  readonly taken: number[] = [];
  readonly used: number[] = [];
  readonly #flushes: (() => void)[] = [];
  readonly #borrowers = [{}, {}, {}];

  constructor(seed: number) {
    const random = new Random(seed);
    this.random = random;
    const size = random.pick([4, 16, 64, 256]);
    this.inOrder = random.chance(0.3);
    this.copiesFirst = random.chance(0.3);
    this.lentMax = random.pick([1, 8, 128]);
    const features = { eventIdx: random.chance(0.5), indirect: false, inOrder: this.inOrder };
    const start = random.below(65_536);
    this.driver = new MockDriver(size, features, start);
    this.queue = new SplitQueue(this.driver.memory, size, features, start, start);
    const memory = {
      hold: () => {
        this.held += 1;
      },
      release: () => {
        this.held -= 1;
      },
    };
    this.ledger = new TxLedger(this.queue, memory, {
      borrowers: new Borrowers(),
      onWork: () => {
        this.work += 1;
      },
      lentMax: this.lentMax,
      copiesFirst: this.copiesFirst,
      releases: new ReleaseQueue((flush) => this.#flushes.push(flush)),
    });
  }

  get loans(): [Chain, Loan][] {
    return [...this.aside, ...this.order].flatMap((chain) =>
      [...chain.loans].map((loan): [Chain, Loan] => [chain, loan]),
    );
  }

  step(): void {
    const { random } = this;
    const kind = random.below(10);
    if (kind <= 2) this.take(1 + random.below(8));
    else if (kind <= 4) this.lend();
    else if (kind === 5) this.finish(1 + random.below(6));
    else if (kind === 6) this.untake();
    else if (kind <= 8) this.release();
    else this.report();
    this.nowMs += random.pick([0, 0, 0.25, 1, 4]);
    if (random.chance(0.01)) this.drain(!this.draining);
    assert.equal(this.ledger.pending, this.order.length + this.aside.length);
    assert.equal(this.held, this.loans.length);
    assert.equal(this.ledger.lent, new Set(this.loans.map(([chain]) => chain)).size);
    assert.equal(this.ledger.oldestSinceMs, Math.min(...this.loans.map(([, { sinceMs }]) => sinceMs)));
    assert.equal(this.ledger.base(), (this.queue.lastAvail - this.order.length) & 0xffff);
    assert.equal(this.queue.broken, null);
  }

  take(count: number): void {
    for (let i = 0; i < count; i++) this.driver.chain([{ address: 0n, length: 1 }]);
    this.driver.show();
    for (let i = this.queue.available(); i > 0; i--) {
      const slot = this.ledger.take(this.queue.peekHead(0));
      this.order.push({ slot, finished: false, late: false, loans: new Set() });
      this.taken.push(slot);
    }
  }

  lend(): void {
    const here = this.order.filter(({ finished }) => !finished);
    if (here.length === 0) return;
    const chain = this.random.pick(here);
    // Mostly a new one, of whom nothing bad is known yet.
    const borrower = this.random.chance(0.7) ? {} : this.random.pick(this.#borrowers);
    const ubuf = this.ledger.lend(chain.slot, 1000, borrower, this.nowMs);
    const lent = new Set(this.loans.map(([one]) => one));
    if (ubuf === null) return;
    const most = Math.min(this.lentMax, this.driver.size / 4);
    assert.ok(lent.has(chain) || lent.size < most, 'more than may be lent');
    assert.ok(!this.draining, 'while draining');
    chain.loans.add({ ubuf, sinceMs: this.nowMs });
  }

  finish(count: number): void {
    for (const chain of this.order) {
      if (chain.finished || this.random.chance(0.1)) continue;
      if (count-- === 0) return;
      chain.finished = true;
      this.ledger.finish(chain.slot);
    }
  }

  untake(): void {
    const count = 1 + this.random.below(4);
    let expected = 0;
    while (expected < count) {
      const last = this.order.at(-1);
      if (last === undefined || last.finished || last.loans.size > 0) break;
      this.order.pop();
      this.taken.pop();
      expected += 1;
    }
    assert.equal(this.ledger.untake(count), expected);
  }

  release(): void {
    const { loans } = this;
    if (loans.length === 0) return;
    const [chain, loan] = this.random.pick(loans);
    chain.loans.delete(loan);
    if (this.random.chance(0.1)) loan.ubuf.copiedBytes = 1000;
    loan.ubuf.unref();
    for (const flush of this.#flushes.splice(0)) flush();
    const isFront = this.order[0] === chain || this.aside.includes(chain);
    if (chain.finished && chain.loans.size === 0 && isFront) assert.ok(this.work > 0, 'nobody was told');
  }

  drain(on: boolean): void {
    this.draining = on;
    if (on) this.ledger.drain();
    else this.ledger.resume();
  }

  report(): void {
    for (const [chain, { sinceMs }] of this.loans) if (this.nowMs - sinceMs >= HOLD_MS) chain.late = true;
    const back = this.aside.filter(({ loans }) => loans.size === 0).map(({ slot }) => slot);
    this.aside = this.aside.filter(({ loans }) => loans.size > 0);
    const due: number[] = [];
    for (let front = this.order[0]; front !== undefined; front = this.order[0]) {
      if (!front.finished) break;
      if (front.loans.size > 0) {
        if (this.inOrder || this.draining || !(this.copiesFirst || front.late)) break;
        this.aside.push(front);
      } else due.push(front.slot);
      this.order.shift();
    }
    this.work = 0;
    const put = this.ledger.report(this.nowMs);
    this.queue.publish();
    const heads = this.driver.reap().map(([head]) => head);
    assert.equal(put, heads.length);
    this.used.push(...heads);
    assert.deepEqual(heads.slice(0, due.length), due);
    assert.deepEqual(heads.slice(due.length).sort(), back.sort());
  }

  /** Everything comes back. */
  end(): void {
    this.drain(this.random.chance(0.5));
    this.take(0);
    while (this.loans.length > 0) this.release();
    this.finish(Number.POSITIVE_INFINITY);
    for (const chain of this.order) {
      if (!chain.finished) this.ledger.finish(chain.slot);
      chain.finished = true;
    }
    this.report();
    assert.equal(this.ledger.pending, 0);
    assert.equal(this.held, 0);
    assert.equal(this.ledger.detach(), this.queue.lastAvail);
    assert.equal(this.ledger.counters.forced, 0);
    assert.equal(this.ledger.counters.taken, this.taken.length);
    assert.equal(this.ledger.counters.reported, this.used.length);
    if (this.inOrder) assert.deepEqual(this.used, this.taken);
    else assert.deepEqual([...this.used].sort(), [...this.taken].sort());
    assert.deepEqual(this.driver.outstanding, []);
  }
}

describe('TxLedger', () => {
  it('agrees with its model, and loses and doubles nothing', () => {
    const first = Number(process.env.FC_SEED ?? 1);
    let overtaken = 0;
    for (let i = 0; i < scaled(200, 20_000); i++) {
      const run = new Run(first + i);
      try {
        for (let step = 0; step < 200; step++) run.step();
        run.end();
      } catch (error) {
        throw new Error(`seed ${first + i}`, { cause: error });
      }
      overtaken += run.ledger.counters.overtaken;
    }
    assert.ok(overtaken > 100, `only ${overtaken} were overtaken`);
  });
});
