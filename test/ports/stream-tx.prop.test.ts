/**
 * The sending half of a stream over a kernel that takes what it likes: parts of frames, nothing, or an error, and that is done
 * with lent pages in any order. The bytes must be those of the frames, whole and in order; lent memory must stay as it is
 * until its last completion, and be given back once.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { errnoOf } from '../../src/core/errors.ts';
import { type FrameOwner, FrameTable, HEAD_AT, HEAD_BYTES } from '../../src/core/frames.ts';
import { portCounters } from '../../src/core/port.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import { ZerocopyPolicy } from '../../src/net/policy.ts';
import { LendChooser } from '../../src/ports/chooser.ts';
import { StreamSender } from '../../src/ports/stream-tx.ts';
import { type Native, native } from '../../src/sys/binding.ts';
import { MSG_ZEROCOPY } from '../../src/sys/constants.ts';
import { ERRQUEUE_WORDS } from '../../src/wire/errqueue.ts';
import { frame, GuestFrames } from '../support/frames.ts';
import { word } from '../support/guest-memory.ts';
import { Random } from '../support/random.ts';

const seed = process.env.FC_SEED;
if (seed !== undefined) fc.configureGlobal({ seed: Number(seed) });

const ZEROCOPY_ORIGIN = 5;
const NOBODY: FrameOwner = { lend: () => null, gather: () => 0 };

/** What a flagged call was given, to be looked at again when it completes. */
interface Held {
  readonly number: number;
  readonly memory: readonly { readonly at: Uint8Array; readonly was: Uint8Array }[];
}

class Kernel {
  readonly taken: Buffer[] = [];
  /** Takes all, from now on. */
  isWilling = false;
  readonly #random: Random;
  readonly #held: Held[] = [];
  readonly #done: number[] = [];
  #next = 0;

  constructor(random: Random) {
    this.#random = random;
  }

  get sys(): Native {
    const kernel = this;
    return {
      ...native(),
      sendv: (_fd, views) => kernel.#take(Buffer.from(views[0] as Uint8Array), 0, false),
      framesStream(_fd, bytes, which, from, count, prefixes, prefixBytes, skip, flags) {
        const parts: Uint8Array[] = [];
        for (let i = from; i < count; i++) {
          parts.push(prefixes.subarray(i * prefixBytes, (i + 1) * prefixBytes));
          const out = new Uint8Array(70_000);
          const length = native().framesGather(bytes, which[i] as number, out);
          assert.ok(length > 0, `framesGather: ${length}`);
          parts.push(out.subarray(0, length));
        }
        const n = kernel.#take(Buffer.concat(parts).subarray(skip), flags, true);
        if (n > 0 && (flags & MSG_ZEROCOPY) !== 0) kernel.#hold(bytes, which.subarray(from, count));
        return n;
      },
      drainErrors(_fd, out) {
        let count = 0;
        for (; kernel.#done.length > 0 && (count + 1) * ERRQUEUE_WORDS <= out.length; count++) {
          const number = kernel.#done.shift() as number;
          out.set([0, ZEROCOPY_ORIGIN, 0, number % 3 === 0 ? 1 : 0, number, number], count * ERRQUEUE_WORDS);
        }
        return count;
      },
    };
  }

  /** Lets go of some of what it holds, or all. */
  complete(all: boolean): void {
    for (let i = this.#held.length - 1; i >= 0; i--) {
      if (!all && this.#random.chance(0.6)) continue;
      const [held] = this.#held.splice(i, 1) as [Held];
      for (const { at, was } of held.memory) assert.equal(Buffer.compare(at, was), 0, 'a head changed');
      this.#done.push(held.number);
    }
  }

  #take(bytes: Buffer, flags: number, isForeign: boolean): number {
    const random = this.#random;
    if (!this.isWilling) {
      if (random.chance(0.2)) return -errnoOf('EAGAIN');
      if ((flags & MSG_ZEROCOPY) !== 0 && random.chance(0.1)) {
        return -errnoOf(random.pick(['ENOBUFS', 'ENOMEM', 'EMSGSIZE', 'EOPNOTSUPP']));
      }
      if (isForeign && random.chance(0.03)) return -errnoOf('EFAULT');
    }
    const n = this.isWilling || random.chance(0.4) ? bytes.length : 1 + random.below(bytes.length);
    this.taken.push(Buffer.from(bytes.subarray(0, n)));
    return n;
  }

  #hold(bytes: Uint8Array, which: Uint32Array): void {
    const options = { frames: 8, segments: 256, headBytes: 384 };
    const table = new FrameTable(bytes.buffer as ArrayBuffer, options, NOBODY);
    const memory = [...which].map((index) => {
      const start = word(table, index, HEAD_AT);
      const at = bytes.subarray(start, start + word(table, index, HEAD_BYTES));
      return { at, was: at.slice() };
    });
    this.#held.push({ number: this.#next++, memory });
  }
}

