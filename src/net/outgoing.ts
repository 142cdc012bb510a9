/**
 * The outgoing end of a stream socket: chunks in, system calls out.
 *
 * A batch of chunks is sent in order. Chunks worth lending are gathered into flagged calls, straight from their memory; the
 * others into ordinary calls. What the kernel does not take waits here until the socket is writable again, and nothing
 * else is begun meanwhile: the stream above hands over one batch at a time, which is its back-pressure.
 *
 *   chunks   [ small small | LENT  LENT  LENT | small ]
 *   calls      sendmsg(2 views, MSG_MORE)  sendmsg(3 views, MSG_ZEROCOPY)  sendmsg
 *
 * Acceptance and release are two things. The batch is accepted when the kernel has taken all bytes: `done` runs. A chunk is
 * released when the kernel has let go of its memory too: its ticket is told, by the Ubuf that carries it.
 */
import { errnoOf } from '../core/errors.ts';
import { releases } from '../core/releases.ts';
import { type Outcome, Ubuf } from '../core/ubuf.ts';
import type { CopyCause } from './counters.ts';
import type { Borrowed } from './lease.ts';

/** The part of TcpChannel that is needed here. */
export interface OutgoingChannel {
  readonly writable: boolean;
  readonly callBytesMax: number;
  why(bytes: number): CopyCause | null;
  send(views: readonly Uint8Array[], count: number, more: boolean): number;
  sendLent(lenders: readonly Ubuf[], views: readonly Uint8Array[], count: number): number;
  copied(ubuf: Ubuf | null, bytes: number, cause: CopyCause): void;
}

/** Whoever wants to hear of a chunk's release, and keeps its memory in place until then. */
export interface Ticket {
  /** The connection is gone, and the kernel has not taken all of it; released() follows. */
  failed(error: Error): void;
  /** The deadline for the release has passed; released() follows if the kernel lets go after all. */
  quarantined(): void;
  /** The memory is the owner's again: nobody reads it any more. */
  released(outcome: Outcome): void;
}

/** Protects the memory behind a view while it is lent, and says how to end that; null: it may not be lent. */
export type Borrow = (view: Uint8Array) => Borrowed | null;

/** A chunk with what came along with it. */
export class Piece {
  /** Where the bytes are read: replaced by borrow() if these are in other memory that cannot be taken away. */
  view: Uint8Array;
  /** Length of the view when the program wrote it. */
  readonly bytes: number;
  readonly ticket: Ticket | null;
  /** The memory is ours or cannot be taken away: it needs no protection. */
  readonly safe: boolean;
  ubuf: Ubuf | null = null;
  /** Lending was tried and is not possible for this memory. */
  foreign = false;
  borrowed: Borrowed | null = null;

  constructor(view: Uint8Array, bytes: number, ticket: Ticket | null, safe: boolean) {
    this.view = view;
    this.bytes = bytes;
    this.ticket = ticket;
    this.safe = safe;
  }
}

/** Views of one call; the addon takes 64. */
const VIEWS_MAX = 64;
/**
 * The program took the memory of a waiting chunk away (it transferred the ArrayBuffer): what was promised cannot be sent, and
 * sending less would shift all that follows.
 */
export const TAKEN: number = -errnoOf('EFAULT');

const empty = new Uint8Array(0);
/** Stands where a Ubuf was. */
const nobody = new Ubuf([], () => {}, releases);
/** Stands where a piece was. */
const none = new Piece(empty, 0, null, true);

export class Outgoing {
  readonly #channel: OutgoingChannel;
  readonly #borrow: Borrow;
  #pieces: Piece[] = [];
  #count = 0;
  /** The piece that is being sent, and how much of it is. */
  #at = 0;
  #offset = 0;
  #done: ((error: Error | null) => void) | null = null;
  /** Of the call being made: its views, and why they are copied. Filled in place: to shrink an array costs as much as a copy. */
  readonly #views: Uint8Array[] = [empty];
  readonly #causes: CopyCause[] = ['off'];
  readonly #lenders: Ubuf[] = [];

  constructor(channel: OutgoingChannel, borrow: Borrow) {
    this.#channel = channel;
    this.#borrow = borrow;
  }

  /** Some of a batch is not accepted yet. */
  get busy(): boolean {
    return this.#done !== null;
  }

  /** Adds a piece to the next batch. */
  add(piece: Piece): void {
    if (piece.ticket !== null) piece.ubuf = this.#ubufOf(piece);
    this.#pieces[this.#count++] = piece;
  }

  /**
   * Sends what was added: `done` runs when all of it is accepted, perhaps at once. `whole` is false if a chunk is known to have
   * been taken away already. Result as flush().
   */
  begin(done: (error: Error | null) => void, whole = true): number {
    this.#done = done;
    return whole ? this.flush() : TAKEN;
  }

