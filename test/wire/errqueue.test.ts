import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { completionRange, ERRQUEUE_WORDS, isCopied, isZerocopyCompletion } from '../../src/wire/errqueue.ts';

// linux/errqueue.h
const SO_EE_ORIGIN_ICMP = 2;
const SO_EE_ORIGIN_TIMESTAMPING = 4;
const SO_EE_ORIGIN_ZEROCOPY = 5;
const SO_EE_CODE_ZEROCOPY_COPIED = 1;
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
    assert.deepEqual(completionRange(words, 3), { lo: 0xfffffffe, hi: 1 });
  });

  it('are read where they are, and nowhere else', () => {
    assert.throws(() => isZerocopyCompletion(words, 5), RangeError);
    assert.throws(() => completionRange(words, 5), RangeError);
  });
});
