/** What a front-end receives, with the device's side of the ring in the test's hand. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { FRAME_BYTES, FRAME_WORDS, type FrameTable, HEAD_BYTES } from '../../src/core/frames.ts';
import { releases } from '../../src/core/releases.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { frameOf, QueuesInHand, type Wants } from '../support/frontend-queues.ts';

const SEED = process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) };
const ME = {};

function using(wants: Wants, test: (hand: QueuesInHand) => void): void {
  const hand = new QueuesInHand(wants);
  try {
    test(hand);
  } finally {
    hand.end();
  }
}

function framesOf(table: FrameTable, count: number): Buffer[] {
  return Array.from({ length: count }, (_, i) => {
    const out = Buffer.alloc(table.records[i * FRAME_WORDS + FRAME_BYTES] as number);
    assert.equal(table.owner.gather(i, out), out.length);
    return out;
  });
}

describe('frames that come', () => {
  it('span as many buffers as they say', () => {
    using({ queueSize: 64, buffers: 64 }, (hand) => {
      const got: Buffer[] = [];
      hand.rx.receiver = (table) => {
        got.push(...framesOf(table, table.count));
        for (let i = 0; i < table.count; i++) {
          assert.ok((table.records[i * FRAME_WORDS + HEAD_BYTES] as number) <= 256);
        }
        return table.count;
      };
      const wanted = [14, 60, 256, 257, 1514, 2036, 2037, 9000, 62_000].map((bytes) => frameOf(bytes, bytes));
      for (const frame of wanted) {
        assert.equal(hand.deliver(frame), true);
        assert.equal(hand.rx.poll(), 1);
      }
      assert.deepEqual(got, wanted);
      assert.equal(hand.receive.available(), 64, 'all buffers are back');
      assert.equal(hand.rx.counters.frames, wanted.length);
      assert.equal(
        hand.rx.counters.bytes,
        wanted.reduce((sum, { length }) => sum + length, 0),
      );
    });
  });

  it('are one buffer each without MRG_RXBUF, whatever the header says', () => {
    using({ mergeable: false }, (hand) => {
      const got: Buffer[] = [];
      hand.rx.receiver = (table) => got.push(...framesOf(table, table.count)) && table.count;
      hand.deliver(frameOf(60, 1), 0);
      hand.deliver(frameOf(70, 2), 9);
      hand.rx.poll();
      assert.deepEqual(got, [frameOf(60, 1), frameOf(70, 2)]);
    });
  });

  it('are counted and dropped when nobody is there', () => {
    using({}, (hand) => {
      for (let round = 0; round < 5; round++) {
        for (let i = 0; i < 10; i++) assert.equal(hand.deliver(frameOf(60, i)), true);
        assert.equal(hand.deliver(frameOf(5000, 1)), true);
        assert.equal(hand.rx.poll(), 11);
      }
      assert.deepEqual(hand.rx.counters, { frames: 55, bytes: 5 * 5600, dropped: 55, errors: 0 });
    });
  });

  it('are no frames when they are too short', () => {
    for (const withReceiver of [false, true]) {
      using({}, (hand) => {
        const got: Buffer[] = [];
        if (withReceiver)
          hand.rx.receiver = (table) => got.push(...framesOf(table, table.count)) && table.count;
        hand.deliver(frameOf(13, 1));
        hand.deliver(frameOf(60, 2));
        hand.deliver(frameOf(0, 3));
        hand.deliver(frameOf(61, 4));
        hand.deliver(frameOf(1, 3));
        assert.equal(hand.rx.poll(), 2);
        if (withReceiver) assert.deepEqual(got, [frameOf(60, 2), frameOf(61, 4)]);
        assert.equal(hand.rx.counters.errors, 3);
        assert.equal(hand.rx.counters.frames, 2);
        assert.equal(hand.receive.available(), 16);
      });
    }
  });

  it('wait for their last buffer', () => {
    using({}, (hand) => {
      hand.deliver(frameOf(60, 1), 2);
      assert.equal(hand.rx.poll(), 0);
      hand.deliver(frameOf(60, 2));
      assert.equal(hand.rx.poll(), 1);
      assert.equal(hand.rx.counters.bytes, 132);
      assert.deepEqual(hand.broken, []);
    });
  });

  it('break the queue when they have more buffers than there are', () => {
    using({}, (hand) => {
      hand.deliver(frameOf(60, 1), 17);
      assert.equal(hand.rx.poll(), 0);
      assert.match(hand.broken[0] ?? '', /receive ring 0: a frame of 17 buffers/);
    });
  });

  it('break the queue when there is more in a buffer than it holds', () => {
    using({}, (hand) => {
      hand.receive.put(0, 2049);
      hand.receive.publish();
      assert.equal(hand.rx.poll(), 0);
      assert.match(hand.broken[0] ?? '', /2049 bytes/);
    });
  });
});

describe('frames that are held back', () => {
  it('stay until there is room, and come again in order', () => {
    using({}, (hand) => {
      const got: Buffer[] = [];
      let room = 3;
      hand.rx.receiver = (table) => {
        const taken = Math.min(room, table.count);
        got.push(...framesOf(table, taken));
        room -= taken;
        return taken;
      };
      for (let i = 0; i < 8; i++) hand.deliver(frameOf(60 + i, i));
      assert.equal(hand.rx.poll(), 3);
      assert.equal(hand.rx.poll(), 0, 'nothing is offered before it is asked for');
      for (let i = 8; i < 12; i++) hand.deliver(frameOf(60 + i, i));
      room = 100;
      hand.rx.unblock();
      assert.deepEqual(
        got,
        Array.from({ length: 12 }, (_, i) => frameOf(60 + i, i)),
      );
      assert.equal(hand.receive.available(), 16);
    });
  });

  it('may be asked for from within the receiver, which is not called again there', () => {
    using({}, (hand) => {
      const got: Buffer[] = [];
      let depth = 0;
      hand.rx.receiver = (table) => {
        assert.equal(++depth, 1);
        hand.rx.unblock();
        assert.equal(hand.rx.poll(), 0);
        got.push(...framesOf(table, 1));
        depth -= 1;
        return 1;
      };
      for (let i = 0; i < 4; i++) hand.deliver(frameOf(60, i));
      for (let i = 0; i < 4; i++) assert.equal(hand.rx.poll(), 1);
      assert.deepEqual(
        got,
        [0, 1, 2, 3].map((i) => frameOf(60, i)),
      );
    });
  });

  it('are over when the receiver throws', () => {
    using({}, (hand) => {
      hand.rx.receiver = () => {
        throw new Error('oops');
      };
      for (let i = 0; i < 4; i++) hand.deliver(frameOf(60, i));
      assert.throws(() => hand.rx.poll(), /oops/);
      hand.rx.receiver = null;
      hand.deliver(frameOf(60, 9));
      assert.equal(hand.rx.poll(), 1);
      assert.equal(hand.receive.available(), 16);
    });
  });

  it('are not lost with the back-end', () => {
    using({}, (hand) => {
      const got: Buffer[] = [];
      let isOpen = false;
      hand.rx.receiver = (table) => {
        if (!isOpen) return 0;
        got.push(...framesOf(table, table.count));
        return table.count;
      };
      for (let i = 0; i < 5; i++) hand.deliver(frameOf(60, i));
      hand.rx.poll();
      hand.reconnect();
      assert.equal(hand.receive.available(), 11);
      isOpen = true;
      hand.rx.unblock();
      assert.equal(got.length, 5);
      assert.equal(hand.receive.available(), 16);
    });
  });
});

describe('frames that are lent', () => {
  it('keep their buffers until they are released', () => {
    using({ queueSize: 16 }, (hand) => {
      const lent: Ubuf[] = [];
      hand.rx.receiver = (table) => {
        for (let i = 0; i < table.count; i++) {
          const ubuf = table.owner.lend(i, ME);
          if (ubuf !== null) lent.push(ubuf);
        }
        return table.count;
      };
      hand.deliver(frameOf(60, 1));
      hand.deliver(frameOf(5000, 2));
      hand.deliver(frameOf(1500, 3));
      assert.equal(hand.rx.poll(), 3);
      assert.deepEqual(
        lent.map(({ byteLength }) => byteLength),
        [5000 - 256, 1500 - 256],
        'a short frame has no tail to lend',
      );
      assert.equal(hand.receive.available(), 16 - 4);
      for (const ubuf of lent) ubuf.unref();
      releases.flush();
      assert.equal(hand.receive.available(), 16);
    });
  });

  it('leave the back-end half of the buffers', () => {
    using({ queueSize: 16 }, (hand) => {
      const lent: (Ubuf | null)[] = [];
      hand.rx.receiver = (table) => {
        for (let i = 0; i < table.count; i++) lent.push(table.owner.lend(i, ME));
        return table.count;
      };
      for (let i = 0; i < 12; i++) hand.deliver(frameOf(1500, i));
      hand.rx.poll();
      assert.equal(lent.filter((ubuf) => ubuf !== null).length, 8);
      assert.equal(hand.receive.available(), 8);
    });
  });

  it('outlive their back-end, and the front-end', () => {
    const hand = new QueuesInHand({ queueSize: 16 });
    const lent: Ubuf[] = [];
    hand.rx.receiver = (table) => {
      for (let i = 0; i < table.count; i++) lent.push(table.owner.lend(i, ME) as Ubuf);
      return table.count;
    };
    for (let i = 0; i < 4; i++) hand.deliver(frameOf(1500, i));
    hand.rx.poll();
    // Out of order, so that the ring begins anew.
    const [first, second] = hand.available(hand.receive) as [number, number];
    hand.receive.advance(2);
    hand.receive.put(second, 72);
    hand.receive.publish();
    hand.rx.receiver = null;
    hand.reconnect();
    assert.equal(hand.receive.available(), 12, `${first} is back, but not what is lent`);
    lent.pop()?.unref();
    releases.flush();
    assert.equal(hand.receive.available(), 13);
    hand.end();
    for (const ubuf of lent) ubuf.unref();
    releases.flush();
  });
});

describe('any sequence of frames', () => {
  it('comes as it was delivered, and all buffers go back', () => {
    const step = fc.oneof(
      fc.record({ kind: fc.constant('frame' as const), bytes: fc.integer({ min: 14, max: 9000 }) }),
      fc.record({ kind: fc.constant('poll' as const), room: fc.nat(6), lend: fc.boolean() }),
      fc.record({ kind: fc.constant('release' as const), count: fc.nat(3) }),
      fc.record({ kind: fc.constant('reconnect' as const) }),
    );
    const property = fc.property(fc.array(step, { maxLength: 100 }), fc.boolean(), (steps, eventIdx) => {
      using({ eventIdx, queueSize: 16 }, (hand) => {
        const wanted: Buffer[] = [];
        const got: Buffer[] = [];
        const lent: Ubuf[] = [];
        let room = 0;
        let lends = false;
        hand.rx.receiver = (table) => {
          const taken = Math.min(room, table.count);
          room -= taken;
          got.push(...framesOf(table, taken));
          for (let i = 0; i < taken && lends; i++) {
            const ubuf = table.owner.lend(i, ME);
            if (ubuf !== null) lent.push(ubuf);
          }
          return taken;
        };
        for (const one of steps) {
          if (one.kind === 'frame') {
            const frame = frameOf(one.bytes, wanted.length);
            if (hand.deliver(frame)) wanted.push(frame);
          } else if (one.kind === 'poll') {
            room = one.room;
            lends = one.lend;
            hand.rx.unblock();
          } else if (one.kind === 'reconnect') hand.reconnect();
          else {
            for (const ubuf of lent.splice(0, one.count)) ubuf.unref();
            releases.flush();
          }
        }
        room = 1000;
        hand.rx.unblock();
        for (const ubuf of lent) ubuf.unref();
        releases.flush();
        assert.deepEqual(got, wanted);
        assert.equal(hand.receive.available(), 16);
        assert.deepEqual(hand.broken, []);
      });
    });
    fc.assert(property, { ...SEED, numRuns: 60 });
  });
});
