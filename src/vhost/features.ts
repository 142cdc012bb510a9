/**
 * What the device offers, and what a driver may accept of it.
 *
 * Not offered, and why. Packed rings: their indices are not in shared memory, so a device that was restarted cannot go on.
 * Logging of writes (LOG_ALL, LOG_SHMFD), postcopy and inflight: live migration and tracking across crashes; with completion in
 * order the used index says it all. In-band notifications (14): QEMU accepts the bit and then sends descriptors
 * all the same. CONFIG (9): QEMU warns and clears it; only User-Mode Linux reads our configuration, so it has to be
 * asked for. XEN_MMAP (17) would change the layout of the memory table. UFO and USO: no port takes them.
 */
import { OFFLOAD_CSUM, OFFLOAD_ECN, OFFLOAD_TSO4, OFFLOAD_TSO6 } from '../core/port.ts';
import * as vhost from '../wire/vhost-user.ts';
import * as virtio from '../wire/virtio.ts';
import { bitsOf, type Features, features, has, isEmpty, without } from '../wire/virtio.ts';
import type { RingFeatures } from './queue.ts';

/** Who is at the other end: `qemu` is QEMU, and DPDK's virtio-user, which keep MAC address and link state to themselves. */
export type Frontend = 'qemu' | 'uml';

export interface Offer {
  readonly frontend: Frontend;
  /** Queue pairs. */
  readonly pairs: number;
  /** OFFLOAD_ bits: what is left in the guest's frames for those behind us to do. */
  readonly offloads: number;
}

/** [offload, bit] that the device can take from the driver. */
const HOST_BITS: readonly (readonly [number, number])[] = [
  [OFFLOAD_CSUM, virtio.VIRTIO_NET_F_CSUM],
  [OFFLOAD_TSO4, virtio.VIRTIO_NET_F_HOST_TSO4],
  [OFFLOAD_TSO6, virtio.VIRTIO_NET_F_HOST_TSO6],
  [OFFLOAD_ECN, virtio.VIRTIO_NET_F_HOST_ECN],
];

/** [offload, bit] that the driver can take from the device. What it does not accept is done before the frame gets there. */
const GUEST_BITS: readonly (readonly [number, number])[] = [
  [OFFLOAD_CSUM, virtio.VIRTIO_NET_F_GUEST_CSUM],
  [OFFLOAD_TSO4, virtio.VIRTIO_NET_F_GUEST_TSO4],
  [OFFLOAD_TSO6, virtio.VIRTIO_NET_F_GUEST_TSO6],
  [OFFLOAD_ECN, virtio.VIRTIO_NET_F_GUEST_ECN],
];

/** Each of them needs one of those (virtio 1.2, section 5.1.3.1). */
const DEPENDENCIES: readonly (readonly [bit: number, needs: readonly number[]])[] = [
  [virtio.VIRTIO_NET_F_HOST_TSO4, [virtio.VIRTIO_NET_F_CSUM]],
  [virtio.VIRTIO_NET_F_HOST_TSO6, [virtio.VIRTIO_NET_F_CSUM]],
  [virtio.VIRTIO_NET_F_HOST_ECN, [virtio.VIRTIO_NET_F_HOST_TSO4, virtio.VIRTIO_NET_F_HOST_TSO6]],
  [virtio.VIRTIO_NET_F_GUEST_TSO4, [virtio.VIRTIO_NET_F_GUEST_CSUM]],
  [virtio.VIRTIO_NET_F_GUEST_TSO6, [virtio.VIRTIO_NET_F_GUEST_CSUM]],
  [virtio.VIRTIO_NET_F_GUEST_ECN, [virtio.VIRTIO_NET_F_GUEST_TSO4, virtio.VIRTIO_NET_F_GUEST_TSO6]],
];

