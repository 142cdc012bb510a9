/** Frames as datagrams, in runs that the kernel cuts: what arrives is the same, however they went. */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import fc from 'fast-check';
import { errnoOf } from '../../src/core/errors.ts';
import { FRAME_STATUS, type FrameTable } from '../../src/core/frames.ts';
import { DatagramRuns } from '../../src/ports/vxlan-runs.ts';
import { type Native, native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { SO_RCVBUF, SOL_SOCKET } from '../../src/sys/constants.ts';
import { assertFrames, frame } from '../support/frames.ts';
import { all, word } from '../support/guest-memory.ts';
import { atEnd, closePorts, guest } from '../support/ports.ts';
import { udpSocket } from '../support/sockets.ts';

afterEach(closePorts);

const seed = process.env.FC_SEED;
if (seed !== undefined) fc.configureGlobal({ seed: Number(seed) });

const PREFIX = Uint8Array.of(8, 0, 0, 0, 0, 0, 42, 0);

interface Scene {
  readonly runs: DatagramRuns;
  /** Answers to the next calls that cut; empty, and when there are none left: the kernel's own. */
  readonly script: string[];
  /** Frames of each call: positive if it cuts, negative if not. */
  readonly calls: number[];
  uncut: number;
  table(frames: readonly Uint8Array[]): FrameTable;
  received(): Uint8Array[];
}

function scene(canCut = true): Scene {
  const peer = udpSocket();
  const { fd } = udpSocket();
  calls.connect(fd, '127.0.0.1', peer.port);
  calls.setOption(peer.fd, SOL_SOCKET, SO_RCVBUF, 4 << 20);
  atEnd(() => {
    calls.close(fd);
    calls.close(peer.fd);
  });
  const script: string[] = [];
  const made: number[] = [];
  const sys: Native = {
    ...native(),
    framesGso(...args) {
      made.push(args[4] - args[3]);
      const name = script.shift() ?? '';
      return name === '' ? native().framesGso(...args) : -errnoOf(name);
    },
    framesSendmmsg(...args) {
      made.push(args[3] - args[4]);
      return native().framesSendmmsg(...args);
    },
  };
  const prefixes = new Uint8Array(256 * PREFIX.length);
  for (let i = 0; i < 256; i++) prefixes.set(PREFIX, i * PREFIX.length);
  const source = guest({ memoryBytes: 8 << 20 });
  const buffer = Buffer.alloc(70_000);
  const one: Scene = {
    runs: new DatagramRuns({
      ...{ sys, fd, canCut, prefixes: () => prefixes, prefixBytes: PREFIX.length },
      onUncut: () => {
        one.uncut += 1;
      },
    }),
    ...{ script, calls: made, uncut: 0 },
    table: (frames) => source.table(frames),
    received() {
      const frames: Uint8Array[] = [];
      for (let n = native().readv(peer.fd, [buffer], 1); n > 0; n = native().readv(peer.fd, [buffer], 1)) {
        assert.deepEqual(Uint8Array.from(buffer.subarray(0, PREFIX.length)), PREFIX);
        frames.push(Uint8Array.from(buffer.subarray(PREFIX.length, n)));
      }
      return frames;
    },
  };
  return one;
}

const framesOf = (lengths: readonly number[]): Uint8Array[] => lengths.map((length, i) => frame(length, i));
const times = (count: number, bytes: number): number[] => new Array<number>(count).fill(bytes);

describe('frames as datagrams', { timeout: 60_000 }, () => {
  for (const [name, lengths, expected] of [
    ['one by one where no two are alike', [60, 90, 120, 1514], [-4]],
    ['a run in one call, with what is shorter behind it', [...times(5, 1514), 700, 60], [6, -1]],
    ['a longer one begins anew', [60, 700, 700, 1514, 1514, 1514, 90], [-1, 2, 4]],
    ['what comes between two runs before the second', [90, 60, 70, 80, 300, 300, 60], [2, -2, 3]],
    ['at most 64 in a call', [...times(130, 100)], [64, 64, 2]],
    ['at most what one packet has room for', [...times(9, 9000)], [7, 2]],
    ['frames of more than half a packet each in a message', [...times(3, 40_000)], [-3]],
  ] as const) {
    it(`go ${name}`, () => {
      const { runs, table, received, calls: made } = scene();
      const frames = framesOf(lengths);
      assert.equal(runs.write(table(frames), all(frames.length), 0, frames.length), frames.length);
      assert.deepEqual(made, expected);
      assertFrames(received(), frames);
    });
  }

  it('arrive whole, in order and once, whatever their lengths', () => {
    const length = fc.constantFrom(14, 60, 60, 700, 1514, 1514, 1514, 9014);
    fc.assert(
      fc.property(fc.array(length, { minLength: 1, maxLength: 40 }), fc.nat(5), (lengths, from) => {
        const { runs, table, received } = scene();
        const frames = framesOf(lengths);
        const first = Math.min(from, lengths.length);
        assert.equal(runs.write(table(frames), all(frames.length), first, frames.length), frames.length);
        assertFrames(received(), frames.slice(first));
      }),
      { numRuns: 100 },
    );
  });

  it('stop where there is no room, and go on from there', () => {
    for (const name of ['EAGAIN', 'ENOBUFS']) {
      const { runs, table, received, script } = scene();
      script.push('', name);
      const frames = framesOf([...times(4, 1514), 1514, 60, ...times(4, 900), 90]);
      const its = table(frames);
      const stop = runs.write(its, all(frames.length), 0, frames.length);
      assert.equal(stop, 6);
      assertFrames(received(), frames.slice(0, 6));
      assert.equal(runs.write(its, all(frames.length), stop, frames.length), frames.length);
      assertFrames(received(), frames.slice(6));
    }
  });

  for (const name of ['EINVAL', 'EMSGSIZE', 'ECONNREFUSED', 'EPERM']) {
    it(`go one by one when a call meets ${name}, and the next run in a call again`, () => {
      const one = scene();
      one.script.push(name);
      const frames = framesOf([...times(4, 900), ...times(4, 1514)]);
      const its = one.table(frames);
      assert.equal(one.runs.write(its, all(8), 0, 8), 8);
      assert.deepEqual(one.calls, [4, -4, 4]);
      assert.equal(one.uncut, 0);
      assertFrames(one.received(), frames);
      for (let i = 0; i < 8; i++) assert.equal(word(its, i, FRAME_STATUS), 0);
    });
  }

  it('go one by one for good when the device cannot cut', () => {
    const one = scene();
    one.script.push('EIO');
    const frames = framesOf([...times(4, 900), ...times(4, 1514)]);
    assert.equal(one.runs.write(one.table(frames), all(8), 0, 8), 8);
    assert.equal(one.runs.write(one.table(frames), all(8), 0, 8), 8);
    assert.deepEqual(one.calls, [4, -4, -4, -8]);
    assert.equal(one.uncut, 1);
    assertFrames(one.received(), [...frames, ...frames]);
  });

  it('go one by one when the kernel does not know how to cut', () => {
    const { runs, table, received, calls: made } = scene(false);
    const frames = framesOf(times(8, 900));
    assert.equal(runs.write(table(frames), all(8), 0, 8), 8);
    assert.deepEqual(made, [-8]);
    assertFrames(received(), frames);
  });
});
