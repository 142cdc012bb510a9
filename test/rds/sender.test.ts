/** The sending half of a lane where bytes meet messages: a cancellation between two of them, and what a flagged call carries. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { Ubuf } from '../../src/core/ubuf.ts';
import { rdsCounters } from '../../src/rds/counters.ts';
import { BufferPool, Staging } from '../../src/rds/memory.ts';
import { LaneSender } from '../../src/rds/sender.ts';
import { HEADER_BYTES } from '../../src/wire/rds.ts';
import { createMap } from '../../src/wire/rds-congestion.ts';
import { mapMessage, probeMessage } from '../support/raw-peer.ts';
import { type DriverChannel, RdsDriver } from '../support/rds-driver.ts';

const KIB = 1024;

/** Connected, the gate open, and no room in the channel. */
function full(): { driver: RdsDriver; channel: DriverChannel } {
  const driver = new RdsDriver({ dials: false });
  const channel = driver.accept();
  assert.ok(channel !== null);
  driver.receive(mapMessage());
  driver.receive(probeMessage('pong', 1));
  driver.ack();
  assert.equal(driver.connection.sender.idle, true);
  channel.room = 0;
  return { driver, channel };
}

describe('cancel()', () => {
  for (const size of [0, 16]) {
    for (const extra of [0, 1, HEADER_BYTES + size - 1]) {
      it(`of messages of ${size} bytes, ${extra} bytes behind a boundary, leaves nothing unsaid and nothing waiting`, () => {
        const { driver, channel } = full();
        const { sender } = driver.connection;
        const before = channel.writtenBytes;
        for (let i = 0; i < 6; i++) driver.send(Buffer.alloc(size, i), 7, 8);
        driver.makeRoom(3 * (HEADER_BYTES + size) + extra);
        assert.equal(channel.room, 0);
        sender.cancel(driver);
        const begun = extra === 0 ? 3 : 4;
        assert.equal(driver.counters.send_cancelled, 6 - begun + (extra === 0 ? begun : 0));
        driver.makeRoom(1000);
        driver.ack();
        assert.equal(sender.idle, true);
        assert.equal(channel.writtenBytes - before, begun * (HEADER_BYTES + size));
        assert.equal(driver.settledMessages, 6);
        driver.send(Buffer.from('next'), 7, 8);
        const { messages, rest } = channel.sent;
        assert.deepEqual([rest.length, String(messages.at(-1)?.payload)], [0, 'next']);
        driver.ack();
        assert.equal(sender.idle, true);
      });
    }
  }
});

describe('a message in pieces', () => {
  /** What a flagged call would carry, as the policy is asked, until the message is written. */
  function asked(
    pieces: number,
    pieceBytes: number,
    thresholdBytes: number,
  ): { asked: number[]; flagged: number[] } {
    const releases = new ReleaseQueue((flush) => flush());
    const staging = new Staging(new BufferPool(0), releases);
    const sender = new LaneSender({ hi: 0, lo: 1 }, staging, rdsCounters(), { readMap: createMap });
    const memory = Buffer.alloc(pieces * pieceBytes);
    const iov = Array.from({ length: pieces }, (_, i) =>
      memory.subarray(i * pieceBytes, (i + 1) * pieceBytes),
    );
    sender.queue.addPayload(null, new Ubuf(iov, () => {}, releases), true, 1, 2);
    const out: { asked: number[]; flagged: number[] } = { asked: [], flagged: [] };
    const lender = {
      lends: (bytes: number): boolean => {
        out.asked.push(bytes);
        return bytes >= thresholdBytes;
      },
      copied: () => {},
    };
    for (let offer = sender.gather(lender, 'open'); offer !== null; offer = sender.gather(lender, 'open')) {
      if (offer.lent !== null) out.flagged.push(offer.bytes);
      sender.wrote(offer.bytes, lender);
      assert.ok(out.asked.length < 100_000);
    }
    assert.equal(sender.writtenBytes, HEADER_BYTES + memory.length);
    return out;
  }

  it('of 64 bytes makes no flagged call: 64 of them are far below the threshold', () => {
    const { asked: all, flagged } = asked(16_384, 64, 32 * KIB);
    assert.deepEqual(flagged, []);
    assert.ok(all.length > 0);
    assert.ok(Math.max(...all) <= 64 * 64, `${Math.max(...all)} bytes`);
  });

  it('that are large makes flagged calls of what was asked for', () => {
    for (const [pieces, bytes] of [
      [1, 1024 * KIB],
      [64, 16 * KIB],
      [200, 1000],
      [3, 300 * KIB],
    ] as const) {
      const { asked: all, flagged } = asked(pieces, bytes, 32 * KIB);
      assert.ok(flagged.length > 0);
      assert.ok(
        flagged.every((sent) => sent >= 32 * KIB && sent <= 512 * KIB && all.includes(sent)),
        `${flagged}`,
      );
    }
  });
});
