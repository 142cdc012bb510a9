import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { datagramCount, nextCallBytes, PieceCursor } from '../../src/net/segments.ts';

const seed = process.env.FC_SEED === undefined ? Date.now() : Number(process.env.FC_SEED);
const options = { seed, numRuns: 300 };

const pieces = fc.array(
  fc.nat(300).map((length) => new Uint8Array(length)),
  { maxLength: 12 },
);
const limits = fc.record({
  segmentsMax: fc.integer({ min: 1, max: 64 }),
  bytesMax: fc.integer({ min: 1, max: 4000 }),
});
const cut = limits.chain((limits) =>
  fc.record({ limits: fc.constant(limits), segmentBytes: fc.integer({ min: 1, max: limits.bytesMax }) }),
);

function numbered(pieces: readonly Uint8Array[]): void {
  let next = 0;
  for (const piece of pieces) for (let i = 0; i < piece.length; i++) piece[i] = next++ % 251;
}

/** The calls as lists of bytes, and the datagrams the kernel would make of them. */
function run(cursor: PieceCursor, segmentBytes: number, limits: { segmentsMax: number; bytesMax: number }) {
  const calls: Buffer[] = [];
  const views: Uint8Array[] = [];
  while (cursor.remaining > 0) {
    const bytes = nextCallBytes(cursor.remaining, segmentBytes, limits);
    const count = cursor.peek(bytes, views);
    calls.push(Buffer.concat(views.slice(0, count)));
    cursor.advance(bytes);
  }
  const datagrams = calls.flatMap((call) =>
    Array.from({ length: Math.ceil(call.length / segmentBytes) }, (_, i) =>
      call.subarray(i * segmentBytes, (i + 1) * segmentBytes),
    ),
  );
  return { calls, datagrams };
}

describe('a payload', () => {
  it('is cut into the datagrams of one concatenated payload, whatever its pieces and the limits', () => {
    fc.assert(
      fc.property(pieces, cut, (pieces, { limits, segmentBytes }) => {
        numbered(pieces);
        const whole = Buffer.concat(pieces);
        const { datagrams } = run(new PieceCursor(pieces), segmentBytes, limits);
        assert.equal(datagrams.length, datagramCount(whole.length, segmentBytes));
        assert.deepEqual(
          datagrams.map((one) => one.toString('hex')),
          datagrams.map((_, i) => whole.toString('hex', i * segmentBytes, (i + 1) * segmentBytes)),
        );
      }),
      options,
    );
  });

  it('is sent in calls within the limits, all but the last as full as they can be', () => {
    fc.assert(
      fc.property(pieces, cut, (pieces, { limits, segmentBytes }) => {
        const { calls } = run(new PieceCursor(pieces), segmentBytes, limits);
        calls.forEach((call, i) => {
          assert.ok(call.length > 0 && call.length <= limits.bytesMax);
          assert.ok(datagramCount(call.length, segmentBytes) <= limits.segmentsMax);
          if (i === calls.length - 1) return;
          assert.equal(call.length % segmentBytes, 0, 'a short datagram ends the payload');
          const fuller = call.length + segmentBytes;
          assert.ok(fuller > limits.bytesMax || fuller / segmentBytes > limits.segmentsMax);
        });
      }),
      options,
    );
  });

  it('can be looked at in any steps, again and again', () => {
    fc.assert(
      fc.property(pieces, fc.array(fc.nat(400)), (pieces, steps) => {
        numbered(pieces);
        const whole = Buffer.concat(pieces);
        const cursor = new PieceCursor(pieces);
        const views: Uint8Array[] = [];
        let at = 0;
        for (const step of steps) {
          const bytes = Math.min(step, cursor.remaining);
          for (let again = 0; again < 2; again++) {
            const count = cursor.peek(bytes, views);
            assert.deepEqual(Buffer.concat(views.slice(0, count)), whole.subarray(at, at + bytes));
            assert.ok(views.slice(0, count).every((view) => view.byteLength > 0));
          }
          cursor.advance(bytes);
          at += bytes;
          assert.equal(cursor.remaining, whole.length - at);
        }
      }),
      options,
    );
  });

  it('whose memory was taken is seen to be, until that piece is passed', () => {
    const kept = new Uint8Array(10);
    const lost = new Uint8Array(10);
    const cursor = new PieceCursor([lost, kept]);
    assert.equal(cursor.taken, false);
    structuredClone(lost.buffer, { transfer: [lost.buffer] });
    assert.equal(cursor.taken, true);
    cursor.advance(10);
    assert.equal(cursor.taken, false);
  });
});