/** Bit 30 included: QEMU does not start a device without it. */
export function offeredFeatures({ frontend, pairs, offloads }: Offer): Features {
  // TSO without checksums cannot be offered, nor ECN without TSO.
  const host = HOST_BITS.filter(([offload]) => (offloads & offload) !== 0).map(([, bit]) => bit);
  const bits = [
    virtio.VIRTIO_F_VERSION_1,
    virtio.VIRTIO_F_INDIRECT_DESC,
    virtio.VIRTIO_F_EVENT_IDX,
    virtio.VIRTIO_F_IN_ORDER,
    virtio.VHOST_USER_F_PROTOCOL_FEATURES,
    virtio.VIRTIO_NET_F_MRG_RXBUF,
    virtio.VIRTIO_NET_F_MTU,
    ...GUEST_BITS.map(([, bit]) => bit),
    ...host,
  ];
  // QEMU keeps the control queue, and offers its own. Without one, Linux gives a device up that offers MQ (virtnet_validate()).
  if (frontend === 'uml') bits.push(virtio.VIRTIO_NET_F_MAC, virtio.VIRTIO_NET_F_STATUS);
  else if (pairs > 1) bits.push(virtio.VIRTIO_NET_F_MQ);
  return usable(features(...bits));
}

/** Without the bits that lack what they need. */
export function usable(accepted: Features): Features {
  let rest = accepted;
  // Twice: what ECN needs may itself have gone.
  for (let i = 0; i < 2; i++) rest = without(rest, features(...unmet(rest)));
  return rest;
}

function unmet(accepted: Features): number[] {
  return DEPENDENCIES.filter(
    ([bit, needs]) => has(accepted, bit) && !needs.some((needed) => has(accepted, needed)),
  ).map(([bit]) => bit);
}

export function offeredProtocolFeatures(frontend: Frontend): Features {
  const bits = [
    vhost.VHOST_USER_PROTOCOL_F_MQ,
    vhost.VHOST_USER_PROTOCOL_F_RARP,
    vhost.VHOST_USER_PROTOCOL_F_REPLY_ACK,
    vhost.VHOST_USER_PROTOCOL_F_NET_MTU,
    vhost.VHOST_USER_PROTOCOL_F_BACKEND_REQ,
    vhost.VHOST_USER_PROTOCOL_F_RESET_DEVICE,
    vhost.VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
    vhost.VHOST_USER_PROTOCOL_F_STATUS,
  ];
  if (frontend === 'uml') bits.push(vhost.VHOST_USER_PROTOCOL_F_CONFIG);
  return features(...bits);
}

/**
 * Why `accepted` cannot be, or null. What lacks what it needs is no reason, and means nothing: QEMU without segmentation still offers
 * the ECN of it, and Linux accepts what it is offered; and QEMU keeps the control queue and passes on MQ alone.
 */
export function refusal(accepted: Features, offered: Features): string | null {
  const extra = without(accepted, offered);
  return isEmpty(extra) ? null : `features that were not offered: ${bitsOf(extra).join(', ')}`;
}

export function ringFeatures(accepted: Features): RingFeatures {
  return {
    eventIdx: has(accepted, virtio.VIRTIO_F_EVENT_IDX),
    indirect: has(accepted, virtio.VIRTIO_F_INDIRECT_DESC),
    inOrder: has(accepted, virtio.VIRTIO_F_IN_ORDER),
  };
}

/** Bytes of the header before each frame: num_buffers is there with either of them (virtio 1.2, section 5.1.6.1). */
export function vnetHeaderBytes(accepted: Features): number {
  return has(accepted, virtio.VIRTIO_F_VERSION_1) || has(accepted, virtio.VIRTIO_NET_F_MRG_RXBUF)
    ? virtio.VNET_HEADER_BYTES
    : virtio.VNET_HEADER_BYTES_LEGACY;
}

/** OFFLOAD_ bits that frames for the driver may carry. */
export function guestOffloads(accepted: Features): number {
  return offloadsOf(accepted, GUEST_BITS);
}

/** OFFLOAD_ bits that frames of the driver may carry. */
export function hostOffloads(accepted: Features): number {
  return offloadsOf(accepted, HOST_BITS);
}

function offloadsOf(accepted: Features, bits: readonly (readonly [number, number])[]): number {
  const rest = usable(accepted);
  return bits.reduce((sum, [offload, bit]) => (has(rest, bit) ? sum | offload : sum), 0);
}
