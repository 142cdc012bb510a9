/** The device's side of a split ring: indices, notifications, and drivers who do what they may not. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { needEvent, type RingFeatures, SET_BACK, SplitQueue } from '../../src/vhost/queue.ts';
import { EVENT_IDX, MockDriver, PLAIN, ringMemory } from '../support/vring.ts';

const piece = { address: 0x1000n, length: 64 };

function pair(size: number, features: RingFeatures = PLAIN, start = 0): [MockDriver, SplitQueue] {
  const driver = new MockDriver(size, features, start);
  return [driver, new SplitQueue(driver.memory, size, features, start, start)];
}

describe('SplitQueue', () => {
  it('takes chains in the order of avail and gives them back in the order of put()', () => {
    const [driver, queue] = pair(8);
    const heads = [driver.chain([piece, piece]), driver.chain([piece]), driver.chain([piece])];
    assert.equal(queue.available(), 0, 'pushed, not shown');
    driver.show();
    assert.equal(queue.available(), 3);
    assert.deepEqual(
      [0, 1, 2].map((i) => queue.peekHead(i)),
      heads,
    );
    queue.advance(3);
    assert.equal(queue.available(), 0);
    queue.put(heads[2] as number, 7);
    queue.put(heads[0] as number, 0);
    assert.deepEqual(driver.reap(), [], 'put, not published');
    queue.publish();
    assert.deepEqual(driver.reap(), [
      [heads[2], 7],
      [heads[0], 0],
    ]);
    assert.equal(queue.usedIdx, 2);
  });

  it('rewinds to what it took', () => {
    const [driver, queue] = pair(4, PLAIN, 65_534);
    for (let i = 0; i < 4; i++) driver.chain([piece]);
    driver.show();
    queue.advance(3);
    assert.equal(queue.lastAvail, 1);
    queue.rewind(2);
    assert.equal(queue.lastAvail, 65_535);
    assert.equal(queue.available(), 3);
    assert.equal(queue.peekHead(0), 1);
  });

  it('goes round the ring and round 2^16', () => {
    const [driver, queue] = pair(4, EVENT_IDX, 65_530);
    for (let i = 0; i < 5000; i++) {
      const heads = Array.from({ length: 1 + (i % 4) }, () => driver.chain([piece]));
      driver.show();
      assert.equal(queue.available(), heads.length);
      for (const head of heads) {
        assert.equal(queue.peekHead(0), head);
        queue.advance(1);
        queue.put(head, i);
      }
      queue.publish();
      assert.deepEqual(
        driver.reap(),
        heads.map((head) => [head, i]),
      );
    }
  });

  it('starts at any base and used index, which may differ', () => {
    const driver = new MockDriver(8, PLAIN, 100);
    const queue = new SplitQueue(driver.memory, 8, PLAIN, 100, 97);
    driver.chain([piece]);
    driver.show();
    queue.advance(1);
    queue.put(0, 0);
    queue.publish();
    assert.equal(queue.lastAvail, 101);
    assert.equal(driver.shownUsed, 98);
  });

  const breaking: [title: string, act: (driver: MockDriver, queue: SplitQueue) => number][] = [
    [
      'A3: a head that is the size of the ring',
      (driver, queue) => {
        driver.push(8);
        driver.show();
        return queue.available() === 1 ? queue.peekHead(0) : 0;
      },
    ],
    [
      'A3: a head of 65535',
      (driver, queue) => {
        driver.push(65_535);
        driver.show();
        return queue.available() === 1 ? queue.peekHead(0) : 0;
      },
    ],
    [
      'A13: avail.idx jumps by the size of the ring and one',
      (driver, queue) => {
        driver.setAvailIdx(9);
        return queue.available();
      },
    ],
    [
      'A13: avail.idx jumps by half of its range',
      (driver, queue) => {
        driver.setAvailIdx(32_768);
        return queue.available();
      },
    ],
    [
      'A13: avail.idx goes backwards',
      (driver, queue) => {
        for (let i = 0; i < 3; i++) driver.chain([piece]);
        driver.show();
        queue.advance(queue.available());
        driver.setAvailIdx(2);
        return queue.available();
      },
    ],
  ];
  for (const [title, act] of breaking) {
    it(`${title}: broken, for good`, () => {
      const [driver, queue] = pair(8);
      assert.equal(act(driver, queue), -1);
      const reason = queue.broken;
      assert.ok(reason !== null);
      driver.setAvailIdx(queue.lastAvail);
      assert.equal(queue.available(), -1, 'though the index is right again');
      assert.equal(queue.enableNotifications(), false);
      queue.fail('another reason');
      assert.equal(queue.broken, reason);
    });
  }

  it('a driver that takes back what it had made available is told from one that jumps', () => {
    for (const [steps, back] of [
      [-1, true],
      [-8, true],
      [-9, false],
      [9, false],
    ] as const) {
      const [driver, queue] = pair(8);
      driver.setAvailIdx((queue.lastAvail + steps) & 0xffff);
      assert.equal(queue.available(), -1);
      assert.equal(queue.broken === SET_BACK, back, `${steps}`);
    }
  });

  it('A13: the whole ring at once is no jump', () => {
    const [driver, queue] = pair(8);
    for (let i = 0; i < 8; i++) driver.chain([piece]);
    driver.show();
    assert.equal(queue.available(), 8);
  });

  it('A15: used ring over the descriptor table, avail and used in one: harmless to us', () => {
    const memory = new ArrayBuffer(16 * 8);
    const queue = new SplitQueue({ desc: memory, avail: memory, used: memory }, 8, PLAIN, 0, 0);
    // Every publish() moves avail.idx too: the driver has only itself to blame, and the queue ends one way or the other.
    for (let i = 0; i < 100_000; i++) {
      const available = queue.available();
      if (available < 0) break;
      for (let k = 0; k < Math.max(1, available); k++) {
        const head = available > 0 ? queue.peekHead(0) : 1;
        if (head < 0) break;
        queue.advance(available > 0 ? 1 : 0);
        queue.put(head, 0xffff_ffff);
      }
      queue.publish();
    }
    assert.ok(queue.broken !== null);
  });

  it('survives the loss of its memory', () => {
    const [driver, queue] = pair(8, EVENT_IDX);
    driver.chain([piece]);
    driver.show();
    assert.equal(queue.available(), 1);
    for (const area of Object.values(driver.memory) as ArrayBuffer[])
      structuredClone(area, { transfer: [area] });
    assert.equal(queue.peekHead(0), 0);
    queue.put(0, 0);
    assert.equal(queue.publish(), false);
    assert.equal(queue.enableNotifications(), false);
    queue.disableNotifications();
    assert.equal(queue.available(), -1);
    assert.match(queue.broken ?? '', /memory/);
  });

  it('refuses memory that is too short, and sizes that no ring has: a bug of the caller', () => {
    const memory = ringMemory(8, PLAIN);
    assert.throws(() => new SplitQueue(memory, 8, EVENT_IDX, 0, 0), /too short/);
    assert.throws(() => new SplitQueue(memory, 16, PLAIN, 0, 0), /too short/);
    for (const size of [0, 3, 65_536]) assert.throws(() => new SplitQueue(memory, size, PLAIN, 0, 0), /size/);
  });
});

describe('notifications', () => {
  /** Puts and publishes `count` entries. */
  function use(queue: SplitQueue, count = 1): boolean {
    for (let i = 0; i < count; i++) queue.put(0, 0);
    return queue.publish();
  }

  it('without EVENT_IDX: a signal for each publish(), unless the driver wants none', () => {
    const [driver, queue] = pair(8);
    assert.equal(queue.publish(), false, 'nothing new');
    assert.equal(use(queue), true);
    driver.availFlags = 1;
    assert.equal(use(queue), false);
    driver.availFlags = 0xfffe;
    assert.equal(use(queue, 3), true);
  });

  it('with EVENT_IDX: when used_event is passed, whatever the flags say', () => {
    const [driver, queue] = pair(8, EVENT_IDX);
    driver.availFlags = 1;
    driver.usedEvent = 500;
    assert.equal(use(queue), true, 'the first is always signalled: nobody knows what the driver waits for');
    driver.usedEvent = 3;
    assert.equal(use(queue), false, '2 of 4 used');
    assert.equal(use(queue), false, '3 of 4');
    assert.equal(use(queue), true, 'entry 3 is there');
    assert.equal(use(queue), false);
    driver.usedEvent = 5;
    assert.equal(use(queue, 6), true, 'passed on the way to 11');
    driver.usedEvent = 10;
    assert.equal(use(queue), false, 'was passed before');
  });

  it('EVENT_IDX round 2^16', () => {
    const [driver, queue] = pair(8, EVENT_IDX, 65_533);
    use(queue);
    driver.usedEvent = 65_535;
    assert.equal(use(queue), false);
    assert.equal(use(queue), true);
    driver.usedEvent = 2;
    assert.equal(use(queue, 2), false);
    assert.equal(use(queue, 2), true);
  });

  it('asks for notifications, and sees what came before it asked', () => {
    for (const features of [PLAIN, EVENT_IDX]) {
      const [driver, queue] = pair(8, features, 65_535);
      queue.disableNotifications();
      assert.equal(driver.usedFlags, features.eventIdx ? 0 : 1);
      driver.chain([piece]);
      driver.show();
      assert.equal(queue.enableNotifications(), true, 'one came while notifications were off');
      assert.equal(driver.usedFlags, 0);
      if (features.eventIdx) assert.equal(driver.availEvent, 65_535);
      queue.advance(1);
      assert.equal(queue.enableNotifications(), false);
      if (features.eventIdx) assert.equal(driver.availEvent, 0, 'the next one');
    }
  });

  it('clears a flag that the last owner of the ring left', () => {
    const driver = new MockDriver(8);
    new DataView(driver.memory.used).setUint16(0, 1, true);
    const queue = new SplitQueue(driver.memory, 8, PLAIN, 0, 0);
    queue.enableNotifications();
    assert.equal(driver.usedFlags, 0);
  });

  it('a jump of avail.idx while asking breaks the queue', () => {
    const [driver, queue] = pair(8);
    driver.setAvailIdx(4000);
    assert.equal(queue.enableNotifications(), false);
    assert.ok(queue.broken !== null);
  });

  it('needEvent is that of the specification at the edges', () => {
    // [event, now, before, expected]
    const cases: [number, number, number, boolean][] = [
      [0, 1, 0, true],
      [1, 1, 0, false],
      [65_535, 0, 65_535, true],
      [65_535, 1, 0, false],
      [0, 0, 0, false],
      [5, 10, 6, false],
      [6, 10, 6, true],
      [9, 10, 6, true],
      [10, 10, 6, false],
      [65_534, 3, 65_533, true],
    ];
    for (const [event, now, before, expected] of cases) {
      assert.equal(needEvent(event, now, before), expected, `${event} ${now} ${before}`);
    }
  });
});
