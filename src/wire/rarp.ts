/**
 * The frame that tells switches where a guest is after it has moved: a broadcast Reverse ARP request (RFC 903) from the
 * guest's address, which nobody answers and every switch learns from. What QEMU sends when a migration has ended, and what
 * a back-end sends for VHOST_USER_SEND_RARP.
 */
import { writeU16 } from './bytes.ts';
import { ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_RARP, MAC_BYTES } from './ethernet.ts';

/** The least that goes over a wire (IEEE 802.3, section 4.2.3.3), without check sequence. */
export const RARP_BYTES = 60;

const HARDWARE_ETHERNET = 1;
const REQUEST_REVERSE = 3;

/** Writes the frame that announces `mac` at `offset`: RARP_BYTES. */
export function writeRarp(out: Uint8Array, offset: number, mac: Uint8Array): number {
  out.fill(0xff, offset, offset + MAC_BYTES);
  out.set(mac, offset + MAC_BYTES);
  writeU16(out, offset + 12, ETHERTYPE_RARP);
  const at = offset + ETHERNET_BYTES;
  out.fill(0, at, offset + RARP_BYTES);
  writeU16(out, at, HARDWARE_ETHERNET);
  writeU16(out, at + 2, ETHERTYPE_IPV4);
  out[at + 4] = MAC_BYTES;
  out[at + 5] = 4;
  writeU16(out, at + 6, REQUEST_REVERSE);
  // Sender and target are the same; the protocol addresses are what it would ask for: zero.
  out.set(mac, at + 8);
  out.set(mac, at + 18);
  return RARP_BYTES;
}
