/**
 * Frames out of a connected datagram socket, copied, a datagram each. Frames of one length in a row go in one call that the kernel cuts
 * (UDP_SEGMENT): a guest's TCP makes such runs of dozens of frames, and each then costs a quarter of what it costs in a message of its
 * own (measured). All others go by sendmmsg(2).
 *
 *   lengths   1514 1514 1514 1514 700 | 60 | 90 | 1514 1514 1514
 *   calls     one, cut                | sendmmsg | one, cut
 *
 * What the kernel refuses to cut goes by sendmmsg(2), too, which tells of each frame what became of it; if it is the device that cannot
 * (EIO), or the kernel is too old, from then on everything does.
 */
import { errnoOf } from '../core/errors.ts';
import { FRAME_STATUS, FRAME_WORDS, type FrameTable } from '../core/frames.ts';
import { UDP_MAX_SEGMENTS, UDP6_BYTES_MAX } from '../net/segments.ts';
import type { Native } from '../sys/binding.ts';
import { frameBytes } from './lending.ts';

export interface RunsOptions {
  readonly sys: Native;
  readonly fd: number;
  /** What goes in front of each frame, again and again, for as many frames as are ever sent at once. */
  readonly prefixes: () => Uint8Array;
  readonly prefixBytes: number;
  /** Whether the kernel knows UDP_SEGMENT. */
  readonly canCut: boolean;
  /** It cannot be used with this device. Called once. */
  readonly onUncut: () => void;
}

const EAGAIN = -errnoOf('EAGAIN');
const ENOBUFS = -errnoOf('ENOBUFS');
const EIO = -errnoOf('EIO');

export class DatagramRuns {
  readonly #options: RunsOptions;
  #canCut: boolean;

  constructor(options: RunsOptions) {
    this.#options = options;
    this.#canCut = options.canCut;
  }

  /** Sends frames; returns the position where there was no room, or `-errno`. Those before it have a FRAME_STATUS. */
  write(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    let at = from;
    /** The first that is not sent. */
    let first = from;
    while (at < count && this.#canCut) {
      const end = runEnd(table, which, at, count, this.#options.prefixBytes);
      if (end === at + 1) at = end;
      else {
        const stop = first === at ? at : this.#each(table, which, first, at);
        if (stop !== at) return stop;
        const next = this.#cut(table, which, at, end);
        if (next !== end) return next;
        at = end;
        first = end;
      }
    }
    return first === count ? count : this.#each(table, which, first, count);
  }

  #each(table: FrameTable, which: Uint32Array, from: number, count: number): number {
    const { sys, fd, prefixes, prefixBytes } = this.#options;
    return sys.framesSendmmsg(fd, table.bytes, which, from, count, prefixes(), prefixBytes);
  }

  #cut(table: FrameTable, which: Uint32Array, from: number, end: number): number {
    const { sys, fd, prefixes, prefixBytes, onUncut } = this.#options;
    const segmentBytes = prefixBytes + frameBytes(table, which[from] as number);
    const n = sys.framesGso(
      ...([fd, table.bytes, which, from, end, prefixes(), prefixBytes, segmentBytes, 0] as const),
    );
    if (n === EAGAIN || n === ENOBUFS) return from;
    if (n >= 0) {
      for (let i = from; i < end; i++) table.records[(which[i] as number) * FRAME_WORDS + FRAME_STATUS] = 0;
      return end;
    }
    if (n === EIO) {
      this.#canCut = false;
      onUncut();
    }
    return this.#each(table, which, from, end);
  }
}

/** Where the run ends that begins at `at`: frames of one length, and at most one shorter at its end. */
function runEnd(
  table: FrameTable,
  which: Uint32Array,
  at: number,
  count: number,
  prefixBytes: number,
): number {
  const bytes = frameBytes(table, which[at] as number);
  const fitting = Math.floor(UDP6_BYTES_MAX / (prefixBytes + bytes));
  const limit = Math.min(count, at + Math.max(1, Math.min(UDP_MAX_SEGMENTS, fitting)));
  for (let end = at + 1; end < limit; end++) {
    const next = frameBytes(table, which[end] as number);
    if (next !== bytes) return next < bytes ? end + 1 : end;
  }
  return limit;
}
