/** What a UDP socket remembers of its destinations. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { Targets } from '../../src/net/udp-target.ts';

const address = (i: number): string => `10.1.${i >> 8}.${i & 255}`;

describe('targets', () => {
  it('are the same for the same address and port, and of one family', () => {
    const targets = new Targets('udp4');
    const first = targets.of('10.0.0.1', 1);
    assert.ok(first);
    assert.equal(targets.of('10.0.0.1', 1), first);
    assert.notEqual(targets.of('10.0.0.1', 2), first);
    assert.notEqual(targets.of('10.0.0.2', 1), first);
    assert.equal(targets.of('10.0.0.1', 1), first);
    assert.equal(targets.of('::1', 1), undefined);
    assert.equal(new Targets('udp6').of('10.0.0.1', 1), undefined);
  });

  it('are forgotten in the order of their last use', () => {
    const targets = new Targets('udp4');
    const often = targets.of('10.0.0.1', 1);
    const once = targets.of('10.0.0.2', 1);
    // 256 are remembered: these and one more of the two that were there before.
    for (let i = 0; i < 255; i++) {
      targets.of(address(i), 1);
      if (i % 100 === 0) assert.equal(targets.of('10.0.0.1', 1), often);
    }
    assert.equal(targets.of('10.0.0.1', 1), often);
    assert.notEqual(targets.of('10.0.0.2', 1), once);
  });

  it('stay when more come that are of no use', () => {
    const targets = new Targets('udp4');
    const all = Array.from({ length: 256 }, (_, i) => targets.of(address(i), 1));
    for (let i = 0; i < 10; i++) assert.equal(targets.of('no address', i), undefined);
    for (const [i, target] of all.entries()) assert.equal(targets.of(address(i), 1), target);
  });
});
