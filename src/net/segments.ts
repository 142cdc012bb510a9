/**
 * How a payload becomes datagrams, and datagrams become system calls. Pure arithmetic.
 *
 * A payload may lie in many pieces; datagrams are cut from it as if it were one, each `segmentBytes` long and the last one
 * shorter. A call with UDP_SEGMENT carries many of them, within limits of the kernel: UDP_MAX_SEGMENTS of them
 * (include/linux/udp.h: 64 before Linux 6.9, 128 since), and not more bytes than fit in one IP packet, for such one it is
 * until a device cuts it.
 *
 *   pieces     [ aaaaaaaaaaaaa | bb | cccccccccccccccccccc ]
 *   datagrams  |    |    |    |    |    |    |    |    |  |
 *   calls      |              |              |            |       here of 3 datagrams
 */
import { assert } from '../core/assert.ts';

export interface CallLimits {
  /** Datagrams of one call: 1 where the kernel does not cut. */
  readonly segmentsMax: number;
  /** Bytes of one call, headers not included. */
  readonly bytesMax: number;
}

/** What every kernel that knows UDP_SEGMENT takes. */
export const UDP_MAX_SEGMENTS = 64;
/** 65535 less the IPv4 and UDP headers: the longest datagram. */
export const UDP4_BYTES_MAX = 65_507;
/** The same with an IPv6 header; right for IPv4-mapped destinations, too. */
export const UDP6_BYTES_MAX = 65_487;
/** MAX_SKB_FRAGS: pages that lent memory of one call may touch (include/linux/skbuff.h; kernels may be built with more). */
export const CALL_PAGES_MAX = 17;
/** Views of one call that the addon takes. */
export const CALL_VIEWS_MAX = 64;

/** Bytes of the next call when `remainingBytes` are left: whole datagrams, or all that is left. */
export function nextCallBytes(remainingBytes: number, segmentBytes: number, limits: CallLimits): number {
  const fitting = Math.floor(limits.bytesMax / segmentBytes);
  return Math.min(remainingBytes, segmentBytes * Math.max(1, Math.min(limits.segmentsMax, fitting)));
}

/** Datagrams that `bytes` make; a payload without bytes is none. */
export function datagramCount(bytes: number, segmentBytes: number): number {
  return segmentBytes === 0 ? 1 : Math.ceil(bytes / segmentBytes);
}

/** Walks through pieces of memory. Pieces are not copied: one whose memory was taken away meanwhile is `taken`. */
export class PieceCursor {
  readonly #pieces: Uint8Array[];
  readonly #lengths: readonly number[];
  readonly byteLength: number;
  #at = 0;
  #offset = 0;
  #remaining: number;

  constructor(pieces: readonly Uint8Array[]) {
    this.#pieces = pieces.filter((piece) => piece.byteLength > 0);
    this.#lengths = this.#pieces.map((piece) => piece.byteLength);
    this.byteLength = this.#lengths.reduce((sum, length) => sum + length, 0);
    this.#remaining = this.byteLength;
  }

  /** Bytes not passed yet. */
  get remaining(): number {
    return this.#remaining;
  }

  /** All pieces, also those that were passed. */
  get pieces(): readonly Uint8Array[] {
    return this.#pieces;
  }

  /** Looks at the same bytes through other views from now on. */
  replace(index: number, view: Uint8Array): void {
    assert(view.byteLength === this.#lengths[index], 'a view of another length');
    this.#pieces[index] = view;
  }

  /** Some piece that is not passed yet does not have its length any more. */
  get taken(): boolean {
    for (let i = this.#at; i < this.#pieces.length; i++) {
      if ((this.#pieces[i] as Uint8Array).byteLength !== this.#lengths[i]) return true;
    }
    return false;
  }

  /** Writes views of the next `bytes` to `views`, without moving; returns their number. */
  peek(bytes: number, views: Uint8Array[]): number {
    assert(bytes <= this.#remaining, 'more than there is');
    let count = 0;
    let offset = this.#offset;
    for (let i = this.#at; bytes > 0; i++) {
      const piece = this.#pieces[i] as Uint8Array;
      const length = Math.min(bytes, piece.byteLength - offset);
      views[count] = length === piece.byteLength ? piece : piece.subarray(offset, offset + length);
      count += 1;
      bytes -= length;
      offset = 0;
    }
    return count;
  }

  advance(bytes: number): void {
    assert(bytes <= this.#remaining, 'more than there is');
    this.#remaining -= bytes;
    let offset = this.#offset + bytes;
    while (this.#at < this.#lengths.length && offset >= (this.#lengths[this.#at] as number)) {
      offset -= this.#lengths[this.#at] as number;
      this.#at += 1;
    }
    this.#offset = offset;
  }
}
