/**
 * What each message of a front-end does: one function a message, in a table by request number.
 *
 * A handler decodes the payload, takes the descriptors it wants out of the message, and does all of that before it waits for anything.
 * A number is an acknowledgement (0, or a positive errno), which is sent if the front-end asked for one; bytes are the
 * payload of a reply, which is always sent. Messages that want such a reply cannot be refused: when there is nothing to say, EPROTO
 * ends the connection.
 */
import { constants } from 'node:os';
import { ZerotxError } from '../core/errors.ts';
import * as vhost from '../wire/vhost-user.ts';
import {
  decodeConfig,
  decodeMemoryTable,
  decodeSingleRegion,
  decodeState,
  decodeU64,
  decodeVringAddress,
  encodeConfig,
  encodeState,
  encodeU64,
} from '../wire/vhost-user.ts';
import { features, has, isEmpty, same, VHOST_USER_F_PROTOCOL_FEATURES, without } from '../wire/virtio.ts';
import { refusal } from './features.ts';
import { FDS_MAX, type Message } from './framing.ts';
import { REGIONS_MAX } from './memory.ts';
import { after } from './rings.ts';
import type { Answer } from './session-host.ts';
import type { SessionState } from './session-state.ts';

const { EINVAL, EBUSY, EROFS } = constants.errno;

/** The smallest MTU of IPv4 (RFC 791), and the largest that a configuration has room for. */
const MTU_MIN = 68;
const MTU_MAX = 0xffff;

export type Outcome = number | Uint8Array | Promise<number | Uint8Array>;

export interface Handler {
  /** How many descriptors may come with it. */
  readonly fds: number;
  /** The front-end waits for a reply of the handler's, whatever it asked for. */
  readonly replies: boolean;
  readonly run: (state: SessionState, message: Message) => Outcome;
}

type Run = Handler['run'];

const acked = (run: Run, fds = 0): Handler => ({ fds, replies: false, run });
const replied = (run: Run): Handler => ({ fds: 0, replies: true, run });

const number = (value: number): Uint8Array => encodeU64({ lo: value, hi: 0 });

export const HANDLERS: ReadonlyMap<number, Handler> = new Map([
  [vhost.VHOST_USER_GET_FEATURES, replied(({ offered }) => encodeU64(offered))],
  [vhost.VHOST_USER_SET_FEATURES, acked(setFeatures)],
  // Whoever connected owns the session. RESET_OWNER is deprecated and of old front-ends, which go on with features and memory.
  [vhost.VHOST_USER_SET_OWNER, acked(() => 0)],
  [vhost.VHOST_USER_RESET_OWNER, acked(() => 0)],
  [vhost.VHOST_USER_SET_MEM_TABLE, acked(setMemoryTable, FDS_MAX)],
  [vhost.VHOST_USER_ADD_MEM_REG, acked(addRegion, 1)],
  // The specification once wanted a descriptor here too: one is closed.
  [vhost.VHOST_USER_REM_MEM_REG, acked(removeRegion, 1)],
  [vhost.VHOST_USER_GET_MAX_MEM_SLOTS, replied(() => number(REGIONS_MAX))],
  [vhost.VHOST_USER_SET_VRING_NUM, acked(ofRing(({ rings }, index, num) => rings.setSize(index, num)))],
  [vhost.VHOST_USER_SET_VRING_ADDR, acked(setAddresses)],
  [vhost.VHOST_USER_SET_VRING_BASE, acked(ofRing(({ rings }, index, num) => rings.setBase(index, num)))],
  [vhost.VHOST_USER_GET_VRING_BASE, replied(getBase)],
  [vhost.VHOST_USER_SET_VRING_ENABLE, acked(ofRing(enable))],
  [
    vhost.VHOST_USER_SET_VRING_KICK,
    acked(
      file(({ rings }, index, fd) => rings.kick(index, fd)),
      1,
    ),
  ],
  [
    vhost.VHOST_USER_SET_VRING_CALL,
    acked(
      file(({ host }, index, fd) => host.setCall(index, fd)),
      1,
    ),
  ],
  [
    vhost.VHOST_USER_SET_VRING_ERR,
    acked(
      file(({ host }, index, fd) => host.setErr(index, fd)),
      1,
    ),
  ],
  [vhost.VHOST_USER_GET_PROTOCOL_FEATURES, replied(({ offeredProtocol }) => encodeU64(offeredProtocol))],
  [vhost.VHOST_USER_SET_PROTOCOL_FEATURES, acked(setProtocolFeatures)],
  [vhost.VHOST_USER_GET_QUEUE_NUM, replied(getQueueNumber)],
  [vhost.VHOST_USER_SET_BACKEND_REQ_FD, acked(setBackendFd, 1)],
  [vhost.VHOST_USER_SET_STATUS, acked(setStatus)],
  [vhost.VHOST_USER_GET_STATUS, replied(({ status }) => number(status))],
  [vhost.VHOST_USER_RESET_DEVICE, acked(resetDevice)],
  [vhost.VHOST_USER_SEND_RARP, acked(sendRarp)],
  [vhost.VHOST_USER_NET_SET_MTU, acked(setMtu)],
]);

