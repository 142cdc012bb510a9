/**
 * What a front-end says to a back-end, as talks for a RequestLine: the greeting, where features are settled; bringing up
 * memory and rings; small requests meanwhile; and stopping the rings. No I/O, no clock: a talk yields requests and gets
 * replies.
 *
 *   negotiate()   SET_OWNER, GET_FEATURES, [GET_ and SET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_CONFIG, GET_MAX_MEM_SLOTS],
 *                 SET_FEATURES, [SET_STATUS FEATURES_OK, GET_STATUS]
 *   bringUp()     SET_MEM_TABLE or ADD_MEM_REG, per ring NUM, BASE, ADDR, CALL, ERR, KICK; [SET_VRING_ENABLE, NET_SET_MTU,
 *                 SET_STATUS DRIVER_OK]
 *   leave()       GET_VRING_BASE per ring, [SET_STATUS 0]
 *
 * What is in brackets depends on what the back-end offers; one without protocol features at all is served, too. Where it
 * has REPLY_ACK, every request that has no reply of its own asks for an acknowledgement, so that a refusal is heard where
 * it is given. The order is that of DPDK's virtio-user, the driver that back-ends know best; kick comes last of a
 * ring, since it is what starts it (docs/interop/vhost-user.rst, "Ring states").
 */
import { ZerotxError } from '../core/errors.ts';
import {
  CONFIG_BYTES_MAX,
  decodeConfig,
  decodeState,
  decodeU64,
  encodeConfig,
  encodeMemoryTable,
  encodeSingleRegion,
  encodeState,
  encodeU64,
  encodeVringAddress,
  type MemoryRegion,
  STATE_BYTES,
  VHOST_USER_ADD_MEM_REG,
  VHOST_USER_GET_CONFIG,
  VHOST_USER_GET_FEATURES,
  VHOST_USER_GET_MAX_MEM_SLOTS,
  VHOST_USER_GET_PROTOCOL_FEATURES,
  VHOST_USER_GET_QUEUE_NUM,
  VHOST_USER_GET_STATUS,
  VHOST_USER_GET_VRING_BASE,
  VHOST_USER_NET_SET_MTU,
  VHOST_USER_PROTOCOL_F_CONFIG,
  VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
  VHOST_USER_PROTOCOL_F_MQ,
  VHOST_USER_PROTOCOL_F_NET_MTU,
  VHOST_USER_PROTOCOL_F_RARP,
  VHOST_USER_PROTOCOL_F_REPLY_ACK,
  VHOST_USER_PROTOCOL_F_STATUS,
  VHOST_USER_SEND_RARP,
  VHOST_USER_SET_FEATURES,
  VHOST_USER_SET_MEM_TABLE,
  VHOST_USER_SET_OWNER,
  VHOST_USER_SET_PROTOCOL_FEATURES,
  VHOST_USER_SET_STATUS,
  VHOST_USER_SET_VRING_ADDR,
  VHOST_USER_SET_VRING_BASE,
  VHOST_USER_SET_VRING_CALL,
  VHOST_USER_SET_VRING_ENABLE,
  VHOST_USER_SET_VRING_ERR,
  VHOST_USER_SET_VRING_KICK,
  VHOST_USER_SET_VRING_NUM,
  VHOST_USER_VRING_NOFD_MASK,
} from '../wire/vhost-user.ts';
import {
  and,
  bitsOf,
  type Features,
  has,
  isEmpty,
  NO_FEATURES,
  VHOST_USER_F_PROTOCOL_FEATURES,
  VIRTIO_CONFIG_S_ACKNOWLEDGE,
  VIRTIO_CONFIG_S_DRIVER,
  VIRTIO_CONFIG_S_DRIVER_OK,
  VIRTIO_CONFIG_S_FEATURES_OK,
  VIRTIO_F_VERSION_1,
  VIRTIO_NET_CONFIG_BYTES,
  VIRTIO_NET_CONFIG_MAC_AT,
  VIRTIO_NET_CONFIG_MTU_AT,
  VIRTIO_NET_F_MAC,
  VIRTIO_NET_F_MQ,
  VIRTIO_NET_F_MTU,
  without,
} from '../wire/virtio.ts';
import { settled } from './frontend-features.ts';
import type { Talk } from './frontend-line.ts';

