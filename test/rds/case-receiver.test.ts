/** A lane whose connection ends because of what is being read on it: a probe of another generation may do that, at any place. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { releases } from '../../src/core/releases.ts';
import { rdsCounters } from '../../src/rds/counters.ts';
import { BufferPool } from '../../src/rds/memory.ts';
import { LaneReceiver } from '../../src/rds/receiver.ts';
import { message, probeMessage } from '../support/raw-peer.ts';

for (const behind of [0, 10, 48, 3000, 20_000]) {
  it(`reads nothing behind it, and the next connection from its beginning; ${behind} bytes behind it`, () => {
    const heard: string[] = [];
    let heldBytes = 0;
    const lane = new LaneReceiver(
      {
        congestion: () => {},
        probe: () => lane.reset(),
        ping: () => {},
        data: (_sport, _dport, { bytes }, offset, length) => {
          heard.push(bytes.toString('latin1', offset, offset + length).slice(0, 6));
        },
        held: (delta) => {
          heldBytes += delta;
        },
        isFull: () => false,
      },
      new BufferPool(0),
      releases,
      rdsCounters(),
    );
    const rest = message(3, 9, 7, 'behind'.padEnd(20_000, '.')).subarray(0, behind);
    const stream = Buffer.concat([message(1, 9, 7, 'before'), probeMessage('ping', 2), rest]);
    // As it is read: all of it at once.
    const [target] = lane.targets();
    (target as Uint8Array).set(stream);
    assert.equal(lane.filled(stream.length), true);
    lane.rest();
    lane.feed(message(4, 9, 7, 'next on'));
    assert.deepEqual(heard, ['before', 'next o']);
    lane.close();
    assert.equal(heldBytes, 0);
  });
}
