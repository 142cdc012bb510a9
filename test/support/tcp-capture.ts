/**
 * Captures made by hand: TCP conversations between 10.0.0.1, which dials, and 10.0.0.2, segment by segment, as a file that
 * capture tools read. A segment may lie anywhere in its stream, so that holes, repetitions and any order can be made.
 */
import { IPPROTO_TCP } from '../../src/wire/ip.ts';
import {
  PCAP_HEADER_BYTES,
  PCAP_RECORD_BYTES,
  PCAP_SNAP_BYTES_MAX,
  writePcapHeader,
  writePcapRecord,
} from '../../src/wire/pcap.ts';
import type { Side } from './pcap.ts';

const FIN = 0x01;
const SYN = 0x02;
const ACK = 0x10;
const HEAD_BYTES = 14 + 20 + 20;
/** Between two frames. Below the 3 ms in which Wireshark takes an early segment for reordered. */
const STEP_NS = 100_000;

export class TcpCapture {
  readonly #records: Uint8Array[] = [];
  readonly #snapBytes: number;
  #frames = 0;

  /** `snapBytes`: what is kept of each frame. */
  constructor(snapBytes: number = PCAP_SNAP_BYTES_MAX) {
    this.#snapBytes = snapBytes;
  }

  /** A conversation; without `syn` it was there before the capture. */
  talk(
    clientPort: number,
    { syn = true, serverPort = 16_385 }: { syn?: boolean; serverPort?: number } = {},
  ): Talk {
    const talk = new Talk((frame) => this.#add(frame), clientPort, serverPort);
    if (syn) talk.handshake();
    return talk;
  }

  /** Frames so far; the next has this number plus one in Wireshark. */
  get frames(): number {
    return this.#frames;
  }

  file(): Uint8Array {
    const head = new Uint8Array(PCAP_HEADER_BYTES);
    writePcapHeader(head, 0, PCAP_SNAP_BYTES_MAX);
    return Buffer.concat([head, ...this.#records]);
  }

  #add(frame: Uint8Array): void {
    const kept = frame.subarray(0, this.#snapBytes);
    const head = new Uint8Array(PCAP_RECORD_BYTES);
    const nanoseconds = this.#frames * STEP_NS;
    writePcapRecord(
      head,
      0,
      1000 + Math.floor(nanoseconds / 1e9),
      nanoseconds % 1e9,
      kept.length,
      frame.length,
    );
    this.#records.push(head, kept);
    this.#frames += 1;
  }
}

export class Talk {
  readonly #add: (frame: Uint8Array) => void;
  readonly #ports: Record<Side, number>;
  /** First byte of each stream, as TCP numbers it. */
  readonly #base: Record<Side, number> = { client: 0x1000_0001, server: 0x2000_0001 };
  /** Bytes of each stream that were sent. */
  readonly #sent: Record<Side, number> = { client: 0, server: 0 };

  constructor(add: (frame: Uint8Array) => void, clientPort: number, serverPort: number) {
    this.#add = add;
    this.#ports = { client: clientPort, server: serverPort };
  }

  handshake(): void {
    this.#segment('client', -1, SYN, new Uint8Array(0));
    this.#segment('server', -1, SYN | ACK, new Uint8Array(0));
    this.#segment('client', 0, ACK, new Uint8Array(0));
  }

  /** The next bytes of `from`'s stream, one segment for each piece. */
  send(from: Side, ...pieces: readonly Uint8Array[]): void {
    for (const piece of pieces) {
      this.#segment(from, this.#sent[from], ACK, piece);
      this.#sent[from] += piece.length;
    }
  }

  /** Bytes that were sent, and are not in the capture. */
  lose(from: Side, bytes: number): void {
    this.#sent[from] += bytes;
  }

  /** Bytes at any place of the stream; send() goes on where it was. */
  place(from: Side, at: number, bytes: Uint8Array): void {
    this.#segment(from, at, ACK, bytes);
  }

  finish(from: Side): void {
    this.#segment(from, this.#sent[from], FIN | ACK, new Uint8Array(0));
  }

  #segment(from: Side, at: number, flags: number, bytes: Uint8Array): void {
    const to = from === 'client' ? 'server' : 'client';
    const frame = Buffer.alloc(HEAD_BYTES + bytes.length);
    frame.writeUInt16BE(0x0800, 12);
    frame[14] = 0x45;
    frame.writeUInt16BE(HEAD_BYTES - 14 + bytes.length, 16);
    frame[22] = 64;
    frame[23] = IPPROTO_TCP;
    frame.set([10, 0, 0, from === 'client' ? 1 : 2, 10, 0, 0, from === 'client' ? 2 : 1], 26);
    frame.writeUInt16BE(this.#ports[from], 34);
    frame.writeUInt16BE(this.#ports[to], 36);
    frame.writeUInt32BE((this.#base[from] + at) >>> 0, 38);
    if ((flags & ACK) !== 0) frame.writeUInt32BE((this.#base[to] + this.#sent[to]) >>> 0, 42);
    frame[46] = 0x50;
    frame[47] = flags;
    frame.writeUInt16BE(0xffff, 48);
    frame.set(bytes, HEAD_BYTES);
    this.#add(frame);
  }
}