/** What the front-end would like. */
export interface Wishes {
  /** Accepted if offered, and if what they depend on is. */
  readonly features: Features;
  readonly protocolFeatures: Features;
  readonly queuePairs: number;
  /** Bytes of one receive buffer: whether segments fit without MRG_RXBUF. */
  readonly bufferBytes: number;
  /** Packets of at most this, told to the back-end if it can be; null: the back-end says. */
  readonly mtu: number | null;
  /** After a reconnection: exactly these again, as rings and frames in them were made for them. */
  readonly again: Agreement | null;
}

/** What was agreed on. */
export interface Agreement {
  readonly features: Features;
  readonly protocolFeatures: Features;
  readonly queuePairs: number;
  /** Six bytes, if the back-end has it to say. */
  readonly mac: Uint8Array | null;
  readonly mtu: number | null;
}

/** A ring as the back-end is told of it. */
export interface RingPlan {
  readonly index: number;
  readonly size: number;
  readonly base: number;
  /** User addresses. */
  readonly desc: bigint;
  readonly avail: bigint;
  readonly used: bigint;
  /** -1 for none: the device polls, the driver polls. */
  readonly kickFd: number;
  readonly callFd: number;
  readonly errFd: number;
}

export interface MemoryPlan {
  readonly regions: readonly MemoryRegion[];
  /** One for each region. */
  readonly fds: readonly number[];
}

const NOTHING = new Uint8Array(0);
const NO_FDS: readonly number[] = [];
const U64_REPLY = { bytesMin: 8, bytesMax: 8, isAck: false };
const STATE_REPLY = { bytesMin: STATE_BYTES, bytesMax: STATE_BYTES, isAck: false };
const ACK = { bytesMin: 8, bytesMax: 8, isAck: true };

const DRIVER = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK;

/** Settles features, and finds out what the device is. */
export function* negotiate(wishes: Wishes): Talk<Agreement> {
  yield { request: VHOST_USER_SET_OWNER, payload: NOTHING, fds: NO_FDS, reply: null };
  const offered = yield* ask(VHOST_USER_GET_FEATURES);
  let protocol: Features = NO_FEATURES;
  if (has(offered, VHOST_USER_F_PROTOCOL_FEATURES)) {
    protocol = yield* agreeOnProtocol(wishes);
  }
  const maxPairs = has(protocol, VHOST_USER_PROTOCOL_F_MQ) ? (yield* ask(VHOST_USER_GET_QUEUE_NUM)).lo : 1;
  const config = has(protocol, VHOST_USER_PROTOCOL_F_CONFIG) ? yield* readConfig() : null;
  const accepted = settled(wishes, offered, protocol, config !== null);
  check(accepted, offered, wishes);
  yield* tell(protocol, VHOST_USER_SET_FEATURES, encodeU64(accepted));
  if (has(protocol, VHOST_USER_PROTOCOL_F_STATUS)) {
    yield* setStatus(protocol, DRIVER);
    const { lo } = yield* ask(VHOST_USER_GET_STATUS);
    if ((lo & VIRTIO_CONFIG_S_FEATURES_OK) === 0) {
      throw refused(`the features ${names(accepted)}: FEATURES_OK did not stay`);
    }
  }
  return {
    features: accepted,
    protocolFeatures: protocol,
    queuePairs: has(accepted, VIRTIO_NET_F_MQ) ? Math.min(wishes.queuePairs, Math.max(maxPairs, 1)) : 1,
    mac:
      config !== null && has(accepted, VIRTIO_NET_F_MAC) ? config.slice(VIRTIO_NET_CONFIG_MAC_AT, 6) : null,
    mtu: mtuOf(wishes, accepted, config),
  };
}

/** Shows the back-end memory and rings, and starts them. */
export function* bringUp(agreed: Agreement, memory: MemoryPlan, rings: readonly RingPlan[]): Talk<void> {
  const { protocolFeatures: protocol } = agreed;
  yield* share(protocol, memory);
  for (const ring of rings) yield* setUpRing(protocol, ring);
  if (has(agreed.features, VHOST_USER_F_PROTOCOL_FEATURES)) {
    for (const { index } of rings) yield* enable(protocol, index, true);
  }
  if (
    agreed.mtu !== null &&
    has(protocol, VHOST_USER_PROTOCOL_F_NET_MTU) &&
    has(agreed.features, VIRTIO_NET_F_MTU)
  ) {
    yield* tell(protocol, VHOST_USER_NET_SET_MTU, encodeU64({ lo: agreed.mtu, hi: 0 }));
  }
  if (has(protocol, VHOST_USER_PROTOCOL_F_STATUS))
    yield* setStatus(protocol, DRIVER | VIRTIO_CONFIG_S_DRIVER_OK);
  yield* heard(protocol);
}

