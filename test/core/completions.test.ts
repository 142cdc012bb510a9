/** Numbers of zero-copy calls at the wrap, out of order, merged, repeated and unknown; then against a model. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { CompletionTracker } from '../../src/core/completions.ts';

const seed = process.env.FC_SEED;
if (seed !== undefined) fc.configureGlobal({ seed: Number(seed) });

function tracker(start: number, calls: number): CompletionTracker<number> {
  const made = new CompletionTracker<number>(start);
  for (let i = 0; i < calls; i++) made.add(i);
  return made;
}

function complete(calls: CompletionTracker<number>, lo: number, hi: number): number[] {
  const done: number[] = [];
  calls.complete(lo, hi, (item) => done.push(item));
  return done;
}

describe('CompletionTracker', () => {
  it('numbers calls from the start it is given, and wraps to 0 without leaving a number out', () => {
    const calls = new CompletionTracker<string>(0xfffffffe);
    assert.deepEqual(
      ['a', 'b', 'c', 'd'].map((item) => calls.add(item)),
      [0xfffffffe, 0xffffffff, 0, 1],
    );
    assert.equal(calls.next, 2);
    assert.equal(new CompletionTracker().next, 0);
    assert.equal(new CompletionTracker(2 ** 32).next, 0);
  });

  it('completes eight calls across the wrap, from two ranges, each once', () => {
    const calls = tracker(0xfffffffd, 8);
    assert.deepEqual(complete(calls, 0xfffffffd, 1), [0, 1, 2, 3, 4]);
    assert.equal(calls.outstanding, 3);
    assert.deepEqual(complete(calls, 2, 4), [5, 6, 7]);
    assert.equal(calls.outstanding, 0);
    assert.equal(calls.unexpected, 0);
    assert.equal(calls.next, 5);
  });

  it('does not fall behind, wrap after wrap', () => {
    const calls = new CompletionTracker<number>(0xffffff00);
    for (let i = 0; i < 1000; i++) {
      const number = calls.add(i);
      assert.equal(number, (0xffffff00 + i) >>> 0);
      assert.deepEqual(complete(calls, number, number), [i]);
    }
    assert.equal(calls.unexpected, 0);
  });

  it('takes a merged range whose end is below its beginning as 32 calls', () => {
    const calls = tracker(0xfffffff0, 32);
    assert.deepEqual(
      complete(calls, 0xfffffff0, 0x0000000f),
      Array.from({ length: 32 }, (_, i) => i),
    );
    assert.equal(calls.outstanding, 0);
    assert.equal(calls.unexpected, 0);
  });

  it('gives a failed call no number: the next good one has it', () => {
    const calls = new CompletionTracker<string>(0xffffffff);
    const results = [4096, -11, 4096, 0, -105, 4096];
    for (const [i, n] of results.entries()) if (n > 0) calls.add(`call ${i}`);
    const done: string[] = [];
    calls.complete(0xffffffff, 1, (item) => done.push(item));
    assert.deepEqual(done, ['call 0', 'call 2', 'call 5']);
    assert.equal(calls.outstanding, 0);
  });

  it('takes ranges out of order, and moves on when the gap closes', () => {
    const calls = tracker(0xffffffff, 5);
    assert.deepEqual(complete(calls, 2, 3), [3, 4]);
    assert.deepEqual([...calls.pending()], [0, 1, 2]);
    assert.deepEqual(complete(calls, 0, 0), [1]);
    assert.deepEqual([...calls.pending()], [0, 2]);
    assert.deepEqual(complete(calls, 0xffffffff, 1), [0, 2], 'a range over the rest skips what is done');
    assert.equal(calls.unexpected, 1);
    assert.equal(calls.outstanding, 0);
    assert.equal(calls.next, 4);
  });

  it('counts what nobody waits for: repeats, numbers ahead, numbers behind', () => {
    const calls = tracker(100, 4);
    assert.deepEqual(complete(calls, 104, 110), [], 'ahead');
    assert.equal(calls.unexpected, 7);
    assert.deepEqual(complete(calls, 90, 99), [], 'behind');
    assert.equal(calls.unexpected, 17);
    assert.deepEqual(complete(calls, 98, 101), [0, 1], 'from behind into the known');
    assert.equal(calls.unexpected, 19);
    assert.deepEqual(complete(calls, 100, 101), [], 'again');
    assert.equal(calls.unexpected, 21);
    assert.deepEqual(complete(calls, 103, 120), [3], 'from the known to ahead');
    assert.equal(calls.unexpected, 38);
    assert.deepEqual([...calls.pending()], [2]);
  });

  it('keeps more calls than 16 bits number, completed in any order', () => {
    const count = 70_000;
    const calls = tracker(0xffff8000, count);
    const order = Array.from({ length: count / 1000 }, (_, i) => (i * 37) % (count / 1000));
    let done = 0;
    for (const block of order) {
      const lo = (0xffff8000 + block * 1000) >>> 0;
      calls.complete(lo, (lo + 999) >>> 0, () => done++);
    }
    assert.equal(done, count);
    assert.equal(calls.unexpected, 0);
    assert.equal(calls.outstanding, 0);
  });
});

/** What happens next: so many calls, a range of the outstanding numbers, or a range around them. */
const step = fc.oneof(
  fc.record({ calls: fc.integer({ min: 1, max: 30 }) }),
  fc.record({ at: fc.nat(60), length: fc.integer({ min: 1, max: 40 }) }),
  fc.record({ at: fc.integer({ min: -50, max: -1 }), length: fc.integer({ min: 1, max: 100 }) }),
);
const starts = fc.oneof(
  fc.constantFrom(0, 0xfffffffd, 0xfffffff0, 0xffffffff, 0x7ffffff0),
  fc.integer({ min: 0, max: 0xffffffff }),
);

it('any calls and any ranges complete each call once, and count the rest', () => {
  fc.assert(
    fc.property(starts, fc.array(step, { maxLength: 60 }), (start, steps) => {
      const calls = new CompletionTracker<number>(start);
      // The model counts from the start without a wrap: call i has the number start + i.
      const done: boolean[] = [];
      let unexpected = 0;
      for (const what of steps) {
        if ('calls' in what) {
          for (let i = 0; i < what.calls; i++) {
            assert.equal(calls.add(done.length), (start + done.length) >>> 0);
            done.push(false);
          }
        } else {
          const base = done.includes(false) ? done.indexOf(false) : done.length;
          const from = base + what.at;
          const expected: number[] = [];
          for (let i = from; i < from + what.length; i++) {
            if (done[i] === false) expected.push(i);
            else unexpected += 1;
          }
          for (const i of expected) done[i] = true;
          assert.deepEqual(
            complete(calls, (start + from) >>> 0, (start + from + what.length - 1) >>> 0),
            expected,
          );
        }
        assert.equal(calls.outstanding, done.filter((is) => !is).length);
        assert.equal(calls.unexpected, unexpected);
        assert.equal(calls.next, (start + done.length) >>> 0);
      }
      const pending = [...done.keys()].filter((i) => !done[i]);
      assert.deepEqual([...calls.pending()], pending);
    }),
    { numRuns: 500 },
  );
});
