import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { addBytes, addWide, complement, fold } from '../../src/wire/checksum.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);
const options = { seed, numRuns: 500 };

/** RFC 1071 to the letter: 16-bit words, each carry added at once. */
function slow(bytes: readonly number[]): number {
  let sum = 0;
  for (let i = 0; i < bytes.length; i += 2) {
    sum += bytes[i]! * 256 + (bytes[i + 1] ?? 0);
    if (sum > 0xffff) sum -= 0xffff;
  }
  return sum;
}

/** 0 and 0xffff are the same number in one's complement. */
const same = (a: number, b: number): void => {
  assert.equal(a % 0xffff, b % 0xffff);
};

describe('the Internet checksum', () => {
  it('is the example of RFC 1071, section 3', () => {
    const bytes = Uint8Array.of(0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7);
    assert.equal(fold(addBytes(bytes, 0, 8)), 0xddf2);
    assert.equal(complement(addBytes(bytes, 0, 8)), 0x220d);
  });

  it('is the same wherever it starts and ends, byte by byte or in words', () => {
    const cases = fc.record({
      bytes: fc.uint8Array({ minLength: 0, maxLength: 400 }),
      skip: fc.nat(9),
    });
    fc.assert(
      fc.property(cases, ({ bytes, skip }) => {
        const memory = new Uint8Array(((skip + bytes.length + 3) >> 2) * 4).fill(0xa5);
        memory.set(bytes, skip);
        const expected = slow([...bytes]);
        same(fold(addBytes(memory, skip, skip + bytes.length)), expected);
        const words = new Uint32Array(memory.buffer);
        same(fold(addWide(memory, words, skip, skip + bytes.length)), expected);
      }),
      options,
    );
  });

  it('does not overflow on the largest frames', () => {
    const memory = new Uint8Array(128 * 1024).fill(0xff);
    const words = new Uint32Array(memory.buffer);
    assert.equal(fold(addWide(memory, words, 0, memory.length)), 0xffff);
    assert.equal(fold(2 ** 40 + 5), 0x100 + 5);
  });
});
