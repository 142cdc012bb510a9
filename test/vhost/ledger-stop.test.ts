/** The ledger of a transmit queue that stops, or whose sends fail, while chains are lent. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { CompletionTracker } from '../../src/core/completions.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { SplitQueue } from '../../src/vhost/queue.ts';
import { resumedTxQueue } from '../../src/vhost/resumed-queue.ts';
import { scaled } from '../support/counts.ts';
import { Scene } from '../support/ledger-scene.ts';
import { IN_ORDER, PLAIN } from '../support/vring.ts';

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

  it('one was overtaken before: the next owner gives it back; it is counted', () => {
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
    const start = { memory: scene.driver.memory, size: 256, base: 3 };
    const { queue, givenBack } = resumedTxQueue(start, PLAIN);
    assert.deepEqual([givenBack, queue.lastAvail, queue.available()], [1, 3, 3]);
    assert.deepEqual(scene.driver.reap(), [[stuck, 0]]);
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
    scene.nowMs = 100;
    scene.report();
    assert.equal(scene.ledger.counters.overdue, 1, 'once');
    scene.release(lost);
    assert.equal(scene.report().length, 1, 'the kernel let go after all');
    assert.equal(scene.held, 0);
    scene.lent({});
    assert.equal(scene.ledger.awaited, true);
  });

  it('nobody waits for the last that may come back when it is behind one in quarantine', () => {
    const scene = new Scene();
    const [, lost] = scene.lent();
    const [, other] = scene.lent({});
    scene.ledger.drain();
    lost.quarantine();
    scene.report();
    assert.equal(scene.work, 1);
    scene.release(other);
    assert.equal(scene.work, 2, 'told that nothing is awaited');
    assert.equal(scene.ledger.awaited, false);
    assert.equal(scene.ledger.detach(), 0);
    scene.release(lost);
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
