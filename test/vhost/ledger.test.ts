/** The ledger of a transmit queue: what goes back when, whatever becomes of what was lent. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { SHARE_MIN } from '../../src/vhost/selector.ts';
import { scaled } from '../support/counts.ts';
import { Scene } from '../support/ledger-scene.ts';
import { IN_ORDER, PLAIN } from '../support/vring.ts';

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

  it('a thread that was kept from running does not blame it on borrowers', () => {
    const scene = new Scene(256, undefined, { gapMs: 1 });
    const [slow] = scene.lent();
    const [prompt, ubuf] = scene.lent({});
    scene.nowMs = 50;
    assert.deepEqual(scene.report(), []);
    assert.equal(scene.ledger.deadlineMs, 51);
    scene.release(ubuf);
    for (let ms = 51; ms < 54; ms++) {
      scene.nowMs = ms;
      assert.deepEqual(scene.report(), []);
    }
    scene.nowMs = 54;
    assert.deepEqual(scene.report(), [prompt], 'the slow one has had its 5 ms');
    assert.equal(scene.ledger.counters.overdue, 1);
    assert.notEqual(slow, prompt);
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

  it('with IN_ORDER it has to give back after two seconds, and others wait no longer', () => {
    const scene = new Scene(256, IN_ORDER);
    let recalls = 0;
    let lent: Ubuf | null = null;
    // As a stream port does: it resets its connection.
    const borrower = {
      recall: () => {
        recalls += 1;
        lent?.unref();
      },
    };
    const [a, ubuf] = scene.lent(borrower);
    lent = ubuf;
    const waitMs = (ms: number): number[] => {
      const back: number[] = [];
      for (const end = scene.nowMs + ms; scene.nowMs < end; scene.nowMs += 100) {
        back.push(...scene.report());
        scene.flush();
      }
      return back;
    };
    assert.deepEqual(waitMs(5000), [], 'nobody waits for it');
    assert.equal(recalls, 0);
    const slots = scene.copied(3);
    assert.deepEqual(waitMs(1900), []);
    assert.equal(recalls, 0);
    assert.deepEqual(waitMs(400), [a, ...slots]);
    assert.equal(recalls, 1);
    assert.equal(scene.ledger.counters.recalls, 1);
    for (const [laterMs, isLent] of [
      [0, false],
      [59_000, false],
      [2000, true],
    ] as const) {
      scene.nowMs += laterMs;
      const [next] = scene.take() as [number];
      const again = scene.lend(next, borrower);
      assert.equal(again !== null, isLent);
      scene.ledger.finish(next);
      if (again !== null) scene.release(again);
      assert.deepEqual(scene.report(), [next]);
    }
  });

  it('with IN_ORDER it is not told to when the thread was kept from running, nor one who has no way to', () => {
    const scene = new Scene(256, IN_ORDER);
    let recalls = 0;
    const borrower = { recall: () => (recalls += 1) };
    const [a, ubuf] = scene.lent(borrower);
    const [b] = scene.copied();
    for (const nowMs of [10, 5000, 5001, 60_000]) {
      scene.nowMs = nowMs;
      assert.deepEqual(scene.report(), []);
      scene.flush();
    }
    assert.equal(recalls, 0);
    scene.release(ubuf);
    assert.deepEqual(scene.report(), [a, b]);
    const [c, other] = scene.lent({});
    const [d] = scene.copied();
    for (let i = 0; i < 100; i++) {
      scene.nowMs += 100;
      assert.deepEqual(scene.report(), []);
      scene.flush();
    }
    assert.ok(scene.ledger.counters.recalls >= 4, 'again and again');
    scene.release(other);
    assert.deepEqual(scene.report(), [c, d]);
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
