import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import { isSlabMemory, SlabPool, type Unit } from '../../src/sys/slab.ts';
import { runChild } from '../support/children.ts';

if (process.env.FC_SEED !== undefined) fc.configureGlobal({ seed: Number(process.env.FC_SEED) });

const PAGE = native().pageSize();
const MIB = 1 << 20;

describe('slabCreate', () => {
  it('maps zeroed, page-aligned memory in whole pages', () => {
    const memory = native().slabCreate(1, false) as ArrayBuffer;
    assert.equal(memory.byteLength, PAGE);
    assert.equal(native().pageOffset(new Uint8Array(memory)), 0);
    assert.equal(native().pageOffset(new Uint8Array(memory, 7)), 7);
    assert.ok(new Uint8Array(memory).every((byte) => byte === 0));
    const huge = native().slabCreate(1, true) as ArrayBuffer;
    assert.equal(huge.byteLength, 2 * MIB);
    assert.equal(native().pageOffset(new Uint8Array(huge)), 0);
  });

  it('refuses nothing and too much', () => {
    for (const bytes of [0, -1, 2 ** 30 + 1, 2 ** 53, Number.NaN]) {
      assert.equal(native().slabCreate(bytes, false), -errnoOf('EINVAL'), `${bytes}`);
    }
  });

  it('is unmapped when collected, and keeps memory as long as a view is in use', {
    timeout: 60_000,
  }, async () => {
    const child = new URL('./children/lifetime.js', import.meta.url);
    const result = await runChild(child, ['collect-slabs'], { execArgv: ['--expose-gc'] });
    assert.deepEqual({ ...result, stdout: '' }, { code: 0, signal: null, stdout: '', stderr: '' });
  });
});

describe('windows of a slab', () => {
  const EINVAL = -errnoOf('EINVAL');

  it('show a part of it, and can be taken away without it', () => {
    const slab = native().slabCreate(4 * PAGE, false) as ArrayBuffer;
    const window = native().slabWindow(slab, PAGE, 2 * PAGE) as ArrayBuffer;
    const other = new Uint8Array(native().slabWindow(slab, PAGE, PAGE) as ArrayBuffer);
    const view = new Uint8Array(window).fill(7);
    assert.deepEqual([...new Uint8Array(slab, PAGE - 1, 2)], [0, 7]);
    assert.deepEqual([...new Uint8Array(slab, 3 * PAGE - 1, 2)], [7, 0]);
    assert.equal(native().slabDetach(slab, window), 0);
    assert.deepEqual([window.byteLength, view.byteLength, view[0]], [0, 0, undefined]);
    assert.equal(native().slabDetach(slab, window), EINVAL, 'gone already');
    assert.equal(other[0], 7);
    assert.equal(new Uint8Array(slab)[PAGE], 7);
  });

  it('keep the memory when the slab itself was detached, and then nothing more can be had of it', () => {
    const slab = native().slabCreate(PAGE, false) as ArrayBuffer;
    const window = new Uint8Array(native().slabWindow(slab, 0, PAGE) as ArrayBuffer).fill(9);
    assert.equal(native().slabDetach(slab, slab), 0);
    assert.equal(slab.byteLength, 0);
    assert.ok(window.every((byte) => byte === 9));
    assert.equal(native().slabWindow(slab, 0, PAGE), EINVAL);
    assert.equal(native().slabDetach(slab, window.buffer as ArrayBuffer), EINVAL);
  });

  it('are refused outside of it, and of other memory', () => {
    const slab = native().slabCreate(2 * PAGE, false) as ArrayBuffer;
    const bad = [
      [-1, PAGE],
      [0, 0],
      [0, -1],
      [0, 2 * PAGE + 1],
      [PAGE, PAGE + 1],
      [2 * PAGE, 1],
      [2 ** 53, 1],
      [1, 2 ** 53],
    ] as const;
    for (const [offset, bytes] of bad) assert.equal(native().slabWindow(slab, offset, bytes), EINVAL);
    const window = native().slabWindow(slab, 0, PAGE) as ArrayBuffer;
    const foreign = [new ArrayBuffer(PAGE), window, new Uint8Array(PAGE), Buffer.alloc(8), {}, null, 1];
    for (const memory of foreign as ArrayBuffer[]) {
      assert.equal(native().slabWindow(memory, 0, 1), EINVAL);
      assert.equal(native().slabDetach(memory, window), EINVAL);
      if (memory !== window) assert.equal(native().slabDetach(slab, memory), EINVAL);
    }
    const elsewhere = native().slabCreate(PAGE, false) as ArrayBuffer;
    assert.equal(native().slabDetach(elsewhere, window), EINVAL, 'a window of another slab');
    assert.equal(window.byteLength, PAGE);
  });
});

