/**
 * Between stream.Writable and Outgoing: what the stream hands over at once is a batch, and one is under way at a time.
 *
 *   _write / _writev ──▶ begin() ──▶ Outgoing ──▶ accepted at once: the stream hears of it at the end of the turn
 *                                            └──▶ accepted later, or failed: the stream hears of it then
 *
 * Chunks that came with something (a ticket, a lease) are queued beside the stream in the same order; a chunk is found again by
 * its identity.
 */
import { Deque } from '../core/deque.ts';
import { nodeError } from './node-errors.ts';
import { type Outgoing, Piece } from './outgoing.ts';
import { atEndOfTurn, type Turn } from './turn.ts';
import type { WriteTicket } from './written.ts';

export type WriteCallback = (error?: Error | null) => void;

/** As stream.Writable hands them to _writev(). */
export type Chunks = readonly { readonly chunk: Buffer }[];

export class Batches implements Turn {
  turnSlot = -1;
  /** Bytes of batches that were accepted. */
  acceptedBytes = 0;
  readonly #flushed: (result: number) => void;
  readonly #forget: (bytes: number) => void;
  readonly #queued = new Deque<Piece>();
  #outgoing: Outgoing | null = null;
  /** A batch that waits for the connection. */
  #early: { start(): void; fail(error: Error): void } | null = null;
  /** Of the batch, without what was given up. */
  #bytes = 0;
  #callback: WriteCallback = () => {};
  /** Inside begin(): the stream is not told yet, so that it queues what the program writes next. */
  #isBeginning = false;
  /** What ended the stream: a chunk that it still hands over must not go out behind a hole. */
  #failure: Error | null = null;
  #isAccepted = false;

  /** `flushed` hears the result of each Outgoing.begin(); `forget`, of bytes that the stream would count for ever. */
  constructor(flushed: (result: number) => void, forget: (bytes: number) => void) {
    this.#flushed = flushed;
    this.#forget = forget;
  }

  /** The stream will hand over this piece's view in its turn. */
  queue(piece: Piece): void {
    this.#queued.push(piece);
  }

  connected(outgoing: Outgoing): void {
    this.#outgoing = outgoing;
  }

  /** Begins what waited for the connection. */
  startEarly(): void {
    const early = this.#early;
    this.#early = null;
    early?.start();
  }

  /** There is none any more. */
  closed(): void {
    const early = this.#early;
    this.#early = null;
    this.#outgoing = null;
    early?.fail(nodeError('ERR_SOCKET_CLOSED_BEFORE_CONNECTION'));
    while (this.#queued.length > 0) this.#queued.shift();
  }

  /**
   * Sends a chunk, or several, that had `writtenBytes` when they were written: if they have less now, one was transferred away.
   * With no connection it waits for the one that is being made.
   */
  write(chunk: Buffer | Chunks, writtenBytes: number, connecting: boolean, callback: WriteCallback): void {
    // A chunk that was given up, and whose memory the program has transferred away since.
    const handed = Array.isArray(chunk) ? writtenBytes : (chunk as Buffer).byteLength;
    if (handed < writtenBytes) this.#forget(writtenBytes - handed);
    const outgoing = this.#outgoing;
    if (this.#failure !== null) {
      callback(this.#failure);
      return;
    }
    if (outgoing !== null) this.#begin(outgoing, chunk, writtenBytes, callback);
    else if (connecting) {
      const start = (): void => this.#begin(this.#outgoing as Outgoing, chunk, writtenBytes, callback);
      this.#early = { start, fail: callback };
    } else callback(nodeError('ERR_SOCKET_CLOSED'));
  }

  #begin(outgoing: Outgoing, chunk: Buffer | Chunks, writtenBytes: number, callback: WriteCallback): void {
    let bytes = 0;
    this.#bytes = 0;
    if (Array.isArray(chunk)) for (const one of chunk as Chunks) bytes += this.#add(outgoing, one.chunk);
    else bytes = this.#add(outgoing, chunk as Buffer);
    this.#callback = callback;
    this.#isBeginning = true;
    const result = outgoing.begin(this.#done, bytes === writtenBytes);
    this.#isBeginning = false;
    this.#flushed(result);
  }

  /** Adds a chunk to the batch, with what was queued along with it; returns the bytes it had when it was written. */
  #add(outgoing: Outgoing, chunk: Buffer): number {
    const piece = this.#queued.first;
    if (piece === undefined || piece.view !== chunk) {
      // It is small, or text that the stream has encoded.
      outgoing.add(new Piece(chunk, chunk.byteLength, null, false));
      this.#bytes += chunk.byteLength;
      return chunk.byteLength;
    }
    this.#queued.shift();
    const ticket = piece.ticket as WriteTicket | null;
    if (ticket !== null) ticket.begun = true;
    if (ticket === null || !ticket.cancelled) {
      outgoing.add(piece);
      this.#bytes += piece.bytes;
    }
    return piece.bytes;
  }

  readonly #done = (error: Error | null): void => {
    if (error === null && this.#isBeginning) {
      this.#isAccepted = true;
      atEndOfTurn(this);
    } else this.#tellStream(error);
  };

  /** Tells the stream of a batch that was accepted, now instead of at the end of the turn. */
  finishTurn(): void {
    if (!this.#isAccepted) return;
    this.#isAccepted = false;
    this.#tellStream(null);
  }

  #tellStream(error: Error | null): void {
    if (error === null) this.acceptedBytes += this.#bytes;
    else this.#failure ??= error;
    this.#callback(error);
  }
}
