/**
 * Packet captures as test vectors: reads classic pcap files and puts the TCP streams in them together again.
 *
 * `readPackets` undoes the file format (both byte orders, micro- and nanoseconds). `readConnections` plays the part of
 * both receivers: it takes the TCP segments in the order of capture, drops what was already delivered (retransmissions,
 * keepalive and window probes, overlaps), holds back what arrives early, and notes each run of new bytes as an event, so
 * a test can either look at whole streams or replay them as they arrived. Only Ethernet and IPv4 or IPv6 without
 * extension headers are understood; other frames are skipped.
 *
 * Limits, fine for captures from a quiet link: checksums and windows are not looked at; a segment that belongs to the
 * time before a mid-connection capture is recognized only if it is not the first data segment of its direction.
 */

export interface Packet {
  timeUs: number;
  frame: Uint8Array;
  /** Length on the wire; larger than `frame` when the capture cut the frame. */
  wireBytes: number;
}

export type Side = 'client' | 'server';

export interface StreamEvent {
  timeUs: number;
  from: Side;
  kind: 'syn' | 'data' | 'fin' | 'rst';
  /** New in-order bytes; empty unless `kind` is `data`. */
  bytes: Uint8Array;
}

export interface Direction {
  /** All bytes that could be put in order. */
  bytes: Uint8Array;
  sawSyn: boolean;
  /** The FIN was seen and every byte before it is there. */
  sawFin: boolean;
  /** Bytes were seen beyond a hole that was never filled; they are not in `bytes`. */
  hasGap: boolean;
  /** From SYN to FIN without a hole. */
  complete: boolean;
}

export interface Connection {
  /** `address:port`. Without a SYN, the side with the higher port is taken for the client. */
  client: string;
  server: string;
  /** The client's SYN is in the capture. */
  sawSyn: boolean;
  resetBy: Side | undefined;
  directions: Record<Side, Direction>;
  /** In order of capture. */
  events: StreamEvent[];
}

const linkTypeEthernet = 1;
const fileHeaderBytes = 24;
const recordHeaderBytes = 16;

export function readPackets(file: Uint8Array): Packet[] {
  const view = viewOf(file);
  const magic = view.getUint32(0, true);
  const littleEndian = magic === 0xa1b2c3d4 || magic === 0xa1b23c4d;
  const ordered = view.getUint32(0, littleEndian);
  if (ordered !== 0xa1b2c3d4 && ordered !== 0xa1b23c4d) throw new Error('not a classic pcap file');
  const unitsPerUs = ordered === 0xa1b23c4d ? 1000 : 1;
  const linkType = view.getUint32(20, littleEndian) & 0xffff;
  if (linkType !== linkTypeEthernet) throw new Error(`link type ${linkType} is not Ethernet`);

  const packets: Packet[] = [];
  let at = fileHeaderBytes;
  while (at + recordHeaderBytes <= file.length) {
    const seconds = view.getUint32(at, littleEndian);
    const fraction = view.getUint32(at + 4, littleEndian);
    const captured = view.getUint32(at + 8, littleEndian);
    const start = at + recordHeaderBytes;
    if (start + captured > file.length) break; // the writer was stopped in the middle of a record
    packets.push({
      timeUs: seconds * 1e6 + fraction / unitsPerUs,
      frame: file.subarray(start, start + captured),
      wireBytes: view.getUint32(at + 12, littleEndian),
    });
    at = start + captured;
  }
  return packets;
}

export function readConnections(file: Uint8Array): Connection[] {
  const all: Tracker[] = [];
  const current = new Map<string, Tracker>();
  for (const packet of readPackets(file)) {
    const segment = parseSegment(packet);
    if (segment === undefined) continue;
    const key = [segment.from.name, segment.to.name].sort().join(' ');
    let tracker = current.get(key);
    if (tracker === undefined || tracker.isOver(segment)) {
      tracker = new Tracker(segment);
      current.set(key, tracker);
      all.push(tracker);
    }
    tracker.take(segment);
  }
  return all.map((tracker) => tracker.result());
}

const FIN = 0x01;
const SYN = 0x02;
const RST = 0x04;
const ACK = 0x10;

interface Endpoint {
  name: string;
  port: number;
}

interface Segment {
  timeUs: number;
  from: Endpoint;
  to: Endpoint;
  seq: number;
  flags: number;
  payload: Uint8Array;
  /** Payload bytes on the wire; more than `payload` holds when the capture cut the frame. */
  length: number;
}

function parseSegment(packet: Packet): Segment | undefined {
  const { frame } = packet;
  const view = viewOf(frame);
  if (frame.length < 14) return undefined;
  const etherType = view.getUint16(12);
  if (etherType === 0x0800 && frame.length >= 34) {
    if ((view.getUint16(20) & 0x3fff) !== 0 || frame[23] !== 6) return undefined; // fragment, or not TCP
    const tcpAt = 14 + (frame[14]! & 0x0f) * 4;
    // A capture above segmentation offload can show the total length as 0.
    const end = 14 + (view.getUint16(16) || packet.wireBytes - 14);
    return parseTcp(packet, tcpAt, end, dotted(frame, 26), dotted(frame, 30));
  }
  if (etherType === 0x86dd && frame.length >= 54 && frame[20] === 6) {
    const end = 54 + view.getUint16(18);
    return parseTcp(packet, 54, end, `[${hextets(view, 22)}]`, `[${hextets(view, 38)}]`);
  }
  return undefined;
}

