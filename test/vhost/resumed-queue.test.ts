import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { resumedQueue } from '../../src/vhost/resumed-queue.ts';
import { PLAIN, ringMemory } from '../support/vring.ts';

const SIZE = 256;

/** Where a queue takes from, and gives back to, with indexes in the ring and a base from the front-end. */
function start(avail: number, used: number, base: number): readonly [number, number] {
  const memory = ringMemory(SIZE, PLAIN);
  new DataView(memory.avail).setUint16(2, avail, true);
  new DataView(memory.used).setUint16(2, used, true);
  const queue = resumedQueue({ memory, size: SIZE, base }, PLAIN);
  return [queue.lastAvail, queue.usedIdx];
}

describe('a queue that goes on', () => {
  const cases: readonly (readonly [string, number, number, number, number])[] = [
    ['a new one begins at 0', 0, 0, 0, 0],
    ['as it was left', 1010, 1000, 1000, 1000],
    ['with nothing to do', 1000, 1000, 1000, 1000],
    ['behind what its last owner has not given back', 1010, 1000, 1005, 1005],
    ['behind a whole ring of that', 1256, 1000, 1256, 1256],
    ['over the end of the indexes', 20, 65_500, 10, 10],
    ["where the ring is, if the front-end's base is 0 all the same", 1010, 1000, 0, 1000],
    ['where the ring is, if little was sent so far', 150, 100, 0, 100],
    ['where the ring is, if the base is beyond what there is', 1010, 1000, 1011, 1000],
    ['where the ring is, if the base is a ring ahead', 1300, 1000, 1257, 1000],
    ['where the ring is, if the base was given back', 1010, 1000, 999, 1000],
  ];
  for (const [name, avail, used, base, expected] of cases) {
    it(name, () => {
      assert.deepEqual(start(avail, used, base), [expected, used]);
    });
  }
});