  /** Goes on sending. Returns 0, TAKEN, or `-errno` if the connection is gone; after these two call abandon(). */
  flush(): number {
    while (this.#at < this.#count) {
      const piece = this.#pieces[this.#at] as Piece;
      if (piece.view.byteLength !== piece.bytes) return TAKEN;
      if (piece.bytes === 0) {
        this.#advance(0);
        continue;
      }
      if (!this.#channel.writable) return 0;
      const n = this.#step();
      if (n < 0) return n;
      if (n === 0) return 0;
    }
    this.#finish(null);
    return 0;
  }

  /** The connection is gone: gives up what was not accepted. Lent memory is released when the kernel lets go of it. */
  abandon(error: Error): void {
    if (this.#done === null) return;
    for (let i = this.#at; i < this.#count; i++) {
      const piece = this.#pieces[i] as Piece;
      // The stream tells of the failure in a later turn, perhaps behind the release.
      piece.ticket?.failed(error);
      piece.ubuf?.unref();
    }
    this.#at = this.#count;
    this.#finish(error);
  }

  #finish(error: Error | null): void {
    const done = this.#done;
    if (this.#count > 1) this.#pieces = [];
    else if (this.#count === 1) this.#pieces[0] = none;
    this.#count = 0;
    this.#at = 0;
    this.#offset = 0;
    this.#done = null;
    done?.(error);
  }

  /** One system call: bytes taken, 0 when the buffer is full, or `-errno`. */
  #step(): number {
    const first = this.#pieces[this.#at] as Piece;
    const cause = this.#why(first, first.view.byteLength - this.#offset);
    return cause === null ? this.#sendLent() : this.#sendCopied(cause);
  }

  #sendCopied(first: CopyCause): number {
    const views = this.#views;
    let count = 0;
    let lentNext = false;
    for (let i = this.#at; i < this.#count && count < VIEWS_MAX; i++) {
      const piece = this.#pieces[i] as Piece;
      const why = i === this.#at ? first : this.#why(piece, piece.view.byteLength);
      if (piece.view.byteLength !== piece.bytes) break; // met when its turn comes
      if (why === null) {
        lentNext = true;
        break;
      }
      views[count] = this.#rest(piece, i);
      this.#causes[count] = why;
      count += 1;
    }
    const n = this.#channel.send(views, count, lentNext);
    for (let i = 0; i < count; i++) views[i] = empty;
    if (n > 0) this.#advanceCopied(n);
    return n;
  }

  /** The piece at `#at` is to be lent; those behind it that are, too, go along. */
  #sendLent(): number {
    const views = this.#views;
    const lenders = this.#lenders;
    let count = 0;
    // At least the first goes along: if the account has no room after all, the engine copies it.
    let room = this.#channel.callBytesMax || Number.POSITIVE_INFINITY;
    for (let i = this.#at; i < this.#count && count < VIEWS_MAX && room > 0; i++) {
      const piece = this.#pieces[i] as Piece;
      if (piece.view.byteLength !== piece.bytes || piece.bytes === 0) break; // met when its turn comes
      if (i > this.#at && this.#why(piece, piece.bytes) !== null) break;
      const rest = this.#rest(piece, i);
      views[count] = rest.byteLength > room ? rest.subarray(0, room) : rest;
      lenders[count] = piece.ubuf as Ubuf;
      count += 1;
      room -= rest.byteLength;
    }
    const n = this.#channel.sendLent(lenders, views, count);
    for (let i = 0; i < count; i++) {
      views[i] = empty;
      lenders[i] = nobody;
    }
    for (let left = n; left > 0; ) left -= this.#advance(left);
    return n;
  }

  /** What is left of the piece at index `i`. */
  #rest(piece: Piece, i: number): Uint8Array {
    return i === this.#at && this.#offset > 0 ? piece.view.subarray(this.#offset) : piece.view;
  }

  /** Why `bytes` of this piece are copied; null: they are lent, and its Ubuf is ready. */
  #why(piece: Piece, bytes: number): CopyCause | null {
    const cause = this.#channel.why(bytes);
    if (cause !== null) return cause;
    if (piece.foreign) return 'foreign';
    if (!piece.safe && piece.borrowed === null) {
      piece.borrowed = this.#borrow(piece.view);
      if (piece.borrowed === null) {
        piece.foreign = true;
        return 'foreign';
      }
      piece.view = piece.borrowed.view;
    }
    piece.ubuf ??= this.#ubufOf(piece);
    return null;
  }

  #ubufOf(piece: Piece): Ubuf {
    const released = (outcome: Outcome): void => {
      piece.borrowed?.giveBack();
      piece.ticket?.released(outcome);
    };
    return new Ubuf([piece.view], released, releases, () => piece.ticket?.quarantined());
  }

  #advanceCopied(n: number): void {
    for (let i = 0; n > 0; i++) {
      const piece = this.#pieces[this.#at] as Piece;
      const bytes = Math.min(n, piece.bytes - this.#offset);
      if (bytes > 0) this.#channel.copied(piece.ubuf, bytes, this.#causes[i] as CopyCause);
      n -= this.#advance(bytes);
    }
  }

  /** Moves on by `bytes`, or to the end of the piece if that comes first; returns by how much. */
  #advance(bytes: number): number {
    const piece = this.#pieces[this.#at] as Piece;
    const left = piece.bytes - this.#offset;
    if (bytes < left) {
      this.#offset += bytes;
      return bytes;
    }
    this.#at += 1;
    this.#offset = 0;
    piece.ubuf?.unref();
    return left;
  }
}
