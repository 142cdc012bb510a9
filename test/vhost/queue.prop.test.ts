/** Rings driven at random: nothing lost, nothing doubled, nobody left waiting. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { needEvent, SplitQueue } from '../../src/vhost/queue.ts';
import { scaled } from '../support/counts.ts';
import { MockDriver } from '../support/vring.ts';

const seed = process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) };
const piece = { address: 0n, length: 1 };

describe('a split ring', () => {
  it('gives back what it took, each once, in the order of put()', () => {
    fc.assert(
      fc.property(
        fc.constantFrom(1, 2, 8, 64),
        fc.boolean(),
        fc.nat(65_535),
        fc.array(fc.tuple(fc.nat(64), fc.nat(64), fc.nat(64)), { maxLength: 60 }),
        (size, eventIdx, start, steps) => {
          const features = { eventIdx, indirect: false, inOrder: false };
          const driver = new MockDriver(size, features, start);
          const queue = new SplitQueue(driver.memory, size, features, start, start);
          const made: number[] = [];
          const have: number[] = [];
          const put: [number, number][] = [];
          for (const [add, take, give] of steps) {
            for (let i = 0; i < add && driver.freeCount > 0; i++) made.push(driver.chain([piece]));
            driver.show();
            assert.equal(queue.available(), made.length);
            const count = Math.min(take, made.length);
            for (let i = 0; i < count; i++) assert.equal(queue.peekHead(i), made[i]);
            queue.advance(count);
            have.push(...made.splice(0, count));
            for (let i = 0; i < give && have.length > 0; i++) {
              // Not always the oldest.
              const [head] = have.splice((i * 7) % have.length, 1) as [number];
              queue.put(head, i);
              put.push([head, i]);
            }
            queue.publish();
            assert.deepEqual(driver.reap(), put.splice(0));
          }
          assert.deepEqual(driver.outstanding.sort(), [...made, ...have].sort());
        },
      ),
      { numRuns: scaled(200, 20_000), ...seed },
    );
  });

  it('needEvent says whether the event lies between two indices', () => {
    fc.assert(
      fc.property(fc.nat(65_535), fc.nat(65_535), fc.nat(65_535), (event, before, step) => {
        // Walks from `before`, one entry after the other, as far as the distance says.
        const distance = (event - before) & 0xffff;
        assert.equal(needEvent(event, (before + step) & 0xffff, before), distance < step);
      }),
      { numRuns: scaled(2000, 200_000), ...seed },
    );
  });

  /**
   * Both sides as threads of single memory operations, interleaved at random: the driver shows a chain and then looks
   * whether to notify; the device takes what it sees, and sleeps when it was told that there is nothing. It must never sleep for good.
   */
  it('E53: no order of steps loses a notification', () => {
    fc.assert(
      fc.property(
        fc.boolean(),
        fc.nat(65_535),
        fc.array(fc.boolean(), { minLength: 40, maxLength: 400 }),
        (eventIdx, start, order) => {
          const features = { eventIdx, indirect: false, inOrder: false };
          const driver = new MockDriver(4, features, start);
          const queue = new SplitQueue(driver.memory, 4, features, start, start);
          const world = { asleep: false, kicks: 0, taken: 0, made: 0 };
          const one = driverSteps(driver, world);
          const other = deviceSteps(queue, world);
          for (const turn of order) (turn ? one : other).next();
          // Let the driver finish what it began, and the device go on while it is awake or was notified.
          while (world.made === 0 || !one.next().value);
          for (let i = 0; i < 100 && !(world.asleep && world.kicks === 0); i++) other.next();
          assert.equal(world.taken, world.made);
        },
      ),
      { numRuns: scaled(500, 50_000), ...seed },
    );
  });
});

interface World {
  asleep: boolean;
  kicks: number;
  taken: number;
  made: number;
}

/** Yields after each step; true after a whole chain. */
function* driverSteps(driver: MockDriver, world: World): Generator<boolean, boolean> {
  for (;;) {
    driver.reap();
    yield false;
    if (driver.chain([piece]) < 0) {
      yield true;
      continue;
    }
    const before = driver.availIdx === 0 ? 65_535 : driver.availIdx - 1;
    driver.show();
    world.made += 1;
    yield false;
    const kick = driver.features.eventIdx
      ? needEvent(driver.availEvent, driver.availIdx, before)
      : driver.usedFlags === 0;
    if (kick) world.kicks += 1;
    yield true;
  }
}

function* deviceSteps(queue: SplitQueue, world: World): Generator<void, void> {
  for (;;) {
    queue.disableNotifications();
    yield;
    while (queue.available() > 0) {
      yield;
      const head = queue.peekHead(0);
      queue.advance(1);
      queue.put(head, 0);
      world.taken += 1;
      queue.publish();
      yield;
    }
    yield;
    if (queue.enableNotifications()) continue;
    world.asleep = true;
    while (world.kicks === 0) yield;
    world.kicks = 0;
    world.asleep = false;
  }
}
