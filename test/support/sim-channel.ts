/**
 * A TcpChannel over a kernel that does what a seed says: it takes parts, is full, refuses flagged calls for every reason, confirms
 * them late, merged and in any order, and reads lent memory only when it confirms. The real engine is between them.
 *
 * What it takes must follow one pattern from the first byte on, when it is taken and, where it was lent, still when it is
 * confirmed. So nothing is compared afterwards: the first wrong byte fails at the call that carried it.
 */
import assert from 'node:assert/strict';
import { FixedBudget } from '../../src/core/budget.ts';
import { errnoOf } from '../../src/core/errors.ts';
import type { Ubuf } from '../../src/core/ubuf.ts';
import type { CopyCause } from '../../src/net/counters.ts';
import { type ZerocopyCounters, zerocopyCounters } from '../../src/net/counters.ts';
import { ZerocopyPolicy } from '../../src/net/policy.ts';
import type { TcpChannel, TcpHandler } from '../../src/net/tcp.ts';
import { type Lenders, ZerocopyEngine } from '../../src/net/zerocopy.ts';
import type { Native } from '../../src/sys/binding.ts';
import { MSG_ZEROCOPY } from '../../src/sys/constants.ts';
import { ERRQUEUE_WORDS } from '../../src/wire/errqueue.ts';
import type { SocketAddress } from '../../src/wire/sockaddr.ts';
import { Random } from './random.ts';

export const SIM_THRESHOLD_BYTES = 256;
const PAGE_BYTES = 4096;
const ZEROCOPY_ORIGIN = 5;
const EAGAIN = -errnoOf('EAGAIN');
const ECONNRESET = -errnoOf('ECONNRESET');
const REFUSALS = ['ENOBUFS', 'ENOMEM', 'EMSGSIZE'].map((code) => -errnoOf(code));

/** The byte at a place of the stream. */
export function byteAt(position: number): number {
  return (position * 31 + (position >>> 8) * 7 + (position >>> 16)) & 0xff;
}

export function fillBytes(bytes: Uint8Array, from: number): void {
  for (let i = 0; i < bytes.length; i++) bytes[i] = byteAt(from + i);
}

/** Part of the stream that one flagged call took from one view. */
export interface LentPart {
  readonly from: number;
  readonly view: Uint8Array;
}

/** The system calls of one socket, as the engine makes them. */
class SimKernel {
  readonly random: Random;
  /** Flagged calls not confirmed yet, by number. */
  readonly #calls = new Map<number, LentPart[]>();
  readonly #records: [lo: number, hi: number, copied: boolean][] = [];
  #next = 0;
  /** Bytes taken in all. */
  taken = 0;
  /** Bytes that it takes before it is full. */
  room = 0;
  /** Of a hundred flagged calls, so many are refused. */
  refusedPercent = 0;
  /** Errors from now on. */
  isDead = false;
  /** No call may come any more. */
  isClosed = false;

  constructor(random: Random) {
    this.random = random;
  }

  /** Whether it has yet to read some of that part of the stream from the program's memory. */
  reads(from: number, bytes: number): boolean {
    for (const parts of this.#calls.values()) {
      if (parts.some((part) => part.from < from + bytes && part.from + part.view.length > from)) return true;
    }
    return false;
  }

  /** Flagged calls not confirmed yet. */
  get callsLent(): number {
    return this.#calls.size;
  }

  sendv(_fd: number, views: readonly Uint8Array[], count: number, flags: number): number {
    assert.ok(!this.isClosed, 'a call after close()');
    assert.ok(count > 0 && count <= 64 && count <= views.length, `${count} views`);
    if (this.isDead) return ECONNRESET;
    const isLent = (flags & MSG_ZEROCOPY) !== 0;
    if (isLent && this.random.below(100) < this.refusedPercent) return this.random.pick(REFUSALS);
    const offered = views.slice(0, count);
    const bytes = offered.reduce((sum, view) => sum + view.byteLength, 0);
    const most = Math.min(bytes, this.room);
    if (most === 0) return EAGAIN;
    const n = this.random.chance(0.6) ? most : 1 + this.random.below(most);
    if (n < bytes && this.random.chance(0.5)) this.room = 0;
    else this.room -= n;
    const parts: LentPart[] = [];
    let at = this.taken;
    for (const whole of offered) {
      const view = whole.subarray(0, this.taken + n - at);
      checkBytes(view, at);
      parts.push({ from: at, view });
      at += view.byteLength;
    }
    if (isLent) {
      this.#calls.set(this.#next, parts);
      this.#next += 1;
    }
    this.taken += n;
    return n;
  }

