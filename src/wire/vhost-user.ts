/**
 * The vhost-user protocol's messages: numbers, the header, and the payloads that a network device and its front-end
 * exchange. Names and numbers are those of QEMU's docs/interop/vhost-user.rst.
 *
 *   header   u32 request | u32 flags | u32 size of the payload               (12 bytes)
 *
 * All fields are in the byte order of the host, which is little-endian on all machines that the package runs on.
 * Descriptors travel beside the bytes, in SCM_RIGHTS. User addresses may be anything below 2^64 and stay BigInt: they are
 * met a few times in the life of a ring. Masks are Features pairs.
 *
 * A decoder takes a payload of any length and gives undefined when it is too short; bytes after what the layout has are
 * ignored, since User-Mode Linux sends a memory table in a structure of fixed size.
 */
import type { Features } from './virtio.ts';

export const VHOST_USER_HEADER_BYTES = 12;
export const VHOST_USER_VERSION = 1;
export const VHOST_USER_VERSION_MASK = 3;
export const VHOST_USER_REPLY = 4;
export const VHOST_USER_NEED_REPLY = 8;

// Front-end to back-end: those that are spoken here.
export const VHOST_USER_GET_FEATURES = 1;
export const VHOST_USER_SET_FEATURES = 2;
export const VHOST_USER_SET_OWNER = 3;
export const VHOST_USER_RESET_OWNER = 4;
export const VHOST_USER_SET_MEM_TABLE = 5;
export const VHOST_USER_SET_VRING_NUM = 8;
export const VHOST_USER_SET_VRING_ADDR = 9;
export const VHOST_USER_SET_VRING_BASE = 10;
export const VHOST_USER_GET_VRING_BASE = 11;
export const VHOST_USER_SET_VRING_KICK = 12;
export const VHOST_USER_SET_VRING_CALL = 13;
export const VHOST_USER_SET_VRING_ERR = 14;
export const VHOST_USER_GET_PROTOCOL_FEATURES = 15;
export const VHOST_USER_SET_PROTOCOL_FEATURES = 16;
export const VHOST_USER_GET_QUEUE_NUM = 17;
export const VHOST_USER_SET_VRING_ENABLE = 18;
export const VHOST_USER_SEND_RARP = 19;
export const VHOST_USER_NET_SET_MTU = 20;
export const VHOST_USER_SET_BACKEND_REQ_FD = 21;
export const VHOST_USER_GET_CONFIG = 24;
export const VHOST_USER_SET_CONFIG = 25;
export const VHOST_USER_RESET_DEVICE = 34;
export const VHOST_USER_GET_MAX_MEM_SLOTS = 36;
export const VHOST_USER_ADD_MEM_REG = 37;
export const VHOST_USER_REM_MEM_REG = 38;
export const VHOST_USER_SET_STATUS = 39;
export const VHOST_USER_GET_STATUS = 40;

// Back-end to front-end, on the channel of SET_BACKEND_REQ_FD.
export const VHOST_USER_BACKEND_CONFIG_CHANGE_MSG = 2;

// Protocol features that are known here.
export const VHOST_USER_PROTOCOL_F_MQ = 0;
export const VHOST_USER_PROTOCOL_F_RARP = 2;
export const VHOST_USER_PROTOCOL_F_REPLY_ACK = 3;
export const VHOST_USER_PROTOCOL_F_NET_MTU = 4;
export const VHOST_USER_PROTOCOL_F_BACKEND_REQ = 5;
export const VHOST_USER_PROTOCOL_F_CONFIG = 9;
export const VHOST_USER_PROTOCOL_F_RESET_DEVICE = 13;
export const VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS = 15;
export const VHOST_USER_PROTOCOL_F_STATUS = 16;

/** In the payload of SET_VRING_KICK, _CALL and _ERR: the ring's index, and "no descriptor comes with it". */
export const VHOST_USER_VRING_IDX_MASK = 0xff;
export const VHOST_USER_VRING_NOFD_MASK = 0x100;
/** In the flags of SET_VRING_ADDR: `log` is an address. Otherwise it may contain anything. */
export const VHOST_VRING_F_LOG = 1;

export const STATE_BYTES = 8;
const VRING_ADDR_BYTES = 40;
const MEMORY_REGION_BYTES = 32;
const TABLE_REGIONS_AT = 8;
const CONFIG_HEADER_BYTES = 12;
/** Of the virtio configuration space, as the protocol limits it. */
export const CONFIG_BYTES_MAX = 256;

export interface MessageHeader {
  readonly request: number;
  readonly flags: number;
  readonly size: number;
}

/** A ring's index and a number: entries, base, on or off. */
export interface VringState {
  readonly index: number;
  readonly num: number;
}

export interface VringAddress {
  readonly index: number;
  readonly flags: number;
  readonly desc: bigint;
  readonly used: bigint;
  readonly avail: bigint;
  readonly log: bigint;
}

/** A piece of guest memory: where the guest has it, where the front-end has it, where it is in the file. */
export interface MemoryRegion {
  readonly guestAddress: bigint;
  readonly bytes: bigint;
  readonly userAddress: bigint;
  readonly mmapOffset: bigint;
}

export interface ConfigSpace {
  readonly offset: number;
  readonly bytes: number;
  readonly flags: number;
  /** As many as came; a request to read has room for what is asked. */
  readonly data: Uint8Array;
}

