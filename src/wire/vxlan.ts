/**
 * VXLAN: an Ethernet frame in a UDP datagram, behind a header that says which virtual network it belongs to
 * (RFC 7348, section 5).
 *
 *   [ flags u8: 0x08, the VNI is valid | reserved 3 | VNI u24 | reserved 1 ]  frame
 *
 * Reserved bits are sent as zero and ignored when received.
 */
import { readU32, writeU32 } from './bytes.ts';

export const VXLAN_HEADER_BYTES = 8;
export const VXLAN_PORT = 4789;
export const VNI_MAX = 0xff_ffff;

const FLAG_VNI = 0x0800_0000;

export function encodeVxlan(out: Uint8Array, at: number, vni: number): void {
  writeU32(out, at, FLAG_VNI);
  writeU32(out, at + 4, vni * 0x100);
}

/** The virtual network of the header at `at`, which must be there as a whole; -1 if it has none. */
export function vxlanVni(bytes: Uint8Array, at: number): number {
  if ((readU32(bytes, at) & FLAG_VNI) === 0) return -1;
  return readU32(bytes, at + 4) >>> 8;
}
