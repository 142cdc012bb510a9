/**
 * A driver of a split virtqueue that does what the test says, right or wrong, over memory of its own; and what a frame
 * table needs besides: copies of the native calls, done slowly.
 *
 * It shares nothing with the code under test: offsets are written out here, all words go through DataView, addresses are BigInt.
 */
import {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_WORDS,
  FrameTable,
  frameTableBytes,
  HEAD_AT,
  HEAD_BYTES,
  TAIL_COUNT,
  TAIL_START,
  VNET_CSUM,
  VNET_FLAGS,
  VNET_GSO,
} from '../../src/core/frames.ts';
import type { RingFeatures, RingMemory } from '../../src/vhost/queue.ts';

export const NEXT = 1;
export const WRITE = 2;
export const INDIRECT = 4;

export const PLAIN: RingFeatures = { eventIdx: false, indirect: false, inOrder: false };
export const EVENT_IDX: RingFeatures = { ...PLAIN, eventIdx: true };
export const INDIRECT_DESC: RingFeatures = { ...PLAIN, indirect: true };
export const IN_ORDER: RingFeatures = { ...PLAIN, inOrder: true };

export interface Descriptor {
  readonly address: bigint;
  readonly length: number;
  readonly flags: number;
  readonly next: number;
}

/** One piece of a chain. */
export interface Piece {
  readonly address: bigint;
  readonly length: number;
  readonly write?: boolean;
}

/** Memory of a guest: a few ranges, with holes between them. */
export class GuestRam {
  readonly ranges: readonly { readonly base: bigint; readonly bytes: Uint8Array }[];

  /** Base address of each, and how many bytes, or the bytes themselves. */
  constructor(...ranges: readonly (readonly [bigint, number | Uint8Array])[]) {
    this.ranges = ranges.map(([base, memory]) => ({
      base,
      bytes: typeof memory === 'number' ? new Uint8Array(memory) : memory,
    }));
  }

  /** The bytes, if all are in one range. */
  find(address: bigint, length: number): Uint8Array | null {
    for (const { base, bytes } of this.ranges) {
      if (address < base || address + BigInt(length) > base + BigInt(bytes.length)) continue;
      const from = Number(address - base);
      return bytes.subarray(from, from + length);
    }
    return null;
  }

  /** As GuestSpace.read: bytes, or -14 (EFAULT). */
  read = (address: number, out: Uint8Array): number => {
    const bytes = Number.isSafeInteger(address) ? this.find(BigInt(address), out.length) : null;
    if (bytes === null) return -14;
    out.set(bytes);
    return out.length;
  };
}

export function ringMemory(size: number, features: RingFeatures): RingMemory {
  const event = features.eventIdx ? 2 : 0;
  return {
    desc: new ArrayBuffer(16 * size),
    avail: new ArrayBuffer(4 + 2 * size + event),
    used: new ArrayBuffer(4 + 8 * size + event),
  };
}

export class MockDriver {
  readonly size: number;
  readonly features: RingFeatures;
  readonly memory: RingMemory;
  readonly #desc: DataView;
  readonly #avail: DataView;
  readonly #used: DataView;
  readonly #free: number[];
  /** Descriptors of the chains that are out, by head. */
  readonly #chains = new Map<number, number[]>();
  /** Next entry of avail to write, and of used to read. */
  availIdx: number;
  usedIdx: number;

  /** Both rings start at `start`, as if that much had gone through them. */
  constructor(
    size: number,
    features: RingFeatures = PLAIN,
    start = 0,
    memory: RingMemory = ringMemory(size, features),
  ) {
    this.size = size;
    this.features = features;
    this.memory = memory;
    this.#desc = new DataView(memory.desc);
    this.#avail = new DataView(memory.avail);
    this.#used = new DataView(memory.used);
    this.#free = Array.from({ length: size }, (_, i) => i);
    this.availIdx = start;
    this.usedIdx = start;
    this.#avail.setUint16(2, start, true);
    this.#used.setUint16(2, start, true);
  }

