/** The engine over a kernel that does what the test says: refusals, records of every kind, and their accounts. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { type Outcome, Ubuf } from '../../src/core/ubuf.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import { type ZerocopyMode, ZerocopyPolicy } from '../../src/net/policy.ts';
import { ZerocopyEngine } from '../../src/net/zerocopy.ts';
import type { Native } from '../../src/sys/binding.ts';
import { MSG_ZEROCOPY } from '../../src/sys/constants.ts';
import { ERRQUEUE_WORDS } from '../../src/wire/errqueue.ts';

const BIG = 64 * 1024;
const ZEROCOPY = 5;
const ICMP = 2;

/** Fields of one record, as the kernel has them: errno, origin, code, lo, hi. */
type RecordFields = [errno: number, origin: number, code: number, lo: number, hi: number];

/** Answers calls from the two lists; what is not scripted takes everything, or finds the queue empty. */
class FakeKernel {
  readonly flagged: number[] = [];
  readonly plain: number[] = [];
  readonly queue: RecordFields[] = [];
  readonly sent: ('lent' | 'copied')[] = [];

  sendv(_fd: number, buffers: readonly Uint8Array[], count: number, flags: number): number {
    const lent = (flags & MSG_ZEROCOPY) !== 0;
    const bytes = buffers.slice(0, count).reduce((sum, buffer) => sum + buffer.length, 0);
    const n = (lent ? this.flagged : this.plain).shift() ?? bytes;
    if (n > 0) this.sent.push(lent ? 'lent' : 'copied');
    return n;
  }

  drainErrors(_fd: number, out: Uint32Array): number {
    const taken = this.queue.splice(0, out.length / ERRQUEUE_WORDS);
    taken.forEach(([errno, origin, code, lo, hi], i) => {
      out.set([errno, origin, 0, code, lo, hi], i * ERRQUEUE_WORDS);
    });
    return taken.length;
  }
}

function setUp(mode: ZerocopyMode = 'auto') {
  const kernel = new FakeKernel();
  const policy = new ZerocopyPolicy({ mode, loopback: () => false, thresholdBytes: 32 * 1024 });
  const counters = zerocopyCounters();
  const engine = new ZerocopyEngine({
    sys: kernel as unknown as Native,
    fd: 3,
    policy,
    counters,
    now: () => 0,
  });
  const queue = new ReleaseQueue(() => {});
  const lend = (bytes = BIG): { ubuf: Ubuf; outcomes: Outcome[]; send: () => number } => {
    const outcomes: Outcome[] = [];
    const piece = new Uint8Array(bytes);
    const ubuf = new Ubuf([piece], (outcome) => outcomes.push(outcome), queue);
    return { ubuf, outcomes, send: () => engine.send(ubuf, [piece], 1, 0) };
  };
  const drain = (...records: RecordFields[]): number => {
    kernel.queue.push(...records);
    const completed = engine.drain();
    queue.flush();
    return completed;
  };
  return { kernel, counters, engine, lend, drain };
}

