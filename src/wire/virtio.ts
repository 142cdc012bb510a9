/**
 * Numbers and layouts of virtio that a network device needs: feature bits, the split ring, the header of a frame.
 *
 * Feature masks have 64 bits. They are kept as two unsigned halves: shifts in JavaScript have 32 bits, and BigInt
 * costs forty times as much as a pair of typed-array loads. Names and numbers are those of the virtio specification,
 * version 1.2, sections 5.1.3 (network device), 6 (reserved bits) and 2.7 (split virtqueues).
 */

/** A 64-bit mask: `lo` and `hi` are unsigned. Never changed once made. */
export interface Features {
  readonly lo: number;
  readonly hi: number;
}

export const NO_FEATURES: Features = { lo: 0, hi: 0 };

/** The mask of `bits`. */
export function features(...bits: readonly number[]): Features {
  let lo = 0;
  let hi = 0;
  for (const bit of bits) {
    if (bit < 32) lo |= 1 << bit;
    else hi |= 1 << (bit - 32);
  }
  return { lo: lo >>> 0, hi: hi >>> 0 };
}

export function has({ lo, hi }: Features, bit: number): boolean {
  return (((bit < 32 ? lo : hi) >>> (bit & 31)) & 1) === 1;
}

export function and(a: Features, b: Features): Features {
  return { lo: (a.lo & b.lo) >>> 0, hi: (a.hi & b.hi) >>> 0 };
}

export function or(a: Features, b: Features): Features {
  return { lo: (a.lo | b.lo) >>> 0, hi: (a.hi | b.hi) >>> 0 };
}

/** The bits of `a` that are not in `b`. */
export function without(a: Features, b: Features): Features {
  return { lo: (a.lo & ~b.lo) >>> 0, hi: (a.hi & ~b.hi) >>> 0 };
}

export function same(a: Features, b: Features): boolean {
  return a.lo === b.lo && a.hi === b.hi;
}

export function isEmpty({ lo, hi }: Features): boolean {
  return lo === 0 && hi === 0;
}

/** Numbers of the bits that are set, from the lowest. */
export function bitsOf(mask: Features): number[] {
  const bits: number[] = [];
  for (let bit = 0; bit < 64; bit++) if (has(mask, bit)) bits.push(bit);
  return bits;
}

// Network device, section 5.1.3, as far as it is spoken here. Device and driver are named as there: GUEST_ is what the driver can receive, HOST_ what
// the device can take from it.
export const VIRTIO_NET_F_CSUM = 0;
export const VIRTIO_NET_F_GUEST_CSUM = 1;
export const VIRTIO_NET_F_MTU = 3;
export const VIRTIO_NET_F_MAC = 5;
export const VIRTIO_NET_F_GUEST_TSO4 = 7;
export const VIRTIO_NET_F_GUEST_TSO6 = 8;
export const VIRTIO_NET_F_GUEST_ECN = 9;
export const VIRTIO_NET_F_GUEST_UFO = 10;
export const VIRTIO_NET_F_HOST_TSO4 = 11;
export const VIRTIO_NET_F_HOST_TSO6 = 12;
export const VIRTIO_NET_F_HOST_ECN = 13;
export const VIRTIO_NET_F_HOST_UFO = 14;
export const VIRTIO_NET_F_MRG_RXBUF = 15;
export const VIRTIO_NET_F_STATUS = 16;
export const VIRTIO_NET_F_MQ = 22;
export const VIRTIO_NET_F_GUEST_USO4 = 54;
export const VIRTIO_NET_F_GUEST_USO6 = 55;
export const VIRTIO_NET_F_HOST_USO = 56;

// Rings and transport, section 6.
export const VIRTIO_F_INDIRECT_DESC = 28;
export const VIRTIO_F_EVENT_IDX = 29;
/** Not a bit of virtio: vhost-user's own, which no driver sees. */
export const VHOST_USER_F_PROTOCOL_FEATURES = 30;
export const VIRTIO_F_VERSION_1 = 32;
export const VIRTIO_F_IN_ORDER = 35;

/** Device status, section 2.1. */
export const VIRTIO_CONFIG_S_ACKNOWLEDGE = 1;
export const VIRTIO_CONFIG_S_DRIVER = 2;
export const VIRTIO_CONFIG_S_DRIVER_OK = 4;
export const VIRTIO_CONFIG_S_FEATURES_OK = 8;

// The split ring, section 2.7. All fields are little-endian.
//
//   desc   [ u64 addr | u32 len | u16 flags | u16 next ] x N          on 16 bytes
//   avail  [ u16 flags | u16 idx | u16 ring[N] | u16 used_event ]      on 2 bytes
//   used   [ u16 flags | u16 idx | { u32 id | u32 len }[N] | u16 avail_event ]   on 4 bytes
/** The largest split ring; always a power of two. */
export const VIRTQUEUE_SIZE_MAX = 32_768;
export const VRING_DESC_BYTES = 16;
export const VRING_DESC_ALIGN = 16;
export const VRING_AVAIL_ALIGN = 2;
export const VRING_USED_ALIGN = 4;
export const VRING_USED_ELEMENT_BYTES = 8;
/** Bytes of flags and idx, before the ring of avail and of used. */
export const VRING_RING_AT = 4;

export const VRING_DESC_F_NEXT = 1;
export const VRING_DESC_F_WRITE = 2;
export const VRING_DESC_F_INDIRECT = 4;
/** In avail.flags: the driver does not want to be interrupted. */
export const VRING_AVAIL_F_NO_INTERRUPT = 1;
/** In used.flags: the device does not want to be notified. */
export const VRING_USED_F_NO_NOTIFY = 1;

export function descBytes(size: number): number {
  return size * VRING_DESC_BYTES;
}

/** With used_event at the end. A driver without EVENT_IDX may have allocated two bytes less. */
export function availBytes(size: number, eventIdx: boolean): number {
  return VRING_RING_AT + 2 * size + (eventIdx ? 2 : 0);
}

/** With avail_event at the end. A driver without EVENT_IDX may have allocated two bytes less. */
export function usedBytes(size: number, eventIdx: boolean): number {
  return VRING_RING_AT + VRING_USED_ELEMENT_BYTES * size + (eventIdx ? 2 : 0);
}

export function isRingSize(size: number): boolean {
  return size > 0 && size <= VIRTQUEUE_SIZE_MAX && (size & (size - 1)) === 0;
}

/** The header before each frame, section 5.1.6: 12 bytes with VERSION_1 or MRG_RXBUF, without them 10. */
export const VNET_HEADER_BYTES = 12;
export const VNET_HEADER_BYTES_LEGACY = 10;

/** The network device's configuration, section 5.1.4, little-endian: offsets of the fields we have. */
export const VIRTIO_NET_CONFIG_MAC_AT = 0;
export const VIRTIO_NET_CONFIG_STATUS_AT = 6;
export const VIRTIO_NET_CONFIG_MAX_PAIRS_AT = 8;
export const VIRTIO_NET_CONFIG_MTU_AT = 10;
export const VIRTIO_NET_CONFIG_BYTES = 12;
/** In the status field. */
export const VIRTIO_NET_S_LINK_UP = 1;
