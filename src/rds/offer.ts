/**
 * What a lane offers to its connection next: views of wire bytes, as many as one call can take.
 *
 *   [ rest of what is half sent | congestion map | run | run | ... ]      or: part of one lent payload, alone
 */
import type { Ubuf } from '../core/ubuf.ts';
import type { Run } from './run.ts';

const OFFER_VIEWS_MAX = 64;
/** A largest message with its header and something before it still goes in one call. */
const OFFER_BYTES_MAX = 1024 * 1024 + 64 * 1024;
/** The kernel accounts zero-copy memory in objects of up to 512 KiB: longer calls are not released in bigger steps. */
const LENT_CALL_BYTES_MAX = 512 * 1024;

/** A congestion map that is written, and not kept. */
export class MapInFlight {
  readonly bytes: Uint8Array;
  sent = 0;
  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
  }
}

/** Who sends the offer: a channel. */
export interface Lender {
  /** Whether a lent piece of this size should go by a flagged call. */
  lends(bytes: number): boolean;
  /** `bytes` of the lent `ubuf` went by an ordinary call. */
  copied(ubuf: Ubuf, bytes: number): void;
}

export type Part = Run | MapInFlight;

/** One offer. A `lent` one lies wholly in that Ubuf; otherwise the views are to be copied by the kernel. */
export class Offer {
  readonly views: Uint8Array[] = new Array<Uint8Array>(OFFER_VIEWS_MAX);
  /** What the views are of, in their order. */
  readonly parts: Part[] = [];
  count = 0;
  bytes = 0;
  lent: Ubuf | null = null;
  /** More follows at once: the transport may hold back a partial segment. */
  more = false;

  clear(): void {
    this.parts.length = 0;
    this.count = 0;
    this.bytes = 0;
    this.lent = null;
    this.more = false;
  }

  /** Adds a part; false when the offer must end there. */
  add(part: Part, lender: Lender): boolean {
    this.parts.push(part);
    if (part instanceof MapInFlight) return this.#view(part.bytes.subarray(part.sent));
    if (part.sent < part.headLength) {
      if (!this.#view(part.bytes.subarray(part.start + part.sent, part.end))) return false;
    }
    if (part.payload === null) return true;
    const done = Math.max(0, part.sent - part.headLength);
    const left = part.payload.byteLength - done;
    if (left === 0) return true;
    if (!part.lent || !lender.lends(lentCallBytes(part.payload, done)))
      return this.#payload(part.payload, done, OFFER_BYTES_MAX);
    // A flagged call carries lent bytes alone; what comes before it goes first.
    if (this.count > 0) {
      this.more = true;
      return false;
    }
    this.lent = part.payload;
    this.#payload(part.payload, done, LENT_CALL_BYTES_MAX);
    return false;
  }

  #payload(payload: Ubuf, from: number, bytesMax: number): boolean {
    let skip = from;
    for (const piece of payload.iov) {
      if (skip >= piece.byteLength) {
        skip -= piece.byteLength;
        continue;
      }
      const take = Math.min(piece.byteLength - skip, bytesMax - this.bytes);
      if (take <= 0) return false;
      const whole = take === piece.byteLength;
      if (!this.#view(whole ? piece : piece.subarray(skip, skip + take))) return false;
      if (skip + take < piece.byteLength) return false;
      skip = 0;
    }
    return true;
  }

  #view(view: Uint8Array): boolean {
    if (this.count === OFFER_VIEWS_MAX || this.bytes >= OFFER_BYTES_MAX) return false;
    this.views[this.count++] = view;
    this.bytes += view.byteLength;
    return this.count < OFFER_VIEWS_MAX;
  }
}

/** What one flagged call would carry of `payload` from byte `from` on: at most 64 pieces and 512 KiB. */
function lentCallBytes(payload: Ubuf, from: number): number {
  const [first] = payload.iov;
  if (payload.iov.length === 1 && first !== undefined)
    return Math.min(first.byteLength - from, LENT_CALL_BYTES_MAX);
  let skip = from;
  let bytes = 0;
  let pieces = 0;
  for (const piece of payload.iov) {
    if (pieces === OFFER_VIEWS_MAX || bytes >= LENT_CALL_BYTES_MAX) break;
    if (skip >= piece.byteLength) {
      skip -= piece.byteLength;
      continue;
    }
    bytes += piece.byteLength - skip;
    skip = 0;
    pieces += 1;
  }
  return Math.min(bytes, LENT_CALL_BYTES_MAX);
}
