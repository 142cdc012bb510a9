/** Which socket pings next, and what a pong answers. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Pings } from '../../src/cli/rds/pings.ts';

describe('pings', () => {
  it('go round, one under way for each socket, and are left out while all wait', () => {
    const pings = new Pings(2);
    assert.deepEqual([pings.next(0), pings.next(10), pings.next(20)], [0, 1, null]);
    assert.deepEqual([pings.waiting, pings.attempts], [2, 3]);
    assert.deepEqual(pings.answered(1, 110), { id: 1, us: 100, duplicate: false });
    assert.equal(pings.next(120), 1);
    assert.deepEqual(pings.answered(0, 300), { id: 0, us: 300, duplicate: false });
    assert.deepEqual(pings.answered(1, 320), { id: 2, us: 200, duplicate: false });
    assert.deepEqual(pings.sums(), {
      ...{ sent: 3, received: 3, skipped: 1 },
      ...{ minUs: 100, averageUs: 200, maxUs: 300 },
    });
  });

  it('that are answered twice count once', () => {
    const pings = new Pings(1);
    pings.next(0);
    pings.answered(0, 50);
    assert.deepEqual(pings.answered(0, 90), { id: 0, us: 90, duplicate: true });
    assert.deepEqual([pings.sums().received, pings.sums().maxUs], [1, 50]);
  });

  it('are given up after a while, and their sockets take their turns again', () => {
    const pings = new Pings(2);
    assert.deepEqual([pings.next(0), pings.next(50), pings.next(60)], [0, 1, null]);
    assert.deepEqual(pings.giveUp(99, 100), []);
    assert.deepEqual(pings.giveUp(100, 100), [0]);
    assert.deepEqual([pings.next(110), pings.next(120), pings.waiting], [0, null, 2]);
    assert.deepEqual(pings.answered(0, 130), { id: 2, us: 20, duplicate: false });
    assert.deepEqual(pings.giveUp(200, 100), [1]);
    const { sent, received, skipped } = pings.sums();
    assert.deepEqual({ sent, received, skipped }, { sent: 3, received: 1, skipped: 2 });
  });

  it('have sums without any answer, and times that never run backwards', () => {
    const pings = new Pings(1);
    assert.deepEqual(pings.sums(), {
      ...{ sent: 0, received: 0, skipped: 0 },
      ...{ minUs: 0, averageUs: 0, maxUs: 0 },
    });
    pings.next(100);
    assert.equal(pings.answered(0, 90).us, 0);
  });
});
