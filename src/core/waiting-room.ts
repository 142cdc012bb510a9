/** Where frames wait, copied, for somebody who has no room for them now: in a row, and no more of them than there is room here. */
import { FRAME_BYTES, FRAME_WORDS, type FrameTable, VNET_CSUM, VNET_FLAGS, VNET_GSO } from './frames.ts';
import { HostBatch } from './host-table.ts';

const VNET_WORDS = [VNET_FLAGS, VNET_GSO, VNET_CSUM] as const;

/** Each is behind the one before; when the last has left it begins anew. */
export class WaitingRoom {
  /** All of the table, in order: what waits are those from `first` on. */
  readonly which: Uint32Array;
  first = 0;
  /** Made when it is first needed: most receivers keep up. */
  #batch: HostBatch | null = null;

  /** Of `frames` frames of 2 KiB, or fewer longer ones. */
  constructor(frames: number) {
    this.which = Uint32Array.from({ length: frames }, (_, i) => i);
  }

  get table(): FrameTable {
    return this.#made.table;
  }

  get count(): number {
    return this.#batch === null ? 0 : this.#batch.table.count - this.first;
  }

  clear(): void {
    this.#batch?.clear();
    this.first = 0;
  }

  /** The frames before `at` have left. */
  leave(at: number): void {
    this.first = at;
    if (this.count === 0) this.clear();
  }

  /** False: it is full. */
  add(source: FrameTable, frame: number): boolean {
    const { table } = this;
    const from = frame * FRAME_WORDS;
    const bytes = source.records[from + FRAME_BYTES] as number;
    const to = table.count * FRAME_WORDS;
    const at = this.#made.place(bytes);
    if (at < 0) return false;
    if (source.owner.gather(frame, table.bytes.subarray(at, at + bytes)) !== bytes) {
      // Its memory is gone, and so is the frame.
      table.count -= 1;
      return true;
    }
    for (const word of VNET_WORDS) table.records[to + word] = source.records[from + word] as number;
    return true;
  }

  get #made(): HostBatch {
    this.#batch ??= new HostBatch(0, this.which.length);
    return this.#batch;
  }
}
