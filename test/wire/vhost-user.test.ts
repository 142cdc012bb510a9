import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  decodeConfig,
  decodeHeader,
  decodeMemoryTable,
  decodeSingleRegion,
  decodeState,
  decodeU64,
  decodeVringAddress,
  encodeConfig,
  encodeMemoryTable,
  encodeMessage,
  encodeReply,
  encodeSingleRegion,
  encodeState,
  encodeU64,
  encodeVringAddress,
  type MemoryRegion,
  VHOST_USER_GET_FEATURES,
  VHOST_USER_SET_STATUS,
} from '../../src/wire/vhost-user.ts';

const hex = (text: string): Uint8Array => new Uint8Array(Buffer.from(text.replaceAll(' ', ''), 'hex'));

const REGION: MemoryRegion = {
  guestAddress: 0x1_0000_0000n,
  bytes: 0x4000_0000n,
  userAddress: 0x7f12_3456_0000n,
  mmapOffset: 0xc000_0000n,
};
const REGION_HEX = '0000000001000000 0000004000000000 00005634127f0000 000000c000000000';

describe('vhost-user messages, byte for byte', () => {
  it('have a header of 12 bytes', () => {
    const message = encodeMessage(VHOST_USER_SET_STATUS, 8, encodeU64({ lo: 0xf, hi: 0 }));
    assert.deepEqual(message, hex('27000000 09000000 08000000 0f00000000000000'));
    assert.deepEqual(decodeHeader(message), { request: 39, flags: 9, size: 8 });
  });

  it('are answered with flags that are exactly version and reply', () => {
    const reply = encodeReply(VHOST_USER_GET_FEATURES, encodeU64({ lo: 0x4000_0000, hi: 1 }));
    assert.deepEqual(reply, hex('01000000 05000000 08000000 0000004001000000'));
  });

  it('have the used ring before the available one', () => {
    const address = { index: 1, flags: 0, desc: 0x1000n, used: 0x2000n, avail: 0x3000n, log: 2n ** 64n - 1n };
    const bytes = hex(
      '01000000 00000000 0010000000000000 0020000000000000 0030000000000000 ffffffffffffffff',
    );
    assert.deepEqual(encodeVringAddress(address), bytes);
    assert.deepEqual(decodeVringAddress(bytes), address);
  });

  it('have regions after eight bytes, in a table and alone', () => {
    const table = hex(`01000000 00000000 ${REGION_HEX}`);
    assert.deepEqual(encodeMemoryTable([REGION]), table);
    assert.deepEqual(decodeMemoryTable(table), [REGION]);
    const single = hex(`0000000000000000 ${REGION_HEX}`);
    assert.deepEqual(encodeSingleRegion(REGION), single);
    assert.deepEqual(decodeSingleRegion(single), REGION);
  });

  it('have numbers, states and configurations', () => {
    assert.deepEqual(decodeU64(hex('0100000000000080')), { lo: 1, hi: 0x8000_0000 });
    assert.deepEqual(encodeState({ index: 3, num: 0xffff_ffff }), hex('03000000 ffffffff'));
    assert.deepEqual(decodeState(hex('03000000 ffffffff')), { index: 3, num: 0xffff_ffff });
    const config = hex('06000000 02000000 00000000 0100');
    assert.deepEqual(decodeConfig(config), { offset: 6, bytes: 2, flags: 0, data: hex('0100') });
    assert.deepEqual(encodeConfig({ offset: 6, bytes: 2, flags: 0, data: hex('0100') }), config);
  });
});

describe('vhost-user payloads of another length', () => {
  const whole: readonly (readonly [string, number, (payload: Uint8Array) => unknown])[] = [
    ['a number', 8, decodeU64],
    ['a state', 8, decodeState],
    ['a ring address', 40, decodeVringAddress],
    ['a memory table', 8, decodeMemoryTable],
    ['a single region', 40, decodeSingleRegion],
    ['a configuration', 12, decodeConfig],
  ];
  for (const [name, bytes, decode] of whole) {
    it(`${name} that is too short is none, and one with more bytes is read`, () => {
      for (let length = 0; length < bytes; length++) assert.equal(decode(new Uint8Array(length)), undefined);
      assert.notEqual(decode(new Uint8Array(bytes)), undefined);
      assert.notEqual(decode(new Uint8Array(bytes + 7)), undefined);
    });
  }

  it('a table that counts more regions than it has is none', () => {
    assert.equal(decodeMemoryTable(hex(`02000000 00000000 ${REGION_HEX}`)), undefined);
    assert.equal(decodeMemoryTable(hex(`ffffffff 00000000 ${REGION_HEX}`)), undefined);
  });

  it('the fixed table of User-Mode Linux, 72 bytes for one region, has one region', () => {
    const payload = new Uint8Array(72);
    payload.set(encodeMemoryTable([REGION]));
    assert.deepEqual(decodeMemoryTable(payload), [REGION]);
  });

  it('are read at any offset of a buffer', () => {
    const bytes = new Uint8Array(53);
    bytes.set(encodeMessage(5, 0, encodeMemoryTable([REGION])).subarray(0, 52), 1);
    assert.deepEqual(decodeHeader(bytes.subarray(1)), { request: 5, flags: 1, size: 40 });
    assert.deepEqual(decodeMemoryTable(bytes.subarray(13)), [REGION]);
  });
});
