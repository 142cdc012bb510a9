/** The order in which lent messages complete: of each peer that of acceptance. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ReleaseOrders } from '../../src/rds/cookies.ts';

describe('releases', () => {
  it('to one peer come in the order of acceptance, and others do not wait', () => {
    const orders = new ReleaseOrders();
    const [first, second, other] = [orders.take('a'), orders.take('a'), orders.take('b')];
    const done: string[] = [];
    second(() => done.push('second'));
    other(() => done.push('other'));
    assert.deepEqual(done, ['other']);
    first(() => done.push('first'));
    assert.deepEqual(done, ['other', 'first', 'second']);
  });

  it('keep their order while peers come and go by the thousand', () => {
    const orders = new ReleaseOrders();
    const [first, second] = [orders.take('a'), orders.take('a')];
    for (let i = 0; i < 5000; i++) orders.take(`peer ${i}`)(() => {});
    const third = orders.take('a');
    const done: number[] = [];
    third(() => done.push(3));
    second(() => done.push(2));
    assert.equal(done.length, 0);
    first(() => done.push(1));
    assert.deepEqual(done, [1, 2, 3]);
  });
});