  writeDesc(index: number, { address, length, flags, next }: Descriptor): void {
    writeDescriptor(this.#desc, index, { address, length, flags, next });
  }

  readDesc(index: number): Descriptor {
    return readDescriptor(this.#desc, index);
  }

  /** Writes one entry of avail, without showing it. */
  push(head: number): void {
    this.#avail.setUint16(4 + 2 * (this.availIdx % this.size), head, true);
    this.availIdx = (this.availIdx + 1) % 65536;
  }

  /** Shows what was pushed. */
  show(): void {
    this.setAvailIdx(this.availIdx);
  }

  setAvailIdx(value: number): void {
    this.#avail.setUint16(2, value, true);
  }

  set availFlags(value: number) {
    this.#avail.setUint16(0, value, true);
  }

  set usedEvent(value: number) {
    this.#avail.setUint16(4 + 2 * this.size, value, true);
  }

  get availEvent(): number {
    return this.#used.getUint16(4 + 8 * this.size, true);
  }

  get usedFlags(): number {
    return this.#used.getUint16(0, true);
  }

  /** used.idx in memory. */
  get shownUsed(): number {
    return this.#used.getUint16(2, true);
  }

  get freeCount(): number {
    return this.#free.length;
  }

  /** Heads of the chains that are out. */
  get outstanding(): number[] {
    return [...this.#chains.keys()];
  }

  /** Makes a chain of free descriptors and pushes it. Its head, or -1: too few are free. */
  chain(pieces: readonly Piece[]): number {
    if (pieces.length > this.#free.length) return -1;
    const taken = this.#free.splice(0, pieces.length);
    pieces.forEach(({ address, length, write }, i) => {
      const last = i + 1 === pieces.length;
      this.writeDesc(taken[i] as number, {
        address,
        length,
        flags: (write ? WRITE : 0) | (last ? 0 : NEXT),
        next: last ? 0xabcd : (taken[i + 1] as number),
      });
    });
    return this.#out(taken);
  }

  /** Makes a chain of one indirect descriptor, with its table at `at`, and pushes it. */
  indirect(pieces: readonly Piece[], ram: GuestRam, at: bigint): number {
    if (this.#free.length === 0) return -1;
    const table = ram.find(at, pieces.length * 16);
    if (table === null) throw new Error('no memory for an indirect table');
    writeTable(table, pieces);
    const taken = this.#free.splice(0, 1);
    this.writeDesc(taken[0] as number, {
      address: at,
      length: pieces.length * 16,
      flags: INDIRECT,
      next: 0,
    });
    return this.#out(taken);
  }

  /** Takes what the device has used: heads and lengths in the order of the ring. Throws for what no device may do. */
  reap(): [head: number, length: number][] {
    const entries: [number, number][] = [];
    const idx = this.shownUsed;
    while (this.usedIdx !== idx) {
      const at = 4 + 8 * (this.usedIdx % this.size);
      const head = this.#used.getUint32(at, true);
      const length = this.#used.getUint32(at + 4, true);
      const taken = this.#chains.get(head);
      if (taken === undefined) throw new Error(`used entry ${this.usedIdx} is for ${head}, which is not out`);
      this.#chains.delete(head);
      this.#free.push(...taken);
      entries.push([head, length]);
      this.usedIdx = (this.usedIdx + 1) % 65536;
      if (entries.length > this.size) throw new Error('used.idx runs away');
    }
    return entries;
  }

  #out(taken: number[]): number {
    const head = taken[0] as number;
    this.#chains.set(head, taken);
    this.push(head);
    return head;
  }
}

export function readDescriptor(view: DataView, index: number): Descriptor {
  return {
    address: view.getBigUint64(16 * index, true),
    length: view.getUint32(16 * index + 8, true),
    flags: view.getUint16(16 * index + 12, true),
    next: view.getUint16(16 * index + 14, true),
  };
}

export function writeDescriptor(view: DataView, index: number, descriptor: Descriptor): void {
  view.setBigUint64(16 * index, BigInt.asUintN(64, descriptor.address), true);
  view.setUint32(16 * index + 8, descriptor.length, true);
  view.setUint16(16 * index + 12, descriptor.flags, true);
  view.setUint16(16 * index + 14, descriptor.next, true);
}

/** An indirect table of `pieces`, one after the other. */
export function writeTable(table: Uint8Array, pieces: readonly Piece[]): void {
  const view = new DataView(table.buffer, table.byteOffset, table.byteLength);
  pieces.forEach(({ address, length, write }, i) => {
    const last = i + 1 === pieces.length;
    writeDescriptor(view, i, {
      address,
      length,
      flags: (write ? WRITE : 0) | (last ? 0 : NEXT),
      next: last ? 0 : i + 1,
    });
  });
}

/** A frame table in ordinary memory. */
export function plainTable(frames = 64, segments = 1024, headBytes = 256): FrameTable {
  const options = { frames, segments, headBytes };
  const owner = { lend: () => null, gather: () => -1 };
  return new FrameTable(new ArrayBuffer(frameTableBytes(options)), options, owner);
}

/** Segments [from, from + count) of a table, as pieces. */
export function piecesOf(table: FrameTable, from: number, count: number): Piece[] {
  return Array.from({ length: count }, (_, i) => ({
    address: BigInt(table.addresses[2 * (from + i)] as number),
    length: table.segments[4 * (from + i) + 2] as number,
  }));
}

/** All bytes of the segments [from, from + count), or null if some are not in memory. */
export function bytesOf(ram: GuestRam, table: FrameTable, from: number, count: number): Uint8Array | null {
  const parts: Uint8Array[] = [];
  for (const { address, length } of piecesOf(table, from, count)) {
    const bytes = ram.find(address, length);
    if (bytes === null) return null;
    parts.push(bytes);
  }
  return Buffer.concat(parts);
}

/** What framesPeek() does, but that it takes all of the frame into `frames`: returned by index, or an errno. */
export function peek(ram: GuestRam, table: FrameTable, headerBytes: number): (Uint8Array | number)[] {
  return Array.from({ length: table.count }, (_, i) => {
    const at = i * FRAME_WORDS;
    const [start = 0, count = 0] = [table.records[at + TAIL_START], table.records[at + TAIL_COUNT]];
    const bytes = bytesOf(ram, table, start, count);
    if (bytes === null) return 14;
    return bytes.length < headerBytes + 14 || bytes.length > headerBytes + 65_566
      ? 90
      : bytes.slice(headerBytes);
  });
}

/** A table of frames that are all head, with the vnet words given. */
export function framesOf(
  frames: readonly Uint8Array[],
  vnet: (index: number) => readonly [flags: number, gso: number, csum: number] = () => [0, 0, 0],
): FrameTable {
  const longest = frames.reduce((most, { length }) => Math.max(most, length), 0);
  const table = plainTable(Math.max(1, frames.length), 1, longest);
  frames.forEach((bytes, i) => {
    const frame = table.addHead(bytes.length);
    table.bytes.set(bytes, table.headAt(frame));
    const [flags, gso, csum] = vnet(i);
    table.records[frame * FRAME_WORDS + VNET_FLAGS] = flags;
    table.records[frame * FRAME_WORDS + VNET_GSO] = gso;
    table.records[frame * FRAME_WORDS + VNET_CSUM] = csum;
  });
  return table;
}

/** framesDeliver(), for frames that are all head: the chains of `target` are in `ram`. */
export function deliverTo(ram: GuestRam): (source: FrameTable, target: FrameTable, count: number) => number {
  return (source, target, count) => {
    let good = 0;
    for (let i = 0; i < count; i++) {
      const at = i * FRAME_WORDS;
      const from = (target.records[at + FRAME_SLOT] as number) * FRAME_WORDS;
      const parts = [
        [target.bytes, target.records[at + HEAD_AT], target.records[at + HEAD_BYTES]],
        [source.bytes, source.records[from + HEAD_AT], source.records[from + FRAME_BYTES]],
      ] as [Uint8Array, number, number][];
      const bytes = Buffer.concat(
        parts.map(([memory, start, length]) => memory.subarray(start, start + length)),
      );
      const [start = 0, pieces = 0] = [target.records[at + TAIL_START], target.records[at + TAIL_COUNT]];
      const status = scatter(ram, piecesOf(target, start, pieces), bytes);
      target.records[at + FRAME_STATUS] = status;
      if (status === 0) good += 1;
    }
    return good;
  };
}

function scatter(ram: GuestRam, pieces: readonly Piece[], bytes: Uint8Array): number {
  let from = 0;
  for (const { address, length } of pieces) {
    const to = ram.find(address, length);
    if (to === null) return 14;
    const part = bytes.subarray(from, from + length);
    to.set(part);
    from += part.length;
  }
  return from === bytes.length ? 0 : 90;
}