function parseTcp(packet: Packet, at: number, end: number, from: string, to: string): Segment | undefined {
  const { frame, timeUs } = packet;
  if (frame.length < at + 20) return undefined;
  const view = viewOf(frame);
  const payloadAt = at + (frame[at + 12]! >> 4) * 4;
  const [fromPort, toPort] = [view.getUint16(at), view.getUint16(at + 2)];
  return {
    timeUs,
    from: { name: `${from}:${fromPort}`, port: fromPort },
    to: { name: `${to}:${toPort}`, port: toPort },
    seq: view.getUint32(at + 4),
    flags: frame[at + 13]!,
    payload: frame.subarray(payloadAt, Math.min(end, frame.length)),
    length: end - payloadAt,
  };
}

/** One connection, from its SYN or the first segment seen. */
class Tracker {
  private readonly client: Endpoint;
  private readonly server: Endpoint;
  private readonly sides: Record<Side, Receiver> = { client: new Receiver(), server: new Receiver() };
  private readonly events: StreamEvent[] = [];
  private clientIsn: number | undefined;
  private resetBy: Side | undefined;

  constructor(first: Segment) {
    const fromClient =
      (first.flags & SYN) !== 0 ? (first.flags & ACK) === 0 : first.from.port >= first.to.port;
    this.client = fromClient ? first.from : first.to;
    this.server = fromClient ? first.to : first.from;
  }

  /** True when the segment opens another connection between the same ports. */
  isOver(segment: Segment): boolean {
    return (segment.flags & (SYN | ACK)) === SYN && segment.seq !== this.clientIsn;
  }

  take(segment: Segment): void {
    const from: Side = segment.from.name === this.client.name ? 'client' : 'server';
    const side = this.sides[from];
    const event = (kind: StreamEvent['kind'], bytes: Uint8Array): void => {
      this.events.push({ timeUs: segment.timeUs, from, kind, bytes });
    };
    if ((segment.flags & SYN) !== 0) {
      if (from === 'client') this.clientIsn = segment.seq;
      if (side.open(segment.seq)) event('syn', new Uint8Array(0));
    }
    const dataSeq = segment.seq + ((segment.flags & SYN) !== 0 ? 1 : 0);
    for (const bytes of side.push(dataSeq, segment.payload)) event('data', bytes);
    if ((segment.flags & FIN) !== 0) side.finish(dataSeq + segment.length);
    if (side.takeFin()) event('fin', new Uint8Array(0));
    if ((segment.flags & RST) !== 0 && this.resetBy === undefined) {
      this.resetBy = from;
      event('rst', new Uint8Array(0));
    }
  }

  result(): Connection {
    return {
      client: this.client.name,
      server: this.server.name,
      sawSyn: this.sides.client.sawSyn,
      resetBy: this.resetBy,
      directions: { client: this.sides.client.result(), server: this.sides.server.result() },
      events: this.events,
    };
  }
}

/** Puts one direction in order. Positions count bytes from the start of the stream as far as it was captured. */
class Receiver {
  sawSyn = false;
  private baseSeq: number | undefined;
  private next = 0;
  private finAt: number | undefined;
  private finDone = false;
  private readonly inOrder: Uint8Array[] = [];
  private early: { at: number; bytes: Uint8Array }[] = [];

  /** Notes a SYN; false when it was seen before. */
  open(seq: number): boolean {
    if (this.sawSyn) return false;
    this.sawSyn = true;
    this.baseSeq = seq + 1;
    return true;
  }

  /** Takes a segment's payload; returns the runs of bytes that are in order now. */
  push(seq: number, payload: Uint8Array): Uint8Array[] {
    if (payload.length === 0) return [];
    this.baseSeq ??= seq;
    this.early.push({ at: this.position(seq), bytes: payload });
    this.early.sort((a, b) => a.at - b.at);
    const runs: Uint8Array[] = [];
    for (const { at, bytes } of this.early) {
      if (at > this.next) break;
      const fresh = bytes.subarray(this.next - at);
      if (fresh.length === 0) continue;
      runs.push(fresh);
      this.next += fresh.length;
    }
    this.early = this.early.filter(({ at, bytes }) => at + bytes.length > this.next);
    this.inOrder.push(...runs);
    return runs;
  }

  finish(seq: number): void {
    this.baseSeq ??= seq;
    this.finAt ??= this.position(seq);
  }

  /** True once, when everything up to the FIN has arrived. */
  takeFin(): boolean {
    if (this.finDone || this.finAt !== this.next) return false;
    this.finDone = true;
    return true;
  }

  result(): Direction {
    return {
      bytes: concat(this.inOrder),
      sawSyn: this.sawSyn,
      sawFin: this.finDone,
      hasGap: this.early.length > 0,
      complete: this.sawSyn && this.finDone,
    };
  }

  /** Sequence numbers wrap; a segment lies within 2^31 of what is expected next. */
  private position(seq: number): number {
    const expected = (this.baseSeq! + this.next) | 0;
    return this.next + ((seq - expected) | 0);
  }
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function dotted(frame: Uint8Array, at: number): string {
  return frame.subarray(at, at + 4).join('.');
}

function hextets(view: DataView, at: number): string {
  return Array.from({ length: 8 }, (_, i) => view.getUint16(at + i * 2).toString(16)).join(':');
}

function concat(parts: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
