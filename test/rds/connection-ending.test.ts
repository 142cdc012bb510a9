/**
 * What a lost connection still holds is read after its lane counts as down, and a handshake among that may make room for the next
 * connection at once. That one must wait until the channel before it is closed: it would take its place, and nobody would close it.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ReleaseQueue } from '../../src/core/releases.ts';
import { RdsConnection } from '../../src/rds/connection.ts';
import type { ConnectionHost } from '../../src/rds/connection-host.ts';
import { rdsCounters } from '../../src/rds/counters.ts';
import { BufferPool, Staging } from '../../src/rds/memory.ts';
import { LaneReceiver } from '../../src/rds/receiver.ts';
import { LaneSender } from '../../src/rds/sender.ts';

interface Ending {
  readonly connection: RdsConnection;
  /** What the lane was asked to do, in order. */
  readonly log: string[];
  hasUnread: boolean;
  during: () => void;
}

function ending(dials: boolean): Ending {
  const counters = rdsCounters();
  const pool = new BufferPool(0);
  const releases = new ReleaseQueue((flush) => queueMicrotask(flush));
  const log: string[] = [];
  const scene = { log, during: () => {}, hasUnread: false };
  const host: ConnectionHost = {
    dial: () => log.push('dial'),
    halfClose: () => log.push('halfClose'),
    ackedBytes: () => 0,
    readRest: () => {
      log.push('readRest');
      scene.during();
    },
    heldBack: () => false,
    hasUnread: () => scene.hasUnread,
    closeChannel: (how) => log.push(how),
    adoptNext: () => log.push('adoptNext'),
    mayDial: () => true,
    mayResend: () => true,
    needed: () => false,
    opensWithMap: () => false,
    begins: () => {},
    opening: () => new Uint8Array(16),
    patienceMs: () => 1000,
    unanswered: () => {},
    wake: () => {},
    peerUp: () => {},
    peerDown: () => {},
    closed: () => log.push('closed'),
  };
  const maps = { readMap: () => new Uint8Array(8192) };
  const sender = new LaneSender({ hi: 1, lo: 0 }, new Staging(pool, releases), counters, maps);
  const receiver = new LaneReceiver(
    { congestion() {}, probe() {}, ping() {}, data() {}, held() {}, isFull: () => false },
    pool,
    releases,
    counters,
  );
  const connection = new RdsConnection({ dials, random: () => 0 }, { sender, receiver, counters }, host);
  return Object.assign(scene, { connection });
}

describe('a connection that ends', () => {
  it('has the next one wait while what it still holds is read', () => {
    const scene = ending(false);
    const { connection, log } = scene;
    assert.equal(connection.accepted(0), 'adopt');
    connection.adopted(0);
    connection.receivedFirst(1);
    scene.during = () => log.push(connection.accepted(2));
    connection.failed(2, 'ECONNRESET');
    assert.deepEqual(log, ['readRest', 'wait', 'close', 'adoptNext']);
    assert.equal(connection.accepted(3), 'adopt');
  });

  it('dials again only when its channel is closed', () => {
    const scene = ending(true);
    const { connection, log } = scene;
    connection.wanted(0);
    connection.dialed(1);
    connection.receivedFirst(2);
    scene.during = () => {
      connection.wanted(100);
      connection.accepted(100);
    };
    connection.failed(100, 'ECONNRESET');
    assert.deepEqual(log, ['dial', 'readRest', 'close', 'adoptNext', 'dial']);
  });

  it('is closed once when it is told to while that is read', () => {
    const scene = ending(false);
    const { connection, log } = scene;
    connection.accepted(0);
    connection.adopted(0);
    connection.receivedFirst(1);
    scene.during = () => connection.shutdown(2);
    connection.failed(2, 'ECONNRESET');
    assert.deepEqual(log, ['readRest', 'close', 'closed']);
    assert.equal(connection.state, 'closed');
  });

  // The clock is looked at before the events: what they will tell has happened already, when the process stood still.
  it('is not given up while it is dialled, if something has come', () => {
    const scene = ending(true);
    const { connection, log } = scene;
    connection.wanted(0);
    scene.hasUnread = true;
    connection.tick(10_500);
    assert.deepEqual([connection.state, log], ['dialing', ['dial']]);
    connection.dialed(10_500);
    connection.receivedFirst(10_500);
    assert.equal(connection.confirmed, true);
  });

  for (const dials of [true, false]) {
    it(`is not given up as silent, if something has come; it ${dials ? 'dials' : 'is dialled'}`, () => {
      const scene = ending(dials);
      const { connection } = scene;
      if (dials) {
        connection.wanted(0);
        connection.dialed(0);
      } else {
        connection.accepted(0);
        connection.adopted(0);
      }
      scene.hasUnread = true;
      connection.tick(31_000);
      assert.equal(connection.state, 'up');
      scene.hasUnread = false;
      connection.tick(62_000);
      assert.notEqual(connection.state, 'up');
    });
  }
});
