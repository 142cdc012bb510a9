/**
 * Guest memory without a guest: files as a front-end would hand them over, and frame tables whose segments lie in them.
 */
import assert from 'node:assert/strict';
import { ftruncateSync, readFileSync } from 'node:fs';
import {
  FRAME_BYTES,
  FRAME_SLOT,
  FRAME_STATUS,
  FRAME_WORDS,
  type FrameTable,
  HEAD_AT,
  HEAD_BYTES,
  NOBODY,
  TAIL_COUNT,
  TAIL_START,
} from '../../src/core/frames.ts';
import * as calls from '../../src/sys/calls.ts';
import { memfd } from '../../src/sys/fds.ts';
import { createFrameTable } from '../../src/sys/frame-table.ts';
import { GuestSpace } from '../../src/sys/space.ts';

export interface GuestMemory {
  readonly space: GuestSpace;
  /** Of the file: guest address 0 is its start. */
  readonly fd: number;
  truncate(bytes: number): void;
  /** Unmaps and closes it. */
  end(): void;
}

/** A space with one region: `bytes` from guest address 0, which the front-end has at 0x7f00_0000_0000. */
export function guestMemory(bytes: number, name = 'zerotx-test'): GuestMemory {
  const space = new GuestSpace();
  const fd = memfd(name, bytes);
  assert.equal(space.map(fd, 0, bytes, 0, 0x7f00_0000_0000n), 0);
  return {
    space,
    fd,
    truncate: (to) => ftruncateSync(fd, to),
    end: () => {
      space.destroy();
      calls.close(fd);
    },
  };
}

/** How many mappings of files with this name the process has. */
export function mappings(name: string): number {
  return readFileSync('/proc/self/maps', 'utf8')
    .split('\n')
    .filter((line) => line.includes(`memfd:${name}`)).length;
}

export function table(frames: number, segments: number, headBytes: number): FrameTable {
  return createFrameTable({ frames, segments, headBytes }, NOBODY);
}

export interface Piece {
  readonly address: number;
  readonly bytes: number;
  readonly space: number;
}

/** Appends segments; the first one's index. */
export function addSegments(to: FrameTable, pieces: readonly Piece[]): number {
  const start = to.segmentCount;
  for (const { address, bytes, space } of pieces) {
    const at = to.segmentCount++;
    to.addresses[2 * at] = address;
    to.segments[4 * at + 2] = bytes;
    to.segments[4 * at + 3] = space;
  }
  return start;
}

/** Adds a frame that is a chain of descriptors, as framesPeek() takes it. */
export function addChain(to: FrameTable, pieces: readonly Piece[]): number {
  const frame = to.count++;
  setWord(to, frame, TAIL_START, addSegments(to, pieces));
  setWord(to, frame, TAIL_COUNT, pieces.length);
  return frame;
}

/** Adds a place for frame `slot` of another table, as framesDeliver() takes it. */
export function addTarget(
  to: FrameTable,
  slot: number,
  header: Uint8Array,
  pieces: readonly Piece[],
): number {
  const frame = addChain(to, pieces);
  setWord(to, frame, FRAME_SLOT, slot);
  setWord(to, frame, HEAD_AT, to.headAt(frame));
  setWord(to, frame, HEAD_BYTES, header.length);
  to.bytes.set(header, to.headAt(frame));
  return frame;
}

/** Adds a frame that is all head. */
export function addHead(to: FrameTable, bytes: Uint8Array): number {
  const frame = to.addHead(bytes.length);
  assert.ok(frame >= 0);
  to.bytes.set(bytes, to.headAt(frame));
  return frame;
}

export function word(of: FrameTable, frame: number, which: number): number {
  return of.records[frame * FRAME_WORDS + which] as number;
}

export function setWord(of: FrameTable, frame: number, which: number, value: number): void {
  of.records[frame * FRAME_WORDS + which] = value;
}

export function status(of: FrameTable, frame: number): number {
  return word(of, frame, FRAME_STATUS);
}

export function headOf(of: FrameTable, frame: number): Uint8Array {
  const at = word(of, frame, HEAD_AT);
  return of.bytes.slice(at, at + word(of, frame, HEAD_BYTES));
}

/** The tail as segments. */
export function tailOf(of: FrameTable, frame: number): Piece[] {
  const start = word(of, frame, TAIL_START);
  return Array.from({ length: word(of, frame, TAIL_COUNT) }, (_, i) => ({
    address: of.addresses[2 * (start + i)] as number,
    bytes: of.segments[4 * (start + i) + 2] as number,
    space: of.segments[4 * (start + i) + 3] as number,
  }));
}

export function frameBytes(of: FrameTable, frame: number): number {
  return word(of, frame, FRAME_BYTES);
}

/** Bytes that tell where they are from: every position differs from its neighbours, and repeats only after 251. */
export function pattern(bytes: number, seed = 0): Uint8Array {
  return Uint8Array.from({ length: bytes }, (_, i) => (i * 7 + seed) % 251);
}

/** [0, count) */
export function all(count: number): Uint32Array {
  return Uint32Array.from({ length: count }, (_, i) => i);
}
