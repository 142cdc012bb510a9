/**
 * Frames for tests of ports: a guest's, in memory that can be lent, and a sink that keeps what a port receives.
 */
import assert from 'node:assert/strict';
import {
  FRAME_BYTES,
  FRAME_WORDS,
  type FrameOwner,
  type FrameTable,
  HEAD_AT,
  HEAD_BYTES,
} from '../../src/core/frames.ts';
import type { Port } from '../../src/core/port.ts';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { type Outcome, Ubuf } from '../../src/core/ubuf.ts';
import { native } from '../../src/sys/binding.ts';
import { createFrameTable } from '../../src/sys/frame-table.ts';
import { addChain, frameBytes, type GuestMemory, guestMemory, headOf, type Piece } from './guest-memory.ts';
import { Random } from './random.ts';

const VNET_BYTES = 12;
const PAGE_BYTES = 4096;
const PIECES_MAX = 64;

/** An Ethernet frame of `bytes`, all of them different from another seed's. */
export function frame(bytes: number, seed: number): Uint8Array {
  const random = new Random(seed);
  const out = new Uint8Array(bytes);
  for (let i = 0; i < bytes; i++) out[i] = random.below(256);
  // Locally administered, unicast; a type that nobody looks into.
  out.set([0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x88, 0xb5]);
  return out;
}

export interface Loan {
  readonly bytes: number;
  readonly borrower: object;
  /** Null while it is lent. */
  outcome: Outcome | null;
  quarantined: boolean;
}

export interface GuestOptions {
  readonly memoryBytes?: number;
  readonly seed?: number;
  /** Bytes of a head. */
  readonly headMax?: number;
  /** Bytes of the pieces that a frame lies in; random ones if left out. */
  readonly pieceBytes?: number;
}

/** A guest that sends: writes frames to its memory, in pieces, and lends them. */
export class GuestFrames {
  readonly memory: GuestMemory;
  readonly loans: Loan[] = [];
  /** Nothing is lent. */
  refuses = false;
  /** So many more are lent. */
  loansLeft: number = Number.POSITIVE_INFINITY;
  readonly #random: Random;
  readonly #headMax: number;
  readonly #bytes: number;
  readonly #queue = new ReleaseQueue(queueMicrotask);
  readonly #pieceBytes: number | undefined;
  #at = 0;

  constructor({ memoryBytes = 4 << 20, seed = 1, headMax = 256, pieceBytes }: GuestOptions = {}) {
    this.#pieceBytes = pieceBytes;
    this.#bytes = memoryBytes;
    this.#random = new Random(seed);
    this.#headMax = headMax;
    this.memory = guestMemory(memoryBytes);
  }