/** Only for those whom CONFIG was offered to. */
export const CONFIG_HANDLERS: ReadonlyMap<number, Handler> = new Map([
  [vhost.VHOST_USER_GET_CONFIG, replied(getConfig)],
  // virtio 1.2 lets no driver write the configuration of a network device.
  [vhost.VHOST_USER_SET_CONFIG, acked(() => EROFS)],
]);

function setFeatures(state: SessionState, { payload }: Message): Outcome {
  const asked = decodeU64(payload);
  if (asked === undefined) return EINVAL;
  if (refusal(asked, state.offered) !== null) {
    state.refused = true;
    return EINVAL;
  }
  const accepted = without(asked, features(VHOST_USER_F_PROTOCOL_FEATURES));
  const enables = !has(asked, VHOST_USER_F_PROTOCOL_FEATURES);
  const { rings } = state;
  const finish = (): number => {
    state.refused = false;
    if (enables) rings.enableAll();
    rings.startWaiting();
    return 0;
  };
  // The same again, late or for another queue pair, must not disturb what runs.
  if (state.features !== null && same(accepted, state.features)) return finish();
  if (rings.isBusy) {
    state.refused = true;
    return EBUSY;
  }
  // What still runs is disabled, and reads and writes its ring by the old rules.
  const stopped = rings.stopRunning();
  const change = (): number => {
    const error = state.host.setFeatures(accepted);
    if (error !== 0) {
      state.refused = true;
      return error;
    }
    state.features = accepted;
    return finish();
  };
  return after(stopped, change);
}

function setProtocolFeatures(state: SessionState, { payload }: Message): Outcome {
  const asked = decodeU64(payload);
  if (asked === undefined || !isEmpty(without(asked, state.offeredProtocol))) return EINVAL;
  state.protocolFeatures = asked;
  return 0;
}

/**
 * Queue pairs; but User-Mode Linux takes it for rings. At least 2 is right for both, since QEMU and DPDK only want no less than they
 * were told to use.
 */
function getQueueNumber({ offer }: SessionState): Outcome {
  return number(offer.frontend === 'uml' ? 2 * offer.pairs : Math.max(2, offer.pairs));
}

function setMemoryTable(state: SessionState, message: Message): Outcome {
  const regions = decodeMemoryTable(message.payload);
  if (regions === undefined) return EINVAL;
  const { memory, rings } = state;
  const error = memory.setTable(regions, message.fds.splice(0));
  return error === 0 ? rings.move() : error;
}

function addRegion({ memory, rings }: SessionState, { payload, fds }: Message): Outcome {
  const region = decodeSingleRegion(payload);
  if (region === undefined || fds.length !== 1) return EINVAL;
  const error = memory.add(region, fds.pop() as number);
  if (error === 0) rings.startWaiting();
  return error;
}

function removeRegion({ memory, rings }: SessionState, { payload }: Message): Outcome {
  const region = decodeSingleRegion(payload);
  if (region === undefined) return EINVAL;
  const error = memory.remove(region);
  return error === 0 ? rings.move() : error;
}

/** `log` is not looked at: QEMU puts an address there even when it does not log. */
function setAddresses({ rings }: SessionState, { payload }: Message): Outcome {
  const addresses = decodeVringAddress(payload);
  if (addresses === undefined || addresses.index >= rings.count) return EINVAL;
  // Logging was not offered.
  if ((addresses.flags & vhost.VHOST_VRING_F_LOG) !== 0) return EINVAL;
  return rings.setAddresses(addresses.index, addresses);
}

