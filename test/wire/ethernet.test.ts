import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { formatMac, isTagType, parseMac } from '../../src/wire/ethernet.ts';
import { RARP_BYTES, writeRarp } from '../../src/wire/rarp.ts';

describe('a MAC address', () => {
  it('is read with colons or dashes, and written with colons', () => {
    const bytes = parseMac('52:54:00:AB:cd:0f');
    assert.deepEqual(bytes, Uint8Array.of(0x52, 0x54, 0, 0xab, 0xcd, 0x0f));
    assert.equal(formatMac(bytes), '52:54:00:ab:cd:0f');
    assert.deepEqual(parseMac('52-54-00-ab-cd-0f'), bytes);
    assert.equal(formatMac(Uint8Array.of(9, ...bytes), 1), '52:54:00:ab:cd:0f');
  });

  for (const text of [
    '',
    '52:54:00:ab:cd',
    '52:54:00:ab:cd:0',
    '52:54-00:ab:cd:0f',
    '5254.00ab.cd0f',
    'xx:54:00:ab:cd:0f',
    ' 52:54:00:ab:cd:0f',
  ]) {
    it(`is not ${JSON.stringify(text)}`, () => assert.equal(parseMac(text), null));
  }
});

describe('the type of a frame', () => {
  it('may be a tag', () => {
    assert.deepEqual([0x8100, 0x88a8, 0x0800, 0x8101].map(isTagType), [true, true, false, false]);
  });
});

describe('an announcement', () => {
  it('is a broadcast Reverse ARP request from and about the address', () => {
    const out = new Uint8Array(80).fill(0xee);
    assert.equal(writeRarp(out, 10, parseMac('52:54:00:12:34:56')!), RARP_BYTES);
    assert.equal(
      Buffer.from(out.subarray(10, 70)).toString('hex'),
      `ffffffffffff525400123456803500010800060400035254001234560000000052540012345600000000${'00'.repeat(18)}`,
    );
    assert.deepEqual([out[9], out[70]], [0xee, 0xee]);
  });
});
