/** Frames of a capture file, offered in order, at the pace they were captured with or as fast as they are taken. */
import { type FileHandle, open } from 'node:fs/promises';
import type { Clock } from '../core/clock.ts';
import { ZerotxError } from '../core/errors.ts';
import type { FrameTable } from '../core/frames.ts';
import { createHostTable } from '../core/host-table.ts';
import type { PortCounters } from '../core/port.ts';
import { ETHERNET_BYTES } from '../wire/ethernet.ts';
import {
  LINKTYPE_ETHERNET,
  PCAP_HEADER_BYTES,
  PCAP_RECORD_BYTES,
  PCAP_SNAP_BYTES_MAX,
  type PcapFormat,
  PcapRecord,
  parsePcapHeader,
  readPcapRecord,
} from '../wire/pcap.ts';
import { FRAME_BYTES_MAX } from '../wire/stream-frame.ts';
import { dropFirst } from './receiving.ts';

export interface ReplayOptions {
  readonly clock: Clock;
  /** Times as fast as captured. */
  readonly speed: number;
  readonly counters: PortCounters;
  /** Offers frames; returns how many were taken, from the first. */
  readonly deliver: (table: FrameTable) => number;
  /** The file cannot be read on. */
  readonly failed: (error: Error) => void;
}

const BATCH_FRAMES = 32;
/** The longest record and more. */
const CHUNK_BYTES: number = 2 * (PCAP_RECORD_BYTES + PCAP_SNAP_BYTES_MAX);

export class PcapReplay {
  /** Resolves when the last frame was taken, or there is no more to be had. */
  readonly done: Promise<void>;
  readonly #file: FileHandle;
  readonly #format: PcapFormat;
  readonly #options: ReplayOptions;
  readonly #table: FrameTable;
  readonly #buffer: Buffer = Buffer.allocUnsafe(CHUNK_BYTES);
  readonly #record = new PcapRecord();
  #from = 0;
  #to = 0;
  #isClosed = false;
  #isStarted = false;
  /** When replaying began, and what the first frame was captured at. */
  #startMs = 0;
  #firstMs = Number.NaN;
  #wake: () => void = () => {};
  #finished: () => void = () => {};

  private constructor(file: FileHandle, format: PcapFormat, options: ReplayOptions) {
    this.#file = file;
    this.#format = format;
    this.#options = options;
    this.#table = createHostTable(BATCH_FRAMES, FRAME_BYTES_MAX);
    this.done = new Promise((resolve) => {
      this.#finished = resolve;
    });
  }

  /** Throws ENOENT and its kind, `ZTX_BAD_PCAP` for what is no capture of Ethernet frames. */
  static async open(path: string, options: ReplayOptions): Promise<PcapReplay> {
    const file = await open(path);
    try {
      const head = new Uint8Array(PCAP_HEADER_BYTES);
      const { bytesRead } = await file.read(head, 0, head.length);
      const format = parsePcapHeader(head.subarray(0, bytesRead));
      if (format.linkType !== LINKTYPE_ETHERNET) {
        throw new ZerotxError(
          'ZTX_BAD_PCAP',
          `${path} has frames of link type ${format.linkType}, not Ethernet`,
        );
      }
      return new PcapReplay(file, format, options);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  start(): void {
    this.#isStarted = true;
    this.#startMs = this.#options.clock.now();
    this.#run()
      .catch((error: Error) => {
        if (!this.#isClosed) this.#options.failed(error);
      })
      .finally(this.#finished);
  }

  resume(): void {
    this.#wake();
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#wake();
    if (this.#isStarted) await this.done;
    this.#finished();
    await this.#file.close();
  }

  async #run(): Promise<void> {
    const table = this.#table;
    while (!this.#isClosed) {
      const next = this.#parse();
      if (table.count > 0) await this.#offer();
      else if (next === 'more') {
        if (!(await this.#fill())) return;
      } else await this.#pause(next);
    }
  }

  /** Makes frames of what is there. Returns why there are no more: the file is to be read on; or milliseconds to wait. */
  #parse(): 'more' | number {
    const table = this.#table;
    while (table.count < BATCH_FRAMES) {
      const bytes = readPcapRecord(this.#format, this.#buffer, this.#from, this.#to, this.#record);
      if (bytes < 0) throw new ZerotxError('ZTX_BAD_PCAP', 'a record that is longer than any');
      if (bytes === 0) return 'more';
      const waitMs = this.#dueMs() - this.#options.clock.now();
      if (waitMs > 0) return waitMs;
      this.#add(this.#from + PCAP_RECORD_BYTES, this.#record.capturedBytes);
      this.#from += bytes;
    }
    return 0;
  }

  #add(at: number, bytes: number): void {
    // Cut by the capture, or none: it cannot be sent as it was.
    const isWhole = bytes === this.#record.frameBytes && bytes >= ETHERNET_BYTES && bytes <= FRAME_BYTES_MAX;
    if (!isWhole) {
      this.#options.counters.rxErrors += 1;
      return;
    }
    const frame = this.#table.addHead(bytes);
    this.#table.bytes.set(this.#buffer.subarray(at, at + bytes), this.#table.headAt(frame));
  }

  /** When the record is to be received; in the past, if at once. */
  #dueMs(): number {
    const { speed } = this.#options;
    if (!Number.isFinite(speed)) return 0;
    const capturedMs = this.#record.seconds * 1e3 + this.#record.nanoseconds / 1e6;
    if (Number.isNaN(this.#firstMs)) this.#firstMs = capturedMs;
    return this.#startMs + (capturedMs - this.#firstMs) / speed;
  }

  async #offer(): Promise<void> {
    const table = this.#table;
    while (table.count > 0 && !this.#isClosed) {
      const { promise, wake } = this.#whenWoken();
      const taken = this.#options.deliver(table);
      dropFirst(table, taken);
      if (table.count === 0) wake();
      await promise;
    }
    table.clear();
  }

  async #pause(ms: number): Promise<void> {
    const { promise, wake } = this.#whenWoken();
    const cancel = this.#options.clock.after(ms, wake);
    await promise;
    cancel();
  }

  #whenWoken(): { promise: Promise<void>; wake: () => void } {
    let wake: () => void = () => {};
    const promise = new Promise<void>((resolve) => {
      wake = resolve;
    });
    this.#wake = wake;
    return { promise, wake };
  }

  /** Reads on; false: the file is at its end. */
  async #fill(): Promise<boolean> {
    this.#buffer.copyWithin(0, this.#from, this.#to);
    this.#to -= this.#from;
    this.#from = 0;
    const room = this.#buffer.length - this.#to;
    const { bytesRead } = await this.#file.read(this.#buffer, this.#to, room, null);
    this.#to += bytesRead;
    return bytesRead > 0;
  }
}