describe('a flagged call', () => {
  it('holds the Ubuf until its number is completed, and tells what was copied', () => {
    const { engine, counters, lend, drain } = setUp();
    const first = lend();
    const second = lend();
    assert.equal(first.send(), BIG);
    assert.equal(second.send(), BIG);
    for (const { ubuf } of [first, second]) ubuf.unref();
    assert.equal(engine.outstanding, 2);
    assert.equal(counters.pinnedBytes, 2 * BIG);
    assert.equal(engine.pendingBytes(), 2 * BIG);
    assert.equal(drain([0, ZEROCOPY, 0, 1, 1]), 1);
    assert.deepEqual(first.outcomes, []);
    assert.deepEqual(second.outcomes, [{ bytes: BIG, copiedBytes: 0, exact: true }]);
    assert.equal(drain([0, ZEROCOPY, 1, 0, 0]), 1);
    assert.deepEqual(first.outcomes, [{ bytes: BIG, copiedBytes: BIG, exact: true }]);
    assert.equal(counters.pinnedBytes, 0);
    assert.equal(counters.pinnedBytesMax, 2 * BIG);
    assert.equal(counters.lentCalls, 2);
    assert.equal(counters.kernelCopiedCalls, 1);
    assert.equal(counters.kernelCopiedBytes, BIG);
  });

  it('that took a part is one number, and the rest is another', () => {
    const { kernel, counters, engine, lend, drain } = setUp();
    const lent = lend();
    kernel.flagged.push(10_000);
    assert.equal(lent.send(), 10_000);
    assert.equal(engine.send(lent.ubuf, [new Uint8Array(BIG - 10_000)], 1, 0), BIG - 10_000);
    lent.ubuf.unref();
    drain([0, ZEROCOPY, 0, 0, 0]);
    assert.deepEqual(lent.outcomes, []);
    drain([0, ZEROCOPY, 0, 1, 1]);
    assert.equal(lent.outcomes.length, 1);
    assert.equal(counters.lentBytes, BIG);
    assert.equal(counters.unexpectedCompletions, 0);
  });

  it('that failed or took nothing has no number', () => {
    const { kernel, engine, lend, drain, counters } = setUp();
    const lent = lend();
    kernel.flagged.push(-errnoOf('EAGAIN'), -errnoOf('ECONNRESET'), 0);
    assert.equal(lent.send(), -errnoOf('EAGAIN'));
    assert.equal(lent.send(), -errnoOf('ECONNRESET'));
    assert.equal(lent.send(), 0);
    assert.equal(engine.outstanding, 0);
    assert.equal(lent.ubuf.refs, 1);
    lent.send();
    lent.ubuf.unref();
    drain([0, ZEROCOPY, 0, 0, 0]);
    assert.equal(lent.outcomes.length, 1);
    assert.equal(counters.unexpectedCompletions, 0);
  });
});

describe('a refused call', () => {
  const refusals: [code: string, errno: number, counter: 'refusedEnobufs' | 'refusedOther'][] = [
    ['ENOBUFS', errnoOf('ENOBUFS'), 'refusedEnobufs'],
    ['ENOMEM', errnoOf('ENOMEM'), 'refusedEnobufs'],
    ['EMSGSIZE', errnoOf('EMSGSIZE'), 'refusedOther'],
    ['EOPNOTSUPP', errnoOf('EOPNOTSUPP'), 'refusedOther'],
    ['524', 524, 'refusedOther'],
  ];
  for (const [code, errno, counter] of refusals) {
    it(`with ${code} is made again as a copy, which nothing waits for`, () => {
      const { kernel, engine, counters, lend, drain } = setUp('force');
      const lent = lend();
      kernel.flagged.push(-errno);
      assert.equal(lent.send(), BIG);
      lent.ubuf.unref();
      drain();
      assert.deepEqual(kernel.sent, ['copied']);
      assert.equal(engine.outstanding, 0);
      assert.equal(counters[counter], 1);
      assert.equal(counters.fallbackBytes, BIG);
      assert.deepEqual(lent.outcomes, [{ bytes: BIG, copiedBytes: BIG, exact: true }]);
    });
  }

  it('copies no more than the socket takes, or gives its error', () => {
    const { kernel, counters, lend } = setUp();
    const lent = lend();
    kernel.flagged.push(-errnoOf('ENOBUFS'), -errnoOf('ENOBUFS'), -errnoOf('ENOBUFS'));
    kernel.plain.push(500, -errnoOf('EAGAIN'), -errnoOf('EPIPE'));
    assert.equal(lent.send(), 500);
    assert.equal(lent.send(), -errnoOf('EAGAIN'));
    assert.equal(lent.send(), -errnoOf('EPIPE'));
    assert.equal(lent.ubuf.copiedBytes, 500);
    assert.equal(counters.fallbackBytes, 500);
  });

  it('with ENOBUFS and calls outstanding drains the queue, whose records use the same memory, and tries once more', () => {
    const { kernel, engine, counters, lend } = setUp();
    const first = lend();
    first.send();
    kernel.queue.push([0, ZEROCOPY, 0, 0, 0]);
    kernel.flagged.push(-errnoOf('ENOBUFS'));
    lend().send();
    assert.deepEqual(kernel.sent, ['lent', 'lent']);
    assert.equal(first.ubuf.refs, 1, 'the drain gave back the reference');
    assert.equal(engine.outstanding, 1);
    assert.equal(counters.refusedEnobufs, 0, 'the program was refused nothing');
  });

  it('twice is copied, also with calls outstanding: nobody waits for a completion that may not come', () => {
    const { kernel, lend, counters } = setUp();
    lend().send();
    kernel.flagged.push(-errnoOf('ENOBUFS'), -errnoOf('ENOBUFS'));
    assert.equal(lend().send(), BIG);
    assert.deepEqual(kernel.sent, ['lent', 'copied']);
    assert.equal(counters.refusedEnobufs, 1);
  });

  it('with ENOBUFS makes the next ones copies for a while, with EMSGSIZE none, with EOPNOTSUPP all', () => {
    const after = (code: string): boolean[] => {
      const { kernel, engine, lend } = setUp();
      kernel.flagged.push(-errnoOf(code));
      const { ubuf, send } = lend();
      send();
      const first = engine.why(BIG) === null;
      if (!first) engine.copied(ubuf, BIG, 'memlock');
      return [first, engine.why(BIG) === null];
    };
    assert.deepEqual(after('ENOBUFS'), [false, true]);
    assert.deepEqual(after('EMSGSIZE'), [true, true]);
    assert.deepEqual(after('EOPNOTSUPP'), [false, false]);
  });
});

