/**
 * Frames against a model: any layout of regions, any chains, any places to deliver to, with the model's memory as plain
 * arrays. And tables that are nonsense: whatever is in them, calls end, and nothing outside of table and guest changes.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { errnoOf } from '../../src/core/errors.ts';
import { FRAME_SLOT, FRAME_WORDS, LAYOUT_BYTES } from '../../src/core/frames.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { SOCK_DGRAM } from '../../src/sys/constants.ts';
import { memfd } from '../../src/sys/fds.ts';
import { GuestSpace } from '../../src/sys/space.ts';
import { socketPair } from '../support/descriptors.ts';
import {
  addChain,
  addTarget,
  all,
  headOf,
  type Piece,
  pattern,
  setWord,
  status,
  table,
  tailOf,
} from '../support/guest-memory.ts';

if (process.env.FC_SEED !== undefined) fc.configureGlobal({ seed: Number(process.env.FC_SEED) });

const PAGE = native().pageSize();
const PAGES = 12;
const [EFAULT, EMSGSIZE] = [errnoOf('EFAULT'), errnoOf('EMSGSIZE')] as [number, number];
const BASE = 2 ** 32 - 4 * PAGE;

/** Which page of the file each page of guest memory is, from BASE on; -1 for none. */
const layout = fc.array(fc.integer({ min: -1, max: PAGES - 1 }), { minLength: PAGES, maxLength: PAGES });
const pieces = fc.array(
  fc.record({
    offset: fc.integer({ min: -50, max: PAGES * PAGE + 50 }),
    bytes: fc.oneof(fc.constantFrom(0, 1, 12, 14, 60, 1514), fc.nat(3 * PAGE)),
  }),
  { maxLength: 6 },
);

/** A guest as the native layer has it, and as arrays. */
class Model {
  readonly space = new GuestSpace();
  readonly file: Uint8Array = pattern(PAGES * PAGE);
  readonly #pages: readonly number[];

  constructor(pages: readonly number[]) {
    this.#pages = pages;
    const fd = memfd('zerotx-model', PAGES * PAGE);
    pages.forEach((page, i) => {
      const address = BASE + i * PAGE;
      if (page >= 0) assert.equal(this.space.map(fd, address, PAGE, page * PAGE, BigInt(address)), 0);
    });
    const whole = new GuestSpace();
    assert.equal(whole.map(fd, 0, PAGES * PAGE, 0, 0n), 0);
    assert.equal(whole.write(0, this.file), 0);
    whole.destroy();
    calls.close(fd);
  }

  /** Where a guest address is in the file, or -1. */
  #at(address: number): number {
    const page = this.#pages[Math.floor((address - BASE) / PAGE)] ?? -1;
    return page < 0 ? -1 : page * PAGE + ((address - BASE) % PAGE);
  }

  /** All bytes of the segments, or null when one of them is not there. */
  read(segments: readonly Piece[]): number[] | null {
    const out: number[] = [];
    for (const { address, bytes } of segments) {
      for (let i = 0; i < bytes; i++) {
        const at = this.#at(address + i);
        if (at < 0) return null;
        out.push(this.file[at] as number);
      }
    }
    return out;
  }

  /** False when one of those that are needed is not there. */
  write(segments: readonly Piece[], bytes: readonly number[]): boolean {
    let done = 0;
    for (const { address, bytes: room } of segments) {
      for (let i = 0; i < room && done < bytes.length; i++) {
        const at = this.#at(address + i);
        if (at < 0) return false;
        this.file[at] = bytes[done++] as number;
      }
    }
    return true;
  }

  segments(list: readonly { offset: number; bytes: number }[]): Piece[] {
    return list.map(({ offset, bytes }) => ({ address: BASE + offset, bytes, space: this.space.id }));
  }
}

function expectedStatus(chain: readonly Piece[], bytes: number[] | null, header: number): number {
  const total = chain.reduce((sum, piece) => sum + piece.bytes, 0);
  if (total < header + 14 || total - header > 65_566) return EMSGSIZE;
  return bytes === null ? EFAULT : 0;
}

