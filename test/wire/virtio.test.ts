import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  and,
  availBytes,
  bitsOf,
  descBytes,
  features,
  has,
  isEmpty,
  isRingSize,
  NO_FEATURES,
  or,
  same,
  usedBytes,
  VIRTIO_F_IN_ORDER,
  VIRTIO_F_VERSION_1,
  without,
} from '../../src/wire/virtio.ts';

describe('feature masks', () => {
  it('have 64 bits, all unsigned', () => {
    for (let bit = 0; bit < 64; bit++) {
      const mask = features(bit);
      assert.deepEqual(bitsOf(mask), [bit]);
      assert.equal((BigInt(mask.hi) << 32n) | BigInt(mask.lo), 1n << BigInt(bit));
      for (let other = 0; other < 64; other++) assert.equal(has(mask, other), other === bit);
    }
  });

  it('combine as sets do', () => {
    const a = features(0, 31, 32, 63);
    const b = features(31, 33, 63);
    assert.deepEqual(bitsOf(and(a, b)), [31, 63]);
    assert.deepEqual(bitsOf(or(a, b)), [0, 31, 32, 33, 63]);
    assert.deepEqual(bitsOf(without(a, b)), [0, 32]);
    assert.equal(same(a, features(63, 32, 31, 0)), true);
    assert.equal(same(a, b), false);
    assert.equal(isEmpty(NO_FEATURES), true);
    assert.equal(isEmpty(features(63)), false);
    assert.deepEqual(features(VIRTIO_F_VERSION_1, VIRTIO_F_IN_ORDER), { lo: 0, hi: 9 });
  });
});

describe('ring layout', () => {
  it('has the sizes of the specification', () => {
    assert.equal(descBytes(256), 4096);
    assert.equal(availBytes(256, true), 518);
    assert.equal(availBytes(256, false), 516);
    assert.equal(usedBytes(256, true), 2054);
    assert.equal(usedBytes(256, false), 2052);
  });

  it('takes powers of two up to 32,768', () => {
    const sizes = [0, 1, 2, 3, 7, 96, 256, 1000, 32_768, 65_536, 2 ** 31, -1];
    assert.deepEqual(sizes.filter(isRingSize), [1, 2, 256, 32_768]);
  });
});
