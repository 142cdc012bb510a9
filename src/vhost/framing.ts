/**
 * From a byte stream with descriptors to messages, and whose each descriptor is.
 *
 * The reader is told exactly how much to read: the rest of a header, then the rest of a payload. So a read never crosses from one
 * message into the next, and descriptors that come with it belong to the message being read; with larger reads nobody could
 * tell (unix(7): a read ends after the bytes that descriptors came with, but may begin before them). It costs two
 * system calls a message, of which there are some dozens in the life of a device. What is not read yet waits in the
 * socket, so a front-end that talks faster than it is answered fills no memory of ours.
 *
 *   wanted() -> room for the next read -> took(bytes, descriptors) -> a message, or null: go on
 *
 * Nothing is believed: a wrong version, a reply where nobody asked, a size beyond SIZE_MAX, more descriptors than any message
 * has, end the connection (ZerotxError EPROTO from took()), since the rest of the stream means nothing then.
 */
import { assert } from '../core/assert.ts';
import { ZerotxError } from '../core/errors.ts';
import {
  decodeHeader,
  type MessageHeader,
  VHOST_USER_HEADER_BYTES,
  VHOST_USER_REPLY,
  VHOST_USER_VERSION,
  VHOST_USER_VERSION_MASK,
} from '../wire/vhost-user.ts';

/** The largest that anybody sends is a memory table of 32 regions, 1032 bytes. */
export const SIZE_MAX = 4096;
/** Of one message: a table of 32 regions, as the largest front-ends send; QEMU and DPDK stop at 8. */
export const FDS_MAX = 32;

export interface Message extends MessageHeader {
  /** A view of the framer's memory, valid until the next wanted(). */
  readonly payload: Uint8Array;
  /** Whoever takes one removes it; the rest are closed with the message. */
  readonly fds: number[];
}

export class Framer {
  readonly #close: (fd: number) => void;
  readonly #bytes = new Uint8Array(VHOST_USER_HEADER_BYTES + SIZE_MAX);
  #header: MessageHeader | null = null;
  #have = 0;
  #fds: number[] = [];

  constructor(close: (fd: number) => void) {
    this.#close = close;
  }

  /** Where the next bytes go, all of which belong to one message; never empty. */
  wanted(): Uint8Array {
    return this.#bytes.subarray(this.#have, this.#end());
  }

  /** Whether the stream stands between two messages. */
  get isIdle(): boolean {
    return this.#have === 0;
  }

  /** `count` bytes were read into wanted(), and `fds` with them, which are the framer's from here on. */
  took(count: number, fds: readonly number[]): Message | null {
    this.#fds.push(...fds);
    assert(count > 0 && this.#have + count <= this.#end(), 'more was read than wanted');
    this.#have += count;
    if (this.#fds.length > FDS_MAX) this.#fail(`more than ${FDS_MAX} descriptors with one message`);
    if (this.#header === null && this.#have === VHOST_USER_HEADER_BYTES) this.#header = this.#checkHeader();
    const header = this.#header;
    if (header === null || this.#have < this.#end()) return null;
    const message: Message = {
      ...header,
      payload: this.#bytes.subarray(VHOST_USER_HEADER_BYTES, this.#have),
      fds: this.#fds,
    };
    this.#reset();
    return message;
  }

  /** The stream is over: what came of a message that never came whole is closed. */
  end(): void {
    for (const fd of this.#fds) this.#close(fd);
    this.#reset();
  }

  #end(): number {
    return VHOST_USER_HEADER_BYTES + (this.#header?.size ?? 0);
  }

  #reset(): void {
    this.#header = null;
    this.#have = 0;
    this.#fds = [];
  }

  #checkHeader(): MessageHeader {
    const header = decodeHeader(this.#bytes);
    const version = header.flags & VHOST_USER_VERSION_MASK;
    if (version !== VHOST_USER_VERSION) this.#fail(`version ${version} of the protocol`);
    if ((header.flags & VHOST_USER_REPLY) !== 0) this.#fail(`a reply to a request that was never made`);
    if (header.size > SIZE_MAX) this.#fail(`a message of ${header.size} bytes`);
    return header;
  }

  #fail(what: string): never {
    this.end();
    throw new ZerotxError('EPROTO', `vhost-user front-end sent ${what}`);
  }
}