/**
 * Resolves when the back-end has done all that it was told. Without acknowledgements a request with a reply is a barrier as good as
 * any: a frame that is sent before the ring is enabled would be dropped.
 */
function* heard(protocol: Features): Talk<void> {
  if (!has(protocol, VHOST_USER_PROTOCOL_F_REPLY_ACK)) yield* ask(VHOST_USER_GET_FEATURES);
}

/** Starts rings that were stopped. */
export function* restart(agreed: Agreement, rings: readonly RingPlan[]): Talk<void> {
  for (const ring of rings) yield* setUpRing(agreed.protocolFeatures, ring);
  yield* heard(agreed.protocolFeatures);
}

/** Stops the rings: when it is over, the back-end touches none of them. Resolves to where it stopped, for each. */
export function* stop(indexes: readonly number[]): Talk<number[]> {
  const bases: number[] = [];
  for (const index of indexes) {
    const payload = yield {
      request: VHOST_USER_GET_VRING_BASE,
      payload: encodeState({ index, num: 0 }),
      fds: NO_FDS,
      reply: STATE_REPLY,
    };
    const state = decodeState(payload);
    if (state === undefined || state.index !== index) {
      throw new ZerotxError('EPROTO', `the back-end told the base of ring ${state?.index}, not ${index}`);
    }
    bases.push(state.num & 0xffff);
  }
  return bases;
}

/** The last words: rings are stopped, and the device is reset. */
export function* leave(agreed: Agreement, indexes: readonly number[]): Talk<void> {
  yield* stop(indexes);
  const { protocolFeatures: protocol } = agreed;
  if (has(protocol, VHOST_USER_PROTOCOL_F_STATUS)) yield* setStatus(protocol, 0);
}

/** Switches rings on or off. Off: they are quiet when it is over. Only with VHOST_USER_F_PROTOCOL_FEATURES. */
export function* enableRings(agreed: Agreement, indexes: readonly number[], on: boolean): Talk<void> {
  for (const index of indexes) yield* enable(agreed.protocolFeatures, index, on);
  yield* heard(agreed.protocolFeatures);
}

/** Has the back-end announce `mac`, if it can. Whether it could. */
export function* announce(agreed: Agreement, mac: Uint8Array): Talk<boolean> {
  if (!has(agreed.protocolFeatures, VHOST_USER_PROTOCOL_F_RARP)) return false;
  const payload = new Uint8Array(8);
  payload.set(mac.subarray(0, 6));
  yield* tell(agreed.protocolFeatures, VHOST_USER_SEND_RARP, payload);
  return true;
}

function* agreeOnProtocol(wishes: Wishes): Talk<Features> {
  const offered = yield* ask(VHOST_USER_GET_PROTOCOL_FEATURES);
  const protocol = and(offered, wishes.again?.protocolFeatures ?? wishes.protocolFeatures);
  yield {
    request: VHOST_USER_SET_PROTOCOL_FEATURES,
    payload: encodeU64(protocol),
    fds: NO_FDS,
    reply: null,
  };
  return protocol;
}

/** The device's configuration, or null if it has none to show: it says so by an empty reply, or by one without data. */
function* readConfig(): Talk<Uint8Array | null> {
  const data = new Uint8Array(VIRTIO_NET_CONFIG_BYTES);
  const payload = yield {
    request: VHOST_USER_GET_CONFIG,
    payload: encodeConfig({ offset: 0, bytes: data.length, flags: 0, data }),
    fds: NO_FDS,
    reply: {
      bytesMin: 0,
      bytesMax: encodeConfig({ offset: 0, bytes: 0, flags: 0, data }).length + CONFIG_BYTES_MAX,
      isAck: false,
    },
  };
  const config = decodeConfig(payload);
  return config === undefined || config.data.length < data.length ? null : config.data;
}

