import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { FrontendBuffers } from '../../src/vhost/frontend-buffers.ts';
import { type FrontendMemory, layOut, stride } from '../../src/vhost/frontend-memory.ts';

const SEED = process.env.FC_SEED === undefined ? {} : { seed: Number(process.env.FC_SEED) };

describe('the layout of the shared memory', () => {
  it('has a place for everything, and none for two things', () => {
    const property = fc.property(
      fc.integer({ min: 1, max: 8 }),
      fc.integer({ min: 1, max: 10 }).map((power) => 2 ** power),
      fc.integer({ min: 0, max: 40 }),
      fc.integer({ min: 1, max: 300 }),
      fc.integer({ min: 64, max: 70_000 }),
      fc.integer({ min: 0, max: 100_000 }),
      (pairs, size, tableEntries, buffers, bufferBytes, extraBytes) => {
        const rings = 2 * pairs;
        const layout = layOut({ rings, size, tableEntries, buffers, bufferBytes, extraBytes });
        const parts: [number, number][] = layout.rings.flatMap((ring, index) => [
          [ring.desc, 16 * size],
          [ring.avail, 6 + 2 * size],
          [ring.used, 6 + 8 * size],
          [ring.tables, index % 2 === 1 ? 16 * size * tableEntries : 0],
          [ring.buffers, buffers * stride(bufferBytes)],
        ]);
        parts.push([layout.extra, extraBytes]);
        let end = 0;
        for (const [at, bytes] of parts.filter(([, length]) => length > 0).sort((a, b) => a[0] - b[0])) {
          assert.equal(at % 4096, 0);
          assert.ok(at >= end, `${at} is in the part before, which ends at ${end}`);
          end = at + bytes;
        }
        assert.ok(end <= layout.bytes && layout.bytes % 4096 === 0);
      },
    );
    fc.assert(property, SEED);
  });
});

describe('buffers', () => {
  const memory = { guestAddress: (offset: number) => 2 ** 33 + offset } as FrontendMemory;

  it('are taken as lists that hold what they are asked to, and come back', () => {
    const step = fc.oneof(
      fc.record({ take: fc.integer({ min: 1, max: 1500 }) }),
      fc.record({ give: fc.nat(20) }),
    );
    const property = fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const buffers = new FrontendBuffers(memory, 4096, 20, 100);
      const u8 = new Uint8Array(4096 + 20 * stride(100));
      const out: { first: number; bytes: Uint8Array }[] = [];
      for (const [i, one] of steps.entries()) {
        if ('give' in one) {
          const [back] = out.splice(one.give % Math.max(out.length, 1), 1);
          if (back !== undefined) buffers.give(back.first);
          continue;
        }
        const bytes = new Uint8Array(one.take).map((_, j) => (i * 17 + j) & 0xff);
        const first = buffers.take(one.take);
        const free = 20 - out.reduce((sum, { bytes: { length } }) => sum + Math.ceil(length / 100), 0);
        assert.equal(first >= 0, Math.ceil(one.take / 100) <= free);
        if (first < 0) continue;
        const skip = Math.min(12, one.take);
        buffers.write(first, 0, bytes.subarray(0, skip), u8);
        buffers.write(first, skip, bytes.subarray(skip), u8);
        out.push({ first, bytes });
      }
      for (const { first, bytes } of out) {
        const addresses = new Float64Array(20);
        const lengths = new Uint32Array(20);
        const pieces = buffers.pieces(first, bytes.length, addresses, lengths, 0);
        const parts = Array.from({ length: pieces }, (_, i) => {
          const at = (addresses[i] as number) - 2 ** 33;
          return u8.subarray(at, at + (lengths[i] as number));
        });
        assert.deepEqual(Buffer.concat(parts), Buffer.from(bytes));
        buffers.give(first);
      }
      assert.equal(buffers.free, 20);
    });
    fc.assert(property, SEED);
  });
});
