/**
 * Frames that are written into the shared memory once, and sent again and again without a copy: what a generator of
 * traffic sends. A set of a few frames stays in the caches, one of many megabytes does not.
 *
 *   memory   | frame 0: header, frame | frame 1 | ...           each on cache lines of its own
 *   pieces   | a0 | b0 | c0 |           | a1 | b1 | c1 |         the descriptors of a frame: near equal parts of it
 */
import { checkInteger, wrongRange } from '../core/arguments.ts';
import { ZerotxError } from '../core/errors.ts';
import { VNET_HEADER_BYTES } from '../wire/virtio.ts';
import { FRAME_BYTES_MAX } from './frontend-features.ts';
import { type FrontendMemory, stride } from './frontend-memory.ts';
import { type Vnet, writeVnet } from './frontend-vnet.ts';

const FRAME_BYTES_MIN = 14;
/** A Linux driver sends at most MAX_SKB_FRAGS and two (drivers/net/virtio_net.c); leave some room. */
const PIECES_MAX = 64;

export interface PrepareOptions {
  /** Of each frame, from the destination address on. */
  readonly frameBytes: number;
  /** Frames in the set; 64 if left out, or as many as workingSetBytes hold. */
  readonly count?: number;
  /** Memory that the set goes through. */
  readonly workingSetBytes?: number;
  /** Descriptors of a frame, header included: 1 if left out. A Linux guest has 11 on average for frames of 62,000 bytes. */
  readonly pieces?: number;
  /** The header of all frames. */
  readonly vnet?: Vnet;
  /** Writes frame `index`; what is left out is zeros. */
  fill?(frame: Uint8Array, index: number): void;
}

export class FrameSet {
  readonly count: number;
  readonly frameBytes: number;
  readonly pieces: number;
  /** Pieces of frame `i` are those from `i * pieces` on. */
  readonly addresses: Float64Array;
  readonly lengths: Uint32Array;
  /** The frame that is sent next. */
  next = 0;

  /** Writes the frames. Throws ERR_OUT_OF_RANGE, and ENOSPC when `memory` has no room for them. */
  constructor(memory: FrontendMemory, options: PrepareOptions) {
    const { frameBytes, pieces = 1 } = options;
    checkInteger('options.frameBytes', frameBytes, FRAME_BYTES_MIN, FRAME_BYTES_MAX);
    checkInteger('options.pieces', pieces, 1, PIECES_MAX);
    const total = VNET_HEADER_BYTES + frameBytes;
    if (pieces > total) throw wrongRange('options.pieces', `<= ${total}`, pieces);
    const each = stride(total);
    this.count = countOf(options, each);
    this.frameBytes = frameBytes;
    this.pieces = pieces;
    this.addresses = new Float64Array(this.count * pieces);
    this.lengths = new Uint32Array(this.count * pieces);
    const at = memory.allocate(this.count * each);
    if (at < 0) {
      const wanted = this.count * each;
      throw new ZerotxError(
        'ENOSPC',
        `${wanted} bytes for frames, and ${memory.freeBytes} left: set memoryBytes`,
      );
    }
    this.#write(memory, at, each, options);
    this.#cut(memory.guestAddress(at), each, total);
  }

  #write({ u8 }: FrontendMemory, at: number, each: number, { vnet, fill }: PrepareOptions): void {
    // Not in place: what `fill` keeps of its argument must not reach the shared memory.
    const frame = new Uint8Array(this.frameBytes);
    for (let i = 0; i < this.count; i++) {
      const offset = at + i * each;
      writeVnet(u8, offset, vnet);
      if (fill === undefined) continue;
      fill(frame, i);
      u8.set(frame, offset + VNET_HEADER_BYTES);
    }
  }

  #cut(address: number, each: number, total: number): void {
    const { pieces } = this;
    for (let i = 0; i < this.count * pieces; i++) {
      const piece = i % pieces;
      const start = Math.floor((total * piece) / pieces);
      this.addresses[i] = address + Math.floor(i / pieces) * each + start;
      this.lengths[i] = Math.floor((total * (piece + 1)) / pieces) - start;
    }
  }
}

function countOf({ count, workingSetBytes }: PrepareOptions, each: number): number {
  const most = 2 ** 24;
  if (workingSetBytes !== undefined && count === undefined) {
    checkInteger('options.workingSetBytes', workingSetBytes, each, Number.MAX_SAFE_INTEGER);
    return Math.min(Math.floor(workingSetBytes / each), most);
  }
  const wanted = count ?? 64;
  checkInteger('options.count', wanted, 1, most);
  return wanted;
}
