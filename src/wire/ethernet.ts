/**
 * The Ethernet header (IEEE 802.3) and the VLAN tag in it (IEEE 802.1Q).
 *
 *   untagged   destination 6 | source 6 | type 2 | payload
 *   tagged     destination 6 | source 6 | 0x8100 | priority 3, drop 1, VLAN 12 | type 2 | payload
 *
 * Frames are without preamble and check sequence, and may be shorter than 60 bytes: nobody pads in memory.
 */
export const MAC_BYTES = 6;
export const ETHERNET_BYTES = 14;
export const VLAN_TAG_BYTES = 4;
/** Where the type, or the tag, is. */
export const TYPE_AT = 12;

export const ETHERTYPE_IPV4 = 0x0800;
export const ETHERTYPE_RARP = 0x8035;
export const ETHERTYPE_VLAN = 0x8100;
export const ETHERTYPE_IPV6 = 0x86dd;
/** The outer of two tags (IEEE 802.1ad). */
const ETHERTYPE_QINQ = 0x88a8;

/** The lower bits of a tag's second half. 0 is a tag with a priority only, 4095 is reserved. */
export const VLAN_MASK = 0x0fff;
export const VLAN_MAX = 4094;

/** Whether `type` announces a tag, and not a payload. */
export function isTagType(type: number): boolean {
  return type === ETHERTYPE_VLAN || type === ETHERTYPE_QINQ;
}

/** `52:54:00:12:34:56`, in either case, with colons or dashes. Null for anything else. */
export function parseMac(text: string): Uint8Array | null {
  if (!/^[0-9a-f]{2}([:-])(?:[0-9a-f]{2}\1){4}[0-9a-f]{2}$/i.test(text)) return null;
  return Uint8Array.from(text.split(/[:-]/), (part) => Number.parseInt(part, 16));
}

export function formatMac(bytes: Uint8Array, offset = 0): string {
  let text = '';
  for (let i = 0; i < MAC_BYTES; i++) {
    text += `${i === 0 ? '' : ':'}${bytes[offset + i]!.toString(16).padStart(2, '0')}`;
  }
  return text;
}
