import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { FixedBudget, pinnedPages } from '../../src/core/budget.ts';

describe('pinned pages', () => {
  it('are charged as the kernel does: whole pages, and two for the ends', () => {
    assert.equal(pinnedPages(1, 4096), 2);
    assert.equal(pinnedPages(4095, 4096), 2);
    assert.equal(pinnedPages(4096, 4096), 3);
    assert.equal(pinnedPages(57_344, 4096), 16);
    // With a limit of 64 KiB, 16 pages, this is the largest call that passes; one page more does not.
    assert.ok(pinnedPages(57_344 + 4096, 4096) > 16);
    assert.equal(pinnedPages(1 << 20, 65_536), 18);
  });
});

describe('FixedBudget', () => {
  it('charges up to its limit and not a page more; a refusal charges nothing', () => {
    const budget = new FixedBudget(10);
    assert.equal(budget.charge(6), true);
    assert.equal(budget.charge(5), false);
    assert.equal(budget.used(), 6);
    assert.equal(budget.charge(4), true);
    assert.equal(budget.charge(1), false);
    budget.uncharge(10);
    assert.equal(budget.used(), 0);
    assert.equal(budget.charge(10), true);
  });

  it('has no limit when negative, and takes nothing when 0', () => {
    const unlimited = new FixedBudget(-1);
    assert.equal(unlimited.charge(2 ** 40), true);
    assert.equal(unlimited.used(), 2 ** 40);
    const none = new FixedBudget(0);
    assert.equal(none.charge(1), false);
    assert.equal(none.charge(0), true);
  });
});
