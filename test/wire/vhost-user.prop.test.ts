import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import * as vhost from '../../src/wire/vhost-user.ts';

const seed = process.env.FC_SEED;
const parameters = seed === undefined ? {} : { seed: Number(seed) };

const u32 = fc.integer({ min: 0, max: 0xffff_ffff });
const u64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
const region = fc.record(
  { guestAddress: u64, bytes: u64, userAddress: u64, mmapOffset: u64 },
  { noNullPrototype: true },
);

describe('vhost-user payloads', () => {
  it('come back as they went', () => {
    fc.assert(
      fc.property(
        u32,
        u32,
        u64,
        u64,
        u64,
        u64,
        fc.array(region, { maxLength: 40 }),
        (a, b, w, x, y, z, regions) => {
          assert.deepEqual(vhost.decodeU64(vhost.encodeU64({ lo: a, hi: b })), { lo: a, hi: b });
          assert.deepEqual(vhost.decodeState(vhost.encodeState({ index: a, num: b })), { index: a, num: b });
          const address = { index: a, flags: b, desc: w, used: x, avail: y, log: z };
          assert.deepEqual(vhost.decodeVringAddress(vhost.encodeVringAddress(address)), address);
          assert.deepEqual(vhost.decodeMemoryTable(vhost.encodeMemoryTable(regions)), regions);
          const one = { guestAddress: w, bytes: x, userAddress: y, mmapOffset: z };
          assert.deepEqual(vhost.decodeSingleRegion(vhost.encodeSingleRegion(one)), one);
          const message = vhost.encodeMessage(a, 8, vhost.encodeMemoryTable(regions));
          assert.deepEqual(vhost.decodeHeader(message), { request: a, flags: 9, size: message.length - 12 });
        },
      ),
      parameters,
    );
  });

  it('may be anything', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
        vhost.decodeU64(bytes);
        vhost.decodeState(bytes);
        vhost.decodeVringAddress(bytes);
        vhost.decodeSingleRegion(bytes);
        vhost.decodeConfig(bytes);
        const table = vhost.decodeMemoryTable(bytes);
        assert.ok(table === undefined || 8 + 32 * table.length <= bytes.length);
      }),
      parameters,
    );
  });
});
