/** The payload of a message as programs give it: one piece of memory, or an array of them (an iovec). */
import { wrongType } from '../core/arguments.ts';

/** The pieces as they are now: the caller's array is its own again on return, and empty pieces are nothing. */
export function toPieces(data: Uint8Array | readonly Uint8Array[]): readonly Uint8Array[] {
  if (data instanceof Uint8Array) return [data];
  const expected = 'an instance of Buffer or Uint8Array';
  if (!Array.isArray(data)) throw wrongType('data', `${expected}, or an array of them`, data);
  const pieces: Uint8Array[] = [];
  for (const [i, piece] of data.entries()) {
    if (!(piece instanceof Uint8Array)) throw wrongType(`data[${i}]`, expected, piece);
    if (piece.byteLength > 0) pieces.push(piece);
  }
  return pieces;
}

/** One behind the other to the beginning of `out`. */
export function copyPieces(pieces: readonly Uint8Array[], out: Uint8Array): void {
  let at = 0;
  for (const piece of pieces) {
    out.set(piece, at);
    at += piece.byteLength;
  }
}

/** A view of shared memory may follow its growth; what was accepted is what it showed then. */
export function fixedView(piece: Uint8Array): Uint8Array {
  if (!(piece.buffer instanceof SharedArrayBuffer)) return piece;
  return new Uint8Array(piece.buffer, piece.byteOffset, piece.byteLength);
}