describe('slab pool', () => {
  it('gives page-aligned units, rounded up to a power of two, in slab memory', () => {
    const pool = new SlabPool({ slabBytes: 64 * 1024 });
    for (const bytes of [1, 100, PAGE, PAGE + 1, 40_000]) {
      const unit = pool.take(bytes) as Unit;
      assert.equal(unit.bytes.length, Math.max(PAGE, 2 ** Math.ceil(Math.log2(bytes))));
      assert.equal(native().pageOffset(unit.bytes), 0);
      assert.ok(isSlabMemory(unit.bytes.buffer));
    }
    assert.equal(isSlabMemory(new ArrayBuffer(8)), false);
  });

  it('hands out the unit that came back last', () => {
    const pool = new SlabPool({ slabBytes: 64 * 1024 });
    const [a, b] = [pool.take(PAGE) as Unit, pool.take(PAGE) as Unit];
    assert.equal(b.bytes.byteOffset, a.bytes.byteOffset + PAGE, 'fresh ones in address order');
    pool.give(b);
    pool.give(a);
    assert.equal(pool.take(17), a);
    assert.equal(pool.take(PAGE), b);
    const { hits, misses } = pool.stats();
    assert.deepEqual({ hits, misses }, { hits: 3, misses: 1 });
  });

  it('stops at its limit, and goes on when something comes back', () => {
    const pool = new SlabPool({ slabBytes: 16 * PAGE, maxBytes: 32 * PAGE });
    const out = takeAll(pool, 8 * PAGE);
    assert.equal(out.length, 4);
    assert.equal(pool.take(1), undefined, 'another class needs another slab');
    pool.give(out[2] as Unit);
    assert.equal(pool.take(8 * PAGE), out[2]);
  });

  it('gives what is larger than a slab a slab of its own', () => {
    const pool = new SlabPool({ slabBytes: 2 * MIB, maxBytes: 16 * MIB });
    const large = pool.take(5 * MIB) as Unit;
    assert.equal(large.bytes.length, 8 * MIB);
    assert.equal(pool.stats().mappedBytes, 8 * MIB);
    pool.give(large);
    assert.equal(pool.take(8 * MIB), large);
    assert.equal(pool.fits(16 * MIB), true);
    assert.equal(pool.fits(16 * MIB + 1), false);
    assert.equal(
      new SlabPool({ maxBytes: 2 ** 40 }).fits(2 ** 30 + 1),
      false,
      'more than a mapping may have',
    );
  });

  it('has slabs no larger than its limit', () => {
    const pool = new SlabPool({ maxBytes: 100 * PAGE });
    assert.equal(pool.slabBytes, 64 * PAGE);
    assert.equal(pool.fits(64 * PAGE), true);
    assert.ok(pool.take(1));
  });

  it('unmaps slabs with nothing out', () => {
    const pool = new SlabPool({ slabBytes: 4 * PAGE });
    const kept = pool.take(PAGE) as Unit;
    const gone = pool.take(4 * PAGE) as Unit;
    pool.give(gone);
    assert.equal(pool.trim(), 4 * PAGE);
    assert.equal(gone.memory.byteLength, 0);
    assert.equal(kept.memory.byteLength, 4 * PAGE);
    assert.equal(pool.stats().mappedBytes, 4 * PAGE);
    pool.give(kept);
    assert.equal(pool.trim(PAGE), 4 * PAGE, 'slabs go whole');
    assert.equal(pool.trim(), 0);
    assert.equal(pool.stats().usedBytes, 0);
    assert.ok(pool.take(PAGE));
  });

  it('unmaps empty slabs of one class for another, and no more of them than it must', () => {
    const pool = new SlabPool({ slabBytes: 4 * PAGE, maxBytes: 16 * PAGE });
    const small = takeAll(pool, PAGE);
    assert.equal(small.length, 16);
    for (const unit of small.slice(0, 11)) pool.give(unit);
    const other = pool.take(3 * PAGE) as Unit;
    assert.equal(other.bytes.length, 4 * PAGE);
    assert.equal(pool.stats().mappedBytes, 16 * PAGE);
    assert.equal(pool.trim(), 4 * PAGE, 'the second empty one was left alone');
    assert.equal(pool.take(8 * PAGE), undefined);
    assert.equal(
      takeAll(pool, PAGE).length,
      3 + 4,
      'those in the slab that is used, and those of a new slab',
    );
  });

  it('fills one slab before it begins another, so that slabs become empty', () => {
    const pool = new SlabPool({ slabBytes: 4 * PAGE, maxBytes: 16 * PAGE });
    const units = takeAll(pool, PAGE);
    for (const slab of [0, 1, 2]) pool.give(units[4 * slab] as Unit);
    for (const index of [5, 6, 7]) pool.give(units[index] as Unit);
    const again = [pool.take(PAGE) as Unit];
    assert.equal(again[0]?.memory, units[8]?.memory, 'the slab whose unit came back last');
    assert.equal(pool.trim(), 4 * PAGE);
  });

  it('never uses a retired unit again, and lets its slab go when the others are back', () => {
    const pool = new SlabPool({ slabBytes: 2 * PAGE, maxBytes: 4 * PAGE });
    const [spoiled, other] = [pool.take(PAGE) as Unit, pool.take(PAGE) as Unit];
    pool.retire(spoiled);
    assert.equal(pool.usedUnits, 1);
    pool.give(other);
    assert.equal(pool.stats().mappedBytes, 0);
    const alone = pool.take(PAGE) as Unit;
    assert.notEqual(alone.memory, spoiled.memory);
    pool.retire(alone);
    assert.equal(pool.stats().mappedBytes, 0);
    assert.equal(takeAll(pool, PAGE).length, 4);
    for (const back of [spoiled, other]) assert.throws(() => pool.give(back), /another pool/);
  });

  it('takes a double or foreign return, and a senseless size, as bugs', () => {
    const pool = new SlabPool({ slabBytes: 4 * PAGE });
    const unit = pool.take(10) as Unit;
    pool.give(unit);
    assert.throws(() => pool.give(unit), /not out/);
    assert.throws(() => pool.retire(unit), /not out/);
    assert.throws(() => new SlabPool().give(unit), /another pool/);
    for (const bytes of [0, -1, 1.5, Number.NaN]) assert.throws(() => pool.take(bytes), /take/);
  });

  it('never hands out overlapping memory', () => {
    const sizes = fc.integer({ min: 1, max: 20 * PAGE });
    const steps = fc.array(fc.record({ take: fc.boolean(), bytes: sizes, which: fc.nat() }), {
      maxLength: 60,
    });
    fc.assert(
      fc.property(steps, (list) => {
        const pool = new SlabPool({ slabBytes: 16 * PAGE, maxBytes: 128 * PAGE });
        const out: { unit: Unit; mark: number }[] = [];
        list.forEach(({ take, bytes, which }, step) => {
          if (take) {
            const unit = pool.take(bytes);
            if (unit === undefined) return;
            unit.bytes.fill(step);
            out.push({ unit, mark: step });
          } else if (out.length > 0) {
            const [gone] = out.splice(which % out.length, 1);
            pool.give((gone as { unit: Unit }).unit);
          }
        });
        for (const { unit, mark } of out) assert.ok(unit.bytes.every((byte) => byte === mark));
        assert.equal(pool.usedUnits, out.length);
        assert.ok(pool.stats().mappedBytes <= 128 * PAGE);
      }),
      { numRuns: 50 },
    );
  });
});

/** Everything that the pool has for this size. */
function takeAll(pool: SlabPool, bytes: number): Unit[] {
  const units: Unit[] = [];
  for (let unit = pool.take(bytes); unit !== undefined; unit = pool.take(bytes)) units.push(unit);
  return units;
}
