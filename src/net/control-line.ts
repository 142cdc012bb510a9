/**
 * One line each way over a Unix socket: what both ends of a control connection do. The other end is trusted with nothing: its
 * line has a limit, and so has the time that the whole exchange takes; what goes wrong ends this connection and nothing
 * else.
 */
import { errnoError, errnoOf, ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import * as calls from '../sys/calls.ts';
import { EPOLLIN, EPOLLOUT, EPOLLRDHUP, SO_PEERCRED, SOL_SOCKET } from '../sys/constants.ts';
import { type Registration, reactor } from '../sys/reactor.ts';

export interface Credentials {
  /** 0: not visible from here. */
  readonly pid: number;
  readonly uid: number;
}

/** Who the other end was when it connected or began to listen (struct ucred of unix(7)). */
export function peerCredentials(fd: number): Credentials {
  const out = new Uint32Array(3);
  calls.getOptionBytes(fd, SOL_SOCKET, SO_PEERCRED, new Uint8Array(out.buffer));
  const [pid = 0, uid = 0] = out;
  return { pid, uid };
}

export interface LineOptions {
  /** The longest line that is read. */
  readonly bytesMax: number;
  /** The connection ends then, whatever was done. */
  readonly limitMs: number;
  /** Keeps the event loop alive. */
  readonly refed: boolean;
  /** The line, without its end; the first one only. */
  readonly line: (text: string) => void;
  /** The descriptor is closed: null after close(), and after what was sent with `last` is out. */
  readonly ended: (error: Error | null) => void;
}

const EAGAIN = -errnoOf('EAGAIN');
const NEWLINE = 10;
const READ_BYTES = 64 * 1024;

export class LineConnection {
  readonly #fd: number;
  readonly #options: LineOptions;
  readonly #registration: Registration;
  readonly #timer: NodeJS.Timeout;
  #received: Buffer[] = [];
  #receivedBytes = 0;
  #reading = true;
  #unsent: Buffer = Buffer.alloc(0);
  #closesWhenSent = false;
  #closed = false;

  /** Takes over a connected descriptor; throws, with the descriptor closed, if the kernel cannot watch it. */
  constructor(fd: number, options: LineOptions) {
    this.#fd = fd;
    this.#options = options;
    try {
      this.#registration = reactor().add(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, () => this.#onEvents());
    } catch (error) {
      calls.close(fd);
      throw error;
    }
    this.#timer = setTimeout(
      () => this.#end(new ZerotxError('ETIMEDOUT', `no line within ${options.limitMs} ms`)),
      options.limitMs,
    );
    if (!options.refed) {
      this.#registration.unref();
      this.#timer.unref();
    }
  }

  /** Sends a line; once. With `last` the connection ends when the other end has it. */
  send(text: string, last: boolean): void {
    this.#unsent = Buffer.from(`${text}\n`);
    this.#closesWhenSent = last;
    this.#write();
  }

  close(): void {
    this.#end(null);
  }

  #onEvents(): void {
    this.#write();
    if (this.#reading && !this.#closed) this.#read();
  }

  #write(): void {
    while (this.#unsent.byteLength > 0 && !this.#closed) {
      const n = native().sendv(this.#fd, [this.#unsent], 1, 0);
      if (n === EAGAIN) return;
      if (n < 0) {
        this.#end(errnoError(n, 'sendmsg'));
        return;
      }
      this.#unsent = this.#unsent.subarray(n);
      if (this.#unsent.byteLength === 0 && this.#closesWhenSent) this.#end(null);
    }
  }

  #read(): void {
    const { bytesMax } = this.#options;
    for (;;) {
      const buffer = Buffer.allocUnsafe(Math.min(READ_BYTES, bytesMax + 1));
      const n = native().readv(this.#fd, [buffer], 1);
      if (n === EAGAIN) return;
      const end = n > 0 ? buffer.subarray(0, n).indexOf(NEWLINE) : -1;
      const chunk = buffer.subarray(0, end < 0 ? Math.max(0, n) : end);
      this.#received.push(chunk);
      this.#receivedBytes += chunk.byteLength;
      const failure = readFailure(n, this.#receivedBytes > bytesMax ? bytesMax : undefined);
      if (failure === null && end < 0) continue;
      if (failure === null) this.#line();
      else this.#end(failure);
      return;
    }
  }

  #line(): void {
    this.#reading = false;
    const text = Buffer.concat(this.#received).toString();
    this.#received = [];
    this.#options.line(text);
  }

  #end(error: Error | null): void {
    if (this.#closed) return;
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#registration.remove();
    native().close(this.#fd);
    this.#options.ended(error);
  }
}

/** What is wrong with a read that returned `n` and made the line longer than `exceeded`, if anything is. */
function readFailure(n: number, exceeded: number | undefined): ZerotxError | null {
  if (n < 0) return errnoError(n, 'read');
  if (n === 0) return new ZerotxError('ECONNRESET', 'the other end closed without a line');
  return exceeded === undefined ? null : new ZerotxError('EMSGSIZE', `a line of more than ${exceeded} bytes`);
}
