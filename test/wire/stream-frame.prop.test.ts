/** Frames behind their lengths, cut into pieces of any size; and lengths that no frame has. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import {
  FRAME_BYTES_MAX,
  FRAME_INCOMPLETE,
  FRAME_REFUSED,
  STREAM_PREFIX_BYTES,
  wholeFrame,
  writeStreamPrefix,
} from '../../src/wire/stream-frame.ts';

const seed = process.env.FC_SEED;
if (seed !== undefined) fc.configureGlobal({ seed: Number(seed) });

function encode(frames: readonly Uint8Array[]): Uint8Array {
  const out = new Uint8Array(frames.reduce((sum, { length }) => sum + STREAM_PREFIX_BYTES + length, 0));
  let at = 0;
  for (const frame of frames) {
    writeStreamPrefix(out, at, frame.length);
    out.set(frame, at + STREAM_PREFIX_BYTES);
    at += STREAM_PREFIX_BYTES + frame.length;
  }
  return out;
}

describe('frames in a stream', () => {
  it('are found whatever pieces they come in', () => {
    const frames = fc.array(fc.uint8Array({ minLength: 26, maxLength: 200 }), { minLength: 1, maxLength: 8 });
    const cuts = fc.array(fc.integer({ min: 1, max: 60 }), { minLength: 1, maxLength: 8 });
    fc.assert(
      fc.property(frames, cuts, fc.constantFrom(0, 12), (sent, pieces, headerBytes) => {
        const bytes = encode(sent);
        const found: Uint8Array[] = [];
        let at = 0;
        for (let to = 0, i = 0; to < bytes.length; i++) {
          to = Math.min(bytes.length, to + (pieces[i % pieces.length] as number));
          for (;;) {
            const length = wholeFrame(bytes, at, to, headerBytes);
            if (length === FRAME_INCOMPLETE) break;
            at += STREAM_PREFIX_BYTES;
            found.push(bytes.slice(at, at + length));
            at += length;
          }
        }
        assert.deepEqual(found, sent);
      }),
    );
  });

  it('have lengths between an Ethernet header and the longest segment', () => {
    const bytes = new Uint8Array(STREAM_PREFIX_BYTES);
    const look = (length: number, headerBytes: number): number => {
      writeStreamPrefix(bytes, 0, length);
      return wholeFrame(bytes, 0, bytes.length, headerBytes);
    };
    for (const headerBytes of [0, 12]) {
      for (const length of [
        0,
        1,
        13 + headerBytes,
        FRAME_BYTES_MAX + headerBytes + 1,
        2 ** 31,
        2 ** 32 - 1,
      ]) {
        assert.equal(look(length, headerBytes), FRAME_REFUSED, `${length}`);
      }
      for (const length of [14 + headerBytes, FRAME_BYTES_MAX + headerBytes]) {
        assert.equal(look(length, headerBytes), FRAME_INCOMPLETE, `${length}`);
      }
    }
    assert.equal(wholeFrame(bytes, 0, 3, 0), FRAME_INCOMPLETE);
  });
});
