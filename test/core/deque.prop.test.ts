/** The ring against an array: any sequence of operations, with sizes around the growth steps. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { Deque } from '../../src/core/deque.ts';

const seed = process.env.FC_SEED;
if (seed !== undefined) fc.configureGlobal({ seed: Number(seed) });

type Name = 'push' | 'unshift' | 'shift' | 'pop' | 'clear';

/** Runs of one operation, so that the ring fills, wraps and grows at every alignment of its head. */
const run: fc.Arbitrary<[Name, number]> = fc.oneof(
  { weight: 4, arbitrary: fc.tuple(fc.constant<Name>('push'), fc.integer({ min: 1, max: 40 })) },
  { weight: 3, arbitrary: fc.tuple(fc.constant<Name>('unshift'), fc.integer({ min: 1, max: 40 })) },
  { weight: 4, arbitrary: fc.tuple(fc.constant<Name>('shift'), fc.integer({ min: 1, max: 40 })) },
  { weight: 3, arbitrary: fc.tuple(fc.constant<Name>('pop'), fc.integer({ min: 1, max: 40 })) },
  { weight: 1, arbitrary: fc.tuple(fc.constant<Name>('clear'), fc.constant(1)) },
);

function assertSame(deque: Deque<number>, model: readonly number[]): void {
  assert.equal(deque.length, model.length);
  assert.deepEqual([...deque], model);
  assert.equal(deque.first, model[0]);
  assert.equal(deque.last, model.at(-1));
  for (const index of [-1, 0, 1, model.length - 1, model.length, model.length + 16]) {
    assert.equal(deque.at(index), index < 0 ? undefined : model[index], `at(${index})`);
  }
}

it('a deque behaves as an array', () => {
  fc.assert(
    fc.property(fc.nat(40), fc.array(run, { maxLength: 40 }), (capacity, runs) => {
      const deque = new Deque<number>(capacity);
      const model: number[] = [];
      let value = 0;
      for (const [name, count] of runs) {
        for (let i = 0; i < count; i++) {
          if (name === 'push' || name === 'unshift') {
            value += 1;
            deque[name](value);
            model[name](value);
          } else if (name === 'clear') {
            deque.clear();
            model.length = 0;
          } else {
            assert.equal(deque[name](), model[name]());
          }
        }
        assertSame(deque, model);
      }
    }),
  );
});

it('an emptied deque keeps no item reachable', async () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const deque = new Deque<object>();
  const taken: WeakRef<object>[] = [];
  const fillAndEmpty = (): void => {
    for (let i = 0; i < 40; i++) {
      const item = { i };
      taken.push(new WeakRef(item));
      deque.push(item);
    }
    while (deque.length > 20) deque.shift();
    while (deque.length > 10) deque.pop();
    deque.clear();
  };
  fillAndEmpty();
  // A WeakRef holds its target until the job that made it has ended.
  await new Promise((resolve) => setImmediate(resolve));
  collect();
  assert.equal(taken.filter((ref) => ref.deref() !== undefined).length, 0);
});
