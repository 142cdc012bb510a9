/** What was lent to each peer: one set of counters for all its connections, and sums that keep those of peers that are gone. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ZerotxError } from '../../src/core/errors.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import { lendingFromJson, lendingRecords } from '../../src/rds/lending-records.ts';
import { PEERS_KEPT, PeerLending } from '../../src/rds/peer-lending.ts';
import { scene, TO } from '../support/scene.ts';

describe('what was lent to each peer', () => {
  it('is counted for all connections with it together, and added up', () => {
    const lending = new PeerLending();
    lending.with('10.0.0.1').lentBytes += 5;
    lending.opened('10.0.0.1');
    lending.with('10.0.0.1').lentBytes += 7;
    lending.closed('10.0.0.1');
    lending.copied('10.0.0.2', 100, 'foreign');
    assert.equal(lending.with('10.0.0.1').lentBytes, 12);
    const { lentBytes, fallbackBytes, copied } = lending.total();
    assert.deepEqual([lentBytes, fallbackBytes, copied.foreign], [12, 100, 100]);
  });

  it('is kept in the sums of peers that are forgotten: none that has a connection, or a page at the kernel', () => {
    const lending = new PeerLending();
    lending.opened('connected');
    lending.with('pinned').pinnedBytes = 1;
    for (let i = 0; i < 3 * PEERS_KEPT; i++) lending.copied(`gone ${i}`, 10, 'loopback');
    const known = [...lending.peers()].map(([address]) => address);
    assert.equal(known.length, PEERS_KEPT);
    assert.deepEqual(known.slice(0, 2), ['connected', 'pinned']);
    assert.equal(lending.total().fallbackBytes, 30 * PEERS_KEPT);
    lending.closed('connected');
    lending.copied('another', 10, 'loopback');
    assert.equal([...lending.peers()][0]?.[0], 'pinned');
  });

  it('has a cause, too, where no connection was asked', () => {
    const { world, a, socket } = scene({ zerocopy: true }, { budgetPages: 2 });
    // More than the whole account holds.
    void socket.send(Buffer.alloc(100_000), TO);
    world.run(1000);
    const [peer] = a.stats().peers;
    assert.equal(peer?.address, TO.address);
    assert.equal(peer?.zerocopy.copied.memlock, 100_000);
    assert.equal(a.stats().zerocopy.fallbackBytes, 100_000);
  });
});

describe('its way through a control socket', () => {
  const { a } = scene();
  const stats = a.stats();
  const counters = zerocopyCounters();
  const peer = (address: string, copied: number) => ({
    address,
    zerocopy: { ...counters, fallbackBytes: copied, latency: counters.latency.snapshot() },
  });

  it('is one of records, most copied first, and of a limited number of peers', () => {
    const peers = Array.from({ length: 700 }, (_, i) => peer(`10.0.0.${i}`, i));
    const records = lendingRecords([
      { ...stats, peers },
      { ...stats, peers },
    ]);
    assert.deepEqual(
      records.map((record) => record.peers.length),
      [500, 0],
    );
    assert.equal(records[0]?.peers[0]?.address, '10.0.0.699');
    assert.deepEqual(lendingFromJson(JSON.parse(JSON.stringify(records))), records);
  });

  it('refuses what is no such record', () => {
    const [right] = lendingRecords([{ ...stats, peers: [peer('10.0.0.1', 1)] }]);
    const wrong: unknown[] = [
      ...[null, {}, 'x', [null], [{}]],
      [{ ...right, mode: 'sometimes' }],
      [{ ...right, thresholdBytes: '1' }],
      [{ ...right, zerocopy: {} }],
      [{ ...right, peers: {} }],
      [{ ...right, peers: [{ ...right?.peers[0], address: 7 }] }],
      [{ ...right, peers: [{ address: '10.0.0.1' }] }],
    ];
    for (const value of wrong) {
      assert.throws(
        () => lendingFromJson(value),
        (error) => error instanceof ZerotxError && error.code === 'EPROTO',
        JSON.stringify(value).slice(0, 60),
      );
    }
  });
});
