/**
 * A front-end's connection: writes requests with their descriptors, reads replies, and hands both ends to a RequestLine.
 *
 * It reads a header, then its payload, and never beyond: so descriptors that come with bytes belong to the message being
 * read (see framing.ts, which does the same for the other side). No reply has any; they are closed and end the
 * connection.
 */
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { EPOLLIN, EPOLLOUT } from '../sys/constants.ts';
import { closeReceived, MESSAGE_FDS_MAX } from '../sys/fds.ts';
import { type Registration, reactor } from '../sys/reactor.ts';
import { decodeHeader, VHOST_USER_HEADER_BYTES } from '../wire/vhost-user.ts';
import { RequestLine } from './frontend-line.ts';

const EAGAIN = -errnoOf('EAGAIN');
const EINTR = -errnoOf('EINTR');
/** The largest reply is a configuration space of 256 bytes. */
const PAYLOAD_BYTES_MAX = 512;

interface Outgoing {
  bytes: Uint8Array;
  fds: Int32Array;
}

export class FrontendChannel {
  readonly line: RequestLine = new RequestLine((bytes, fds) => this.#send(bytes, fds));
  readonly #fd: number;
  readonly #ended: (error: Error) => void;
  readonly #registration: Registration;
  readonly #in = new Uint8Array(VHOST_USER_HEADER_BYTES + PAYLOAD_BYTES_MAX);
  readonly #fds = new Int32Array(1 + MESSAGE_FDS_MAX);
  #have = 0;
  #want = VHOST_USER_HEADER_BYTES;
  /** Descriptors that came with the message being read. */
  #descriptors = 0;
  #out: Outgoing[] = [];
  #isOver = false;

  /** Owns `fd` from here on. `ended` is called once, unless end() was. Throws when `fd` cannot be watched. */
  constructor(fd: number, ended: (error: Error) => void) {
    this.#fd = fd;
    this.#ended = ended;
    try {
      this.#registration = reactor().add(fd, EPOLLIN | EPOLLOUT, () => this.#onEvents());
    } catch (error) {
      native().close(fd);
      throw error;
    }
  }

  /** Closes it; what waits on the line fails with `error`. */
  end(error: Error): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#registration.remove();
    native().close(this.#fd);
    this.#out = [];
    this.line.break(error);
  }

  #onEvents(): void {
    if (!this.#isOver) this.#flush();
    if (!this.#isOver) this.#read();
  }

  #fail(error: Error): void {
    if (this.#isOver) return;
    this.end(error);
    this.#ended(error);
  }

  #send(bytes: Uint8Array, fds: readonly number[]): void {
    if (this.#isOver) return;
    this.#out.push({ bytes, fds: Int32Array.from(fds) });
    if (this.#out.length === 1) this.#flush();
  }

  #flush(): void {
    for (let first = this.#out[0]; first !== undefined; first = this.#out[0]) {
      const sent = native().sendFds(this.#fd, first.bytes, first.fds, first.fds.length);
      if (sent === EAGAIN) return;
      if (sent === EINTR) continue;
      if (sent < 0) {
        this.#fail(errnoError(sent, 'sendmsg', { hint: 'the back-end is gone' }));
        return;
      }
      if (sent === first.bytes.length) {
        this.#out.shift();
        continue;
      }
      first.bytes = first.bytes.subarray(sent);
      // They went with the first byte.
      first.fds = new Int32Array(0);
    }
  }

  /** Until nothing is there. What comes unasked ends it, so it is as long as what is asked. */
  #read(): void {
    while (!this.#isOver) {
      const got = native().recvFds(this.#fd, this.#in.subarray(this.#have, this.#want), this.#fds);
      if (got === EAGAIN) return;
      if (got === EINTR) continue;
      if (got <= 0) {
        this.#fail(got === 0 ? closed() : errnoError(got, 'recvmsg'));
        return;
      }
      this.#count(this.#fds[0] as number);
      this.#have += got;
      if (this.#have < this.#want) continue;
      if (this.#have === VHOST_USER_HEADER_BYTES && !this.#beginPayload()) continue;
      this.#take();
    }
  }

  /** The header is there. False: read on, or it cannot be. */
  #beginPayload(): boolean {
    const { size } = decodeHeader(this.#in);
    if (size > PAYLOAD_BYTES_MAX) {
      this.#fail(new ZerotxError('EPROTO', `the back-end sent a message of ${size} bytes`));
      return false;
    }
    this.#want = VHOST_USER_HEADER_BYTES + size;
    return size === 0;
  }

  #take(): void {
    const header = decodeHeader(this.#in);
    const payload = this.#in.subarray(VHOST_USER_HEADER_BYTES, this.#have);
    const descriptors = this.#descriptors;
    this.#have = 0;
    this.#want = VHOST_USER_HEADER_BYTES;
    this.#descriptors = 0;
    const error = this.line.receive(header, payload, descriptors);
    if (error !== null) this.#fail(error);
  }

  /** Closes what came with the bytes; nothing here has use for it. */
  #count(count: number): void {
    // Negative: there were more than can be, and they are closed.
    this.#descriptors += Math.abs(count);
    for (let i = 1; i <= count; i++) closeReceived(this.#fds[i] as number);
  }
}

function closed(): ZerotxError {
  return new ZerotxError('ECONNRESET', 'the back-end closed the connection');
}
