/**
 * What our driver can make use of, and what it accepts of what a back-end offers.
 */
import {
  VHOST_USER_PROTOCOL_F_CONFIG,
  VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
  VHOST_USER_PROTOCOL_F_MQ,
  VHOST_USER_PROTOCOL_F_NET_MTU,
  VHOST_USER_PROTOCOL_F_RARP,
  VHOST_USER_PROTOCOL_F_REPLY_ACK,
  VHOST_USER_PROTOCOL_F_STATUS,
} from '../wire/vhost-user.ts';
import {
  and,
  type Features,
  features,
  has,
  or,
  VHOST_USER_F_PROTOCOL_FEATURES,
  VIRTIO_F_EVENT_IDX,
  VIRTIO_F_IN_ORDER,
  VIRTIO_F_INDIRECT_DESC,
  VIRTIO_F_VERSION_1,
  VIRTIO_NET_F_CSUM,
  VIRTIO_NET_F_GUEST_CSUM,
  VIRTIO_NET_F_GUEST_ECN,
  VIRTIO_NET_F_GUEST_TSO4,
  VIRTIO_NET_F_GUEST_TSO6,
  VIRTIO_NET_F_GUEST_UFO,
  VIRTIO_NET_F_GUEST_USO4,
  VIRTIO_NET_F_GUEST_USO6,
  VIRTIO_NET_F_HOST_ECN,
  VIRTIO_NET_F_HOST_TSO4,
  VIRTIO_NET_F_HOST_TSO6,
  VIRTIO_NET_F_HOST_UFO,
  VIRTIO_NET_F_HOST_USO,
  VIRTIO_NET_F_MAC,
  VIRTIO_NET_F_MQ,
  VIRTIO_NET_F_MRG_RXBUF,
  VIRTIO_NET_F_MTU,
  VIRTIO_NET_F_STATUS,
  VNET_HEADER_BYTES,
  without,
} from '../wire/virtio.ts';

/** Bytes of the longest frame: 65,535 of IP, an Ethernet header, and room that others have counted in before us. */
export const FRAME_BYTES_MAX = 65_562;

const SENDING = features(
  VIRTIO_NET_F_HOST_TSO4,
  VIRTIO_NET_F_HOST_TSO6,
  VIRTIO_NET_F_HOST_ECN,
  VIRTIO_NET_F_HOST_UFO,
  VIRTIO_NET_F_HOST_USO,
);
const RECEIVING = features(
  VIRTIO_NET_F_GUEST_TSO4,
  VIRTIO_NET_F_GUEST_TSO6,
  VIRTIO_NET_F_GUEST_ECN,
  VIRTIO_NET_F_GUEST_UFO,
  VIRTIO_NET_F_GUEST_USO4,
  VIRTIO_NET_F_GUEST_USO6,
);

/** Without IN_ORDER, as Linux drivers do: a back-end may then report in any order, and this driver does not mind. */
export const FRONTEND_FEATURES: Features = features(
  VIRTIO_NET_F_CSUM,
  VIRTIO_NET_F_GUEST_CSUM,
  VIRTIO_NET_F_MTU,
  VIRTIO_NET_F_MAC,
  VIRTIO_NET_F_GUEST_TSO4,
  VIRTIO_NET_F_GUEST_TSO6,
  VIRTIO_NET_F_GUEST_ECN,
  VIRTIO_NET_F_HOST_TSO4,
  VIRTIO_NET_F_HOST_TSO6,
  VIRTIO_NET_F_HOST_ECN,
  VIRTIO_NET_F_MRG_RXBUF,
  VIRTIO_NET_F_STATUS,
  VIRTIO_NET_F_MQ,
  VIRTIO_F_INDIRECT_DESC,
  VIRTIO_F_EVENT_IDX,
);

/** Whatever a mask asks for, nothing else is accepted: what the driver has no code for. */
const SUPPORTED = or(or(FRONTEND_FEATURES, features(VIRTIO_F_IN_ORDER)), or(SENDING, RECEIVING));

export const FRONTEND_PROTOCOL_FEATURES: Features = features(
  VHOST_USER_PROTOCOL_F_MQ,
  VHOST_USER_PROTOCOL_F_RARP,
  VHOST_USER_PROTOCOL_F_REPLY_ACK,
  VHOST_USER_PROTOCOL_F_NET_MTU,
  VHOST_USER_PROTOCOL_F_CONFIG,
  VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
  VHOST_USER_PROTOCOL_F_STATUS,
);

/** VERSION_1 and the protocol's own bit are not for the caller to leave out. */
const ALWAYS = features(VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES);

export interface FeatureWishes {
  readonly features: Features;
  readonly queuePairs: number;
  readonly bufferBytes: number;
  readonly mtu: number | null;
}

/** What is accepted of `offered`, with everything left out that what is missing makes useless (virtio 1.2, section 5.1.3.1). */
export function settled(
  wishes: FeatureWishes,
  offered: Features,
  protocol: Features,
  hasConfig: boolean,
): Features {
  let mask = and(offered, or(and(wishes.features, SUPPORTED), ALWAYS));
  if (!has(mask, VIRTIO_NET_F_CSUM)) mask = without(mask, SENDING);
  if (!has(mask, VIRTIO_NET_F_GUEST_CSUM)) mask = without(mask, RECEIVING);
  const holdsSegments = wishes.bufferBytes >= VNET_HEADER_BYTES + FRAME_BYTES_MAX;
  if (!has(mask, VIRTIO_NET_F_MRG_RXBUF) && !holdsSegments) mask = without(mask, RECEIVING);
  if (!hasEither(mask, VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6)) {
    mask = without(mask, features(VIRTIO_NET_F_HOST_ECN));
  }
  if (!hasEither(mask, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6)) {
    mask = without(mask, features(VIRTIO_NET_F_GUEST_ECN));
  }
  if (wishes.queuePairs === 1 || !has(protocol, VHOST_USER_PROTOCOL_F_MQ)) {
    mask = without(mask, features(VIRTIO_NET_F_MQ));
  }
  // They only mean that something can be read.
  if (!hasConfig) mask = without(mask, features(VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS));
  if (!hasConfig && (wishes.mtu === null || !has(protocol, VHOST_USER_PROTOCOL_F_NET_MTU))) {
    mask = without(mask, features(VIRTIO_NET_F_MTU));
  }
  return mask;
}

function hasEither(mask: Features, a: number, b: number): boolean {
  return has(mask, a) || has(mask, b);
}
