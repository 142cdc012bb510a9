/** The VXLAN header, against the picture in RFC 7348, section 5. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { encodeVxlan, VNI_MAX, VXLAN_HEADER_BYTES, vxlanVni } from '../../src/wire/vxlan.ts';

describe('a VXLAN header', () => {
  it('has the flag and the VNI where the RFC has them, and zeros elsewhere', () => {
    const out = new Uint8Array(VXLAN_HEADER_BYTES + 2).fill(0xee);
    encodeVxlan(out, 1, 0x123456);
    assert.deepEqual([...out], [0xee, 0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0, 0xee]);
  });

  it('gives back any VNI', () => {
    const out = new Uint8Array(VXLAN_HEADER_BYTES);
    for (const vni of [0, 1, 0xff, 0x8000_00 - 1, 0x80_0000, VNI_MAX]) {
      encodeVxlan(out, 0, vni);
      assert.equal(vxlanVni(out, 0), vni);
    }
  });

  it('is none without the flag; reserved bits mean nothing', () => {
    assert.equal(vxlanVni(Uint8Array.of(0xf7, 0xff, 0xff, 0xff, 0, 0, 1, 0xff), 0), -1);
    assert.equal(vxlanVni(Uint8Array.of(0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0xff), 0), 1);
  });
});
