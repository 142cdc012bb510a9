import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';

if (process.env.FC_SEED !== undefined) fc.configureGlobal({ seed: Number(process.env.FC_SEED) });

const ENOMEM = -errnoOf('ENOMEM');

describe('budget of pinned pages', () => {
  it('admits what fits, refuses what does not, and forgets nothing', () => {
    const steps = fc.array(fc.record({ charge: fc.boolean(), pages: fc.integer({ min: 0, max: 50 }) }));
    fc.assert(
      fc.property(steps, (list) => {
        let used = 0;
        for (const { charge, pages } of list) {
          if (charge) {
            const fits = used + pages <= 100;
            assert.equal(native().budgetCharge(pages, 100), fits ? 0 : ENOMEM);
            if (fits) used += pages;
          } else {
            native().budgetUncharge(pages);
            used -= Math.min(used, pages);
          }
          assert.equal(native().budgetUsed(), used);
        }
        native().budgetUncharge(used);
        assert.equal(native().budgetUsed(), 0);
      }),
    );
  });

  it('has no limit when that is negative, and refuses negative charges', () => {
    assert.equal(native().budgetCharge(2 ** 40, -1), 0);
    assert.equal(native().budgetCharge(1, 5), ENOMEM);
    native().budgetUncharge(2 ** 40);
    assert.equal(native().budgetCharge(-1, -1), -errnoOf('EINVAL'));
    native().budgetUncharge(-5);
    assert.equal(native().budgetUsed(), 0);
  });
});

describe('process facts', () => {
  it('are plausible', () => {
    assert.ok([4096, 16384, 65536].includes(native().pageSize()));
    assert.ok(native().memlockLimit() >= -1);
    assert.equal(native().quarantinedBytes(), 0);
  });
});
