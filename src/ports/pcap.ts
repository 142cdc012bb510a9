/**
 * A capture file as a port: what is sent here is written, and what was captured once is received again.
 *
 *   const port = new PcapPort({ name: 'tap', file: 'lan.pcap' });                       // writes
 *   const port = new PcapPort({ name: 'again', replay: 'lan.pcap', speed: 1 });         // reads, as fast as it came
 *
 * Frames are copied to a buffer, and the buffer is written when it is full or the turn is over. While more than 8 MiB wait
 * for the disk nothing is taken. Trouble with the file is an end of the port, told by `failure`; nothing is thrown.
 */
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import type { Writable } from 'node:stream';
import type { Clock } from '../core/clock.ts';
import { FRAME_BYTES, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
import {
  type Capability,
  type FrameReceiver,
  type Port,
  type PortCounters,
  portCounters,
} from '../core/port.ts';
import { PCAP_RECORD_BYTES, PCAP_SNAP_BYTES_MAX, writePcapHeader, writePcapRecord } from '../wire/pcap.ts';
import { FRAME_BYTES_MAX } from '../wire/stream-frame.ts';
import { systemClock } from './clock.ts';
import { PcapReplay } from './pcap-replay.ts';
import { offer } from './receiving.ts';

export interface PcapOptions {
  readonly name: string;
  /** Path of a file, or a stream, to write to. Left out: what is sent is dropped. */
  readonly file?: string | Writable;
  /** Bytes of a frame that are written: all if left out. */
  readonly snapBytes?: number;
  /** Path of a file to receive from. */
  readonly replay?: string;
  /** 1: as fast as it was captured, 2: twice as fast; as fast as it is taken, if left out. */
  readonly speed?: number;
  readonly clock?: Clock;
}

const BUFFER_BYTES = 256 * 1024;
const WAITING_BYTES_MAX = 8 * 1024 * 1024;
const MTU = 65_535;

export class PcapPort implements Port {
  readonly name: string;
  readonly capability: Capability = {
    zeroCopy: 'never',
    thresholdBytes: Number.POSITIVE_INFINITY,
    offloads: 0,
    mtu: MTU,
  };
  readonly counters: PortCounters = portCounters();
  receiver: FrameReceiver | null = null;
  onWritable: (() => void) | null = null;
  onChange: (() => void) | null = null;
  isUp = false;
  /** What ended the writing or the reading of a file. */
  failure: Error | null = null;
  readonly #options: PcapOptions;
  readonly #clock: Clock;
  readonly #snapBytes: number;
  #stream: Writable | null = null;
  #buffer: Buffer = Buffer.alloc(0);
  #bytes = 0;
  #cancelFlush: (() => void) | null = null;
  #isBlocked = false;
  #replay: PcapReplay | null = null;

  constructor(options: PcapOptions) {
    this.name = options.name;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#snapBytes = Math.min(options.snapBytes ?? PCAP_SNAP_BYTES_MAX, PCAP_SNAP_BYTES_MAX);
  }

  send(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const stream = this.#stream;
    if (stream === null) {
      this.counters.txDropped += count - from;
      return count;
    }
    for (let i = from; i < count; i++) {
      if (stream.writableLength > WAITING_BYTES_MAX) {
        this.#isBlocked = true;
        return i;
      }
      this.#write(table, which[i] as number);
    }
    return count;
  }

  resume(): void {
    this.#replay?.resume();
  }

  /** Creates the file to write, and begins to read the other; throws ENOENT and its kind, and what is wrong with its head. */
  async open(): Promise<void> {
    if (this.isUp) return;
    const { file, replay, speed } = this.#options;
    if (replay !== undefined) {
      this.#replay = await PcapReplay.open(replay, {
        clock: this.#clock,
        speed: speed ?? Number.POSITIVE_INFINITY,
        counters: this.counters,
        deliver: (table) => offer(this, this.counters, table),
        failed: (error) => {
          this.failure = error;
        },
      });
    }
    if (file !== undefined) {
      this.#openStream(typeof file === 'string' ? await created(file) : file);
    }
    this.isUp = true;
    this.onChange?.();
    this.#replay?.start();
  }

  /** Resolves when what was sent is in the file. */
  async close(): Promise<void> {
    const replay = this.#replay;
    this.#replay = null;
    await replay?.close();
    this.#flush();
    const stream = this.#stream;
    this.#stream = null;
    if (stream !== null) await new Promise<void>((resolve) => stream.end(() => resolve()));
    if (!this.isUp) return;
    this.isUp = false;
    this.onChange?.();
  }

  /** Resolves when all of the file to read was taken, or could not be read. */
  async replayed(): Promise<void> {
    await this.#replay?.done;
  }

  #openStream(stream: Writable): void {
    stream.on('error', (error) => this.#failed(error));
    stream.on('drain', () => this.#drained());
    this.#stream = stream;
    this.#buffer = Buffer.allocUnsafe(BUFFER_BYTES);
    this.#bytes = writePcapHeader(this.#buffer, 0, this.#snapBytes);
    this.#flushLater();
  }

  #write(table: FrameTable, frame: number): void {
    const bytes = table.records[frame * FRAME_WORDS + FRAME_BYTES] as number;
    const { counters } = this;
    if (bytes > FRAME_BYTES_MAX) {
      counters.txDropped += 1;
      return;
    }
    if (this.#bytes + PCAP_RECORD_BYTES + bytes > this.#buffer.length) this.#flush();
    const at = this.#bytes + PCAP_RECORD_BYTES;
    if (table.owner.gather(frame, this.#buffer.subarray(at, at + bytes)) !== bytes) {
      counters.txErrors += 1;
      return;
    }
    const wallMs = (this.#clock.epochMs ?? 0) + this.#clock.now();
    const seconds = Math.floor(wallMs / 1e3);
    const nanoseconds = Math.floor((wallMs - seconds * 1e3) * 1e6);
    const captured = Math.min(bytes, this.#snapBytes);
    writePcapRecord(this.#buffer, this.#bytes, seconds, nanoseconds, captured, bytes);
    this.#bytes = at + captured;
    counters.txFrames += 1;
    counters.txBytes += bytes;
    this.#flushLater();
  }

  #flushLater(): void {
    this.#cancelFlush ??= this.#clock.soon(() => this.#flush());
  }

  #flush(): void {
    this.#cancelFlush?.();
    this.#cancelFlush = null;
    if (this.#bytes === 0 || this.#stream === null) return;
    // The stream keeps what it is given.
    this.#stream.write(this.#buffer.subarray(0, this.#bytes));
    this.#buffer = Buffer.allocUnsafe(BUFFER_BYTES);
    this.#bytes = 0;
  }

  #drained(): void {
    if (!this.#isBlocked) return;
    this.#isBlocked = false;
    this.onWritable?.();
  }

  #failed(error: Error): void {
    this.failure = error;
    this.#stream = null;
    this.#drained();
    // What it may still replay comes from a port that is up.
    if (!this.isUp || this.#replay !== null) return;
    this.isUp = false;
    this.onChange?.();
  }
}

async function created(path: string): Promise<Writable> {
  const stream = createWriteStream(path);
  await once(stream, 'open');
  return stream;
}
