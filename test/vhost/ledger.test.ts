/** The ledger of a transmit queue: what goes back when, whatever becomes of what was lent. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { CompletionTracker } from '../../src/core/completions.ts';
import { ReleaseQueue } from '../../src/core/releases.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { type LedgerOptions, TxLedger } from '../../src/vhost/ledger.ts';
import { type RingFeatures, SplitQueue } from '../../src/vhost/queue.ts';
import { Borrowers, SHARE_MIN } from '../../src/vhost/selector.ts';
import { scaled } from '../support/counts.ts';
import { IN_ORDER, MockDriver, PLAIN } from '../support/vring.ts';

const piece = { address: 0x1000n, length: 60_000 };

/** A transmit queue without frames: chains are taken, lent by hand, and reported. */
class Scene {
  readonly driver: MockDriver;
  queue: SplitQueue;
  readonly ledger: TxLedger;
  readonly port = {};
  /** Holders of the guest's memory. */
  held = 0;
  /** Calls of onWork. */
  work = 0;
  nowMs = 0;
  readonly #flushes: (() => void)[] = [];

  constructor(size = 256, features: RingFeatures = PLAIN, options: Partial<LedgerOptions> = {}, start = 0) {
    this.driver = new MockDriver(size, features, start);
    this.queue = new SplitQueue(this.driver.memory, size, features, start, start);
    this.ledger = new TxLedger(this.queue, this.memory(), {
      borrowers: new Borrowers(),
      onWork: () => {
        this.work += 1;
      },
      releases: new ReleaseQueue((flush) => this.#flushes.push(flush)),
      ...options,
    });
  }

  memory(): { hold(): void; release(): void } {
    return {
      hold: () => {
        this.held += 1;
      },
      release: () => {
        this.held -= 1;
      },
    };
  }

  /** The driver makes `count` chains, and the ledger takes them. Their slots. */
  take(count = 1): number[] {
    for (let i = 0; i < count; i++)
      assert.ok(this.driver.chain([piece]) >= 0, 'the driver has no descriptors');
    this.driver.show();
    const available = this.queue.available();
    assert.equal(available, count);
    return Array.from({ length: available }, () => {
      const slot = this.ledger.take(this.queue.peekHead(0));
      assert.ok(slot >= 0);
      return slot;
    });
  }

  lend(slot: number, borrower: object = this.port): Ubuf | null {
    return this.ledger.lend(slot, piece.length, borrower, this.nowMs);
  }

  /** Takes, lends and finishes one. */
  lent(borrower: object = this.port): [slot: number, ubuf: Ubuf] {
    const [slot] = this.take(1) as [number];
    const ubuf = this.lend(slot, borrower);
    assert.ok(ubuf !== null);
    this.ledger.finish(slot);
    return [slot, ubuf];
  }

  /** Takes and finishes `count`. */
  copied(count = 1): number[] {
    const slots = this.take(count);
    for (const slot of slots) this.ledger.finish(slot);
    return slots;
  }

  /** The last reference goes, and the owner hears of it. */
  release(ubuf: Ubuf, copied = false): void {
    if (copied) ubuf.copiedBytes = ubuf.byteLength;
    ubuf.unref();
    this.flush();
  }

  flush(): void {
    for (const flush of this.#flushes.splice(0)) flush();
  }

  /** Reports, and returns the heads that the driver then gets. */
  report(): number[] {
    const put = this.ledger.report(this.nowMs);
    this.queue.publish();
    const entries = this.driver.reap();
    assert.equal(entries.length, put);
    for (const [, length] of entries) assert.equal(length, 0);
    return entries.map(([head]) => head);
  }
}

describe('reports', () => {
  it('are in the order of avail', () => {
    const scene = new Scene();
    const [a] = scene.copied();
    const [b, lent] = scene.lent();
    const [c] = scene.copied();
    assert.deepEqual(scene.report(), [a]);
    assert.equal(scene.ledger.pending, 2);
    assert.equal(scene.ledger.lent, 1);
    scene.release(lent);
    assert.equal(scene.work, 1);
    assert.deepEqual(scene.report(), [b, c]);
    assert.equal(scene.ledger.pending, 0);
    assert.equal(scene.ledger.lent, 0);
  });

  it('wait for the port, and for the frame that it has not taken', () => {
    const scene = new Scene();
    const [a, b, c] = scene.take(3) as [number, number, number];
    scene.ledger.finish(c);
    scene.ledger.finish(a);
    assert.deepEqual(scene.report(), [a]);
    scene.ledger.finish(b);
    assert.deepEqual(scene.report(), [b, c]);
  });

  it('wait for a lent chain to be finished, though it has come back', () => {
    const scene = new Scene();
    const [slot] = scene.take() as [number];
    scene.release(scene.lend(slot) as Ubuf);
    assert.deepEqual(scene.report(), []);
    scene.ledger.finish(slot);
    assert.deepEqual(scene.report(), [slot]);
  });

  it('go on for many times round the ring and round 2^16', () => {
    const scene = new Scene(16, PLAIN, {}, 65_500);
    for (let i = 0; i < 5000; i++) {
      const slots = scene.copied(1 + (i % 16));
      assert.deepEqual(scene.report(), slots);
    }
    assert.equal(scene.ledger.base(), scene.queue.lastAvail);
  });

  it('copies first, where that is asked for', () => {
    const scene = new Scene(256, PLAIN, { copiesFirst: true });
    const [a, lentA] = scene.lent();
    const [b] = scene.copied();
    const [c, lentC] = scene.lent();
    assert.deepEqual(scene.report(), [b]);
    scene.release(lentC);
    assert.deepEqual(scene.report(), [c]);
    scene.release(lentA);
    assert.deepEqual(scene.report(), [a]);
    assert.equal(scene.ledger.counters.overdue, 0);
  });

  it('never copies first with IN_ORDER', () => {
    const scene = new Scene(256, IN_ORDER, { copiesFirst: true });
    const [a, lent] = scene.lent();
    const [b] = scene.copied();
    scene.nowMs = 1000;
    assert.deepEqual(scene.report(), []);
    scene.release(lent);
    assert.deepEqual(scene.report(), [a, b]);
  });

  it('a chain that is given back is taken again', () => {
    const scene = new Scene(8);
    const [a, b, c] = scene.take(3) as [number, number, number];
    scene.ledger.finish(a);
    assert.equal(scene.ledger.untake(5), 2, 'not what is finished');
    assert.equal(scene.queue.available(), 2);
    assert.deepEqual([scene.queue.peekHead(0), scene.queue.peekHead(1)], [b, c]);
    assert.equal(scene.ledger.take(b), b);
    scene.ledger.finish(b);
    assert.deepEqual(scene.report(), [a, b]);
    assert.equal(scene.ledger.counters.taken, 2);
  });

  it('a chain that is lent cannot be given back', () => {
    const scene = new Scene(8);
    const [, b, c] = scene.take(3) as [number, number, number];
    const ubuf = scene.lend(b) as Ubuf;
    assert.equal(scene.ledger.untake(3), 1);
    assert.equal(scene.ledger.untake(3), 0);
    scene.release(ubuf);
    assert.equal(scene.ledger.untake(3), 2, 'it has come back');
    assert.equal(scene.ledger.pending, 0);
    assert.notEqual(c, b);
  });

  it('onWork comes once until the next report, and not for what waits behind another', () => {
    const scene = new Scene();
    const [, a] = scene.lent();
    const [, b] = scene.lent();
    const [, c] = scene.lent();
    scene.release(b);
    assert.equal(scene.work, 0, 'a is in front of it');
    scene.release(a);
    assert.equal(scene.work, 1);
    scene.release(c);
    assert.equal(scene.work, 1);
    assert.equal(scene.report().length, 3);
    const [, d] = scene.lent();
    scene.release(d);
    assert.equal(scene.work, 2);
  });
});

describe('A15: a head that is out', () => {
  for (const [title, lends] of [
    ['taken', false],
    ['lent', true],
  ] as const) {
    it(`made available again while it is ${title}: broken, and nothing completes twice`, () => {
      const scene = new Scene(8);
      const [slot] = scene.take() as [number];
      const ubuf = lends ? scene.lend(slot) : null;
      scene.driver.push(slot);
      scene.driver.show();
      assert.equal(scene.queue.available(), 1);
      assert.equal(scene.ledger.take(scene.queue.peekHead(0)), -1);
      assert.match(scene.queue.broken ?? '', /again/);
      assert.equal(scene.ledger.counters.twice, 1);
      scene.ledger.finish(slot);
      if (ubuf !== null) scene.release(ubuf);
      assert.deepEqual(scene.report(), [slot]);
      assert.deepEqual(scene.report(), []);
    });
  }

  it('bounds what a driver can have out, though its index never jumps', () => {
    const scene = new Scene(4);
    for (let i = 0; i < 100; i++) {
      scene.driver.push(i % 4);
      scene.driver.show();
      if (scene.ledger.take(scene.queue.peekHead(0)) < 0) break;
    }
    assert.equal(scene.ledger.pending, 4);
    assert.ok(scene.queue.broken !== null);
  });
});

describe('lending', () => {
  it('stops at a quarter of the ring, and at 128', () => {
    for (const [size, most] of [
      [256, 64],
      [1024, 128],
      [4096, 128],
      [4, 1],
      [2, 0],
    ] as const) {
      const scene = new Scene(size);
      const slots = scene.take(Math.min(size, 200));
      const lent = slots.map((slot) => scene.lend(slot, {})).filter((ubuf) => ubuf !== null);
      assert.equal(lent.length, most);
      assert.equal(scene.ledger.counters.refusedLimit, slots.length - most);
      if (most === 0) continue;
      for (const slot of slots) scene.ledger.finish(slot);
      scene.release(lent[0] as Ubuf);
      scene.report();
      const [slot] = scene.take() as [number];
      assert.ok(scene.lend(slot) !== null, 'one came back');
    }
  });

  it('a flooded frame completes with the last of its borrowers, and each answers for itself', () => {
    const scene = new Scene();
    const [good, bad] = [{}, {}];
    const [slot] = scene.take() as [number];
    const one = scene.lend(slot, good) as Ubuf;
    const two = scene.lend(slot, bad) as Ubuf;
    const three = scene.lend(slot, bad) as Ubuf;
    scene.ledger.finish(slot);
    assert.equal(scene.ledger.lent, 1, 'one chain');
    scene.release(two, true);
    scene.release(one);
    assert.deepEqual(scene.report(), []);
    scene.release(three.ref());
    assert.deepEqual(scene.report(), [], 'it holds another reference');
    scene.release(three);
    assert.deepEqual(scene.report(), [slot]);
    assert.deepEqual(scene.report(), []);
    const slots = scene.take(3);
    assert.ok(scene.lend(slots[0] as number, good) !== null);
    assert.equal(scene.lend(slots[1] as number, bad), null, 'it copies');
    assert.equal(scene.ledger.counters.refusedCopies, 1);
  });

  it('one borrower starts with a few', () => {
    const scene = new Scene();
    const lent = scene.take(20).filter((slot) => scene.lend(slot) !== null);
    assert.equal(lent.length, SHARE_MIN);
    assert.equal(scene.ledger.counters.refusedLimit, 20 - SHARE_MIN);
  });

  it('gives a Ubuf of as many bytes as are lent', () => {
    const scene = new Scene();
    const [, ubuf] = scene.lent();
    assert.equal(ubuf.byteLength, 60_000);
    assert.equal(ubuf.taken, false);
    assert.equal(scene.ledger.counters.lentBytes, 60_000);
  });

  it('a borrower that copies is not lent to for a while, others are', () => {
    const scene = new Scene();
    const [, ubuf] = scene.lent();
    scene.release(ubuf, true);
    scene.report();
    assert.equal(scene.ledger.counters.copied, 1);
    const slots = scene.take(2);
    assert.equal(scene.lend(slots[0] as number), null);
    assert.ok(scene.lend(slots[1] as number, {}) !== null);
  });

  it('the end of the lending is asserted: a bug of the caller', () => {
    const scene = new Scene();
    const [slot] = scene.copied() as [number];
    assert.throws(() => scene.lend(slot), /finished/);
  });
});

describe('E61: a borrower that does not give back', () => {
  it('holds others up for holdMs, and not longer', () => {
    const scene = new Scene();
    const [stuck, ubuf] = scene.lent();
    const [b, other] = scene.lent({});
    const [c] = scene.copied();
    assert.equal(scene.ledger.oldestSinceMs, 0);
    assert.equal(scene.ledger.deadlineMs, 5);
    scene.nowMs = 4;
    scene.release(other);
    assert.deepEqual(scene.report(), []);
    scene.nowMs = 5;
    assert.deepEqual(scene.report(), [b, c]);
    assert.equal(scene.ledger.deadlineMs, Number.POSITIVE_INFINITY);
    assert.equal(scene.ledger.oldestSinceMs, 0);
    assert.equal(scene.ledger.pending, 1);
    const [d] = scene.copied();
    assert.deepEqual(scene.report(), [d], 'nobody waits for it any more');
    scene.release(ubuf);
    assert.equal(scene.work, 1);
    assert.deepEqual(scene.report(), [stuck]);
    assert.equal(scene.ledger.oldestSinceMs, Number.POSITIVE_INFINITY);
  });

  it('gets nothing more; others do', () => {
    const scene = new Scene();
    scene.lent();
    scene.nowMs = 5;
    scene.report();
    const slots = scene.take(2);
    assert.equal(scene.lend(slots[0] as number), null);
    assert.equal(scene.ledger.counters.refusedOverdue, 1);
    assert.ok(scene.lend(slots[1] as number, {}) !== null);
  });

  it('with IN_ORDER everybody waits, and it gets nothing more', () => {
    const scene = new Scene(256, IN_ORDER);
    const [a, ubuf] = scene.lent();
    const [b] = scene.copied();
    scene.nowMs = 900;
    assert.deepEqual(scene.report(), []);
    const [c] = scene.take() as [number];
    assert.equal(scene.lend(c), null);
    scene.ledger.finish(c);
    scene.release(ubuf);
    assert.deepEqual(scene.report(), [a, b, c]);
    assert.equal(scene.ledger.counters.overtaken, 0);
    assert.equal(scene.ledger.counters.overdue, 1);
  });

  it('its chain is passed by more than 2^16 others without harm', () => {
    const scene = new Scene(64);
    const [stuck, ubuf] = scene.lent();
    scene.nowMs = 6;
    for (let i = 0; i < 3000; i++) {
      const slots = scene.copied(40);
      assert.deepEqual(scene.report(), slots);
    }
    scene.release(ubuf);
    assert.deepEqual(scene.report(), [stuck]);
  });

  /**
   * Virtual time: each millisecond the driver fills the ring, half of it for a borrower that gives back after a
   * second, half for one that does so at once.
   */
  it('the other one sends at least four fifths of what it would without it; the ring never starves', () => {
    const run = (slowMs: number): number => {
      const scene = new Scene(256);
      const [slow, fast] = [{}, {}];
      const due: { atMs: number; ubuf: Ubuf }[] = [];
      let done = 0;
      let fruitless = 0;
      const end = scaled(4000, 100_000);
      for (scene.nowMs = 0; scene.nowMs < end; scene.nowMs++) {
        while (due[0] !== undefined && due[0].atMs <= scene.nowMs)
          scene.release((due.shift() as { ubuf: Ubuf }).ubuf);
        const slots = scene.take(scene.driver.freeCount);
        for (const [i, slot] of slots.entries()) {
          const isSlow = i % 2 === 0;
          const ubuf = scene.lend(slot, isSlow ? slow : fast);
          scene.ledger.finish(slot);
          if (ubuf !== null && isSlow && slowMs > 0) due.push({ atMs: scene.nowMs + slowMs, ubuf });
          else if (ubuf !== null) scene.release(ubuf);
          if (!isSlow) done += 1;
        }
        fruitless = scene.report().length === 0 ? fruitless + 1 : 0;
        assert.ok(fruitless <= 10, `nothing for ${fruitless} ms at ${scene.nowMs}`);
      }
      return done;
    };
    const [without, withSlow] = [run(0), run(1000)];
    assert.ok(withSlow >= 0.8 * without, `${withSlow} of ${without}`);
  });
});

describe('E57: stopping with chains that are lent', () => {
  it('drain() lends no more, and resume() does again', () => {
    const scene = new Scene();
    scene.ledger.drain();
    const [slot] = scene.take() as [number];
    assert.equal(scene.lend(slot), null);
    assert.equal(scene.ledger.counters.refusedDraining, 1);
    scene.ledger.resume();
    assert.ok(scene.lend(slot) !== null);
  });

  it('all back in time: the base is where the driver goes on', () => {
    const scene = new Scene(256, PLAIN, {}, 65_530);
    scene.copied(3);
    const [, ubuf] = scene.lent();
    scene.copied(4);
    scene.ledger.drain();
    assert.equal(scene.report().length, 3);
    assert.equal(scene.ledger.awaited, true);
    assert.equal(scene.ledger.base(), (65_530 + 3) & 0xffff);
    scene.release(ubuf);
    assert.equal(scene.work, 1);
    assert.equal(scene.ledger.awaited, false);
    assert.equal(scene.report().length, 5);
    assert.equal(scene.ledger.detach(), (65_530 + 8) & 0xffff);
    assert.equal(scene.ledger.counters.forced, 0);
  });

  it('one is stuck at the deadline: the base is its index, and its end touches no ring', () => {
    const scene = new Scene();
    scene.copied(3);
    scene.report();
    const [slot, ubuf] = scene.lent();
    scene.copied(4);
    scene.ledger.drain();
    scene.nowMs = 1000;
    assert.deepEqual(scene.report(), [], 'no overtaking any more');
    assert.equal(scene.ledger.detach(), 3);
    assert.equal(scene.ledger.counters.forced, 0);
    const used = Buffer.from(scene.driver.memory.used).toString('hex');
    assert.equal(scene.held, 1, 'the mapping stays');
    scene.release(ubuf);
    assert.equal(scene.held, 0);
    assert.equal(scene.ledger.counters.late, 1);
    assert.equal(scene.work, 0);
    assert.equal(Buffer.from(scene.driver.memory.used).toString('hex'), used);
    // The next owner of the ring takes the stuck one again, and all that were behind it.
    const next = new SplitQueue(scene.driver.memory, 256, PLAIN, 3, scene.driver.shownUsed);
    assert.equal(next.available(), 5);
    assert.equal(next.peekHead(0), slot);
  });

  it('one was overtaken before: it is lost to the driver, and counted', () => {
    const scene = new Scene();
    const [stuck, ubuf] = scene.lent();
    scene.copied(2);
    scene.nowMs = 5;
    assert.equal(scene.report().length, 2);
    const [, second] = scene.lent({});
    scene.copied(2);
    scene.ledger.drain();
    scene.nowMs = 1000;
    assert.deepEqual(scene.report(), []);
    assert.equal(scene.ledger.detach(), 3, 'the first that is not reported and can be');
    assert.equal(scene.ledger.counters.forced, 1);
    assert.ok(scene.driver.outstanding.includes(stuck));
    scene.release(second);
    scene.release(ubuf);
    assert.equal(scene.held, 0);
    assert.equal(scene.ledger.counters.late, 2);
  });

  it('detach() twice is once', () => {
    const scene = new Scene();
    scene.lent();
    scene.copied();
    scene.nowMs = 5;
    scene.report();
    assert.equal(scene.ledger.detach(), scene.ledger.detach());
    assert.equal(scene.ledger.counters.forced, 1);
  });

  it('quarantine is not waited for, and counts as overdue', () => {
    const scene = new Scene();
    const [, lost] = scene.lent();
    const [, other] = scene.lent({});
    lost.quarantine();
    lost.quarantine();
    assert.equal(scene.work, 1);
    assert.equal(scene.ledger.awaited, true, 'the other one');
    scene.release(other);
    assert.equal(scene.ledger.awaited, false);
    assert.equal(scene.report().length, 1, 'it is overtaken at once');
    assert.equal(scene.ledger.counters.quarantined, 1);
    scene.release(lost);
    assert.equal(scene.report().length, 1, 'the kernel let go after all');
    assert.equal(scene.held, 0);
  });

  it('many cycles leave nothing behind', () => {
    for (let i = 0; i < scaled(100, 10_000); i++) {
      const scene = new Scene(16);
      const ubufs = [scene.lent()[1], scene.lent()[1], scene.lent()[1]];
      scene.copied(5);
      scene.nowMs = i % 10;
      scene.report();
      scene.ledger.drain();
      if (i % 2 === 0) scene.release(ubufs.pop() as Ubuf);
      scene.report();
      scene.ledger.detach();
      for (const ubuf of ubufs) scene.release(ubuf);
      assert.equal(scene.held, 0);
      assert.equal(scene.ledger.lent, 0);
    }
  });

  it('the memory that was lent from is the one that is held, though the ring moves', () => {
    const scene = new Scene(8);
    const [a, before] = scene.lent();
    let held = 0;
    const memory = { hold: () => void held++, release: () => void held-- };
    const { lastAvail, usedIdx } = scene.queue;
    scene.queue = new SplitQueue(scene.driver.memory, 8, PLAIN, lastAvail, usedIdx);
    scene.ledger.attach(scene.queue, memory);
    const [b, after] = scene.lent();
    assert.deepEqual([scene.held, held], [1, 1]);
    scene.release(after);
    assert.deepEqual([scene.held, held], [1, 0]);
    scene.release(before);
    assert.deepEqual([scene.held, held], [0, 0]);
    assert.deepEqual(scene.report(), [a, b]);
  });
});

describe('E59: a ring that is disabled while chains are lent', () => {
  it('nothing is written to the used ring by what comes back, only by report()', () => {
    const scene = new Scene();
    const ubufs = [scene.lent()[1], scene.lent()[1]];
    scene.nowMs = 5;
    scene.report();
    scene.copied(3);
    const used = (): string => Buffer.from(scene.driver.memory.used).toString('hex');
    const before = used();
    for (const ubuf of ubufs) scene.release(ubuf);
    assert.equal(used(), before);
    assert.equal(scene.report().length, 5, 'all of it, when the ring is enabled again');
  });
});

describe('E63: a send that fails', () => {
  it('the slot is undone once, whether the Ubuf is released before or after', () => {
    for (const early of [true, false]) {
      const scene = new Scene(8);
      const [slot] = scene.take() as [number];
      const ubuf = scene.lend(slot) as Ubuf;
      // ENOBUFS: the port lets go, and copies or drops.
      ubuf.unref();
      if (early) scene.flush();
      scene.ledger.finish(slot);
      if (!early) scene.flush();
      assert.deepEqual(scene.report(), [slot]);
      assert.deepEqual(scene.report(), []);
      assert.equal(scene.held, 0);
    }
  });

  it('EAGAIN: the chain goes back to the ring once its Ubuf has come back', () => {
    const scene = new Scene(8);
    const [slot] = scene.take() as [number];
    (scene.lend(slot) as Ubuf).unref();
    assert.equal(scene.ledger.untake(1), 0, 'not yet: the owner has not heard of it');
    scene.flush();
    assert.equal(scene.ledger.untake(1), 1);
    assert.equal(scene.queue.available(), 1);
    assert.equal(scene.ledger.take(slot), slot);
  });
});

describe('E65: completions that are merged and out of order', () => {
  for (const features of [PLAIN, IN_ORDER]) {
    it(`numbers that wrap at 2^32, in ranges${features.inOrder ? ', IN_ORDER' : ''}: used in the order of avail`, () => {
      const scene = new Scene(64, features, {}, 65_532);
      const first = 2 ** 32 - 5;
      const calls = new CompletionTracker<Ubuf>(first);
      const slots: number[] = [];
      for (let i = 0; i < 12; i++) {
        const [slot, ubuf] = scene.lent({});
        slots.push(slot);
        calls.add(ubuf);
      }
      const complete = (lo: number, hi: number): void => {
        calls.complete(lo >>> 0, hi >>> 0, (ubuf) => ubuf.unref());
        scene.flush();
      };
      complete(first + 3, first + 6);
      assert.deepEqual(scene.report(), []);
      complete(first, first);
      assert.deepEqual(scene.report(), slots.slice(0, 1));
      complete(first + 8, first + 11);
      complete(first + 1, first + 2);
      assert.deepEqual(scene.report(), slots.slice(1, 7));
      complete(first + 7, first + 7);
      assert.deepEqual(scene.report(), slots.slice(7));
      assert.equal(scene.ledger.pending, 0);
    });
  }
});
