/**
 * The incoming end of a stream socket: reads while somebody wants data, in bounded turns.
 *
 * One scratch buffer serves all sockets of the thread: ten thousand idle connections hold no read buffers. A read that fills
 * half of it or more hands the buffer over and the next read gets a new one; a smaller one is copied out, so that a few
 * bytes never keep 64 KiB alive.
 */
import { errnoOf } from '../core/errors.ts';

const EAGAIN = -errnoOf('EAGAIN');
const ENOBUFS = -errnoOf('ENOBUFS');
/** What one read asks for: as much as libuv does. */
const READ_BYTES = 64 * 1024;
/** Reads before other descriptors have their turn. */
const READS_PER_TURN = 32;

/** The part of TcpChannel that is needed here. */
export interface IncomingChannel {
  readonly readable: boolean;
  readv(views: readonly Uint8Array[], count: number): number;
}

export interface Sink {
  /** Takes bytes; false: no more until resume(). */
  data(chunk: Buffer): boolean;
  end(): void;
  failed(errno: number): void;
}

/** `onread` of net.connect(): one buffer for all reads; false from the callback stops reading. */
export interface OnRead {
  readonly buffer: Uint8Array | (() => Uint8Array);
  callback(bytes: number, buffer: Uint8Array): boolean;
}

let scratch: Buffer = Buffer.allocUnsafeSlow(READ_BYTES);
const views: Uint8Array[] = [scratch];

export class Incoming {
  readonly #channel: IncomingChannel;
  readonly #sink: Sink;
  readonly #inScope: (turn: () => void) => void;
  readonly #turn = (): void => this.#readSome();
  readonly #onRead: OnRead | undefined;
  #wanted = false;
  #ended = false;
  #scheduled = false;

  /** `inScope` runs a turn that no event of the channel has begun. */
  constructor(channel: IncomingChannel, sink: Sink, inScope: (turn: () => void) => void, onRead?: OnRead) {
    this.#inScope = inScope;
    this.#channel = channel;
    this.#sink = sink;
    this.#onRead = onRead;
  }

  /** Somebody wants data. It never comes from inside this call: the stream would queue it. */
  resume(): void {
    this.#wanted = true;
    if (!this.#channel.readable || this.#scheduled || this.#ended) return;
    this.#scheduled = true;
    process.nextTick(this.#inScope, this.#turn);
  }

  pause(): void {
    this.#wanted = false;
  }

  /** The channel has something to read. */
  readable(): void {
    if (this.#wanted && !this.#scheduled) this.#turn();
  }

  /** No more reads, whatever comes. */
  stop(): void {
    this.#ended = true;
  }

  #readSome(): void {
    this.#scheduled = false;
    try {
      for (let i = 0; i < READS_PER_TURN && this.#goesOn; i++) this.#read();
    } finally {
      // Also when a listener threw: the edge is used up, and will not come again for what is there.
      if (this.#goesOn) {
        this.#scheduled = true;
        setImmediate(this.#inScope, this.#turn);
      }
    }
  }

  get #goesOn(): boolean {
    return this.#wanted && !this.#ended && this.#channel.readable;
  }

  #read(): void {
    const own = this.#onRead?.buffer;
    const into = own === undefined ? scratch : typeof own === 'function' ? own() : own;
    if (into.byteLength === 0) {
      // Nothing could be read into it, which would look like the end of the stream.
      this.#ended = true;
      this.#sink.failed(ENOBUFS);
      return;
    }
    views[0] = into;
    const n = this.#channel.readv(views, 1);
    views[0] = scratch;
    if (n === EAGAIN) return;
    if (n > 0) {
      // A pause() meanwhile holds, whatever is returned.
      if (!this.#deliver(n, into)) this.#wanted = false;
    } else if (n === 0) {
      this.#ended = true;
      this.#sink.end();
    } else {
      this.#ended = true;
      this.#sink.failed(n);
    }
  }

  #deliver(n: number, into: Uint8Array): boolean {
    if (this.#onRead !== undefined) return this.#onRead.callback(n, into) !== false;
    if (n < READ_BYTES / 2) {
      // Not Buffer.from(), whose shared pool would keep 8 KiB for each few bytes that somebody holds on to.
      const copy = Buffer.allocUnsafeSlow(n);
      scratch.copy(copy, 0, 0, n);
      return this.#sink.data(copy);
    }
    const chunk = n === READ_BYTES ? scratch : scratch.subarray(0, n);
    scratch = Buffer.allocUnsafeSlow(READ_BYTES);
    return this.#sink.data(chunk);
  }
}
