/**
 * Ethernet frames in a byte stream, each behind its length: what QEMU's `-netdev stream` and passt speak.
 *
 *   [ length u32, big-endian | vnet header, if agreed | frame ]  [ length | ... ]
 *
 * The length counts what follows it. It is all that a peer can lie with: one that no frame can have ends the
 * connection, because nothing tells where the next frame would begin.
 */
import { readU32, writeU32 } from './bytes.ts';
import { ETHERNET_BYTES } from './ethernet.ts';

export const STREAM_PREFIX_BYTES = 4;
/** What virtio allots to a frame that a segmentation offload made (virtio 1.2, section 5.1.6.3.1), and a VLAN tag. */
export const FRAME_BYTES_MAX = 65_566;

/** wholeFrame(): its end has not come yet. */
export const FRAME_INCOMPLETE = 0;
/** wholeFrame(): the peer cannot be followed any further. */
export const FRAME_REFUSED = -1;

/** Writes the length of `bytes` that follow. */
export function writeStreamPrefix(out: Uint8Array, at: number, bytes: number): void {
  writeU32(out, at, bytes);
}

/**
 * Looks at what is in `bytes` from `at` up to `to`, where a frame begins: the number of bytes behind its prefix once all of
 * them are there. `headerBytes` of these are a vnet header. A length that no frame has is refused as soon as it is there, so
 * that nobody waits for 4 GiB.
 */
export function wholeFrame(bytes: Uint8Array, at: number, to: number, headerBytes: number): number {
  if (to - at < STREAM_PREFIX_BYTES) return FRAME_INCOMPLETE;
  const length = readU32(bytes, at);
  if (length < headerBytes + ETHERNET_BYTES || length > headerBytes + FRAME_BYTES_MAX) {
    return FRAME_REFUSED;
  }
  return to - at - STREAM_PREFIX_BYTES < length ? FRAME_INCOMPLETE : length;
}
