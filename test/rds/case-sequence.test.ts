/** Sequence numbers at the end of their 64 bits, on either side: nothing that was not a duplicate is taken for one, nothing throws. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { releases } from '../../src/core/releases.ts';
import { rdsCounters } from '../../src/rds/counters.ts';
import { BufferPool } from '../../src/rds/memory.ts';
import { RdsNode } from '../../src/rds/node.ts';
import { LaneReceiver } from '../../src/rds/receiver.ts';
import { HEADER_BYTES, RETRANSMITTED, sequenceBase } from '../../src/wire/rds.ts';
import { Random } from '../support/random.ts';
import { cut, FROM, newProcess, readMessages, run, TO } from '../support/scene.ts';
import { World } from '../support/sim.ts';

const LAST = 0xffffffff;

function header(seqHi: number, seqLo: number, flags = 0): Buffer {
  const bytes = Buffer.alloc(HEADER_BYTES);
  bytes.writeUInt32BE(seqHi, 0);
  bytes.writeUInt32BE(seqLo, 4);
  bytes.writeUInt16BE(9, 20);
  bytes.writeUInt16BE(7, 22);
  bytes[24] = flags;
  return bytes;
}

function receiver(): { feed: (...parts: Buffer[]) => number; drops: () => number } {
  const counters = rdsCounters();
  let messages = 0;
  const host = {
    congestion: () => {},
    probe: () => {},
    ping: () => {},
    data: () => {
      messages += 1;
    },
    held: () => {},
    isFull: () => false,
  };
  const lane = new LaneReceiver(host, new BufferPool(0), releases, counters);
  const feed = (...parts: Buffer[]): number => {
    messages = 0;
    assert.equal(lane.feed(Buffer.concat(parts)), true);
    return messages;
  };
  return { feed, drops: () => counters.recv_drop_old_seq };
}

describe('a peer that numbers to the end', () => {
  it('has duplicates of the last number known for what they are', () => {
    const { feed, drops } = receiver();
    assert.equal(feed(header(LAST, LAST - 1), header(LAST, LAST)), 2);
    assert.equal(feed(header(LAST, LAST - 1, RETRANSMITTED), header(LAST, LAST, RETRANSMITTED)), 0);
    assert.equal(drops(), 2);
  });

  it('and begins again, unmarked, is heard; and marks count from there', () => {
    const { feed, drops } = receiver();
    assert.equal(feed(header(LAST, LAST), header(0, 1), header(0, 2, RETRANSMITTED)), 3);
    assert.equal(feed(header(0, 2, RETRANSMITTED)), 0);
    assert.equal(drops(), 1);
  });

  it('compares all 64 bits: neighbours in the upper half, and above 2^63', () => {
    const { feed } = receiver();
    assert.equal(feed(header(0x80000000, 5)), 1);
    assert.equal(feed(header(0x7fffffff, LAST, RETRANSMITTED)), 0);
    assert.equal(feed(header(0x80000000, 6, RETRANSMITTED), header(0x80000001, 0, RETRANSMITTED)), 2);
    assert.equal(feed(header(0x80000000, LAST, RETRANSMITTED)), 0);
  });
});

/** Milliseconds since the epoch at which numbers begin this far below 2^64: a clock that was set wrongly by centuries. */
const LAST_MS = 2 ** 44 - 1;

describe('a clock at the end of numbers', () => {
  it('gives a base that fits into 64 bits', () => {
    const { hi, lo } = sequenceBase(LAST_MS);
    assert.deepEqual([hi, lo], [LAST, 0xfff00000]);
  });

  it('delivers messages once and in order, over connections that are lost', async () => {
    const world = new World(new Random(3));
    const processes = [newProcess(world), newProcess(world)] as const;
    const nodes = [FROM.address, TO.address].map(
      (address, i) =>
        new RdsNode(address, { ...processes[i as 0 | 1].environment, epochMs: () => LAST_MS }, {}, null, 1),
    );
    const socket = nodes[0]!.bind(FROM.port);
    const peer = nodes[1]!.bind(TO.port, { receiveBufferBytes: 1 << 24 });
    const received: number[] = [];
    peer.on('readable', () => {
      for (const { data } of readMessages(peer)) received.push(data.readUInt32BE(0));
    });
    const count = 400;
    for (let i = 0; i < count; i++) {
      const data = Buffer.alloc(2000);
      data.writeUInt32BE(i);
      socket.sendmsg(data, TO);
      if (i % 40 === 39) {
        await run(world, 3);
        cut(world);
      }
    }
    await run(world, 60_000);
    assert.deepEqual(
      received,
      Array.from({ length: count }, (_, i) => i),
    );
    assert.ok(nodes[0]!.counters.conn_reset > 0);
  });
});
