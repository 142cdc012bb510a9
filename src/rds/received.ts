/** What recvmsg() returns: a message, or news. */
import { ZerotxError } from '../core/errors.ts';
import type { Ubuf } from '../core/ubuf.ts';

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

/** Who is told that queued bytes were consumed. */
export interface MessageSource {
  readonly address: string;
  consumed(bytes: number): void;
}

/**
 * A received message. `data` is memory of the receive pool: it is yours for as long as you keep it, and if you call
 * recycle() when you are done, the next message reuses it while it is warm.
 */
export class RdsMessage {
  readonly kind = 'data';
  /** Payload bytes. */
  readonly length: number;
  /** The sender's RDS port; 0 for a pong. */
  readonly port: number;
  /** Zero-copy completions that came along, at most 8. */
  cookies: readonly number[] = noCookies;
  readonly #source: MessageSource;
  readonly #offset: number;
  #buffer: Ubuf | null;
  #data: Buffer | null = null;

  constructor(source: MessageSource, port: number, buffer: Ubuf, offset: number, length: number) {
    this.#source = source;
    this.port = port;
    this.#buffer = buffer;
    this.#offset = offset;
    this.length = length;
  }

  /** The sender's IP address. */
  get address(): string {
    return this.#source.address;
  }

  /** The payload, without a copy. Throws ZTX_RECYCLED after recycle(). */
  get data(): Buffer {
    if (this.#data !== null) return this.#data;
    if (this.#buffer === null) {
      throw new ZerotxError('ZTX_RECYCLED', 'the message was recycled: its data may be in use by another');
    }
    const bytes = this.#buffer.iov[0] as Buffer;
    this.#data = bytes.subarray(this.#offset, this.#offset + this.length) as Buffer;
    return this.#data;
  }

  /** Gives the memory back; `data` must not be used any more. Optional: the garbage collector does it otherwise. */
  recycle(): void {
    this.#data = null;
    this.#buffer?.unref();
    this.#buffer = null;
  }

  /** For the socket: the message left the receive queue. */
  consumed(bytes: number): void {
    this.#source.consumed(bytes);
  }
}

export type RdsReceived = RdsMessage | RdsCompletion | RdsCongestionNews;
