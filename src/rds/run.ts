/**
 * A run: what one socket (or the protocol itself) sends to one peer, as wire bytes in the order they will be sent.
 *
 *   many small messages:   head = [hdr|payload|hdr|payload|...]           payload = null
 *   one large message:     head = [hdr]                                   payload = the program's or a copied buffer
 *
 * The unit of queueing is the run, not the message, so that a million small messages a second cost a few hundred
 * objects. Message boundaries are read from the headers when they matter: for acknowledgement, and after a lost
 * connection, when each message that was begun must be marked RETRANSMITTED.
 */
import type { Ubuf } from '../core/ubuf.ts';
import { dport, FLAGS_OFFSET, HEADER_BYTES, payloadLength, RETRANSMITTED } from '../wire/rds.ts';

/** Who is charged for the bytes of a run until they are acknowledged or given up. */
export interface SendOwner {
  uncharge(payloadBytes: number, messages: number): void;
}

export class Run {
  owner: SendOwner | null;
  readonly chunk: Ubuf;
  readonly bytes: Uint8Array;
  /** Head bytes are bytes[start..end). `start` moves up over messages that were acknowledged. */
  start: number;
  end: number;
  readonly payload: Ubuf | null;
  /** The payload is the program's memory: lent, not copied. */
  readonly lent: boolean;
  /** A handshake probe: not sent again after a reconnect, as each connection has its own. */
  readonly probe: boolean;
  /** A ping or pong of the protocol itself. */
  readonly control: boolean;
  /** Messages in it, and their payload bytes, not yet given back to the owner. */
  messages: number;
  payloadBytes: number;
  /** Bytes, counted from `start`, that were written to the current connection. */
  sent = 0;
  /** Position of `start` in the stream of the current connection. */
  streamStart = 0;
  /** Bytes from `start`: messages that begin before it belong to a generation of the peer that is gone. */
  staleEnd = 0;
  /** Some of it was begun on an earlier connection and goes first on the next. */
  resent = false;
  /** The owner is gone: finish what is half sent, send nothing again. */
  cancelled = false;

  constructor(
    owner: SendOwner | null,
    chunk: Ubuf,
    bytes: Uint8Array,
    start: number,
    end: number,
    payload: Ubuf | null,
    lent: boolean,
    probe = false,
    control = false,
  ) {
    this.owner = owner;
    this.chunk = chunk.ref();
    this.bytes = bytes;
    this.start = start;
    this.end = end;
    this.payload = payload;
    this.lent = lent;
    this.probe = probe;
    this.control = control;
    this.messages = 1;
    this.payloadBytes = payload === null ? end - start - HEADER_BYTES : payload.byteLength;
  }

  get headLength(): number {
    return this.end - this.start;
  }

  get byteLength(): number {
    return this.end - this.start + (this.payload === null ? 0 : this.payload.byteLength);
  }

  /** Adds a message that was staged right behind the last one. */
  extend(end: number): void {
    this.payloadBytes += end - this.end - HEADER_BYTES;
    this.end = end;
    this.messages += 1;
  }

  /** Length of the first message, header included. */
  firstMessageLength(): number {
    return this.payload === null ? HEADER_BYTES + payloadLength(this.bytes, this.start) : this.byteLength;
  }

  /** Gives back the messages that end at or before `limit` bytes from `start`; returns how many. */
  dropFront(limit: number): number {
    if (this.payload !== null) return limit >= this.byteLength && this.messages > 0 ? this.#settle() : 0;
    let messages = 0;
    let payloadBytes = 0;
    let cut = 0;
    while (this.messages > messages) {
      const length = HEADER_BYTES + payloadLength(this.bytes, this.start + cut);
      if (cut + length > limit) break;
      cut += length;
      messages += 1;
      payloadBytes += length - HEADER_BYTES;
    }
    if (messages === 0) return 0;
    this.start += cut;
    this.sent = Math.max(0, this.sent - cut);
    this.streamStart += cut;
    this.staleEnd = Math.max(0, this.staleEnd - cut);
    this.messages -= messages;
    this.payloadBytes -= payloadBytes;
    this.owner?.uncharge(payloadBytes, messages);
    return messages;
  }

  /** Offset, from `start`, of the end of the last message that begins before `limit`. */
  boundaryAfter(limit: number): number {
    if (limit <= 0) return 0;
    if (this.payload !== null) return this.byteLength;
    let at = 0;
    while (at < limit) at += HEADER_BYTES + payloadLength(this.bytes, this.start + at);
    return at;
  }

  /** Offset, from `start`, of the last message that begins before `limit`, a boundary. */
  boundaryBefore(limit: number): number {
    if (this.payload !== null) return 0;
    let from = 0;
    for (let at = 0; at < limit; ) {
      from = at;
      at += HEADER_BYTES + payloadLength(this.bytes, this.start + at);
    }
    return from;
  }

  /** All of its messages go to RDS port `port`. */
  goesTo(port: number): boolean {
    return dport(this.bytes, this.start) === port && this.portChange(port) === this.byteLength;
  }

  /** Offset, from `start`, of the first message that goes to `port` if the first does not, or the other way round; or the end. */
  portChange(port: number): number {
    if (this.payload !== null) return this.byteLength;
    const first = dport(this.bytes, this.start) === port;
    let at = 0;
    while (at < this.headLength && (dport(this.bytes, this.start + at) === port) === first)
      at += HEADER_BYTES + payloadLength(this.bytes, this.start + at);
    return at;
  }

  /** Moves the small messages at and behind `at`, a boundary before the end, to a run of their own. */
  split(at: number): Run {
    const from = this.start + at;
    const tail = new Run(this.owner, this.chunk, this.bytes, from, this.end, null, false);
    let messages = 0;
    for (let i = 0; i < at; messages++) i += HEADER_BYTES + payloadLength(this.bytes, this.start + i);
    tail.messages = this.messages - messages;
    tail.payloadBytes = this.end - from - tail.messages * HEADER_BYTES;
    this.messages = messages;
    this.payloadBytes -= tail.payloadBytes;
    this.end = from;
    return tail;
  }

  /** Cuts off the messages at and behind `at`, a boundary; returns how many. */
  truncate(at: number): number {
    let messages = 0;
    let payloadBytes = 0;
    for (let from = this.start + at; from < this.end; ) {
      const length = payloadLength(this.bytes, from);
      from += HEADER_BYTES + length;
      messages += 1;
      payloadBytes += length;
    }
    this.end = this.start + at;
    this.messages -= messages;
    this.payloadBytes -= payloadBytes;
    this.owner?.uncharge(payloadBytes, messages);
    return messages;
  }

  /** Marks the messages that begin before `limit` as sent before; returns how many. */
  flag(limit: number): number {
    let count = 0;
    let at = 0;
    while (at < limit) {
      this.bytes[this.start + at + FLAGS_OFFSET]! |= RETRANSMITTED;
      count += 1;
      if (this.payload !== null) break;
      at += HEADER_BYTES + payloadLength(this.bytes, this.start + at);
    }
    return count;
  }

  /** Ends the run: what it still holds goes back to its owners. */
  release(): void {
    this.#settle();
    this.payload?.unref();
    this.chunk.unref();
  }

  #settle(): number {
    const messages = this.messages;
    if (messages > 0) this.owner?.uncharge(this.payloadBytes, messages);
    this.messages = 0;
    this.payloadBytes = 0;
    return messages;
  }
}
