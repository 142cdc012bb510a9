/** What recvmsg() returns: a message, or news. */
import { ZerotxError } from '../core/errors.ts';
import type { ReceiveBuffer } from './memory.ts';
import type { MessageTrace, RdsLatency } from './socket-trace.ts';

const noCookies: readonly number[] = Object.freeze([]);

/** Zero-copy completions that came alone (RDS_CMSG_ZCOPY_COMPLETION): 1 to 8 cookies. */
export interface RdsCompletion {
  readonly kind: 'completion';
  readonly cookies: readonly number[];
}

/** Congested ports that may be free again (RDS_CMSG_CONG_UPDATE): bit (port % 64). May be spurious. */
export interface RdsCongestionNews {
  readonly kind: 'congestion';
  readonly mask: bigint;
}

/** Where messages come from, and who is told how much memory they hold while they wait to be read. */
export interface MessageSource {
  readonly address: string;
  held(deltaBytes: number): void;
}

/** What a waiting message costs beyond its buffer (its objects), so that empty ones are bounded, too. */
export const MESSAGE_OVERHEAD_BYTES = 256;

/** A message in `buffer` waits: the whole buffer is held while any in it does. */
export function holdBuffer(source: MessageSource, buffer: ReceiveBuffer): void {
  buffer.queuedMessages += 1;
  source.held(MESSAGE_OVERHEAD_BYTES + (buffer.queuedMessages === 1 ? buffer.bytes.byteLength : 0));
}

/** It does not wait any more. */
export function releaseBuffer(source: MessageSource, buffer: ReceiveBuffer): void {
  buffer.queuedMessages -= 1;
  source.held(-MESSAGE_OVERHEAD_BYTES - (buffer.queuedMessages === 0 ? buffer.bytes.byteLength : 0));
}

/** How much of a message the program has room for, and what recvmsg(2) says of it. */
interface Shown {
  readonly dataLength: number;
  readonly length: number;
}

/**
 * A received message. `data` is memory of the receive pool: it is yours for as long as you keep it, and if you call
 * recycle() when you are done, the next message reuses it while it is warm.
 */
export class RdsMessage {
  readonly kind = 'data';
  /** Payload bytes as they were sent. */
  readonly fullLength: number;
  /** The sender's RDS port; 0 for a pong. */
  readonly port: number;
  /** Zero-copy completions that came along, at most 8. */
  cookies: readonly number[] = noCookies;
  readonly #source: MessageSource;
  readonly #offset: number;
  readonly #buffer: ReceiveBuffer;
  #state: 'new' | 'queued' | 'read' | 'recycled' = 'new';
  #data: Buffer | null = null;
  /** Null while all of it is shown, as nearly always. */
  #shown: Shown | null = null;
  #trace: MessageTrace | null = null;

  constructor(source: MessageSource, port: number, buffer: ReceiveBuffer, offset: number, length: number) {
    this.#source = source;
    this.port = port;
    this.#buffer = buffer;
    this.#offset = offset;
    this.fullLength = length;
  }

  /** The sender's IP address. */
  get address(): string {
    return this.#source.address;
  }

  /** What recvmsg(2) returns: bytes of `data`, or with `trunc` as many as were sent. */
  get length(): number {
    return this.#shown === null ? this.fullLength : this.#shown.length;
  }

  /** MSG_TRUNC: `maxBytes` was less than the message has, and the rest is gone. */
  get truncated(): boolean {
    return this.#dataLength < this.fullLength;
  }

  /** When it came (SO_TIMESTAMP): milliseconds since the epoch, with a fraction. Null if nobody had asked by then. */
  get timestamp(): number | null {
    return this.#trace === null ? null : this.#trace.timestamp;
  }

  /** How long it took (SO_RDS_MSG_RXPATH_LATENCY), a point after the other as they were asked for; else null. */
  get latency(): readonly RdsLatency[] | null {
    return this.#trace === null ? null : this.#trace.latency;
  }

  /** The payload, without a copy. Throws ZTX_RECYCLED after recycle(). */
  get data(): Buffer {
    if (this.#data !== null) return this.#data;
    if (this.#state === 'recycled') {
      throw new ZerotxError('ZTX_RECYCLED', 'the message was recycled: its data may be in use by another');
    }
    this.#data = this.#buffer.bytes.subarray(this.#offset, this.#offset + this.#dataLength);
    return this.#data;
  }

  /**
   * Gives the memory back; `data` must not be used any more. Optional: the garbage collector does it otherwise. A message that
   * was only peeked at is still in the queue, and is left alone.
   */
  recycle(): void {
    if (this.#state !== 'read') return;
    this.#state = 'recycled';
    this.#data = null;
    this.#buffer.unref();
  }

  /** For the socket: how much of it the program has room for. Said anew after a peek. */
  show(maxBytes: number, trunc: boolean): void {
    const dataLength = Math.min(maxBytes, this.fullLength);
    if (dataLength !== this.#dataLength) this.#data = null;
    const isAll = dataLength === this.fullLength;
    this.#shown = isAll ? null : { dataLength, length: trunc ? this.fullLength : dataLength };
  }

  /** For the socket: when it came. */
  stamp(trace: MessageTrace): void {
    this.#trace = trace;
  }

  /** For the socket: recvmsg() returns it now. */
  readAt(nowMs: number): void {
    this.#trace?.read(nowMs);
  }

  get #dataLength(): number {
    return this.#shown === null ? this.fullLength : this.#shown.dataLength;
  }

  /** For the receive queue: the message waits there. */
  entered(): void {
    this.#state = 'queued';
    holdBuffer(this.#source, this.#buffer);
  }

  /** It was read, or discarded. */
  left(): void {
    this.#state = 'read';
    releaseBuffer(this.#source, this.#buffer);
  }
}

export type RdsReceived = RdsMessage | RdsCompletion | RdsCongestionNews;