describe('records', () => {
  it('of other origins confirm nothing, not even one whose code has the bit of COPIED', () => {
    const { engine, lend, drain, counters } = setUp();
    const lent = lend();
    lent.send();
    assert.equal(drain([111, ICMP, 3, 0, 0], [0, 4, 1, 0, 0], [1, ZEROCOPY, 0, 0, 0]), 0);
    assert.equal(engine.outstanding, 1);
    assert.equal(drain([111, ICMP, 3, 0, 0], [0, ZEROCOPY, 0, 0, 0], [111, ICMP, 3, 0, 0]), 1);
    assert.equal(counters.kernelCopiedCalls, 0);
    assert.equal(counters.unexpectedCompletions, 0);
  });

  it('are read to the end of the queue, however many they are', () => {
    const { engine, lend, drain } = setUp();
    const count = 200;
    const all = Array.from({ length: count }, () => lend());
    for (const { ubuf, send } of all) {
      send();
      ubuf.unref();
    }
    // Backwards: the kernel promises no order.
    const records = Array.from({ length: count }, (_, i): RecordFields => {
      const number = count - 1 - i;
      return [0, ZEROCOPY, 0, number, number];
    });
    assert.equal(drain(...records), count);
    assert.equal(engine.outstanding, 0);
    assert.ok(all.every(({ outcomes }) => outcomes.length === 1));
  });

  it('that nobody waits for are counted and harm nobody', () => {
    const { counters, lend, drain } = setUp();
    const lent = lend();
    lent.send();
    lent.ubuf.unref();
    drain([0, ZEROCOPY, 0, 5, 6], [0, ZEROCOPY, 0, 0, 0], [0, ZEROCOPY, 0, 0, 0]);
    assert.equal(counters.unexpectedCompletions, 3);
    assert.equal(lent.outcomes.length, 1);
    assert.equal(counters.pinnedBytes, 0);
  });

  it('that the kernel merged say so in the outcome, and are one observation for the policy', () => {
    const { engine, lend, drain } = setUp('auto');
    const all = Array.from({ length: 32 }, () => lend());
    for (const { ubuf, send } of all) {
      send();
      ubuf.unref();
    }
    drain([0, ZEROCOPY, 1, 0, 31]);
    for (const { outcomes } of all) {
      assert.deepEqual(outcomes, [{ bytes: BIG, copiedBytes: BIG, exact: false }]);
    }
    assert.equal(engine.why(BIG) === null, true, 'one record of 32 calls is no reason to stop');
    for (let number = 32; number < 48; number++) {
      lend().send();
      drain([0, ZEROCOPY, 1, number, number]);
    }
    assert.equal(engine.why(BIG) === null, false, 'sixteen records are');
  });

  it('of calls that were made before the mode changed release as before', () => {
    const { kernel, engine, lend, drain } = setUp('auto');
    const early = lend();
    early.send();
    early.ubuf.unref();
    kernel.flagged.push(-errnoOf('EOPNOTSUPP'));
    lend().send();
    assert.equal(engine.why(BIG) === null, false);
    drain([0, ZEROCOPY, 1, 0, 0]);
    assert.equal(early.outcomes.length, 1);
  });
});
