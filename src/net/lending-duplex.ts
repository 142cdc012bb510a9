/**
 * LendingDuplex: a stream to which large chunks and leases are written as they are, to be lent instead of copied.
 *
 *   write(small, text) ─────────────────────▶ stream.Writable ──▶ _write, _writev ──▶ Batches.write
 *   write(large, lease), send() ──┬─ chunk ─▶      "                                      │ finds the piece of a chunk again
 *                                 └─ Piece: chunk, ticket, lease ──▶ Batches.queue ───────┘
 *
 * The stream orders, counts and holds back; what it cannot carry (whose memory it is, and who wants to hear of its release)
 * goes beside it. There is no connection here: TcpSocket (socket.ts) extends this, and its _write() and _writev() hand the chunks
 * to its Batches, batchesOf().
 */
import type { DuplexOptions } from 'node:stream';
import { checkSignal } from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import type { Outcome } from '../core/ubuf.ts';
import { AddressedDuplex } from './addressed.ts';
import { Batches, type WriteCallback } from './batches.ts';
import { Lease, lendLease } from './lease.ts';
import { borrowFromLease } from './lending.ts';
import { abortError, nodeError } from './node-errors.ts';
import { Piece } from './outgoing.ts';
import { PendingSend, type Sendable, sendParts } from './sending.ts';
import { type Settle, WriteTicket } from './written.ts';

/** What write() and end() take. */
export type WritableChunk = string | Uint8Array | Lease;

let begin: (socket: LendingDuplex, flushed: (result: number) => void) => void;
let current: (socket: LendingDuplex) => Batches;

export class LendingDuplex extends AddressedDuplex {
  readonly #thresholdBytes: number;
  /** Until beginWrites() there is nobody who could write. */
  #batches!: Batches;

  static {
    begin = (socket, flushed) => {
      socket.#batches = new Batches(flushed, (bytes) => socket.#forget(bytes));
    };
    current = (socket) => socket.#batches;
  }

  /** Chunks of `thresholdBytes` and more are offered to be lent. */
  constructor(options: DuplexOptions, thresholdBytes: number) {
    super(options);
    this.#thresholdBytes = thresholdBytes;
  }

  /**
   * As stream.Writable.write(), also of a Lease. The callback runs when the memory is the program's again: for a lent chunk,
   * when the kernel has let go of it. Throws `ZTX_RELEASED` for a lease that was released; the connection ends with
   * `ZTX_MEMORY_TAKEN` if a chunk is transferred away before it was sent.
   */
  override write(chunk: WritableChunk, callback?: WriteCallback): boolean;
  override write(chunk: WritableChunk, encoding: BufferEncoding, callback?: WriteCallback): boolean;
  override write(
    chunk: unknown,
    encodingOrCallback?: BufferEncoding | WriteCallback | null,
    callback?: WriteCallback,
  ): boolean {
    const isCallback = typeof encodingOrCallback === 'function';
    const cb = isCallback ? encodingOrCallback : callback;
    const encoding = isCallback ? undefined : encodingOrCallback;
    if (this.writableEnded && this.readableEnded && !this.allowHalfOpen) return this.#refuseWrite(cb);
    return this.#write(chunk, encoding, cb);
  }

  #write(chunk: unknown, encoding?: BufferEncoding | null, cb?: WriteCallback): boolean {
    // Small chunks first: they are many, and go the way of any stream.
    if (!(((chunk as Uint8Array | null)?.byteLength as number) < this.#thresholdBytes)) {
      if (chunk instanceof Lease) return this.#writePiece(chunk, settleWith(cb));
      if (chunk instanceof Uint8Array) return this.#writePiece(chunk, settleWith(cb));
      // Other views are the same memory: the stream would make Buffers of them, which nobody would protect.
      if (ArrayBuffer.isView(chunk)) return this.#writePiece(bytesOf(chunk), settleWith(cb));
    }
    return super.write(chunk, (encoding ?? undefined) as BufferEncoding, cb as WriteCallback);
  }

