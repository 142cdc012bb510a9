import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  completionRange,
  ERRQUEUE_WORDS,
  errorRecord,
  isCopied,
  isZerocopyCompletion,
  rangeLength,
  SO_EE_CODE_ZEROCOPY_COPIED,
  SO_EE_ORIGIN_ICMP,
  SO_EE_ORIGIN_TIMESTAMPING,
  SO_EE_ORIGIN_ZEROCOPY,
} from '../../src/wire/errqueue.ts';

const ECONNREFUSED = 111;
const ENOMSG = 42;

/** Records as drainErrors writes them: errno, origin, type, code, info, data. */
const words = Uint32Array.of(
  ...[0, SO_EE_ORIGIN_ZEROCOPY, 0, SO_EE_CODE_ZEROCOPY_COPIED, 3, 7],
  ...[ECONNREFUSED, SO_EE_ORIGIN_ICMP, 3, 3, 0, 0],
  ...[ENOMSG, SO_EE_ORIGIN_TIMESTAMPING, 0, 0, 1, 9],
  ...[0, SO_EE_ORIGIN_ZEROCOPY, 0, 0, 0xfffffffe, 1],
  ...[ENOMSG, SO_EE_ORIGIN_ZEROCOPY, 0, 0, 0, 0],
);

describe('error queue records', () => {
  it('are zero-copy completions by origin and errno, not by code', () => {
    const kinds = Array.from({ length: words.length / ERRQUEUE_WORDS }, (_, i) =>
      isZerocopyCompletion(words, i),
    );
    assert.deepEqual(kinds, [true, false, false, true, false]);
  });

  it('carry COPIED as a bit of the code', () => {
    assert.equal(isCopied(words, 0), true);
    assert.equal(isCopied(words, 3), false);
  });

  it('confirm inclusive ranges that may wrap', () => {
    assert.deepEqual(completionRange(words, 0), { lo: 3, hi: 7 });
    assert.equal(rangeLength(completionRange(words, 0)), 5);
    assert.deepEqual(completionRange(words, 3), { lo: 0xfffffffe, hi: 1 });
    assert.equal(rangeLength(completionRange(words, 3)), 4);
    assert.equal(rangeLength({ lo: 0, hi: 0xffffffff }), 2 ** 32);
  });

  it('can be read whole', () => {
    const expected = { errno: ECONNREFUSED, origin: 2, type: 3, code: 3, info: 0, data: 0 };
    assert.deepEqual(errorRecord(words, 1), expected);
    assert.throws(() => errorRecord(words, 5), RangeError);
  });
});
