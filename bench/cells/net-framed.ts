/**
 * Baseline: small messages over `node:net` with a 48-byte header in front of each, batched, as a competent program
 * writes it in JavaScript.
 *
 * The header is laid out as that of RDS, so that both transports move the same bytes. Messages may have any length in
 * such a program, so nothing is taken from where the last message happened to lie: the sender writes the whole header
 * and the payload of every message into a batch of 256, and writes the batch with one call. A batch buffer is used
 * again only when its write has been called back, and when the socket asks to wait, the sender waits.
 *
 * The receiver goes from frame to frame by the length field, also where a frame straddles two reads, checks length,
 * sequence number, destination port and flags, and counts. It hands nothing on.
 */
import type { Socket } from 'node:net';
import { type CellSide, numberOption, type Options } from './cell.ts';
import { dialAndRead, listenForOne, type NetSender, Progress } from './net-kit.ts';

const HEADER_BYTES = 48;
/** Offsets of header fields; all are big-endian. */
const SEQUENCE = 0;
const ACK = 8;
const LENGTH = 16;
const SPORT = 20;
const DPORT = 22;
const FLAGS = 24;
const EXTENSIONS = 32;
const BATCH_MESSAGES = 256;
const BATCH_BUFFERS = 4;
const RECEIVE_BUFFER_BYTES = 1 << 20;
const SENDER_PORT = 4001;
const RECEIVER_PORT = 4000;

interface Batch {
  bytes: Buffer;
  view: DataView;
}

function sender(): CellSide {
  let server: NetSender;
  let payload: Buffer;
  let sequence = 0;
  const free: Batch[] = [];

  /** Returns the bytes filled. */
  function fill({ bytes, view }: Batch, messages: number): number {
    let at = 0;
    for (let i = 0; i < messages; i++) {
      sequence++;
      view.setUint32(at + SEQUENCE, Math.floor(sequence / 2 ** 32));
      view.setUint32(at + SEQUENCE + 4, sequence >>> 0);
      view.setUint32(at + ACK, 0);
      view.setUint32(at + ACK + 4, 0);
      view.setUint32(at + LENGTH, payload.length);
      view.setUint16(at + SPORT, SENDER_PORT);
      view.setUint16(at + DPORT, RECEIVER_PORT);
      view.setUint32(at + FLAGS, 0);
      view.setUint32(at + FLAGS + 4, 0);
      for (let word = EXTENSIONS; word < HEADER_BYTES; word += 4) view.setUint32(at + word, 0);
      bytes.set(payload, at + HEADER_BYTES);
      at += HEADER_BYTES + payload.length;
    }
    return at;
  }

  return {
    async open(options: Options): Promise<Options> {
      payload = Buffer.alloc(numberOption(options, 'messageBytes'), 'z');
      for (let i = 0; i < BATCH_BUFFERS; i++) {
        const bytes = Buffer.alloc(BATCH_MESSAGES * (HEADER_BYTES + payload.length));
        free.push({ bytes, view: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength) });
      }
      server = await listenForOne();
      return { port: server.port };
    },
    async run({ count }) {
      const socket = await server.socket;
      await new Promise<void>((resolve, reject) => {
        let left = count;
        let outstanding = 0;
        const pump = (): void => {
          while (left > 0 && free.length > 0 && !socket.writableNeedDrain) {
            const batch = free.pop()!;
            const messages = Math.min(left, BATCH_MESSAGES);
            const bytes = fill(batch, messages);
            left -= messages;
            outstanding++;
            socket.write(batch.bytes.subarray(0, bytes), (error) => {
              free.push(batch);
              outstanding--;
              if (error) reject(error);
              else if (left === 0 && outstanding === 0) resolve();
              // With 'drain' due, its listener goes on; the event comes after this callback.
              else if (!socket.writableNeedDrain) pump();
            });
          }
          if (left > 0 && socket.writableNeedDrain) socket.once('drain', pump);
        };
        pump();
      });
      return {};
    },
    async close() {
      server.close();
    },
  };
}

function receiver(): CellSide {
  const progress = new Progress();
  let socket: Socket;
  return {
    async open(options: Options): Promise<Options> {
      const parser = new FrameCounter(numberOption(options, 'messageBytes'));
      socket = await dialAndRead(numberOption(options, 'port'), RECEIVE_BUFFER_BYTES, (buffer, bytes) =>
        progress.add(parser.take(buffer, bytes)),
      );
      return {};
    },
    async run({ count }) {
      await progress.more(count);
      return {};
    },
    async close() {
      socket.destroy();
    },
  };
}

/** Walks the frames of a byte stream in pieces; a frame cut by the end of a piece is put together in `#rest`. */
class FrameCounter {
  readonly #payloadBytesMax: number;
  readonly #rest: Buffer;
  #restBytes = 0;
  #sequence = 0;

  constructor(payloadBytesMax: number) {
    this.#payloadBytesMax = payloadBytesMax;
    this.#rest = Buffer.alloc(HEADER_BYTES + payloadBytesMax);
  }

  /** Messages completed by the first `bytes` bytes of `buffer`. */
  take(buffer: Buffer, bytes: number): number {
    let messages = 0;
    let at = this.#restBytes === 0 ? 0 : this.#complete(buffer, bytes);
    if (at > 0) messages++;
    if (this.#restBytes > 0) return 0;
    for (;;) {
      const frameBytes = bytes - at < HEADER_BYTES ? HEADER_BYTES : this.#check(buffer, at);
      if (bytes - at < frameBytes) break;
      this.#sequence = (this.#sequence + 1) >>> 0;
      at += frameBytes;
      messages++;
    }
    if (at < bytes) this.#restBytes = buffer.copy(this.#rest, 0, at, bytes);
    return messages;
  }

  /** Fills up the frame in `#rest`; returns how much of `buffer` that took, with `#restBytes` 0 when it is whole. */
  #complete(buffer: Buffer, bytes: number): number {
    let at = 0;
    for (;;) {
      const wanted = this.#restBytes < HEADER_BYTES ? HEADER_BYTES : this.#check(this.#rest, 0);
      if (this.#restBytes === wanted && wanted > HEADER_BYTES) break;
      const taken = buffer.copy(
        this.#rest,
        this.#restBytes,
        at,
        Math.min(bytes, at + wanted - this.#restBytes),
      );
      if (taken === 0) return at;
      at += taken;
      this.#restBytes += taken;
    }
    this.#sequence = (this.#sequence + 1) >>> 0;
    this.#restBytes = 0;
    return at;
  }

  /** Checks the header at `at` and returns the length of its frame. */
  #check(buffer: Buffer, at: number): number {
    const payloadBytes = buffer.readUInt32BE(at + LENGTH);
    if (payloadBytes === 0 || payloadBytes > this.#payloadBytesMax) throw new Error('wrong length field');
    if (buffer.readUInt32BE(at + SEQUENCE + 4) !== (this.#sequence + 1) >>> 0)
      throw new Error('wrong sequence');
    if (buffer.readUInt16BE(at + DPORT) !== RECEIVER_PORT) throw new Error('wrong port');
    if (buffer[at + FLAGS] !== 0) throw new Error('wrong flags');
    return HEADER_BYTES + payloadBytes;
  }
}

export const sides: Record<string, () => CellSide> = { sender, receiver };