function view(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** `bytes` has VHOST_USER_HEADER_BYTES. */
export function decodeHeader(bytes: Uint8Array): MessageHeader {
  const at = view(bytes);
  return {
    request: at.getUint32(0, true),
    flags: at.getUint32(4, true),
    size: at.getUint32(8, true),
  };
}

/** Header and payload. `flags` without the version, which is added. */
export function encodeMessage(request: number, flags: number, payload: Uint8Array = NOTHING): Uint8Array {
  const bytes = new Uint8Array(VHOST_USER_HEADER_BYTES + payload.length);
  const at = view(bytes);
  at.setUint32(0, request, true);
  at.setUint32(4, flags | VHOST_USER_VERSION, true);
  at.setUint32(8, payload.length, true);
  bytes.set(payload, VHOST_USER_HEADER_BYTES);
  return bytes;
}

const NOTHING = new Uint8Array(0);

/** A reply's flags are exactly version and reply: User-Mode Linux takes nothing else. */
export function encodeReply(request: number, payload: Uint8Array): Uint8Array {
  return encodeMessage(request, VHOST_USER_REPLY, payload);
}

export function decodeU64(payload: Uint8Array): Features | undefined {
  if (payload.length < 8) return undefined;
  const at = view(payload);
  return { lo: at.getUint32(0, true), hi: at.getUint32(4, true) };
}

export function encodeU64({ lo, hi }: Features): Uint8Array {
  const bytes = new Uint8Array(8);
  const at = view(bytes);
  at.setUint32(0, lo, true);
  at.setUint32(4, hi, true);
  return bytes;
}

export function decodeState(payload: Uint8Array): VringState | undefined {
  if (payload.length < STATE_BYTES) return undefined;
  const at = view(payload);
  return { index: at.getUint32(0, true), num: at.getUint32(4, true) };
}

export function encodeState({ index, num }: VringState): Uint8Array {
  return encodeU64({ lo: index, hi: num });
}

/** On the wire the used ring comes before the available one. */
export function decodeVringAddress(payload: Uint8Array): VringAddress | undefined {
  if (payload.length < VRING_ADDR_BYTES) return undefined;
  const at = view(payload);
  return {
    index: at.getUint32(0, true),
    flags: at.getUint32(4, true),
    desc: at.getBigUint64(8, true),
    used: at.getBigUint64(16, true),
    avail: at.getBigUint64(24, true),
    log: at.getBigUint64(32, true),
  };
}

export function encodeVringAddress(address: VringAddress): Uint8Array {
  const bytes = new Uint8Array(VRING_ADDR_BYTES);
  const at = view(bytes);
  at.setUint32(0, address.index, true);
  at.setUint32(4, address.flags, true);
  at.setBigUint64(8, address.desc, true);
  at.setBigUint64(16, address.used, true);
  at.setBigUint64(24, address.avail, true);
  at.setBigUint64(32, address.log, true);
  return bytes;
}

function readRegion(at: DataView, offset: number): MemoryRegion {
  return {
    guestAddress: at.getBigUint64(offset, true),
    bytes: at.getBigUint64(offset + 8, true),
    userAddress: at.getBigUint64(offset + 16, true),
    mmapOffset: at.getBigUint64(offset + 24, true),
  };
}

function writeRegion(at: DataView, offset: number, region: MemoryRegion): void {
  at.setBigUint64(offset, region.guestAddress, true);
  at.setBigUint64(offset + 8, region.bytes, true);
  at.setBigUint64(offset + 16, region.userAddress, true);
  at.setBigUint64(offset + 24, region.mmapOffset, true);
}

/** Regions in the order of their descriptors. The count is believed only if so many are there. */
export function decodeMemoryTable(payload: Uint8Array): MemoryRegion[] | undefined {
  if (payload.length < TABLE_REGIONS_AT) return undefined;
  const at = view(payload);
  const count = at.getUint32(0, true);
  if (count > (payload.length - TABLE_REGIONS_AT) / MEMORY_REGION_BYTES) return undefined;
  return Array.from({ length: count }, (_, i) => readRegion(at, TABLE_REGIONS_AT + i * MEMORY_REGION_BYTES));
}

export function encodeMemoryTable(regions: readonly MemoryRegion[]): Uint8Array {
  const bytes = new Uint8Array(TABLE_REGIONS_AT + regions.length * MEMORY_REGION_BYTES);
  const at = view(bytes);
  at.setUint32(0, regions.length, true);
  for (const [i, region] of regions.entries()) {
    writeRegion(at, TABLE_REGIONS_AT + i * MEMORY_REGION_BYTES, region);
  }
  return bytes;
}

/** The payload of ADD_MEM_REG and REM_MEM_REG: a region after 8 bytes of padding. */
export function decodeSingleRegion(payload: Uint8Array): MemoryRegion | undefined {
  if (payload.length < TABLE_REGIONS_AT + MEMORY_REGION_BYTES) return undefined;
  return readRegion(view(payload), TABLE_REGIONS_AT);
}

export function encodeSingleRegion(region: MemoryRegion): Uint8Array {
  const bytes = new Uint8Array(TABLE_REGIONS_AT + MEMORY_REGION_BYTES);
  writeRegion(view(bytes), TABLE_REGIONS_AT, region);
  return bytes;
}

export function decodeConfig(payload: Uint8Array): ConfigSpace | undefined {
  if (payload.length < CONFIG_HEADER_BYTES) return undefined;
  const at = view(payload);
  return {
    offset: at.getUint32(0, true),
    bytes: at.getUint32(4, true),
    flags: at.getUint32(8, true),
    data: payload.subarray(CONFIG_HEADER_BYTES),
  };
}

export function encodeConfig({ offset, bytes: size, flags, data }: ConfigSpace): Uint8Array {
  const bytes = new Uint8Array(CONFIG_HEADER_BYTES + data.length);
  const at = view(bytes);
  at.setUint32(0, offset, true);
  at.setUint32(4, size, true);
  at.setUint32(8, flags, true);
  bytes.set(data, CONFIG_HEADER_BYTES);
  return bytes;
}