  override end(callback?: () => void): this;
  override end(chunk: WritableChunk, callback?: () => void): this;
  override end(chunk: WritableChunk, encoding: BufferEncoding, callback?: () => void): this;
  override end(...args: readonly unknown[]): this {
    const [chunk, encoding] = args;
    const callback = args.find((arg) => typeof arg === 'function') as (() => void) | undefined;
    // Not by Writable.end(), which knows neither leases nor lent chunks.
    if (chunk !== undefined && chunk !== null && typeof chunk !== 'function') {
      this.#write(chunk, typeof encoding === 'function' ? undefined : (encoding as BufferEncoding));
    }
    super.end(callback);
    return this;
  }

  /**
   * Sends the bytes behind what was written before, and resolves when the memory is the program's again, with how much of it
   * was copied after all. Rejects with the error that ended the connection, with `ZTX_RELEASED` for a lease that was released,
   * with `ABORT_ERR` when `signal` fires before its turn came, and with `ZTX_STILL_LENT` (whose `released` tells the end)
   * when it fires later: what is begun is sent. Throws ERR_INVALID_ARG_TYPE.
   */
  send(data: Sendable, options: { readonly signal?: AbortSignal | undefined } = {}): Promise<Outcome> {
    const { signal } = options;
    checkSignal('options.signal', signal);
    const parts = sendParts(data);
    if (signal?.aborted === true) return Promise.reject(abortError(signal));
    // The one who waits hears of it: no 'error' of the socket besides, as write() has.
    if (this.destroyed) return Promise.reject(this.errored ?? nodeError('ERR_STREAM_DESTROYED'));
    if (this.writableEnded) return Promise.reject(nodeError('ERR_STREAM_WRITE_AFTER_END'));
    if (parts.length === 0) return Promise.resolve({ bytes: 0, copiedBytes: 0, exact: true });
    if (data instanceof Lease && data.state === 'released') {
      return Promise.reject(new ZerotxError('ZTX_RELEASED', 'the lease was released'));
    }
    const pending = new PendingSend(parts.length, signal, () => this.errored);
    this.cork();
    try {
      for (const part of parts) this.#writePiece(part, pending.settle, pending);
    } finally {
      this.uncork();
    }
    return pending.promise;
  }

  /** Writes a chunk that may be lent, or whose release `settle` wants to hear of. */
  #writePiece(data: Uint8Array | Lease, settle: Settle | null, send?: PendingSend): boolean {
    const part = data instanceof Lease ? null : borrowFromLease(data);
    const lease = data instanceof Lease ? data : part;
    const view = data instanceof Lease ? lendLease(data) : (part?.view ?? data);
    // The stream hands on a Buffer as it is; a small one might be waiting there already, without a ticket.
    const isOwn = view instanceof Buffer && view.byteLength >= this.#thresholdBytes;
    const chunk = isOwn ? view : bytesOf(view);
    const ticket = settle === null && lease === null ? null : new WriteTicket(settle, lease, send ?? null);
    if (send !== undefined && ticket !== null) send.add(ticket);
    // Otherwise it is refused, and never comes to _write().
    if (this.writable) this.#batches.queue(new Piece(chunk, view.byteLength, ticket, lease !== null));
    return ticket === null ? super.write(chunk) : super.write(chunk, ticket.accepted);
  }

  /** The peer has ended, and with it this side (allowHalfOpen is false). */
  #refuseWrite(callback?: WriteCallback): boolean {
    const error = nodeError('EPIPE');
    if (typeof callback === 'function') process.nextTick(callback, error);
    this.destroy(error);
    return false;
  }

  /** The stream takes the length of a chunk when it hands it over: less than when it was written, if it was transferred away. */
  #forget(bytes: number): void {
    (this as unknown as { _writableState: { length: number } })._writableState.length -= bytes;
  }
}

/** Gives a stream that is new, or as new again, its Batches. `flushed` hears the result of each Outgoing.begin(). */
export function beginWrites(socket: LendingDuplex, flushed: (result: number) => void): void {
  begin(socket, flushed);
}

/** Those that the last beginWrites() gave it. */
export function batchesOf(socket: LendingDuplex): Batches {
  return current(socket);
}

/** A Buffer over the same memory; a detached view has none. */
function bytesOf(view: ArrayBufferView): Buffer {
  return view.byteLength === 0 ? Buffer.alloc(0) : Buffer.from(view.buffer, view.byteOffset, view.byteLength);
}

function settleWith(callback: WriteCallback | null | undefined): Settle | null {
  return typeof callback === 'function' ? (error) => callback(error) : null;
}
