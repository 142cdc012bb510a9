/** Packets, and what becomes of them, written once more: slow, to the letter of the documents, and without the product's code. */

export interface TcpOptions {
  readonly version: 4 | 6;
  /** VLANs of tags, from outside. */
  readonly tags?: readonly number[];
  /** Words of IPv4 options, or 8-byte units of IPv6 destination options. */
  readonly extra?: number;
  /** Words of TCP options. */
  readonly tcpOptions?: number;
  readonly payload: Uint8Array;
  readonly flags?: number;
  readonly sequence?: number;
  readonly id?: number;
}

export interface Packet {
  readonly bytes: Uint8Array;
  readonly networkAt: number;
  readonly transportAt: number;
  readonly headerBytes: number;
}

export const MAC_A: Uint8Array = Uint8Array.of(2, 0, 0, 0, 0, 0xa);
export const MAC_B: Uint8Array = Uint8Array.of(2, 0, 0, 0, 0, 0xb);
export const BROADCAST: Uint8Array = Uint8Array.of(255, 255, 255, 255, 255, 255);

export function mac(last: number): Uint8Array {
  return Uint8Array.of(2, 0, 0, 0, last >>> 8, last);
}

/** An untagged, or tagged, frame of `length` bytes that no one knows the type of. */
export function frame(
  to: Uint8Array,
  from: Uint8Array,
  length = 64,
  tags: readonly number[] = [],
): Uint8Array {
  const bytes = new Uint8Array(length);
  for (let i = 14; i < length; i++) bytes[i] = i * 7;
  bytes.set(to);
  bytes.set(from, 6);
  let at = 12;
  for (const tci of tags) {
    bytes.set([0x81, 0, tci >>> 8, tci & 255], at);
    at += 4;
  }
  bytes.set([0x88, 0xb5], at);
  return bytes;
}

/** A TCP packet as a guest gives it to a device with checksum offload: the pseudo header's sum is in the checksum field. */
export function tcp(options: TcpOptions): Packet {
  const {
    version,
    tags = [],
    extra = 0,
    tcpOptions = 0,
    payload,
    flags = 0x10,
    sequence = 1,
    id = 0,
  } = options;
  const networkAt = 14 + 4 * tags.length;
  const transportAt = networkAt + (version === 4 ? 20 + 4 * extra : 40 + 8 * extra);
  const headerBytes = transportAt + 20 + 4 * tcpOptions;
  const bytes = new Uint8Array(headerBytes + payload.length);
  bytes.set(MAC_B);
  bytes.set(MAC_A, 6);
  for (const [i, tag] of tags.entries()) bytes.set([0x81, 0, tag >>> 8, tag & 255], 12 + 4 * i);
  const view = new DataView(bytes.buffer);
  view.setUint16(networkAt - 2, version === 4 ? 0x0800 : 0x86dd);
  bytes.set(payload, headerBytes);
  if (version === 4) {
    bytes[networkAt] = 0x40 | (5 + extra);
    view.setUint16(networkAt + 4, id);
    view.setUint16(networkAt + 6, 0x4000);
    bytes.set([64, 6], networkAt + 8);
    bytes.set([10, 1, 2, 3, 192, 168, 77, 5], networkAt + 12);
    bytes.fill(1, networkAt + 20, transportAt);
  } else {
    bytes.set([0x60, 0, 0, 0], networkAt);
    bytes.set([extra === 0 ? 6 : 60, 64], networkAt + 6);
    bytes.set([0xfe, 0x80, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14], networkAt + 8);
    bytes.set([0xfd, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0xff, 0xee, 0xdd, 0xcc], networkAt + 24);
    if (extra > 0) bytes.set([6, extra - 1, 1, 8 * extra - 4], networkAt + 40);
  }
  view.setUint16(transportAt, 40_000);
  view.setUint16(transportAt + 2, 443);
  view.setUint32(transportAt + 4, sequence);
  view.setUint32(transportAt + 8, 0x01020304);
  bytes[transportAt + 12] = (5 + tcpOptions) << 4;
  bytes[transportAt + 13] = flags;
  view.setUint16(transportAt + 14, 502);
  bytes.fill(1, transportAt + 20, headerBytes);
  const packet = { bytes, networkAt, transportAt, headerBytes };
  setLengths(packet, version);
  view.setUint16(transportAt + 16, sum16(pseudoHeader(packet, version)));
  return packet;
}

/** What a peer should be sent: each segment with everything right in it. */
export function segments(options: TcpOptions, segmentBytes: number): Packet[] {
  const { payload, flags = 0x10, sequence = 1, id = 0, version } = options;
  const count = Math.max(1, Math.ceil(payload.length / segmentBytes));
  return Array.from({ length: count }, (_, i) => {
    let its = flags;
    if (i > 0) its &= ~0x80;
    if (i < count - 1) its &= ~(0x01 | 0x08);
    const packet = tcp({
      ...options,
      payload: payload.subarray(i * segmentBytes, (i + 1) * segmentBytes),
      flags: its,
      sequence: (sequence + i * segmentBytes) >>> 0,
      id: (id + i) & 0xffff,
    });
    completeTcp(packet, version);
    return packet;
  });
}

export function completeTcp(packet: Packet, version: 4 | 6): void {
  const view = new DataView(packet.bytes.buffer);
  view.setUint16(packet.transportAt + 16, 0);
  const covered = [...pseudoHeader(packet, version), ...packet.bytes.subarray(packet.transportAt)];
  view.setUint16(packet.transportAt + 16, ~sum16(covered) & 0xffff);
}

function setLengths({ bytes, networkAt, transportAt }: Packet, version: 4 | 6): void {
  const view = new DataView(bytes.buffer);
  if (version === 6) {
    view.setUint16(networkAt + 4, (bytes.length - networkAt - 40) & 0xffff);
    return;
  }
  view.setUint16(networkAt + 2, (bytes.length - networkAt) & 0xffff);
  view.setUint16(networkAt + 10, ~sum16([...bytes.subarray(networkAt, transportAt)]) & 0xffff);
}

/** RFC 9293, section 3.1; RFC 8200, section 8.1. */
function pseudoHeader({ bytes, networkAt, transportAt }: Packet, version: 4 | 6): number[] {
  const addresses =
    version === 4
      ? bytes.subarray(networkAt + 12, networkAt + 20)
      : bytes.subarray(networkAt + 8, networkAt + 40);
  const length = bytes.length - transportAt;
  return [...addresses, length >>> 24, (length >>> 16) & 255, (length >>> 8) & 255, length & 255, 0, 0, 0, 6];
}

/** The one's complement sum (RFC 1071). */
export function sum16(bytes: readonly number[]): number {
  let sum = 0;
  for (let i = 0; i < bytes.length; i += 2) {
    sum += bytes[i]! * 256 + (bytes[i + 1] ?? 0);
    if (sum > 0xffff) sum -= 0xffff;
  }
  return sum;
}

/** For messages that show where two frames differ. */
export function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}