  /** Reads the memory of one to eight calls that are next to each other, at last, and writes the record. */
  confirm(): void {
    if (this.#calls.size === 0) return;
    const lo = this.random.pick([...this.#calls.keys()]);
    let hi = lo;
    while (hi < lo + 7 && this.#calls.has(hi + 1) && this.random.chance(0.5)) hi += 1;
    for (let number = lo; number <= hi; number++) {
      for (const { from, view } of this.#calls.get(number) as LentPart[]) checkBytes(view, from);
      this.#calls.delete(number);
    }
    this.#records.push([lo, hi, this.random.chance(0.3)]);
  }

  drainErrors(_fd: number, out: Uint32Array): number {
    const taken = this.#records.splice(0, out.length / ERRQUEUE_WORDS);
    taken.forEach(([lo, hi, copied], i) => {
      out.set([0, ZEROCOPY_ORIGIN, 0, copied ? 1 : 0, lo, hi], i * ERRQUEUE_WORDS);
    });
    return taken.length;
  }

  pageSize(): number {
    return PAGE_BYTES;
  }
}

export interface SimOptions {
  readonly seed: number;
  /** Pages that may be pinned: none if left out. */
  readonly limitPages?: number;
  readonly refusedPercent?: number;
}

/** What TcpSocket and Outgoing use of a TcpChannel. */
export class SimChannel {
  readonly kernel: SimKernel;
  readonly counters: ZerocopyCounters = zerocopyCounters();
  readonly engine: ZerocopyEngine;
  readonly #budget: FixedBudget;
  handler: TcpHandler = { readable() {}, writable() {}, released() {} };
  readable = false;
  writable = true;
  readonly localEndpoint: SocketAddress = { address: '127.0.0.1', port: 1, family: 2, scopeId: 0 };
  /** How the owner ended it. */
  ended: 'close' | 'reset' | null = null;
  finSent = false;
  #ended: (() => void) | null = null;

  constructor({ seed, limitPages = -1, refusedPercent = 0 }: SimOptions) {
    this.kernel = new SimKernel(new Random(seed));
    this.kernel.refusedPercent = refusedPercent;
    this.#budget = new FixedBudget(limitPages);
    this.engine = new ZerocopyEngine({
      sys: this.kernel as unknown as Native,
      fd: 3,
      policy: new ZerocopyPolicy({
        mode: 'force',
        thresholdBytes: SIM_THRESHOLD_BYTES,
        loopback: () => false,
      }),
      counters: this.counters,
      now: () => 0,
      budget: this.#budget,
    });
  }

  /** For what wants the class itself. */
  get asTcpChannel(): TcpChannel {
    return this as unknown as TcpChannel;
  }

  get callBytesMax(): number {
    return this.engine.callBytesMax;
  }

  get lending(): boolean {
    return this.engine.policy.lending;
  }

  get pinnedSinceMs(): number | undefined {
    return this.engine.oldestSinceMs;
  }

  get pagesCharged(): number {
    return this.#budget.used();
  }

  why(bytes: number): CopyCause | null {
    return this.engine.why(bytes);
  }

  send(views: readonly Uint8Array[], count: number, _more: boolean): number {
    return this.#sent(this.kernel.sendv(3, views, count, 0));
  }

  sendLent(lenders: Lenders, views: readonly Uint8Array[], count: number): number {
    return this.#sent(this.engine.send(lenders, views, count, 0));
  }

  copied(ubuf: Ubuf | null, bytes: number, cause: CopyCause): void {
    this.engine.copied(ubuf, bytes, cause);
  }

  readv(): number {
    if (this.kernel.isDead) return ECONNRESET;
    this.readable = false;
    return EAGAIN;
  }

  setOption(): number {
    return 0;
  }

  ref(): void {}

  unref(): void {}

  shutdownWrite(): void {
    this.finSent = true;
  }

  close(ended: () => void = () => {}): void {
    this.#end('close', ended);
  }

  reset(ended: () => void = () => {}): void {
    this.#end('reset', ended);
  }

  /** The event that there is room for so many bytes. */
  makeRoom(bytes: number): void {
    this.kernel.room += bytes;
    if (this.ended !== null || this.writable) return;
    this.writable = true;
    this.handler.writable();
  }

  /** Some calls are confirmed; `told`: with the event, else somebody finds the records later. */
  confirm(told: boolean): void {
    this.kernel.confirm();
    if (!told) return;
    const drained = this.engine.drain();
    if (this.ended === null && drained > 0) this.handler.released();
    this.#endIfReleased();
  }

  /** The peer resets: the kernel gives everything back, and every call fails. */
  kill(): void {
    this.kernel.isDead = true;
    while (this.kernel.callsLent > 0) this.kernel.confirm();
    this.engine.drain();
    this.#endIfReleased();
    if (this.ended !== null) return;
    if (!this.writable) {
      this.writable = true;
      this.handler.writable();
    }
    this.readable = true;
    if (this.ended === null) this.handler.readable();
  }

  #sent(n: number): number {
    if (n !== EAGAIN) return n;
    this.writable = false;
    return 0;
  }

  #end(how: 'close' | 'reset', ended: () => void): void {
    assert.equal(this.ended, null, 'ended twice');
    this.ended = how;
    this.kernel.isClosed = true;
    this.#ended = ended;
    if (how === 'reset') {
      while (this.kernel.callsLent > 0) this.kernel.confirm();
      this.engine.drain();
    }
    this.#endIfReleased();
  }

  #endIfReleased(): void {
    if (this.ended === null || this.engine.outstanding > 0) return;
    const ended = this.#ended;
    this.#ended = null;
    ended?.();
  }
}

function checkBytes(bytes: Uint8Array, from: number): void {
  for (let i = 0; i < bytes.length; i++) {
    if (bytes[i] !== byteAt(from + i)) assert.fail(`another byte ${bytes[i]} at ${from + i} of the stream`);
  }
}