function* share(protocol: Features, { regions, fds }: MemoryPlan): Talk<void> {
  if (!has(protocol, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS)) {
    yield* tell(protocol, VHOST_USER_SET_MEM_TABLE, encodeMemoryTable(regions), fds);
    return;
  }
  const { lo: slots } = yield* ask(VHOST_USER_GET_MAX_MEM_SLOTS);
  if (slots < regions.length) throw refused(`${regions.length} regions of memory: it takes ${slots}`);
  for (const [i, region] of regions.entries()) {
    yield* tell(protocol, VHOST_USER_ADD_MEM_REG, encodeSingleRegion(region), [fds[i] as number]);
  }
}

function* setUpRing(protocol: Features, ring: RingPlan): Talk<void> {
  const { index, desc, avail, used } = ring;
  yield* tell(protocol, VHOST_USER_SET_VRING_NUM, encodeState({ index, num: ring.size }));
  yield* tell(protocol, VHOST_USER_SET_VRING_BASE, encodeState({ index, num: ring.base }));
  const address = encodeVringAddress({ index, flags: 0, desc, used, avail, log: 0n });
  yield* tell(protocol, VHOST_USER_SET_VRING_ADDR, address);
  yield* tellFd(protocol, VHOST_USER_SET_VRING_CALL, index, ring.callFd);
  if (ring.errFd >= 0) yield* tellFd(protocol, VHOST_USER_SET_VRING_ERR, index, ring.errFd);
  yield* tellFd(protocol, VHOST_USER_SET_VRING_KICK, index, ring.kickFd);
}

function* tellFd(protocol: Features, request: number, index: number, fd: number): Talk<void> {
  const lo = fd < 0 ? index | VHOST_USER_VRING_NOFD_MASK : index;
  yield* tell(protocol, request, encodeU64({ lo, hi: 0 }), fd < 0 ? NO_FDS : [fd]);
}

function* enable(protocol: Features, index: number, on: boolean): Talk<void> {
  yield* tell(protocol, VHOST_USER_SET_VRING_ENABLE, encodeState({ index, num: on ? 1 : 0 }));
}

function* setStatus(protocol: Features, status: number): Talk<void> {
  yield* tell(protocol, VHOST_USER_SET_STATUS, encodeU64({ lo: status, hi: 0 }));
}

/** A request that has a mask or a number as its reply. */
function* ask(request: number): Talk<Features> {
  const payload = yield { request, payload: NOTHING, fds: NO_FDS, reply: U64_REPLY };
  return decodeU64(payload) ?? NO_FEATURES;
}

/** A request without reply, acknowledged if that was agreed on. */
function* tell(
  protocol: Features,
  request: number,
  payload: Uint8Array,
  fds: readonly number[] = NO_FDS,
): Talk<void> {
  const acks = has(protocol, VHOST_USER_PROTOCOL_F_REPLY_ACK);
  const reply = yield { request, payload, fds, reply: acks ? ACK : null };
  if (!acks) return;
  const answer = decodeU64(reply) ?? NO_FEATURES;
  if (!isEmpty(answer)) throw refused(`request ${request}, with ${answer.lo}`);
}

function check(accepted: Features, offered: Features, { again }: Wishes): void {
  if (!has(offered, VIRTIO_F_VERSION_1)) {
    throw new ZerotxError('ZTX_FEATURES', 'the back-end does not offer VERSION_1: only legacy rings');
  }
  if (again === null) return;
  const missing = without(again.features, accepted);
  if (!isEmpty(missing)) {
    throw new ZerotxError('ZTX_FEATURES', `the back-end came back without features ${names(missing)}`);
  }
}

function mtuOf({ mtu }: Wishes, accepted: Features, config: Uint8Array | null): number | null {
  if (!has(accepted, VIRTIO_NET_F_MTU) || config === null) return mtu;
  const at = VIRTIO_NET_CONFIG_MTU_AT;
  const told = (config[at] as number) | ((config[at + 1] as number) << 8);
  return mtu === null ? told : Math.min(mtu, told);
}

function names(mask: Features): string {
  return bitsOf(mask).join(', ');
}

function refused(what: string): ZerotxError {
  return new ZerotxError('ZTX_REFUSED', `the back-end refused ${what}`);
}
