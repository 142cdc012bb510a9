/** What a node shows of itself (RDS_INFO_*), in every state that a message and a connection can be in. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { MessageInfo } from '../../src/rds/info.ts';
import type { RdsNode } from '../../src/rds/node.ts';
import { FROM, readAll, run, scene, stall, TO } from '../support/scene.ts';

function brief(messages: readonly MessageInfo[]): unknown[] {
  return messages.map(({ bytes, localPort, remotePort }) => [bytes, localPort, remotePort]);
}

function flags(node: RdsNode): string[] {
  return node
    .info()
    .connections.map(({ lane, sending, connecting, connected }) =>
      [lane, sending ? 's' : '-', connecting ? 'c' : '-', connected ? 'C' : '-'].join(''),
    );
}

describe('the state of a node', () => {
  it('follows a message from the send queue to the reader', async () => {
    const { world, a, b, socket, peer } = scene();
    socket.connect(TO);
    for (const bytes of [100, 0, 200_000]) socket.sendmsg(Buffer.alloc(bytes));
    const sent = [
      [100, FROM.port, TO.port],
      [0, FROM.port, TO.port],
      [200_000, FROM.port, TO.port],
    ];
    const before = a.info();
    assert.deepEqual(brief(before.sendQueue), sent);
    assert.deepEqual(before.retransmitQueue, []);
    const [first, second, third] = before.sendQueue.map(({ sequence }) => sequence);
    assert.deepEqual([second, third], [(first ?? 0n) + 1n, (first ?? 0n) + 2n]);
    const [connection] = before.connections;
    assert.equal(connection?.nextTx, (third ?? 0n) + 1n);
    assert.deepEqual([connection?.npaths, connection?.peerGeneration], [0, 0]);
    assert.deepEqual(before.sockets, [
      {
        ...{ address: FROM.address, port: FROM.port, peerAddress: TO.address, peerPort: TO.port },
        ...{ sendBufferBytes: 8 << 20, receiveBufferBytes: 8 << 20, inode: 0 },
      },
    ]);
    await run(world, 500);
    const [end] = a.info().tcpSockets;
    assert.equal(end?.lastSeenUna, end?.lastExpectedUna, 'all is acknowledged');
    assert.equal(end?.lastSentNext, end?.lastExpectedUna, 'and nothing is on its way');
    assert.deepEqual([a.info().sendQueue, a.info().retransmitQueue], [[], []]);
    assert.equal(a.info().connections[0]?.peerGeneration, b.genNum);
    // In the receive queue local is the receiver, as in the kernel's.
    assert.deepEqual(brief(b.info().receiveQueue), [
      [100, TO.port, FROM.port],
      [0, TO.port, FROM.port],
      [200_000, TO.port, FROM.port],
    ]);
    assert.equal(b.info().connections[0]?.nextRx, connection?.nextTx);
    assert.deepEqual(readAll(peer), [100, 0, 200_000]);
    assert.deepEqual(b.info().receiveQueue, []);
  });

  it('shows what is written and not acknowledged, and how far a message has come', async () => {
    const { world, a, b, socket } = scene({});
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 500);
    stall(world);
    for (let i = 0; i < 3; i++) socket.sendmsg(Buffer.alloc(1000), TO);
    await run(world, 1);
    const { retransmitQueue, tcpSockets } = a.info();
    assert.deepEqual(brief(retransmitQueue), new Array(3).fill([1000, FROM.port, TO.port]));
    const [tcp] = tcpSockets;
    assert.equal((tcp?.lastExpectedUna ?? 0) - (tcp?.lastSeenUna ?? 0), 3 * 1048);
    assert.equal((tcp?.lastExpectedUna ?? 0) - (tcp?.lastSentNext ?? 0), 1048);
    const [other] = b.info().tcpSockets;
    assert.deepEqual([other?.headerBytesLeft, other?.dataBytesLeft], [48, 0]);
    assert.deepEqual([other?.localPort, other?.remotePort], [tcp?.remotePort, tcp?.localPort]);
  });

  it('lists a bounded part of each queue and counts the rest', () => {
    const { a, socket } = scene();
    for (let i = 0; i < 50; i++) socket.sendmsg(Buffer.alloc(8), TO);
    socket.sendmsg(Buffer.alloc(100_000), TO);
    const { sendQueue, leftOut } = a.info({ limit: 20 });
    assert.equal(sendQueue.length, 20);
    assert.deepEqual(leftOut, { sendQueue: 31, retransmitQueue: 0, receiveQueue: 0 });
    assert.deepEqual(
      [a.info({ limit: 0 }).sendQueue.length, a.info({ limit: 0 }).leftOut.sendQueue],
      [0, 51],
    );
    assert.throws(() => a.info({ limit: -1 }), RangeError);
  });

  it('has the letters of a connection that comes and goes', async () => {
    const { world, a, b, socket } = scene();
    assert.deepEqual(flags(a), []);
    socket.sendmsg(Buffer.alloc(8), TO);
    assert.deepEqual(flags(a), ['0-c-']);
    await run(world, 500);
    assert.deepEqual([flags(a), flags(b)], [['0--C'], ['0--C']]);
    assert.deepEqual([a.info().tcpSockets.length, b.info().tcpSockets.length], [1, 1]);
  });

  it('shows every lane', async () => {
    const { world, a, b, socket } = scene({}, { lanes: 8 });
    socket.sendmsg(Buffer.alloc(8), TO);
    await run(world, 2000);
    const expected = [0, 1, 2, 3, 4, 5, 6, 7].map((lane) => `${lane}--C`);
    assert.deepEqual([flags(a), flags(b)], [expected, expected]);
    assert.deepEqual(
      a.info().tcpSockets.map(({ localPort }) => localPort % 8),
      [0, 1, 2, 3, 4, 5, 6, 7],
    );
    assert.deepEqual(
      a.info().connections.map(({ npaths }) => npaths),
      new Array(8).fill(8),
    );
  });

  it('has the kernel’s counters first, in its order', () => {
    const { a } = scene();
    const names = Object.keys(a.info().counters);
    assert.deepEqual(
      [names[0], names[35], names[37], names[41]],
      ['conn_reset', 'send_stuck_rm', 'tcp_data_ready_calls', 'tcp_listen_closed_stale'],
    );
  });
});
