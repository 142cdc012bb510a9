/** Frame tables whose frames are all head, in memory of this process: for those who make or keep frames themselves. */
import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameOwner,
  FrameTable,
  frameTableBytes,
  HEAD_AT,
  HEAD_BYTES,
} from './frames.ts';
import type { Ubuf } from './ubuf.ts';

const EINVAL = 22;

/** Has nothing to lend: there are no tails. */
class HostOwner implements FrameOwner {
  table: FrameTable | null = null;

  lend(): Ubuf | null {
    return null;
  }

  gather(frame: number, out: Uint8Array): number {
    const { table } = this;
    if (table === null) return -EINVAL;
    const record = frame * FRAME_WORDS;
    const at = table.records[record + HEAD_AT]!;
    const bytes = table.records[record + HEAD_BYTES]!;
    if (bytes > out.length) return -EINVAL;
    out.set(table.bytes.subarray(at, at + bytes));
    return bytes;
  }
}

/** A table of `frames` frames of up to `headBytes` each. */
export function createHostTable(frames: number, headBytes: number): FrameTable {
  const owner = new HostOwner();
  const options = { frames, segments: 0, headBytes };
  const table = new FrameTable(new ArrayBuffer(frameTableBytes(options)), options, owner);
  owner.table = table;
  return table;
}

/** Frames of a HostBatch, and the bytes that there is room for. A frame of 64 KiB has room, or 100 of 1500 bytes. */
const BATCH_FRAMES = 128;
const SLOT_BYTES = 2048;

/** Indexes of the frames of a batch: all of them, in order. */
export const everyFrame: Uint32Array = Uint32Array.from({ length: BATCH_FRAMES }, (_, i) => i);

/** Before each frame: room for a tag. */
const GAP_BYTES = 16;

/**
 * A host table that takes frames of any length, one behind the other, as many as fit: slots for the longest would take megabytes.
 *
 *   memory   [ layout, records | reserved | gap frame | gap frame | gap frame ...            ]
 *
 * Frames begin 2 bytes behind a multiple of 4, so that IP and TCP headers lie on one, which is what sums are fastest from.
 */
export class HostBatch {
  readonly table: FrameTable;
  /** Where `reservedBytes` are the maker's own: 2 bytes behind a multiple of 4. */
  readonly reservedAt: number;
  readonly #startAt: number;
  #cursor: number;

  /** Room for `frames` frames of 2048 bytes, or fewer longer ones. */
  constructor(reservedBytes = 0, frames: number = BATCH_FRAMES) {
    this.table = createHostTable(frames, SLOT_BYTES);
    this.reservedAt = ((this.table.headAt(0) + 3) & ~3) + 2;
    this.#startAt = (this.reservedAt + reservedBytes + 3) & ~3;
    this.#cursor = this.#startAt;
  }

  /** Adds a frame of so many bytes, without vnet header and VLAN. Where its bytes go, or -1: there is no room. */
  place(frameBytes: number): number {
    const { table } = this;
    const at = this.#cursor + GAP_BYTES + 2;
    if (table.count === table.options.frames || at + frameBytes > table.bytes.length) return -1;
    const record = table.count * FRAME_WORDS;
    table.records.fill(0, record, record + FRAME_WORDS);
    table.records[record + HEAD_AT] = at;
    table.records[record + HEAD_BYTES] = frameBytes;
    table.records[record + FRAME_BYTES] = frameBytes;
    table.count += 1;
    this.#cursor = (at + frameBytes + 3) & ~3;
    return at;
  }

  clear(): void {
    this.table.clear();
    this.#cursor = this.#startAt;
  }
}