describe('frames', { timeout: 120_000 }, () => {
  it('are what the model says, whatever the layout and the chains', () => {
    const header = fc.constantFrom(0, 10, 12);
    const headMax = fc.constantFrom(0, 1, 64, 256, 5000);
    fc.assert(
      fc.property(layout, layout, header, headMax, fc.array(pieces, { maxLength: 8 }), pieces, (...given) => {
        const [sourcePages, targetPages, headerBytes, max, chains, places] = given;
        const [from, to] = [new Model(sourcePages), new Model(targetPages)];
        const source = table(8, 64, 2048);
        const frames = chains.map((list) => {
          const chain = from.segments(list);
          addChain(source, chain);
          const bytes = from.read(chain);
          return {
            bytes: bytes?.slice(headerBytes) ?? [],
            wanted: expectedStatus(chain, bytes, headerBytes),
          };
        });
        const good = frames.filter(({ wanted }) => wanted === 0).length;
        assert.equal(native().framesPeek(source.bytes, chains.length, headerBytes, max), good);
        const out = new Uint8Array(66_000);
        let sum = 0;
        frames.forEach(({ bytes, wanted }, i) => {
          assert.equal(status(source, i), wanted);
          if (wanted !== 0) return;
          assert.deepEqual([...headOf(source, i)], bytes.slice(0, Math.min(max, 2048)));
          assert.equal(native().framesGather(source.bytes, i, out), bytes.length);
          assert.ok(Buffer.from(bytes).equals(out.subarray(0, bytes.length)));
          assert.deepEqual(from.read(tailOf(source, i)), bytes.slice(Math.min(2048, max)));
          sum = bytes.reduce((total, byte) => total + byte, sum);
        });
        const which = Uint32Array.from(frames.flatMap(({ wanted }, i) => (wanted === 0 ? [i] : [])));
        assert.equal(native().framesChecksum(source.bytes, which, which.length), sum);
        deliver(to, source, frames, places);
        for (const { space } of [from, to]) space.destroy();
      }),
      { numRuns: 150 },
    );
  });

  function deliver(
    to: Model,
    source: ReturnType<typeof table>,
    frames: readonly { bytes: number[]; wanted: number }[],
    places: readonly { offset: number; bytes: number }[],
  ): void {
    const target = table(8, 64, 64);
    const header = pattern(12, 100);
    const segments = to.segments(places);
    const room = segments.reduce((sum, piece) => sum + piece.bytes, 0);
    const wanted = frames.map(({ bytes }, i) => {
      addTarget(target, i, header, segments);
      // A frame that failed has no bytes, and is delivered as a header alone.
      const all = [...header, ...bytes.slice(0, frames[i]?.wanted === 0 ? bytes.length : 0)];
      if (room < all.length) return EMSGSIZE;
      return to.write(segments, all) ? 0 : EFAULT;
    });
    const good = wanted.filter((one) => one === 0).length;
    assert.equal(native().framesDeliver(source.bytes, target.bytes, frames.length), good);
    assert.deepEqual(
      frames.map((_, i) => status(target, i)),
      wanted,
    );
    if (wanted.includes(EFAULT)) return; // how much of it was written is not said
    for (let offset = 0; offset < PAGES * PAGE; offset += PAGE) {
      const page = new Uint8Array(PAGE);
      if (to.space.read(BASE + offset, page) !== 0) continue;
      const [piece] = to.segments([{ offset, bytes: PAGE }]);
      assert.deepEqual([...page], to.read([piece as Piece]));
    }
  }
});

describe('tables that are nonsense', { timeout: 120_000 }, () => {
  const word = fc.oneof(
    fc.constantFrom(0, 1, 4, 63, 64, 4096, 2 ** 31, 2 ** 32 - 1, 2 ** 32 - 64, 2 ** 32 - 16),
    fc.nat(64),
    fc.nat(10_000),
  );
  /** Offsets in words: of the layout, records and segments. */
  const change = fc.record({ at: fc.nat(LAYOUT_BYTES / 4 + 8 * FRAME_WORDS + 16 * 4), word });
  const changes = fc.oneof(
    { weight: 1, arbitrary: fc.array(change, { maxLength: 40 }) },
    // With the layout as it is, so that the rest is looked at.
    {
      weight: 3,
      arbitrary: fc.array(change, { maxLength: 40 }).map((list) => list.filter(({ at }) => at >= 5)),
    },
  );

  it('are refused, or do nothing outside of what they are', () => {
    const guest = new Model([...all(PAGES)]);
    const [a, b] = socketPair(SOCK_DGRAM);
    const [c, d] = socketPair();
    const into = new Uint8Array(200_000);
    fc.assert(
      fc.property(changes, changes, fc.nat(9), fc.nat(300), (first, second, count, max) => {
        const tables = [first, second].map((list, i) => {
          const one = table(8, 16, 128);
          for (let frame = 0; frame < 4; frame++) {
            addChain(one, guest.segments([{ offset: frame * PAGE + i, bytes: 200 }]));
            setWord(one, frame, FRAME_SLOT, frame);
          }
          const words = new Uint32Array(one.bytes.buffer, 0, one.bytes.length / 4);
          for (const { at, word } of list) words[at] = word;
          return one.bytes;
        }) as [Uint8Array, Uint8Array];
        const [x, y] = tables;
        const which = Uint32Array.from({ length: 10 }, (_, i) => (i * 3) % 11);
        const prefix = new Uint8Array(200);
        const sys = native();
        sys.framesPeek(x, count, 12, max);
        sys.framesPeek(y, count, 0, max);
        sys.framesDeliver(x, y, count);
        sys.framesGather(x, count, into.subarray(0, max));
        sys.framesChecksum(x, which, count);
        sys.framesWrite(a, x, which, 0, count, prefix, 12);
        sys.framesSendmmsg(a, y, which, 1, count, prefix, 20);
        sys.framesGso(a, x, which, 0, count, prefix, 20, max, 0);
        sys.framesStream(c, x, which, 0, count, prefix, 4, max, 0);
        sys.framesRead(b, x, count, 12);
        sys.framesRecvmmsg(b, y, count, prefix, 10, new Uint8Array(0));
        for (const fd of [b, d]) while (sys.readv(fd, [into], 1) > 0);
      }),
      { numRuns: 3000 },
    );
    for (const fd of [a, b, c, d]) calls.close(fd);
    guest.space.destroy();
  });
});