/** What follows the prefixes of those that are there to their last byte: its bytes. */
function wholeFrames(stream: Buffer): number[] {
  const found: number[] = [];
  for (let at = 0; at + 4 <= stream.length; at += 4 + (found.at(-1) as number)) {
    const bytes = stream.readUInt32BE(at);
    if (at + 4 + bytes > stream.length) break;
    found.push(bytes);
  }
  return found;
}

describe('the sending half of a stream', () => {
  /** One connection's life. */
  async function live(seedOfRun: number, vnet: boolean, chooses: boolean, ends: boolean): Promise<void> {
    const random = new Random(seedOfRun);
    const kernel = new Kernel(random);
    const counters = portCounters();
    const zerocopy = zerocopyCounters();
    let nowMs = 1;
    const sender = new StreamSender({
      sys: kernel.sys,
      fd: 0,
      policy: new ZerocopyPolicy({ mode: 'force', thresholdBytes: 512, loopback: () => false }),
      zerocopy,
      chooser: chooses ? new LendChooser(random.pick([0, 20_000]), () => 0) : null,
      counters,
      clock: {
        now: () => (nowMs += random.next() / 100),
        after: () => () => {},
        soon: () => () => {},
      },
      vnet,
      borrower: kernel,
      failed: (errno) => assert.fail(`failed with ${errno}`),
    });
    const guest = new GuestFrames({ memoryBytes: 4 << 20, seed: seedOfRun });
    const expected: Uint8Array[] = [];
    for (let round = 0; round < 6; round++) {
      const frames = Array.from({ length: 1 + random.below(24) }, (_, i) => {
        const bytes = random.pick([14, 60, 200, 1024, 1514, 9014, 30_000]) + random.below(40);
        return frame(bytes, seedOfRun + 100 * round + i);
      });
      guest.refuses = random.chance(0.2);
      guest.loansLeft = random.chance(0.5) ? random.below(12) : Number.POSITIVE_INFINITY;
      const table = guest.table(frames);
      const which = Uint32Array.from(frames, (_, i) => i);
      for (let at = 0; at < frames.length; ) {
        if (sender.isBlocked) sender.writable();
        const next = sender.send(table, which, at, frames.length);
        assert.ok(next >= at);
        expected.push(...frames.slice(at, next));
        at = next;
        if (random.chance(0.5)) kernel.complete(false);
        if (random.chance(0.5)) sender.engine.drain();
      }
    }
    kernel.isWilling = !ends;
    if (ends) {
      sender.end();
      const whole = wholeFrames(Buffer.concat(kernel.taken));
      const headers = vnet ? 12 * whole.length : 0;
      assert.equal(counters.txFrames, whole.length);
      assert.equal(counters.txBytes, whole.reduce((sum, bytes) => sum + bytes, 0) - headers);
      assert.equal(counters.txFrames + counters.txDropped, expected.length, 'each is counted once');
    }
    if (sender.isBlocked && !ends) sender.writable();
    assert.equal(sender.isBlocked && !ends, false);
    kernel.complete(true);
    sender.engine.drain();
    // Releases run behind what caused them; and tables that nobody has any more are given back.
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(guest.outstanding, 0);
    assert.equal(zerocopy.pinnedBytes, 0);
    assert.equal(zerocopy.unexpectedCompletions, 0);
    if (ends) {
      guest.end();
      return;
    }
    const header = vnet ? Buffer.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0) : Buffer.alloc(0);
    const parts = expected.flatMap((bytes) => {
      const prefix = Buffer.alloc(4);
      prefix.writeUInt32BE(header.length + bytes.length);
      return [prefix, header, bytes];
    });
    assert.equal(Buffer.compare(Buffer.concat(kernel.taken), Buffer.concat(parts)), 0);
    assert.equal(counters.txFrames, expected.length);
    assert.equal(counters.txErrors + counters.txDropped, 0);
    guest.end();
  }

  async function runs(ends: boolean): Promise<void> {
    const run = (seedOfRun: number, vnet: boolean, chooses: boolean): Promise<void> =>
      live(seedOfRun, vnet, chooses, ends);
    await fc.assert(fc.asyncProperty(fc.nat(1 << 30), fc.boolean(), fc.boolean(), run), {
      includeErrorInReport: true,
      numRuns: process.env.ZEROTX_SOAK === '1' ? 2000 : 60,
    });
  }

  it('sends whole frames in order whatever the kernel takes', { timeout: 120_000 }, () => runs(false));

  it(
    'counts as sent what is out when the connection ends, and as dropped what was begun',
    {
      timeout: 120_000,
    },
    () => runs(true),
  );
});
