/**
 * The receiving half of a stream of frames: bytes are read into a frame table's memory, and frames are left where they
 * came to lie; only records are written.
 *
 *   memory   [ done with | length frame | length frame | length fra       room       ]
 *                          ▲ #from                                 ▲ #to
 *
 * The beginning of a frame whose end does not fit is moved to the front. The four bytes before a frame are its own
 * length, which has been read: a VLAN tag may be put in there.
 *
 * What the receiver does not take stays, and nothing is read meanwhile, so that the peer's TCP learns of it.
 */
import { errnoOf } from '../core/errors.ts';
import { FRAME_BYTES, FRAME_WORDS, type FrameTable, HEAD_AT, HEAD_BYTES } from '../core/frames.ts';
import { createHostTable } from '../core/host-table.ts';
import type { Native } from '../sys/binding.ts';
import { FRAME_BYTES_MAX, FRAME_REFUSED, STREAM_PREFIX_BYTES, wholeFrame } from '../wire/stream-frame.ts';
import { VNET_HEADER_BYTES } from '../wire/virtio.ts';
import { readVnetHeader } from '../wire/vnet.ts';
import { dropFirst } from './receiving.ts';

export interface ReceiverOptions {
  readonly sys: Native;
  readonly fd: number;
  readonly vnet: boolean;
  /** Offers frames; returns how many were taken, from the first. */
  readonly deliver: (table: FrameTable) => number;
}

/** How a turn ended. `more`: the turn was long enough, and there may be more to read. */
export type TurnEnd = 'idle' | 'more' | 'blocked' | 'closed' | 'refused' | 'ended';

const EAGAIN = -errnoOf('EAGAIN');

const FRAMES = 256;
/** Half a MiB in all: the moves of half a frame are then a twentieth of what is received, at most. */
const ROOM_BYTES_PER_FRAME = 2048;
/** Reads before others have their turn. */
const READS_PER_TURN = 8;

export class StreamReceiver {
  /** Set by whoever sees events; cleared when there is nothing to read. */
  readable = false;
  /** Set when the connection is closed from within deliver(). */
  isClosed = false;
  /** Why reading ended: 0, the peer said so; or `-errno`. */
  error = 0;
  readonly #options: ReceiverOptions;
  readonly #headerBytes: number;
  readonly #table: FrameTable;
  readonly #base: number;
  #from: number;
  #to: number;
  #isBlocked = false;

  constructor(options: ReceiverOptions) {
    this.#options = options;
    this.#headerBytes = options.vnet ? VNET_HEADER_BYTES : 0;
    this.#table = createHostTable(FRAMES, ROOM_BYTES_PER_FRAME);
    this.#base = this.#table.headAt(0);
    this.#from = this.#base;
    this.#to = this.#base;
  }

  /** The receiver takes frames again. */
  resume(): void {
    this.#isBlocked = false;
  }

  /** Reads and delivers until there is nothing more, or a turn is over. */
  turn(): TurnEnd {
    for (let reads = 0; ; reads++) {
      const end = this.#deliverAll();
      if (end !== 'idle') return end;
      if (!this.readable) return 'idle';
      if (reads === READS_PER_TURN) return 'more';
      const n = this.#read();
      if (n === EAGAIN) {
        this.readable = false;
        return 'idle';
      }
      if (n <= 0) {
        this.error = n;
        return 'ended';
      }
    }
  }

  #read(): number {
    this.#makeRoom();
    const view = this.#table.bytes.subarray(this.#to);
    const n = this.#options.sys.readv(this.#options.fd, [view], 1);
    if (n > 0) this.#to += n;
    return n;
  }

  /** The longest frame fits behind #from. */
  #makeRoom(): void {
    const { bytes } = this.#table;
    if (this.#from === this.#to) {
      this.#from = this.#base;
      this.#to = this.#base;
    } else if (bytes.length - this.#from < STREAM_PREFIX_BYTES + VNET_HEADER_BYTES + FRAME_BYTES_MAX) {
      bytes.copyWithin(this.#base, this.#from, this.#to);
      this.#to -= this.#from - this.#base;
      this.#from = this.#base;
    }
  }

  #deliverAll(): TurnEnd {
    const table = this.#table;
    while (!this.#isBlocked) {
      const isRefused = !this.#parse();
      const { count } = table;
      if (count === 0) return isRefused ? 'refused' : 'idle';
      // Before the call: resume() may come from inside.
      this.#isBlocked = true;
      const taken = this.#options.deliver(table);
      if (this.isClosed) return 'closed';
      dropFirst(table, taken);
      if (taken === count) this.#isBlocked = false;
      else if (!this.#isBlocked) return 'more';
    }
    return 'blocked';
  }

  /** Makes records of whole frames, as many as the table takes; false: the next length is impossible. */
  #parse(): boolean {
    const table = this.#table;
    const headerBytes = this.#headerBytes;
    while (table.count < FRAMES) {
      const length = wholeFrame(table.bytes, this.#from, this.#to, headerBytes);
      if (length <= 0) return length !== FRAME_REFUSED;
      const at = this.#from + STREAM_PREFIX_BYTES;
      this.#add(at + headerBytes, length - headerBytes);
      if (headerBytes > 0) readVnetHeader(table, table.count - 1, at);
      this.#from = at + length;
    }
    return true;
  }

  #add(at: number, bytes: number): void {
    const table = this.#table;
    const record = table.count * FRAME_WORDS;
    table.records.fill(0, record, record + FRAME_WORDS);
    table.records[record + HEAD_AT] = at;
    table.records[record + HEAD_BYTES] = bytes;
    table.records[record + FRAME_BYTES] = bytes;
    table.count += 1;
  }
}
