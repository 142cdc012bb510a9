/**
 * A device whose frames go nowhere, but whose every byte is copied to memory of this process and looked at: what a consumer
 * has to do at the least.
 *
 * Frames of up to 256 bytes are in such memory already, where the device copied them; of longer ones, 32 at a time are
 * gathered natively into buffers that stay in the caches, as DPDK's stay there in bursts of 32. Then all their bytes are added
 * up, by the addon's own loop, in one call.
 *
 * A slice of variant `time` lasts `count` milliseconds; of `frames`, until so many have come. It tells how many came, the sum
 * (so that nobody can leave it out), and how often V8 collected garbage meanwhile.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { constants, PerformanceObserver } from 'node:perf_hooks';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import {
  createHostTable,
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  HEAD_BYTES,
  TAIL_COUNT,
} from 'zerotx/switch';
import { VhostUserDevice } from 'zerotx/vhost';
import { type CellSide, type Counters, type Options, textOption } from './cell.ts';

interface Adder {
  /** The sum of all bytes of the frames `which[0..count)`. */
  framesChecksum(table: Uint8Array, which: Uint32Array, count: number): number;
}

/** Compiled files run from `out/bench/cells/`. */
const packageFolder = join(dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const TOGETHER = 32;
const COPY_BYTES = 2048;
const everyFrame = Uint32Array.from({ length: 4096 }, (_, i) => i);

class Sink {
  frames = 0;
  bytes = 0;
  sum = 0;
  batches = 0;
  target = Number.POSITIVE_INFINITY;
  reached: () => void = () => {};
  readonly #adder = createRequire(import.meta.url)('node-gyp-build')(packageFolder) as Adder;
  readonly #copies = createHostTable(TOGETHER, COPY_BYTES);
  readonly #rooms: Uint8Array[] = [];

  constructor() {
    for (let i = 0; i < TOGETHER; i++) {
      this.#copies.addHead(COPY_BYTES);
      const at = this.#copies.headAt(i);
      this.#rooms.push(this.#copies.bytes.subarray(at, at + COPY_BYTES));
    }
  }

  /** A FrameReceiver. */
  readonly take = (table: FrameTable): number => {
    const { records, count } = table;
    let bytes = 0;
    let isAllHead = true;
    for (let i = 0; i < count; i++) {
      bytes += records[i * FRAME_WORDS + FRAME_BYTES]!;
      if (records[i * FRAME_WORDS + TAIL_COUNT] !== 0) isAllHead = false;
    }
    this.sum = isAllHead
      ? (this.sum + this.#adder.framesChecksum(table.bytes, everyFrame, count)) >>> 0
      : this.#copyAndAdd(table);
    this.frames += count;
    this.bytes += bytes;
    this.batches += 1;
    if (this.frames >= this.target) this.reached();
    return count;
  };

  #copyAndAdd(table: FrameTable): number {
    const { records, bytes } = this.#copies;
    let { sum } = this;
    for (let first = 0; first < table.count; first += TOGETHER) {
      const count = Math.min(TOGETHER, table.count - first);
      for (let i = 0; i < count; i++) {
        const copied = table.owner.gather(first + i, this.#rooms[i]!);
        if (copied < 0) throw new Error(`gather: ${copied}`);
        records[i * FRAME_WORDS + HEAD_AT] = this.#copies.headAt(i);
        records[i * FRAME_WORDS + HEAD_BYTES] = copied;
      }
      sum = (sum + this.#adder.framesChecksum(bytes, everyFrame, count)) >>> 0;
    }
    return sum;
  }

  async came(count: number): Promise<void> {
    this.target = this.frames + count;
    await new Promise<void>((resolve) => {
      this.reached = resolve;
    });
    this.target = Number.POSITIVE_INFINITY;
  }
}

function sink(): CellSide {
  const sink = new Sink();
  let device: VhostUserDevice;
  let scavenges = 0;
  let collections = 0;
  const observer = new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      const { kind } = (entry as unknown as { detail: { kind: number } }).detail;
      if (kind === constants.NODE_PERFORMANCE_GC_MINOR) scavenges += 1;
      else collections += 1;
    }
  });
  return {
    async open(options: Options): Promise<Options> {
      observer.observe({ entryTypes: ['gc'] });
      device = new VhostUserDevice({ path: textOption(options, 'path') });
      device.receiver = sink.take;
      await device.open();
      return {};
    },
    async run({ count, variant }): Promise<Counters> {
      const before = { ...sink };
      const startMs = performance.now();
      const [scavengesBefore, collectionsBefore] = [scavenges, collections];
      if (variant === 'time') await delay(count);
      else await sink.came(count);
      const elapsedMs = performance.now() - startMs;
      const { frames, bytes, batches, sum } = sink;
      // Entries come behind the event loop's turn.
      await delay(1);
      return {
        ...{ frames: frames - before.frames, bytes: bytes - before.bytes, batches: batches - before.batches },
        ...{ elapsedMs, sum, scavenges: scavenges - scavengesBefore },
        collections: collections - collectionsBefore,
      };
    },
    async close() {
      observer.disconnect();
      await device.close();
    },
  };
}

export const sides: Record<string, () => CellSide> = { sink };
