import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import { isSlabMemory, SlabPool } from '../../src/sys/slab.ts';
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

describe('copyBatch', () => {
  it('copies all triples, also between overlapping ranges', () => {
    const source = Buffer.from('abcdefgh');
    const destination = Buffer.alloc(8, '.');
    const ops = Uint32Array.of(0, 4, 3, 7, 0, 1, 8, 8, 0);
    assert.equal(native().copyBatch(destination, source, ops, 3), 0);
    assert.equal(destination.toString(), 'h...abc.');
    assert.equal(native().copyBatch(source, source, Uint32Array.of(0, 2, 6), 1), 0);
    assert.equal(source.toString(), 'ababcdef');
  });

  it('copies nothing when one triple is out of bounds', () => {
    const EFAULT = -errnoOf('EFAULT');
    const source = Buffer.from('abcdefgh');
    const destination = Buffer.alloc(8, '.');
    const bad = [
      [0, 8, 1],
      [8, 0, 1],
      [0, 0, 9],
      [0xffffffff, 0, 2],
      [0, 0xffffffff, 2],
      [1, 0, 0xffffffff],
    ];
    for (const triple of bad) {
      const ops = Uint32Array.of(0, 0, 4, ...triple);
      assert.equal(native().copyBatch(destination, source, ops, 2), EFAULT, `${triple}`);
    }
    assert.equal(native().copyBatch(destination, source, Uint32Array.of(0, 0, 4), 2), -errnoOf('EINVAL'));
    assert.equal(destination.toString(), '........');
  });
});

describe('slab pool', () => {
  it('gives page-aligned buffers of the size asked for, from slab memory', () => {
    const pool = new SlabPool({ slabBytes: 64 * 1024 });
    for (const bytes of [1, 100, PAGE, PAGE + 1, 40_000]) {
      const buffer = pool.acquire(bytes);
      assert.equal(buffer?.length, bytes);
      assert.equal(native().pageOffset(buffer as Buffer), 0);
      assert.ok(isSlabMemory((buffer as Buffer).buffer));
    }
    assert.equal(isSlabMemory(new ArrayBuffer(8)), false);
  });

  it('hands out the buffer that came back last', () => {
    const pool = new SlabPool({ slabBytes: 64 * 1024 });
    const [a, b] = [pool.acquire(PAGE) as Buffer, pool.acquire(PAGE) as Buffer];
    assert.equal(b.byteOffset, a.byteOffset + PAGE, 'fresh ones in address order');
    pool.release(b);
    pool.release(a.subarray(0, 10));
    assert.equal(pool.acquire(17)?.byteOffset, a.byteOffset);
    assert.equal(pool.acquire(PAGE)?.byteOffset, b.byteOffset);
    const { hits, misses } = pool.stats();
    assert.deepEqual({ hits, misses }, { hits: 3, misses: 1 });
  });

  it('stops at its limit, and goes on when something comes back', () => {
    const pool = new SlabPool({ slabBytes: 16 * PAGE, maxBytes: 32 * PAGE });
    const out: Buffer[] = [];
    for (let buffer = pool.acquire(8 * PAGE); buffer; buffer = pool.acquire(8 * PAGE)) out.push(buffer);
    assert.equal(out.length, 4);
    assert.equal(pool.acquire(1), undefined, 'another class needs another slab');
    assert.equal(pool.stats().refused, 2);
    pool.release(out[2] as Buffer);
    assert.equal(pool.acquire(8 * PAGE)?.byteOffset, out[2]?.byteOffset);
  });

  it('gives what is larger than a slab a slab of its own', () => {
    const pool = new SlabPool({ slabBytes: 2 * MIB, maxBytes: 16 * MIB });
    const large = pool.acquire(5 * MIB) as Buffer;
    assert.equal(large.length, 5 * MIB);
    assert.equal(pool.stats().mappedBytes, 8 * MIB);
    pool.release(large);
    assert.equal(pool.acquire(8 * MIB)?.buffer, large.buffer);
  });

  it('lets go of slabs with nothing out', () => {
    const pool = new SlabPool({ slabBytes: 4 * PAGE });
    const kept = pool.acquire(PAGE) as Buffer;
    pool.release(pool.acquire(4 * PAGE) as Buffer);
    assert.equal(pool.trim(), 4 * PAGE);
    assert.equal(pool.stats().mappedBytes, 4 * PAGE);
    pool.release(kept);
    assert.equal(pool.trim(), 4 * PAGE);
    assert.deepEqual(pool.stats().usedBytes, 0);
    assert.ok(pool.acquire(PAGE));
  });

  it('takes a double or foreign release, and a senseless size, as bugs', () => {
    const pool = new SlabPool({ slabBytes: 4 * PAGE });
    const buffer = pool.acquire(10) as Buffer;
    assert.throws(() => pool.release(buffer.subarray(1)), /not out/);
    pool.release(buffer);
    assert.throws(() => pool.release(buffer), /not out/);
    assert.throws(() => pool.release(Buffer.alloc(10)), /another pool/);
    for (const bytes of [0, -1, 1.5, Number.NaN]) assert.throws(() => pool.acquire(bytes), /acquire/);
  });

  it('never hands out overlapping memory', () => {
    const sizes = fc.integer({ min: 1, max: 20 * PAGE });
    const steps = fc.array(fc.record({ take: fc.boolean(), bytes: sizes, which: fc.nat() }), {
      maxLength: 60,
    });
    fc.assert(
      fc.property(steps, (list) => {
        const pool = new SlabPool({ slabBytes: 16 * PAGE, maxBytes: 128 * PAGE });
        const out: { buffer: Buffer; mark: number }[] = [];
        list.forEach(({ take, bytes, which }, step) => {
          if (take) {
            const buffer = pool.acquire(bytes);
            if (buffer !== undefined) out.push({ buffer: buffer.fill(step), mark: step });
          } else if (out.length > 0) {
            const [gone] = out.splice(which % out.length, 1);
            pool.release((gone as { buffer: Buffer }).buffer);
          }
        });
        for (const { buffer, mark } of out) assert.ok(buffer.every((byte) => byte === mark));
        assert.equal(pool.stats().usedBuffers, out.length);
      }),
      { numRuns: 50 },
    );
  });
});
