/**
 * VLANs of a port (IEEE 802.1Q): which frames it may bring in and gets, and how tags go off and on.
 *
 *   option                          in                                            out
 *   none                            everything, tags and all, to VLAN 0           the same
 *   { access: 5 }                   untagged (or priority-tagged) to VLAN 5       untagged
 *   { trunk: [5, 6] }               tagged 5 or 6                                 tagged
 *   { trunk: [6], native: 5 }       tagged 6, untagged or tagged 5 to VLAN 5      VLAN 5 untagged, 6 tagged
 *
 * Inside the switch frames have no tag: the record's word FRAME_VLAN has what was in it, the VLAN in the lower 12 bits, drop
 * eligibility and priority above, so that both survive from trunk to trunk. A port that is not VLAN-aware meets only others that are not:
 * VLAN 0 is theirs, and a tag that such a guest sends is payload.
 *
 * A frame that still has a tag when its own has been taken off could change its VLAN by leaving untagged (double tagging). It may
 * go from trunk to trunk, but never leaves untagged.
 *
 * Taking off and putting on moves the two addresses in the head, and the offsets in the vnet header with them:
 *
 *   HEAD_AT     v                                  v - 4
 *   untagged         | dst 6 | src 6 | type        tagged  | dst 6 | src 6 | 8100 tci | type
 *
 * Putting on is undone after send(), since other ports get the same frame, and writes on the 4 bytes before the head: they belong
 * to the frame, whoever made the table, and they are given back as they were.
 */
import { checkInteger, checkObject, wrongType } from '../core/arguments.ts';
import {
  FRAME_BYTES,
  FRAME_VLAN,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  HEAD_BYTES,
  LAYOUT_BYTES,
  VNET_FLAGS,
  VNET_GSO,
  VNET_NEEDS_CSUM,
} from '../core/frames.ts';
import { readU16 } from '../wire/bytes.ts';
import {
  ETHERNET_BYTES,
  ETHERTYPE_VLAN,
  isTagType,
  TYPE_AT,
  VLAN_MASK,
  VLAN_MAX,
  VLAN_TAG_BYTES,
} from '../wire/ethernet.ts';

export type VlanOptions =
  | { readonly access: number }
  | { readonly trunk: readonly number[]; readonly native?: number };

/** Results of VlanPort.enter() that are not a VLAN. */
const VLAN_REFUSED = -1;
export const VLAN_MALFORMED = -2;

export class VlanPort {
  /** The VLAN of what comes and goes without a tag. 0: there is none. */
  readonly untagged: number;
  readonly isTrunk: boolean;
  /** One bit a VLAN. */
  readonly #member = new Uint32Array(4096 / 32);
  /** A view of the table that was used last: tables are few, and frames many. */
  #table: FrameTable | null = null;
  #view: DataView = new DataView(new ArrayBuffer(0));

  constructor(options: VlanOptions) {
    checkObject('vlan', options);
    this.isTrunk = 'trunk' in options;
    const vlans = 'trunk' in options ? options.trunk : [options.access];
    if (!Array.isArray(vlans)) throw wrongType('vlan.trunk', 'an array of VLANs', vlans);
    for (const vlan of vlans) this.#add(this.isTrunk ? 'vlan.trunk' : 'vlan.access', vlan);
    const native = 'trunk' in options ? (options.native ?? 0) : options.access;
    if (native !== 0) this.#add('vlan.native', native);
    this.untagged = native;
  }