  /** A table with these frames, each behind the vnet header in `headers`, or behind one of zeros. Memory is used in a ring. */
  table(frames: readonly Uint8Array[], headers: readonly Uint8Array[] = []): FrameTable {
    const options = { frames: frames.length, segments: PIECES_MAX * frames.length, headBytes: 512 };
    const owner: FrameOwner = {
      lend: (index, borrower) => this.#lend(table, index, borrower),
      gather: (index, out) => native().framesGather(table.bytes, index, out),
    };
    const table = createFrameTable(options, owner);
    frames.forEach((bytes, i) => {
      const header = headers[i] ?? new Uint8Array(VNET_BYTES);
      addChain(table, this.#write(Buffer.concat([header, bytes])));
    });
    assert.equal(native().framesPeek(table.bytes, frames.length, VNET_BYTES, this.#headMax), frames.length);
    return table;
  }

  /** Sends all, waiting for room where there is none. */
  async send(port: Port, frames: readonly Uint8Array[], headers: readonly Uint8Array[] = []): Promise<void> {
    const table = this.table(frames, headers);
    await sendAll(port, table);
  }

  #lend(table: FrameTable, index: number, borrower: object): Ubuf | null {
    if (this.refuses || this.loansLeft === 0) return null;
    this.loansLeft -= 1;
    const bytes = frameBytes(table, index) - (table.records[index * FRAME_WORDS + HEAD_BYTES] as number);
    const loan: Loan = { bytes, borrower, outcome: null, quarantined: false };
    this.loans.push(loan);
    return new Ubuf(
      [],
      (outcome) => {
        assert.equal(loan.outcome, null, 'released twice');
        loan.outcome = outcome;
      },
      this.#queue,
      () => {
        loan.quarantined = true;
      },
      bytes,
    );
  }

  get outstanding(): number {
    return this.loans.filter(({ outcome }) => outcome === null).length;
  }

  end(): void {
    this.memory.end();
  }

  /** Writes bytes in pieces of random length. */
  #write(bytes: Uint8Array): Piece[] {
    if (this.#at + bytes.length + PAGE_BYTES > this.#bytes) this.#at = 0;
    const pieces: Piece[] = [];
    for (let done = 0; done < bytes.length; ) {
      const left = bytes.length - done;
      const wanted = this.#pieceBytes ?? 1 + this.#random.below(Math.max(2, bytes.length / 4));
      const length = pieces.length === PIECES_MAX - 1 ? left : Math.min(left, wanted);
      assert.equal(this.memory.space.write(this.#at, bytes.subarray(done, done + length)), 0);
      pieces.push({ address: this.#at, bytes: length, space: this.memory.space.id });
      this.#at += length;
      done += length;
    }
    return pieces;
  }
}

/** Sends a table's frames, all of them, waiting for room where there is none. */
export async function sendAll(port: Port, table: FrameTable): Promise<void> {
  const which = Uint32Array.from({ length: table.count || table.options.frames }, (_, i) => i);
  let at = 0;
  for (;;) {
    const { promise, resolve } = deferred<void>();
    port.onWritable = resolve;
    at = port.send(table, which, at, which.length);
    if (at === which.length) return;
    await promise;
  }
}

export interface Deferred<T> {
  readonly promise: Promise<T>;
  readonly resolve: (value: T) => void;
  readonly reject: (error: Error) => void;
}

export function deferred<T>(): Deferred<T> {
  let resolve: (value: T) => void = () => {};
  let reject: (error: Error) => void = () => {};
  const promise = new Promise<T>((res, rej) => {
    resolve = res;
    reject = rej;
  });
  return { promise, resolve, reject };
}

/** Copies of what a port received. */
export class FrameSink {
  readonly frames: Uint8Array[] = [];
  /** The words of the vnet headers. */
  readonly vnet: Uint32Array[] = [];
  /** How many it takes at most in one call; 0: none for now. */
  takes: number = Number.POSITIVE_INFINITY;
  /** Which frames it keeps. */
  wants: (bytes: Uint8Array) => boolean = () => true;
  #wake: () => void = () => {};

  constructor(port: Port) {
    port.receiver = (table) => {
      const count = Math.min(this.takes, table.count);
      for (let i = 0; i < count; i++) {
        const record = i * FRAME_WORDS;
        assert.equal(table.records[record + HEAD_BYTES], table.records[record + FRAME_BYTES]);
        assert.ok((table.records[record + HEAD_AT] as number) > 0);
        const bytes = headOf(table, i);
        if (!this.wants(bytes)) continue;
        this.frames.push(bytes);
        this.vnet.push(table.records.slice(record + 5, record + 8));
      }
      this.#wake();
      return count;
    };
  }

  /** Resolves when so many frames were received in all. */
  async until(count: number): Promise<void> {
    while (this.frames.length < count) {
      const { promise, resolve } = deferred<void>();
      this.#wake = resolve;
      await promise;
    }
  }
}

/** Compares frames byte for byte, and says where the first difference is. */
export function assertFrames(actual: readonly Uint8Array[], expected: readonly Uint8Array[]): void {
  expected.forEach((bytes, i) => {
    const got = actual[i];
    assert.ok(got !== undefined, `frame ${i} of ${expected.length} is missing`);
    if (Buffer.compare(got, bytes) === 0) return;
    const at = bytes.findIndex((byte, j) => byte !== got[j]);
    assert.fail(`frame ${i}: ${got.length} bytes of ${bytes.length}, the first difference at ${at}`);
  });
  assert.equal(actual.length, expected.length);
}
