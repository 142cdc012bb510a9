import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { SplitQueue } from '../../src/vhost/queue.ts';
import { resumedQueue, resumedTxQueue } from '../../src/vhost/resumed-queue.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { IN_ORDER, MockDriver, PLAIN, ringMemory } from '../support/vring.ts';

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

describe('notes of chains that were overtaken', () => {
  /** A driver of 8 chains, 0 to 7; the device has taken all and given back those of `back`, after notes of `aside`. */
  function left(aside: readonly number[], back: readonly number[]): MockDriver {
    const driver = new MockDriver(8);
    for (let i = 0; i < 8; i++) driver.chain([{ address: 0n, length: 1 }]);
    driver.show();
    const queue = new SplitQueue(driver.memory, 8, PLAIN, 0, 0);
    assert.equal(queue.available(), 8);
    queue.advance(8);
    for (const head of aside) queue.setAside(head);
    for (const head of back) queue.put(head, 0);
    queue.publish();
    driver.reap();
    return driver;
  }

  it('say what is out: it is given back, and the others are taken again', () => {
    const driver = left([0, 2], [1, 3, 4]);
    const { queue, givenBack } = resumedTxQueue({ memory: driver.memory, size: 8, base: 3 }, PLAIN);
    assert.deepEqual([givenBack, queue.lastAvail, queue.available(), queue.peekHead(0)], [2, 5, 3, 5]);
    assert.deepEqual(
      driver
        .reap()
        .map(([head]) => head)
        .sort(),
      [0, 2],
    );
    assert.deepEqual(driver.outstanding, [5, 6, 7]);
    assert.equal(resumedTxQueue({ memory: driver.memory, size: 8, base: 5 }, PLAIN).givenBack, 0, 'once');
  });

  it('are over when their chains are back', () => {
    const driver = left([0, 2], [1, 3, 2, 0]);
    const { queue, givenBack } = resumedTxQueue({ memory: driver.memory, size: 8, base: 4 }, PLAIN);
    assert.deepEqual([givenBack, queue.lastAvail, queue.peekHead(0)], [0, 4, 4]);
  });

  it('are not looked for with IN_ORDER, nor where a driver has more available than its ring has', () => {
    const driver = left([0], [1]);
    assert.equal(resumedTxQueue({ memory: driver.memory, size: 8, base: 1 }, IN_ORDER).givenBack, 0);
    driver.setAvailIdx(100);
    assert.equal(resumedTxQueue({ memory: driver.memory, size: 8, base: 1 }, PLAIN).givenBack, 0);
  });

  it("that a driver has written are its own loss: no head that is none, none twice, nothing but the ring's own", () => {
    const random = new Random(Number(process.env.FC_SEED ?? 1));
    for (let i = 0; i < scaled(2000, 50_000); i++) {
      const driver = left([0, 2], [1, 3]);
      const words = new Uint32Array(driver.memory.used, 4, 16);
      for (let k = 0; k < 16; k++) {
        const wild = [random.below(2 ** 32), 0x5a54_0000 + random.below(2 ** 16), random.below(10), 0];
        if (random.chance(0.7)) words[k] = random.pick(wild);
      }
      driver.setAvailIdx(random.pick([8, 10, 3, 65_000]));
      const { queue, givenBack } = resumedTxQueue({ memory: driver.memory, size: 8, base: 2 }, PLAIN);
      assert.ok(givenBack <= 8 && ((queue.usedIdx - 2) & 0xffff) === givenBack);
      for (let k = 0; k < givenBack; k++) assert.ok((words[2 * ((2 + k) & 7)] as number) < 8);
    }
  });
});