function getBase({ rings }: SessionState, { payload }: Message): Outcome {
  const asked = decodeState(payload);
  if (asked === undefined) throw malformed('GET_VRING_BASE');
  const base = rings.takeBase(asked.index);
  const reply = (num: number): Uint8Array => encodeState({ index: asked.index, num });
  return typeof base === 'number' ? reply(base) : base.then(reply);
}

function enable({ rings }: SessionState, index: number, num: number): Answer {
  return num > 1 ? EINVAL : rings.enable(index, num === 1);
}

/** A message with a ring's index and a number. */
function ofRing(act: (state: SessionState, index: number, num: number) => Answer): Run {
  return (state, { payload }) => {
    const asked = decodeState(payload);
    if (asked === undefined || asked.index >= state.rings.count) return EINVAL;
    return act(state, asked.index, asked.num);
  };
}

/** A message with a descriptor for a ring, or the word that there is none. */
function file(act: (state: SessionState, index: number, fd: number) => number): Run {
  return (state, { payload, fds }) => {
    const asked = decodeU64(payload);
    if (asked === undefined) return EINVAL;
    const index = asked.lo & vhost.VHOST_USER_VRING_IDX_MASK;
    const none = (asked.lo & vhost.VHOST_USER_VRING_NOFD_MASK) !== 0;
    if (index >= state.rings.count || fds.length !== (none ? 0 : 1)) return EINVAL;
    return act(state, index, none ? -1 : (fds.pop() as number));
  };
}

/**
 * Only whoever reads our configuration is ever told anything. Of the others the channel is not kept: it is a socket, and might be the
 * far end of this connection, which would then never end (ring-fds.ts).
 */
function setBackendFd(state: SessionState, { fds }: Message): Outcome {
  if (fds.length !== 1) return EINVAL;
  const fd = fds.pop() as number;
  if (has(state.offeredProtocol, vhost.VHOST_USER_PROTOCOL_F_CONFIG)) state.setBackendFd(fd);
  else state.calls.close(fd);
  return 0;
}

/** 0 is a reset. QEMU 7.2 sends it before it asks for the bases, so rings stop here and keep what they have. */
function setStatus(state: SessionState, { payload }: Message): Outcome {
  const value = decodeU64(payload);
  if (value === undefined || value.hi !== 0 || value.lo > 0xff) return EINVAL;
  return after(value.lo === 0 ? state.rings.stopAll() : 0, (error) => {
    state.status = value.lo;
    state.host.setStatus(state.status);
    return error;
  });
}

/** "Ready to be reinitialized": the driver accepts features anew. Memory and the connection stay. */
function resetDevice(state: SessionState): Outcome {
  return after(state.rings.reset(), (error) => {
    state.features = null;
    state.refused = false;
    state.status = 0;
    state.host.reset();
    return error;
  });
}

/** The address is in the first six bytes of the number. */
function sendRarp({ host }: SessionState, { payload }: Message): Outcome {
  return payload.length < 8 ? EINVAL : host.sendRarp(payload.slice(0, 6));
}

function setMtu({ host }: SessionState, { payload }: Message): Outcome {
  const mtu = decodeU64(payload);
  if (mtu === undefined || mtu.hi !== 0 || mtu.lo < MTU_MIN || mtu.lo > MTU_MAX) return EINVAL;
  return host.setMtu(mtu.lo);
}

/** What is beyond our fields reads as zeros. A reply without payload says that the request was wrong. */
function getConfig({ host }: SessionState, { payload }: Message): Outcome {
  const asked = decodeConfig(payload);
  if (asked === undefined) return new Uint8Array(0);
  const { offset, bytes } = asked;
  if (bytes === 0 || bytes > vhost.CONFIG_BYTES_MAX || offset > vhost.CONFIG_BYTES_MAX - bytes) {
    return new Uint8Array(0);
  }
  const data = new Uint8Array(bytes);
  data.set(host.config().subarray(offset, offset + bytes));
  return encodeConfig({ offset, bytes, flags: asked.flags, data });
}

function malformed(name: string): ZerotxError {
  return new ZerotxError('EPROTO', `vhost-user front-end sent a malformed ${name}`);
}
