/** Frames as a guest's device hands them on: a head in the table, a tail somewhere else that can be lent. */
import {
  FRAME_BYTES,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameOwner,
  FrameTable,
  frameTableBytes,
  HEAD_AT,
  HEAD_BYTES,
  TAIL_COUNT,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../src/core/frames.ts';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { Ubuf } from '../../src/core/ubuf.ts';

export interface Vnet {
  readonly flags?: number;
  readonly gsoType?: number;
  readonly hdrLen?: number;
  readonly gsoSize?: number;
  readonly csumStart?: number;
  readonly csumOffset?: number;
}

export interface Frame {
  readonly bytes: Uint8Array;
  readonly vnet?: Vnet;
  readonly status?: number;
  /** What gather() answers instead. */
  readonly gatherError?: number;
}

export class GuestTable implements FrameOwner {
  readonly table: FrameTable;
  readonly frames: readonly Frame[];
  /** One Ubuf a frame, with a reference of the owner's while send() runs. */
  readonly lent: Map<number, { ubuf: Ubuf; borrowers: object[] }> = new Map();
  readonly released: number[] = [];
  readonly queue: ReleaseQueue = new ReleaseQueue((task) => task());

  constructor(frames: readonly Frame[], headMax = 256) {
    this.frames = frames;
    const options = { frames: Math.max(1, frames.length), segments: 4, headBytes: headMax };
    this.table = new FrameTable(new ArrayBuffer(frameTableBytes(options)), options, this);
    for (const [i, { bytes, vnet = {}, status = 0 }] of frames.entries()) {
      const head = Math.min(headMax, bytes.length);
      this.table.addHead(head);
      const { records } = this.table;
      const record = i * FRAME_WORDS;
      this.table.bytes.set(bytes.subarray(0, head), this.table.headAt(i));
      records[record + FRAME_BYTES] = bytes.length;
      records[record + TAIL_COUNT] = head < bytes.length ? 1 : 0;
      records[record + FRAME_STATUS] = status;
      const { flags = 0, gsoType = 0, hdrLen = 0, gsoSize = 0, csumStart = 0, csumOffset = 0 } = vnet;
      records[record + VNET_FLAGS] = flags | (gsoType << 8) | (hdrLen << 16);
      records[record + VNET_GSO] = gsoSize | (csumStart << 16);
      records[record + VNET_CSUM] = csumOffset;
    }
  }

  lend(frame: number, borrower: object): Ubuf | null {
    const tailBytes = this.frames[frame]!.bytes.length - this.table.options.headBytes;
    if (tailBytes <= 0) return null;
    const had = this.lent.get(frame);
    if (had !== undefined) {
      had.borrowers.push(borrower);
      return had.ubuf.ref();
    }
    const ubuf = new Ubuf([], () => this.released.push(frame), this.queue, null, tailBytes);
    this.lent.set(frame, { ubuf, borrowers: [borrower] });
    return ubuf.ref();
  }

  gather(frame: number, out: Uint8Array): number {
    const { bytes, gatherError } = this.frames[frame]!;
    if (gatherError !== undefined) return gatherError;
    const { records } = this.table;
    const at = records[frame * FRAME_WORDS + HEAD_AT]!;
    const head = records[frame * FRAME_WORDS + HEAD_BYTES]!;
    out.set(this.table.bytes.subarray(at, at + head));
    const tail = bytes.subarray(Math.min(bytes.length, this.table.options.headBytes));
    out.set(tail, head);
    return head + tail.length;
  }

  /** The owner is done with the batch: its own references go. */
  done(): void {
    for (const { ubuf } of this.lent.values()) ubuf.unref();
  }
}
