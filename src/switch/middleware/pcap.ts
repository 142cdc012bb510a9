/**
 * A port with somebody listening on its line: every frame that it takes, and every frame of it that is taken, goes into a capture too.
 *
 * The capture is made before a frame is handed on, as others may take a tag off it then, and is kept for those that were taken: one that
 * comes a second time, after back-pressure, is not there twice. Frames are as their owner has them: one that is still to be
 * segmented is there in one piece, and a checksum that is still to be computed is not yet right.
 *
 * Capturing costs a copy of each frame up to the snap length. It does not stop lending.
 */
import { checkInteger, checkObject, wrongType } from '../../core/arguments.ts';
import type { Clock } from '../../core/clock.ts';
import {
  FRAME_BYTES,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  HEAD_BYTES,
} from '../../core/frames.ts';
import type { Port } from '../../core/port.ts';
import {
  PCAP_HEADER_BYTES,
  PCAP_RECORD_BYTES,
  PCAP_SNAP_BYTES_MAX,
  writePcapHeader,
  writePcapRecord,
} from '../../wire/pcap.ts';
import { Wrapper } from './wrapper.ts';

/** A frame as it went by. */
export interface CapturedFrame {
  /** `rx`: it came out of the port. */
  readonly direction: 'rx' | 'tx';
  readonly seconds: number;
  readonly nanoseconds: number;
  /** Before it was cut to the snap length. */
  readonly frameBytes: number;
}

export interface CaptureOptions {
  /** Its epochMs, where it has one, makes the times those of the calendar. */
  readonly clock: Clock;
  /** Of each frame so much: all unless told. */
  readonly snapBytes?: number;
  /** Gets the bytes of a pcap file with nanoseconds, first its head. They are valid until it returns. */
  readonly write?: (chunk: Uint8Array) => void;
  /** Gets each frame. `bytes` are valid until it returns. */
  readonly onFrame?: (bytes: Uint8Array, frame: CapturedFrame) => void;
}

/** Records of a batch, made before anybody knows how many of its frames are taken. */
class Batch {
  seconds = 0;
  nanoseconds = 0;
  /** Records one behind the other; record i is at starts[i]..starts[i + 1], and empty when the frame could not be read. */
  #buffer = new Uint8Array(64 * 1024);
  #starts = new Uint32Array(65);
  #frameBytes = new Uint32Array(64);

  record(
    table: FrameTable,
    which: Uint32Array | null,
    from: number,
    count: number,
    snapBytes: number,
    clock: Clock,
  ): void {
    this.#stamp(clock);
    if (this.#frameBytes.length < count - from) {
      this.#starts = new Uint32Array(count - from + 1);
      this.#frameBytes = new Uint32Array(count - from);
    }
    let at = 0;
    for (let i = from; i < count; i++) {
      const frame = which === null ? i : which[i]!;
      this.#frameBytes[i - from] = table.records[frame * FRAME_WORDS + FRAME_BYTES]!;
      at = this.#add(table, frame, at, snapBytes);
      this.#starts[i - from + 1] = at;
    }
  }

  /** Gives away the records of the first `taken` frames. */
  emit(direction: 'rx' | 'tx', taken: number, { write, onFrame }: CaptureOptions): void {
    const end = this.#starts[taken]!;
    if (end > 0) write?.(this.#buffer.subarray(0, end));
    if (onFrame === undefined) return;
    const { seconds, nanoseconds } = this;
    for (let i = 0; i < taken; i++) {
      const start = this.#starts[i]! + PCAP_RECORD_BYTES;
      const end = this.#starts[i + 1]!;
      if (start > end) continue;
      const frameBytes = this.#frameBytes[i]!;
      onFrame(this.#buffer.subarray(start, end), { direction, seconds, nanoseconds, frameBytes });
    }
  }

  /** Adds the record of one frame at `at`. Where the next one goes. */
  #add(table: FrameTable, frame: number, at: number, snapBytes: number): number {
    const { records } = table;
    const record = frame * FRAME_WORDS;
    const frameBytes = records[record + FRAME_BYTES]!;
    const headAt = records[record + HEAD_AT]!;
    const headBytes = records[record + HEAD_BYTES]!;
    if (records[record + FRAME_STATUS] !== 0) return at;
    const captured = Math.min(snapBytes, frameBytes);
    const start = at + PCAP_RECORD_BYTES;
    this.#reserve(start + Math.max(headBytes, frameBytes));
    if (captured <= headBytes) this.#buffer.set(table.bytes.subarray(headAt, headAt + captured), start);
    else if (table.owner.gather(frame, this.#buffer.subarray(start, start + frameBytes)) !== frameBytes)
      return at;
    writePcapRecord(this.#buffer, at, this.seconds, this.nanoseconds, captured, frameBytes);
    return start + captured;
  }

  #reserve(bytes: number): void {
    if (bytes <= this.#buffer.length) return;
    const grown = new Uint8Array(Math.max(bytes, this.#buffer.length * 2));
    grown.set(this.#buffer);
    this.#buffer = grown;
  }

  /** Whole and broken milliseconds apart: a sum of both has not the digits for nanoseconds. */
  #stamp(clock: Clock): void {
    const epochMs = clock.epochMs ?? 0;
    const nowMs = clock.now();
    const whole = Math.floor(epochMs) + Math.floor(nowMs);
    const broken = (epochMs % 1) + (nowMs % 1);
    const seconds = Math.floor(whole / 1000);
    const nanoseconds = Math.floor(((whole % 1000) + broken) * 1e6);
    this.seconds = nanoseconds < 1e9 ? seconds : seconds + 1;
    this.nanoseconds = nanoseconds % 1e9;
  }
}

export class CapturePort extends Wrapper {
  readonly #options: CaptureOptions;
  readonly #snapBytes: number;
  /** More than one only when frames come from within send(), or are sent from within a receiver. */
  readonly #idle: Batch[] = [];

  constructor(inner: Port, options: CaptureOptions) {
    checkObject('options', options);
    const { snapBytes = PCAP_SNAP_BYTES_MAX, write, onFrame } = options;
    checkInteger('snapBytes', snapBytes, 1, PCAP_SNAP_BYTES_MAX);
    if (write === undefined && onFrame === undefined) throw wrongType('write', 'of type function', write);
    super(inner);
    this.#options = options;
    this.#snapBytes = snapBytes;
    const head = new Uint8Array(PCAP_HEADER_BYTES);
    writePcapHeader(head, 0, snapBytes);
    write?.(head);
  }

  override send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const batch = this.#idle.pop() ?? new Batch();
    batch.record(table, which, from, count, this.#snapBytes, this.#options.clock);
    const stop = super.send(table, which, from, count);
    batch.emit('tx', stop - from, this.#options);
    this.#idle.push(batch);
    return stop;
  }

  protected override received(table: FrameTable): number {
    const batch = this.#idle.pop() ?? new Batch();
    batch.record(table, null, 0, table.count, this.#snapBytes, this.#options.clock);
    const taken = super.received(table);
    batch.emit('rx', taken, this.#options);
    this.#idle.push(batch);
    return taken;
  }
}

/** `port` with a capture of what goes by. Throws for options that make no sense, and `ZTX_PORT_TAKEN` for a port that is joined. */
export function withCapture(port: Port, options: CaptureOptions): CapturePort {
  return new CapturePort(port, options);
}
