/**
 * Sockets of one process, on virtual time: between them there is no TCP, and all else is as it is with it. Congestion, pings, what
 * is lent, what waits, and closing.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { RdsNode } from '../../src/rds/node.ts';
import type { SocketOptions } from '../../src/rds/options.ts';
import type { RdsMessage } from '../../src/rds/received.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { Random } from '../support/random.ts';
import { codeOf } from '../support/rds-nodes.ts';
import { codeFrom, newProcess, readAll, readMessages, run, watch } from '../support/scene.ts';
import { World } from '../support/sim.ts';

interface Local {
  readonly world: World;
  readonly nodes: readonly [RdsNode, RdsNode];
  readonly socket: RdsSocket;
  readonly peer: RdsSocket;
}

function local(options: SocketOptions = {}, peer: SocketOptions = {}): Local {
  const world = new World(new Random(5));
  const { environment } = newProcess(world);
  const nodes = [new RdsNode('10.0.0.1', environment), new RdsNode('10.0.0.2', environment)] as const;
  return { world, nodes, socket: nodes[0].bind(4000, options), peer: nodes[1].bind(5000, peer) };
}

describe('a local port that is full', () => {
  it('refuses with ENOBUFS, and 100 senders go on when it is read; no map goes anywhere', async () => {
    const { world, nodes, socket, peer } = local({}, { receiveBufferBytes: 4096 });
    const [a, b] = nodes;
    while (codeOf(() => socket.sendmsg(Buffer.alloc(1000), peer)) === null);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1000), peer)),
      'ENOBUFS',
    );
    const unread = peer.unreadBytes;
    assert.ok(unread > 4096 && unread <= 5096, `the limit is soft, ${unread}`);
    let writable = 0;
    const callers = Array.from({ length: 50 }, () => {
      const caller = a.bind(0);
      caller.on('writable', () => {
        if (codeOf(() => caller.sendmsg(Buffer.alloc(1), peer)) === null) writable += 1;
      });
      assert.equal(
        codeOf(() => caller.sendmsg(Buffer.alloc(1), peer)),
        'ENOBUFS',
      );
      return caller;
    });
    const waiting = callers.map((caller) => watch(caller.send(Buffer.alloc(1), peer)));
    await run(world, 100);
    assert.deepEqual([writable, waiting.filter((fate) => fate.resolved()).length], [0, 0]);
    for (let i = 0; i < 200; i++) {
      peer.recvmsg();
      await run(world, 1);
    }
    assert.deepEqual([writable, waiting.filter((fate) => fate.resolved()).length], [50, 50]);
    assert.equal(a.counters.cong_update_queued + b.counters.cong_update_queued, 0);
    assert.equal(a.counters.cong_update_received, 0);
  });

  it('tells those who monitor', async () => {
    const { world, socket, peer } = local({ congestionMonitor: true }, { receiveBufferBytes: 4096 });
    while (codeOf(() => socket.sendmsg(Buffer.alloc(1000), peer)) === null);
    await run(world, 1);
    assert.equal(socket.readable, false);
    readAll(peer);
    await run(world, 1);
    assert.deepEqual(socket.recvmsg(), { kind: 'congestion', mask: 1n << BigInt(peer.port % 64) });
  });

  it('is free again when its socket closes, or is given a larger buffer', async () => {
    const { world, nodes, socket, peer } = local({}, { receiveBufferBytes: 4096 });
    while (codeOf(() => socket.sendmsg(Buffer.alloc(1000), peer)) === null);
    peer.setsockopt('SO_RCVBUF', 1 << 20);
    assert.equal(socket.sendmsg(Buffer.alloc(1000), peer), 1000);
    peer.setsockopt('SO_RCVBUF', 4096);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1000), peer)),
      'ENOBUFS',
    );
    const closing = peer.close();
    await run(world, 1);
    await closing;
    const before = nodes[1].counters.recv_drop_no_sock;
    assert.equal(socket.sendmsg(Buffer.alloc(1000), { address: '10.0.0.2', port: 5000 }), 1000);
    assert.equal(nodes[1].counters.recv_drop_no_sock, before + 1);
  });
});

describe('a ping between local addresses', () => {
  it('is answered, also to itself', async () => {
    const { world, nodes, socket } = local();
    for (const { address } of nodes) socket.sendmsg(Buffer.alloc(0), { address, port: 0 });
    await run(world, 1);
    assert.deepEqual(
      readMessages(socket).map(({ address, port, length }) => [address, port, length]),
      [
        ['10.0.0.1', 0, 0],
        ['10.0.0.2', 0, 0],
      ],
    );
  });

  it('from a congested port is answered by nothing, and that is no error', async () => {
    const { world, nodes, socket, peer } = local({ receiveBufferBytes: 4096 });
    while (codeOf(() => peer.sendmsg(Buffer.alloc(1000), socket)) === null);
    const waiting = readAllLater(socket);
    assert.equal(socket.sendmsg(Buffer.alloc(0), { address: nodes[1].address, port: 0 }), 0);
    await run(world, 10);
    assert.ok(waiting().every(({ port }) => port !== 0));
    assert.equal(socket.sendmsg(Buffer.alloc(0), { address: nodes[1].address, port: 0 }), 0);
    await run(world, 10);
    assert.deepEqual(
      readMessages(socket).map(({ port }) => port),
      [0],
      'and when it was read, the next one is',
    );
  });
});

describe('what is lent to a local socket', () => {
  it('is copied: the cookie, or the promise, comes a turn later', async () => {
    const { world, nodes, socket, peer } = local({ zerocopy: true });
    const data = Buffer.from('mine again');
    socket.sendmsg(data, peer, { zerocopy: true, cookie: 6 });
    const sent = watch(socket.send(data, peer));
    data.fill(0);
    assert.equal(socket.recvErrqueue(), null, 'not from within the call');
    await run(world, 1);
    assert.deepEqual(socket.recvErrqueue()?.cookies, [6]);
    assert.deepEqual(sent.outcome(), { bytes: 10, copiedBytes: 10, exact: true });
    assert.deepEqual(
      readMessages(peer).map((message) => String(message.data)),
      ['mine again', 'mine again'],
    );
    assert.deepEqual([socket.lentBytes, nodes[0].stats().budget.usedPages], [0, 0]);
  });

  it('is not lent when the port is full', () => {
    const { socket, peer } = local({ zerocopy: true }, { receiveBufferBytes: 4096 });
    const options = { zerocopy: true, cookie: 1 };
    while (codeOf(() => socket.sendmsg(Buffer.alloc(1000), peer, options)) === null);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1000), peer, options)),
      'ENOBUFS',
    );
    assert.equal(socket.lentBytes, 0);
  });
});

describe('local messages', () => {
  it('carry their time, and who waits gets them', async () => {
    const { world, socket, peer } = local({}, { timestamp: true, receiveLatency: [0, 1, 2] });
    const waiting = watch(peer.receive());
    socket.sendmsg(Buffer.alloc(3), peer);
    await run(world, 5);
    const message = waiting.outcome() as unknown as RdsMessage;
    assert.equal(typeof message.timestamp, 'number');
    assert.deepEqual(
      message.latency?.map(({ point }) => point),
      [0, 1, 2],
    );
    assert.deepEqual(
      message.latency?.slice(0, 2).map(({ ns }) => ns),
      [0, 0],
    );
  });

  it('to a node that closes: a new node with its address gets the next ones', async () => {
    const { world, nodes, socket, peer } = local({ zerocopy: true });
    const closing = watch(nodes[1].close());
    await run(world, 1);
    assert.ok(closing.resolved());
    assert.equal(peer.closed, true);
    const fate = watch(socket.send(Buffer.alloc(5), { address: '10.0.0.2', port: 5000 }, { timeoutMs: 100 }));
    await run(world, 200);
    assert.equal(codeFrom(fate), 'ETIMEDOUT', 'nobody is there: it waited, over TCP');
  });
});

function readAllLater(socket: RdsSocket): () => RdsMessage[] {
  return () => readMessages(socket);
}