  has(vlan: number): boolean {
    return (this.#member[vlan >>> 5]! & (1 << (vlan & 31))) !== 0;
  }

  /** All VLANs of the port. */
  *vlans(): Generator<number> {
    for (let vlan = 1; vlan <= VLAN_MAX; vlan++) if (this.has(vlan)) yield vlan;
  }

  /** Takes the tag off a frame that came in. Its VLAN, which the record has then too; or VLAN_REFUSED, VLAN_MALFORMED. */
  enter(table: FrameTable, frame: number): number {
    const { bytes, records } = table;
    const record = frame * FRAME_WORDS;
    const at = records[record + HEAD_AT]!;
    const type = readU16(bytes, at + TYPE_AT);
    if (!isTagType(type)) {
      records[record + FRAME_VLAN] = this.untagged;
      return this.untagged === 0 ? VLAN_REFUSED : this.untagged;
    }
    if (records[record + HEAD_BYTES]! < ETHERNET_BYTES + VLAN_TAG_BYTES) return VLAN_MALFORMED;
    const tci = readU16(bytes, at + TYPE_AT + 2);
    // A tag of VLAN 0 carries a priority only (IEEE 802.1Q, table 9-2).
    const vlan = (tci & VLAN_MASK) === 0 ? this.untagged : tci & VLAN_MASK;
    if (type !== ETHERTYPE_VLAN || !this.has(vlan)) return VLAN_REFUSED;
    if (!this.isTrunk && (tci & VLAN_MASK) !== 0) return VLAN_REFUSED;
    if (!canShorten(records, record)) return VLAN_MALFORMED;
    moveAddresses(this.#viewOf(table), at, at + VLAN_TAG_BYTES);
    shift(records, record, VLAN_TAG_BYTES);
    records[record + FRAME_VLAN] = (tci & ~VLAN_MASK) | vlan;
    return vlan;
  }

  /**
   * Makes the frames which[0..count) ready to leave: tags those that leave with one. Those that may not leave are taken out of `which`;
   * returns how many stay. `saved` has room for a word a frame.
   */
  leave(table: FrameTable, which: Uint32Array, count: number, saved: Uint32Array): number {
    const { records } = table;
    const view = this.#viewOf(table);
    let kept = 0;
    for (let i = 0; i < count; i++) {
      const frame = which[i]!;
      const record = frame * FRAME_WORDS;
      const at = records[record + HEAD_AT]!;
      const tci = records[record + FRAME_VLAN]!;
      if ((tci & VLAN_MASK) === this.untagged) {
        if (isTagType(view.getUint16(at + TYPE_AT))) continue;
      } else {
        if (at < LAYOUT_BYTES + VLAN_TAG_BYTES || !canLengthen(records, record)) continue;
        saved[kept] = view.getUint32(at - VLAN_TAG_BYTES);
        moveAddresses(view, at, at - VLAN_TAG_BYTES);
        view.setUint16(at - VLAN_TAG_BYTES + TYPE_AT, ETHERTYPE_VLAN);
        view.setUint16(at - VLAN_TAG_BYTES + TYPE_AT + 2, tci);
        shift(records, record, -VLAN_TAG_BYTES);
      }
      which[kept] = frame;
      kept += 1;
    }
    return kept;
  }

  /** Undoes leave() for the frames that it kept. */
  restore(table: FrameTable, which: Uint32Array, count: number, saved: Uint32Array): void {
    const { records } = table;
    const view = this.#viewOf(table);
    for (let i = 0; i < count; i++) {
      const record = which[i]! * FRAME_WORDS;
      if ((records[record + FRAME_VLAN]! & VLAN_MASK) === this.untagged) continue;
      const at = records[record + HEAD_AT]!;
      moveAddresses(view, at, at + VLAN_TAG_BYTES);
      view.setUint32(at, saved[i]!);
      shift(records, record, VLAN_TAG_BYTES);
    }
  }

  #viewOf(table: FrameTable): DataView {
    if (this.#table !== table) {
      this.#table = table;
      const { buffer, byteOffset, byteLength } = table.bytes;
      this.#view = new DataView(buffer, byteOffset, byteLength);
    }
    return this.#view;
  }

  #add(name: string, vlan: unknown): void {
    checkInteger(name, vlan, 1, VLAN_MAX);
    this.#member[vlan >>> 5]! |= 1 << (vlan & 31);
  }
}

/** Whether the offsets of the vnet header lie behind the tag, as far as they are used. */
function canShorten(records: Uint32Array, record: number): boolean {
  const needsCsum = (records[record + VNET_FLAGS]! & VNET_NEEDS_CSUM) !== 0;
  return !needsCsum || records[record + VNET_GSO]! >>> 16 >= ETHERNET_BYTES + VLAN_TAG_BYTES;
}

/** Whether the offsets of the vnet header still fit into 16 bits behind a tag. */
function canLengthen(records: Uint32Array, record: number): boolean {
  const most = 0xffff - VLAN_TAG_BYTES;
  return records[record + VNET_FLAGS]! >>> 16 <= most && records[record + VNET_GSO]! >>> 16 <= most;
}

/** Moves the start of the frame by `bytes`, and what counts from it. */
function shift(records: Uint32Array, record: number, bytes: number): void {
  records[record + HEAD_AT]! += bytes;
  records[record + HEAD_BYTES]! -= bytes;
  records[record + FRAME_BYTES]! -= bytes;
  const flags = records[record + VNET_FLAGS]!;
  // The header length is a hint (virtio 1.2, section 5.1.6.2.1): 0 of one who gives none, and anything of one who lies.
  const headerBytes = flags >>> 16;
  if (headerBytes > ETHERNET_BYTES) {
    records[record + VNET_FLAGS] = (flags & 0xffff) | ((headerBytes - bytes) << 16);
  }
  if ((flags & VNET_NEEDS_CSUM) !== 0) {
    const gso = records[record + VNET_GSO]!;
    records[record + VNET_GSO] = (gso & 0xffff) | (((gso >>> 16) - bytes) << 16);
  }
}

/** Copies the 12 bytes of both addresses, which may overlap; at any offset, where typed arrays need aligned ones. */
function moveAddresses(view: DataView, from: number, to: number): void {
  const a = view.getInt32(from);
  const b = view.getInt32(from + 4);
  const c = view.getInt32(from + 8);
  view.setInt32(to, a);
  view.setInt32(to + 4, b);
  view.setInt32(to + 8, c);
}
