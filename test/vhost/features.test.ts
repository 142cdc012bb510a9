import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { OFFLOAD_ALL, OFFLOAD_CSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../../src/core/port.ts';
import { VhostUserDevice } from '../../src/vhost/device.ts';
import {
  guestOffloads,
  hostOffloads,
  offeredFeatures,
  offeredProtocolFeatures,
  refusal,
  ringFeatures,
  vnetHeaderBytes,
} from '../../src/vhost/features.ts';
import { bitsOf, features } from '../../src/wire/virtio.ts';

const offer = (offloads: number, pairs = 1, frontend: 'qemu' | 'uml' = 'qemu'): number[] =>
  bitsOf(offeredFeatures({ frontend, pairs, offloads }));

describe('features on offer', () => {
  it('to QEMU, with all offloads and one pair', () => {
    assert.deepEqual(offer(OFFLOAD_ALL), [0, 1, 3, 7, 8, 9, 11, 12, 13, 15, 28, 29, 30, 32, 35]);
  });

  it('several pairs add MQ; User-Mode Linux, which has no MQ without a control queue, MAC and STATUS', () => {
    assert.ok(offer(OFFLOAD_ALL, 2).includes(22));
    const extra = offer(OFFLOAD_ALL, 1, 'uml').filter((bit) => !offer(OFFLOAD_ALL).includes(bit));
    assert.deepEqual(extra, [5, 16]);
    assert.ok(!offer(OFFLOAD_ALL, 2, 'uml').includes(22));
    assert.throws(() => new VhostUserDevice({ path: 'vm.sock', frontend: 'uml', queues: 2 }), {
      code: 'ERR_OUT_OF_RANGE',
    });
  });

  const host: readonly (readonly [string, number, readonly number[]])[] = [
    ['nothing', 0, []],
    ['checksums', OFFLOAD_CSUM, [0]],
    ['segmentation without checksums, which cannot be', OFFLOAD_TSO4 | OFFLOAD_TSO6, []],
    ['ECN without segmentation, which cannot be', OFFLOAD_CSUM | OFFLOAD_ECN, [0]],
    ['ECN of segmentation without checksums', OFFLOAD_TSO4 | OFFLOAD_ECN, []],
    ['IPv6 with ECN', OFFLOAD_CSUM | OFFLOAD_TSO6 | OFFLOAD_ECN, [0, 12, 13]],
  ];
  for (const [name, offloads, bits] of host) {
    it(`a port behind us that takes ${name}`, () => {
      assert.deepEqual(
        offer(offloads).filter((bit) => [0, 11, 12, 13].includes(bit)),
        bits,
      );
      // What the guest can take does not depend on it.
      for (const bit of [1, 7, 8, 9]) assert.ok(offer(offloads).includes(bit));
    });
  }

  it('case 41: of the protocol never 14 and 17, and 9 only to User-Mode Linux', () => {
    assert.deepEqual(bitsOf(offeredProtocolFeatures('qemu')), [0, 2, 3, 4, 5, 13, 15, 16]);
    assert.deepEqual(bitsOf(offeredProtocolFeatures('uml')), [0, 2, 3, 4, 5, 9, 13, 15, 16]);
  });
});

describe('features that are accepted', () => {
  const offered = offeredFeatures({ frontend: 'qemu', pairs: 2, offloads: OFFLOAD_ALL });
  const cases: readonly (readonly [string, readonly number[], RegExp | null])[] = [
    ['none', [], null],
    ['all that were offered', bitsOf(offered), null],
    ['MQ without the control queue, which QEMU keeps', [32, 22], null],
    ['packed rings', [32, 34], /not offered: 34/],
    ['logging', [32, 26], /not offered: 26/],
    ['an unknown bit', [63], /not offered: 63/],
    ['ECN without TSO, which QEMU offers and Linux accepts', [0, 13], null],
  ];
  for (const [name, bits, why] of cases) {
    it(`${name}: ${why === null ? 'yes' : 'no'}`, () => {
      const said = refusal(features(...bits), offered);
      if (why === null) assert.equal(said, null);
      else assert.match(said ?? '', why);
    });
  }

  it('decide about rings, headers and offloads', () => {
    assert.deepEqual(ringFeatures(features(28, 35)), { eventIdx: false, indirect: true, inOrder: true });
    assert.deepEqual(ringFeatures(features(29)), { eventIdx: true, indirect: false, inOrder: false });
    assert.equal(vnetHeaderBytes(features()), 10);
    assert.equal(vnetHeaderBytes(features(15)), 12);
    assert.equal(vnetHeaderBytes(features(32)), 12);
    assert.equal(guestOffloads(features(1, 7, 9)), OFFLOAD_CSUM | OFFLOAD_TSO4 | OFFLOAD_ECN);
    assert.equal(hostOffloads(features(0, 12)), OFFLOAD_CSUM | OFFLOAD_TSO6);
  });

  const alone: readonly (readonly [string, readonly number[], number, number])[] = [
    ['TSO without checksum', [7, 8, 11, 12], 0, 0],
    ['ECN of TSO without checksum', [7, 9, 12, 13], 0, 0],
    ['ECN without TSO', [0, 1, 9, 13], OFFLOAD_CSUM, OFFLOAD_CSUM],
    [
      'ECN with one TSO',
      [0, 1, 8, 9, 11, 13],
      OFFLOAD_CSUM | OFFLOAD_TSO6 | OFFLOAD_ECN,
      OFFLOAD_CSUM | OFFLOAD_TSO4 | OFFLOAD_ECN,
    ],
  ];
  for (const [name, bits, guest, host] of alone) {
    it(`mean nothing without what they need: ${name}`, () => {
      assert.deepEqual([guestOffloads(features(...bits)), hostOffloads(features(...bits))], [guest, host]);
    });
  }
});
