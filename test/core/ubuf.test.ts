/** The rules at the top of src/core/ubuf.ts, by number. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { type Outcome, Ubuf } from '../../src/core/ubuf.ts';

const seed = process.env.FC_SEED;
if (seed !== undefined) fc.configureGlobal({ seed: Number(seed) });

/** A queue whose flush the test calls; `asked` counts how often it wanted to be scheduled. */
function manualQueue(): { queue: ReleaseQueue; asked: () => number } {
  let asked = 0;
  const queue = new ReleaseQueue(() => {
    asked += 1;
  });
  return { queue, asked: () => asked };
}

function lend(bytes: number, queue: ReleaseQueue): { ubuf: Ubuf; outcomes: Outcome[] } {
  const outcomes: Outcome[] = [];
  return {
    ubuf: new Ubuf([new Uint8Array(bytes)], (outcome) => outcomes.push(outcome), queue),
    outcomes,
  };
}

describe('Ubuf', () => {
  it('rule 1: is born with one reference, and a dead one takes neither ref() nor unref()', () => {
    const { queue } = manualQueue();
    const { ubuf, outcomes } = lend(8, queue);
    assert.equal(ubuf.refs, 1);
    ubuf.unref();
    assert.equal(ubuf.refs, 0);
    assert.throws(() => ubuf.ref(), /zerotx bug: ref\(\) on a released Ubuf/);
    assert.throws(() => ubuf.unref(), /zerotx bug: unref\(\) on a released Ubuf/);
    queue.flush();
    assert.throws(() => ubuf.ref(), /zerotx bug/);
    assert.equal(outcomes.length, 1, 'the misuse released nothing a second time');
  });

  it('rule 2: stays lent until the last holder is done, in whatever order they end', () => {
    const { queue } = manualQueue();
    const { ubuf, outcomes } = lend(8, queue);
    const kernel = ubuf.ref();
    const retransmitList = ubuf.ref();
    assert.equal(kernel, ubuf, 'ref() gives the Ubuf itself, so that it can be stored in one expression');
    ubuf.unref();
    retransmitList.unref();
    queue.flush();
    assert.deepEqual(outcomes, []);
    kernel.unref();
    queue.flush();
    assert.equal(outcomes.length, 1);
  });

  it('rule 3: shows the bytes themselves, so a change after lending is seen by every holder', () => {
    const { queue } = manualQueue();
    const head = Uint8Array.of(1, 2);
    const tail = Uint8Array.of(3);
    const ubuf = new Ubuf([head, tail], () => {}, queue);
    assert.deepEqual(ubuf.iov, [head, tail]);
    assert.equal(ubuf.iov[0], head);
    assert.equal(ubuf.byteLength, 3);
    head[0] = 9;
    assert.equal(ubuf.iov[0]?.[0], 9);
  });

  it('rule 4: tells the owner once, and never inside unref()', () => {
    const { queue, asked } = manualQueue();
    const { ubuf, outcomes } = lend(8, queue);
    ubuf.unref();
    assert.deepEqual(outcomes, [], 'not inside unref()');
    assert.equal(asked(), 1);
    queue.flush();
    assert.equal(outcomes.length, 1);
    queue.flush();
    assert.equal(outcomes.length, 1);
  });

  it('rule 4: an owner may lend again from its callback; that release is for the next batch', () => {
    const { queue, asked } = manualQueue();
    const order: string[] = [];
    const first = new Ubuf(
      [new Uint8Array(1)],
      () => {
        order.push('first');
        new Ubuf([new Uint8Array(1)], () => order.push('second'), queue).unref();
      },
      queue,
    );
    first.unref();
    queue.flush();
    assert.deepEqual(order, ['first']);
    assert.equal(asked(), 2);
    queue.flush();
    assert.deepEqual(order, ['first', 'second']);
  });

  it('rule 4: with the scheduler of programs it runs after the caller, before the next event', async () => {
    const order: string[] = [];
    const queue = new ReleaseQueue(queueMicrotask);
    const ubuf = new Ubuf([new Uint8Array(1)], () => order.push('released'), queue);
    setImmediate(() => order.push('next event'));
    ubuf.unref();
    order.push('caller goes on');
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(order, ['caller goes on', 'released', 'next event']);
  });

  it('rule 5: without the last unref() no number of batches releases it', () => {
    const { queue, asked } = manualQueue();
    const { ubuf, outcomes } = lend(8, queue);
    const kernel = ubuf.ref();
    ubuf.unref(); // its owner has closed
    for (let batch = 0; batch < 100; batch++) queue.flush();
    assert.deepEqual(outcomes, []);
    assert.equal(asked(), 0);
    assert.equal(kernel.refs, 1);
  });

  it('rule 6: counts references without a bound of its own', () => {
    const { queue } = manualQueue();
    const { ubuf, outcomes } = lend(8, queue);
    for (let i = 0; i < 100_000; i++) ubuf.ref();
    assert.equal(ubuf.refs, 100_001);
    for (let i = 0; i < 100_001; i++) ubuf.unref();
    queue.flush();
    assert.equal(outcomes.length, 1);
  });

  it('rule 7: reports what was copied, never more than was lent, and whether that is exact', () => {
    const { queue } = manualQueue();
    const lent = lend(100, queue);
    lent.ubuf.unref();
    const partly = lend(100, queue);
    partly.ubuf.copiedBytes += 40;
    partly.ubuf.unref();
    const twice = lend(100, queue);
    twice.ubuf.copiedBytes += 100; // sent
    twice.ubuf.copiedBytes += 100; // and sent again
    twice.ubuf.exact = false;
    twice.ubuf.unref();
    queue.flush();
    assert.deepEqual(lent.outcomes, [{ bytes: 100, copiedBytes: 0, exact: true }]);
    assert.deepEqual(partly.outcomes, [{ bytes: 100, copiedBytes: 40, exact: true }]);
    assert.deepEqual(twice.outcomes, [{ bytes: 100, copiedBytes: 100, exact: false }]);
  });

  it('rule 7: what the kernel copies between the last unref() and the batch still counts', () => {
    const { queue } = manualQueue();
    const { ubuf, outcomes } = lend(10, queue);
    ubuf.unref();
    ubuf.copiedBytes += 10;
    queue.flush();
    assert.deepEqual(outcomes, [{ bytes: 10, copiedBytes: 10, exact: true }]);
  });

  it('releases each once, after its last holder, under any interleaving of holders and batches', () => {
    const step = fc.tuple(fc.constantFrom('ref', 'unref', 'flush'), fc.nat(4));
    fc.assert(
      fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
        const { queue } = manualQueue();
        const lent = Array.from({ length: 5 }, () => lend(1, queue));
        const refs = lent.map(() => 1);
        const check = (flushed: boolean): void => {
          for (const [i, { ubuf, outcomes }] of lent.entries()) {
            assert.equal(ubuf.refs, refs[i]);
            if (refs[i]! > 0) assert.equal(outcomes.length, 0);
            else if (flushed) assert.equal(outcomes.length, 1);
          }
        };
        for (const [action, i] of steps) {
          if (action === 'flush') queue.flush();
          else if (refs[i]! > 0) {
            lent[i]!.ubuf[action]();
            refs[i]! += action === 'ref' ? 1 : -1;
          }
          check(action === 'flush');
        }
      }),
    );
  });
});
