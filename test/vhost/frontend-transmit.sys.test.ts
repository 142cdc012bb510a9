/** What a front-end sends, seen from the device's side of the ring. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { FrameSet } from '../../src/vhost/frontend-frames.ts';
import { frameOf, QueuesInHand, type Wants } from '../support/frontend-queues.ts';

const SEED = process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) };

function using(wants: Wants, test: (hand: QueuesInHand) => void): void {
  const hand = new QueuesInHand(wants);
  try {
    test(hand);
  } finally {
    hand.end();
  }
}

describe('frames that are copied', () => {
  for (const indirect of [false, true]) {
    it(`arrive as they are, ${indirect ? 'in indirect tables' : 'in chains'}`, () => {
      using({ indirect, queueSize: 64, buffers: 64 }, (hand) => {
        for (const bytes of [14, 60, 1514, 2036, 2037, 9000, 62_000, 65_562]) {
          const frame = frameOf(bytes, bytes);
          assert.equal(hand.tx.send(frame), true);
          const { header, frame: got, pieces } = hand.sent(hand.take(hand.transmit));
          assert.deepEqual(got, frame);
          assert.deepEqual(header, Buffer.alloc(12));
          assert.equal(pieces, Math.ceil((bytes + 12) / 2048));
          assert.equal(hand.tx.room, 64 - (indirect ? 1 : pieces));
          hand.transmit.rewind(1);
          assert.equal(hand.finishAll(), 1);
          assert.equal(hand.tx.poll(), 1);
          assert.equal(hand.tx.room, 64);
        }
        assert.equal(hand.tx.counters.completedBytes, hand.tx.counters.sentBytes);
      });
    });
  }

  it('carry their header', () => {
    using({}, (hand) => {
      const vnet = { flags: 1, gsoType: 4, hdrLen: 66, gsoSize: 1448, csumStart: 34, csumOffset: 16 };
      hand.tx.send(frameOf(60, 1), vnet);
      const { header } = hand.sent(hand.take(hand.transmit));
      assert.equal(header.toString('hex'), '01044200a805220010000000');
    });
  });

  it('are refused when there is no room, and none is lost', () => {
    using({}, (hand) => {
      for (let i = 0; i < 16; i++) assert.equal(hand.tx.send(frameOf(60, i)), true);
      assert.equal(hand.tx.send(frameOf(60, 16)), false);
      assert.equal(hand.finishAll(), 16);
      assert.equal(hand.tx.send(frameOf(60, 16)), false, 'nothing was taken back yet');
      assert.equal(hand.tx.poll(), 16);
      assert.equal(hand.tx.send(frameOf(60, 16)), true);
    });
  });

  it('wait for room in their order, and tell when they are done', async () => {
    const hand = new QueuesInHand({ queueSize: 4, buffers: 4 });
    const done: number[] = [];
    const sends = Array.from({ length: 10 }, (_, i) => {
      return hand.tx.sendFrame(frameOf(60, i)).then(() => done.push(i));
    });
    assert.equal(hand.tx.send(frameOf(60, 99)), false, 'others are first');
    const seen: Buffer[] = [];
    for (let turns = 0; turns < 10 && seen.length < 10; turns++) {
      for (const head of hand.available(hand.transmit)) seen.push(hand.sent(head).frame);
      hand.finishAll();
      hand.tx.poll();
    }
    await Promise.all(sends);
    assert.deepEqual(
      seen,
      Array.from({ length: 10 }, (_, i) => frameOf(60, i)),
    );
    assert.deepEqual(
      done,
      Array.from({ length: 10 }, (_, i) => i),
    );
    hand.end();
  });

  it('tell when they can never be sent, and when all is over', async () => {
    const hand = new QueuesInHand({ queueSize: 4, buffers: 4 });
    await assert.rejects(hand.tx.sendFrame(frameOf(4 * 2048, 1)), { code: 'EMSGSIZE' });
    const out = hand.tx.sendFrame(frameOf(60, 1));
    const long = hand.tx.sendFrame(frameOf(4 * 2048 - 12, 1));
    hand.end();
    await assert.rejects(out, /the test is over/);
    await assert.rejects(long, /the test is over/);
    assert.equal(hand.tx.send(frameOf(60, 1)), false);
    assert.equal(hand.tx.poll(), 0);
  });
});

describe('frames that are prepared', () => {
  for (const [pieces, indirect, taken] of [
    [1, false, 1],
    [3, false, 3],
    [11, false, 11],
    [11, true, 1],
    [64, true, 64],
  ] as const) {
    it(`are sent again and again, ${pieces} pieces each${indirect ? ', indirect' : ''}`, () => {
      using({ memoryBytes: 1 << 20, queueSize: 64, buffers: 64, indirect }, (hand) => {
        const prepared = new FrameSet(hand.memory, {
          frameBytes: 5000,
          count: 3,
          pieces,
          fill: (frame, index) => frame.set(frameOf(5000, index)),
        });
        let next = 0;
        for (let round = 0; round < 5; round++) {
          const sent = hand.tx.sendBatch(prepared, 1000);
          assert.equal(sent, Math.floor(64 / taken));
          for (const head of hand.available(hand.transmit)) {
            const got = hand.sent(head);
            assert.equal(got.pieces, pieces);
            assert.deepEqual(got.frame, frameOf(5000, next % 3));
            next += 1;
          }
          assert.equal(hand.finishAll(), sent);
          assert.equal(hand.tx.poll(), sent);
        }
        assert.equal(hand.tx.counters.completed, next);
      });
    });
  }

  it('fill the memory that is asked for, and no more than there is', () => {
    using({ memoryBytes: 1 << 20 }, (hand) => {
      const set = new FrameSet(hand.memory, { frameBytes: 1500, workingSetBytes: 512 << 10 });
      assert.equal(set.count, Math.floor((512 << 10) / 1536));
      assert.throws(() => new FrameSet(hand.memory, { frameBytes: 1500, workingSetBytes: 600 << 10 }), {
        code: 'ENOSPC',
      });
      for (const wrong of [{ frameBytes: 13 }, { frameBytes: 70_000 }, { frameBytes: 60, pieces: 0 }]) {
        assert.throws(() => new FrameSet(hand.memory, wrong), { code: 'ERR_OUT_OF_RANGE' });
      }
    });
  });
});

describe('a ring that goes on', () => {
  it('gives a new back-end what the old one had not returned, in order', () => {
    using({}, (hand) => {
      for (let i = 0; i < 10; i++) hand.tx.send(frameOf(60, i));
      const heads = hand.available(hand.transmit);
      hand.transmit.advance(7);
      for (const head of heads.slice(0, 4)) hand.transmit.put(head, 0);
      hand.transmit.publish();
      const plans = hand.reconnect();
      assert.equal(plans[1]?.base, 4);
      assert.equal(hand.tx.counters.completed, 4);
      assert.deepEqual(
        hand.available(hand.transmit).map((head) => hand.sent(head).frame),
        Array.from({ length: 6 }, (_, i) => frameOf(60, 4 + i)),
      );
      assert.equal(hand.tx.ring.counters.resubmitted, 6);
    });
  });

  it('begins anew when they came back out of order', () => {
    using({ memoryBytes: 1 << 16 }, (hand) => {
      const set = new FrameSet(hand.memory, {
        frameBytes: 60,
        count: 4,
        pieces: 2,
        fill: (frame, index) => frame.set(frameOf(60, 50 + index)),
      });
      for (let i = 0; i < 5; i++) hand.tx.send(frameOf(60, i));
      hand.tx.sendBatch(set, 3);
      const heads = hand.available(hand.transmit);
      hand.transmit.advance(8);
      for (const i of [3, 1, 6]) hand.transmit.put(heads[i] as number, 0);
      hand.transmit.publish();
      const plans = hand.reconnect();
      assert.equal(plans[1]?.base, 0);
      assert.equal(hand.tx.ring.counters.outOfOrder, 2);
      assert.deepEqual(
        hand.available(hand.transmit).map((head) => hand.sent(head).frame),
        [0, 2, 4, 50, 52].map((id) => frameOf(60, id)),
      );
      assert.equal(hand.finishAll(), 5);
      assert.equal(hand.tx.poll(), 5);
      assert.equal(hand.tx.room, 16);
      assert.equal(hand.tx.counters.completed, 8);
    });
  });

  it('begins anew when the old back-end broke it', async () => {
    const hand = new QueuesInHand({});
    const sent = hand.tx.sendFrame(frameOf(60, 1));
    hand.transmit.put(9, 0);
    hand.transmit.publish();
    assert.equal(hand.tx.poll(), 0);
    assert.match(hand.broken[0] ?? '', /transmit ring 1/);
    hand.reconnect();
    assert.equal(hand.finishAll(), 1);
    assert.equal(hand.tx.poll(), 1);
    await sent;
    hand.end();
  });
});

describe('a hostile used ring', () => {
  const cases: [string, (hand: QueuesInHand) => void][] = [
    ['names a chain beyond the ring', (hand) => hand.transmit.put(16, 0)],
    ['names a chain that is not out', (hand) => hand.transmit.put(8, 0)],
    ['names a chain twice', (hand) => [0, 0].map((head) => hand.transmit.put(head, 0))],
    ['jumps ahead', (hand) => [0, 1, 2].map((head) => hand.transmit.put(head, 0))],
  ];
  for (const [what, write] of cases) {
    it(`breaks the queue when it ${what}`, () => {
      using({}, (hand) => {
        hand.tx.send(frameOf(60, 0));
        hand.tx.send(frameOf(60, 1));
        write(hand);
        hand.transmit.publish();
        assert.equal(hand.tx.poll(), 0);
        assert.equal(hand.broken.length, 1);
        assert.equal(hand.tx.send(frameOf(60, 2)), false);
      });
    });
  }
});

describe('a back-end that writes anywhere', () => {
  it('can break its rings, and nothing else', () => {
    const scribble = fc.record({ at: fc.nat(0xffff), byte: fc.nat(255), isSmall: fc.boolean() });
    const property = fc.property(
      fc.array(scribble, { minLength: 1, maxLength: 100 }),
      fc.boolean(),
      (all, inOrder) => {
        using({ inOrder, indirect: true, buffers: 16 }, (hand) => {
          const { rings } = hand.memory.layout;
          for (const [i, { at, byte, isSmall }] of all.entries()) {
            // The used rings, for the most part: flags, index and the first entries.
            const { used } = rings[at & 1] as (typeof rings)[number];
            hand.memory.u8[isSmall ? used + ((at >> 1) % 40) : (at * 7919) % hand.memory.bytes] = byte;
            hand.tx.send(frameOf(60 + 30 * (i % 100), i));
            hand.queues.poll();
            hand.queues.rest();
          }
          hand.reconnect();
          hand.tx.send(frameOf(60, 1));
          hand.queues.poll();
        });
      },
    );
    fc.assert(property, SEED);
  });
});

describe('any sequence of operations', () => {
  const step = fc.oneof(
    fc.record({ kind: fc.constant('send' as const), bytes: fc.integer({ min: 14, max: 9000 }) }),
    fc.record({ kind: fc.constant('batch' as const), count: fc.integer({ min: 1, max: 20 }) }),
    fc.record({ kind: fc.constant('finish' as const), picks: fc.array(fc.nat(30), { maxLength: 8 }) }),
    fc.record({ kind: fc.constant('poll' as const) }),
    fc.record({ kind: fc.constant('reconnect' as const) }),
  );

  it('loses no frame, sends none twice but those that were not returned, and gives all buffers back', () => {
    const property = fc.property(
      fc.array(step, { maxLength: 120 }),
      fc.boolean(),
      fc.boolean(),
      fc.boolean(),
      (steps, eventIdx, indirect, inOrder) => {
        using({ eventIdx, indirect, inOrder, memoryBytes: 1 << 16 }, (hand) => run(hand, steps, inOrder));
      },
    );
    fc.assert(property, { ...SEED, numRuns: 60 });
  });

  type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

  function run(hand: QueuesInHand, steps: readonly Step[], inOrder: boolean): void {
    const set = new FrameSet(hand.memory, {
      frameBytes: 100,
      count: 3,
      pieces: 2,
      fill: (frame, index) => frame.set(frameOf(100, 1000 + index)),
    });
    /** Frames that are out, oldest first; and chains that the device holds. */
    let out: Buffer[] = [];
    let held: { head: number; frame: Buffer }[] = [];
    let id = 0;
    const takeAll = (): void => {
      for (const head of hand.available(hand.transmit)) held.push({ head, frame: hand.sent(head).frame });
      hand.transmit.advance(hand.transmit.available());
      assert.deepEqual(
        held.map(({ frame }) => frame),
        out,
      );
    };
    for (const one of steps) {
      if (one.kind === 'send') {
        const frame = frameOf(one.bytes, id++);
        if (hand.tx.send(frame)) out.push(frame);
      } else if (one.kind === 'batch') {
        let index = set.next;
        for (let left = hand.tx.sendBatch(set, one.count); left > 0; left--) {
          out.push(frameOf(100, 1000 + index));
          index = (index + 1) % 3;
        }
      } else if (one.kind === 'poll') hand.tx.poll();
      else if (one.kind === 'reconnect') {
        hand.reconnect();
        held = [];
        takeAll();
      } else {
        takeAll();
        for (const pick of one.picks) {
          if (held.length === 0) break;
          const index = inOrder ? 0 : pick % held.length;
          const [done] = held.splice(index, 1) as [(typeof held)[number]];
          out.splice(index, 1);
          hand.transmit.put(done.head, 0);
        }
        hand.transmit.publish();
      }
      assert.deepEqual(hand.broken, []);
    }
    takeAll();
    for (const { head } of held) hand.transmit.put(head, 0);
    hand.transmit.publish();
    hand.tx.poll();
    out = [];
    assert.equal(hand.tx.room, 16);
    assert.equal(hand.tx.outstanding, 0);
    assert.equal(hand.queues.buffers[0]?.free, 16);
    assert.deepEqual(hand.tx.counters.completed, hand.tx.counters.sent);
    if (inOrder) assert.equal(hand.tx.ring.counters.outOfOrder, 0);
  }
});
