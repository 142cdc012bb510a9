/**
 * Sockets and what is around them: pings, congestion, nodes of the same process, peers that come and go, and closing.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, describe, it } from 'node:test';
import type { RdsNode } from '../../src/rds/node.ts';
import { assertIdle, codeOf, eventually, receive, testNode, turnsUntil } from '../support/rds-nodes.ts';
import { RawPeer } from '../support/rds-raw-peer.ts';

const MIB = 1024 * 1024;

describe('ping', { timeout: 60_000 }, () => {
  const a = testNode('127.20.10.1');
  const b = testNode('127.20.10.2');
  after(() => Promise.all([a.close(), b.close()]));

  it('a message to port 0 comes back empty, from port 0, whatever it carried', async () => {
    for (const payload of [Buffer.alloc(0), Buffer.from('ping'), Buffer.alloc(100_000)]) {
      const socket = a.bind(0);
      socket.sendmsg(payload, { address: b.address, port: 0 });
      const [pong] = await receive(socket, 1);
      assert.deepEqual([pong?.address, pong?.port, pong?.length], [b.address, 0, 0]);
      await socket.close();
    }
    assert.equal(a.bind(4100).sendmsg(Buffer.alloc(0), { address: b.address, port: 0 }), 0);
  });

  it('goes in both directions, between two sockets each', async () => {
    const sockets = [a.bind(4001), a.bind(4002), b.bind(4001), b.bind(4002)];
    for (const socket of sockets) {
      const address = socket.node === a ? b.address : a.address;
      for (let i = 0; i < 10; i++) socket.sendmsg(Buffer.alloc(0), { address, port: 0 });
    }
    for (const socket of sockets) assert.equal((await receive(socket, 10)).length, 10);
  });

  it('is not answered to a congested port, without an error', async () => {
    const [full, free] = [a.bind(4003, { receiveBufferBytes: 2304 }), a.bind(4004)];
    const to = { address: b.address, port: 0 };
    b.bind(0).sendmsg(Buffer.alloc(2305), { address: a.address, port: 4003 });
    await turnsUntil(() => b.peers[0]?.map.congested(4003) === true);
    const pongs = b.counters.send_pong;
    full.sendmsg(Buffer.alloc(0), to);
    free.sendmsg(Buffer.alloc(0), to);
    await receive(free, 1);
    assert.equal(b.counters.send_pong, pongs + 1);
    assert.equal((await receive(full, 1))[0]?.length, 2305);
    assert.equal(full.recvmsg(), null);
  });
});

describe('congestion', { timeout: 60_000 }, () => {
  const a = testNode('127.20.11.1');
  const b = testNode('127.20.11.2');
  after(() => Promise.all([a.close(), b.close()]));

  it('a port is congested above its buffer, free below half of it, and senders hear of both', async () => {
    const from = a.bind(4000);
    const to = b.bind(5000, { receiveBufferBytes: 9000 });
    const target = { address: b.address, port: 5000 };
    for (let i = 0; i < 3; i++) from.sendmsg(Buffer.alloc(3000, i), target);
    await turnsUntil(() => to.unreadBytes === 9000);
    assert.equal(b.localMap.congested(5000), false, 'at the limit it is not');
    from.sendmsg(Buffer.alloc(1, 3), target);
    await turnsUntil(() => a.peers[0]?.map.congested(5000) === true);
    assert.equal(
      codeOf(() => from.sendmsg(Buffer.alloc(1), target)),
      'ENOBUFS',
    );
    assert.equal(from.writable, true, 'it has room; it is the port that has none');
    assert.equal(
      codeOf(() => from.sendmsg(Buffer.alloc(1), { ...target, port: 5001 })),
      null,
    );
    // Sends that wait do so in order.
    const waiting = [4, 5].map((i) => from.send(Buffer.alloc(1, i), target));
    await receive(to, 1);
    assert.deepEqual([to.unreadBytes, b.localMap.congested(5000)], [6001, true]);
    const writable = once(from, 'writable');
    await receive(to, 1);
    assert.deepEqual([to.unreadBytes, b.localMap.congested(5000)], [3001, false], 'free below half');
    await writable;
    await Promise.all(waiting);
    const rest = await receive(to, 4);
    assert.deepEqual(
      rest.map(({ data }) => data[0]),
      [2, 3, 4, 5],
    );
    assert.ok(a.counters.cong_send_error >= 2);
    await to.close();
  });

  it('exactly half is still congested', async () => {
    const from = a.bind(4010);
    const to = b.bind(5010, { receiveBufferBytes: 4000 });
    for (const size of [3000, 2000]) from.sendmsg(Buffer.alloc(size), { address: b.address, port: 5010 });
    await turnsUntil(() => b.localMap.congested(5010));
    await receive(to, 1);
    assert.deepEqual([to.unreadBytes, b.localMap.congested(5010)], [2000, true]);
    await receive(to, 1);
    assert.equal(b.localMap.congested(5010), false);
  });

  it('what is on its way when a port fills up is still accepted', async () => {
    const from = a.bind(4020);
    const to = b.bind(5020, { receiveBufferBytes: 2304 });
    let sent = 0;
    while (codeOf(() => from.sendmsg(Buffer.alloc(10_000), { address: b.address, port: 5020 })) === null) {
      sent += 1;
      if (sent % 4 === 0) await new Promise((resolve) => setImmediate(resolve));
    }
    assert.ok(sent > 1);
    assert.equal((await receive(to, sent)).length, sent);
  });

  it('closing the socket clears its port', async () => {
    const from = a.bind(4030);
    const to = b.bind(5030, { receiveBufferBytes: 2304 });
    const target = { address: b.address, port: 5030 };
    from.sendmsg(Buffer.alloc(5000), target);
    await turnsUntil(() => a.peers[0]?.map.congested(5030) === true);
    const waiting = from.send(Buffer.alloc(1), target);
    await to.close();
    await waiting;
    assert.equal(b.stats().heldBytes, 0);
  });

  it('a monitor gets news of the ports it met, alone, before data, once', async () => {
    const from = a.bind(4040, { congestionMonitor: true });
    const plain = a.bind(4041);
    const to = b.bind(5040, { receiveBufferBytes: 2304 });
    const target = { address: b.address, port: 5040 };
    from.sendmsg(Buffer.alloc(5000), target);
    await turnsUntil(() => a.peers[0]?.map.congested(5040) === true);
    for (const socket of [from, plain]) {
      assert.equal(
        codeOf(() => socket.sendmsg(Buffer.alloc(1), target)),
        'ENOBUFS',
      );
    }
    to.sendmsg(Buffer.from('data'), { address: a.address, port: 4040 });
    await eventually(from, ['readable'], () => from.unreadBytes === 4);
    await receive(to, 1);
    await eventually(from, ['readable'], () => from.recvmsg({ control: false, peek: true }) !== null);
    await turnsUntil(() => a.peers[0]?.map.congested(5040) === false);
    assert.deepEqual(from.recvmsg(), { kind: 'congestion', mask: 1n << BigInt(5040 % 64) });
    assert.equal(from.recvmsg()?.kind, 'data');
    assert.equal(from.recvmsg(), null);
    assert.equal(plain.recvmsg(), null);
    // Without another refusal there is no other news.
    const maps = a.counters.cong_update_received;
    const other = b.bind(5041, { receiveBufferBytes: 2304 });
    plain.sendmsg(Buffer.alloc(5000), { ...target, port: 5041 });
    await turnsUntil(() => a.counters.cong_update_received > maps);
    assert.equal(from.readable, false);
    await other.close();
  });
});

describe('nodes of one process', { timeout: 60_000 }, () => {
  const nodes = new Map<string, RdsNode>();
  const a = testNode('127.20.12.1', { nodes });
  const b = testNode('127.20.12.2', { nodes });
  after(() => Promise.all([a.close(), b.close()]));

  it('reach each other, and themselves, without TCP', async () => {
    const sockets = [a.bind(4000), b.bind(4000), b.bind(4001)];
    for (const from of sockets) {
      for (const to of sockets) {
        const data = Buffer.alloc(MIB, 9);
        from.sendmsg([data.subarray(0, 10), data.subarray(10)], to);
        from.sendmsg(Buffer.alloc(0), to);
        data.fill(0);
        const [large, empty] = await receive(to, 2);
        assert.deepEqual([large?.address, large?.port], [from.address, from.port]);
        assert.ok(large?.length === MIB && large.data.every((byte) => byte === 9));
        assert.equal(empty?.length, 0);
      }
    }
    assert.deepEqual([a.peers, b.peers], [[], []]);
    assert.equal(a.counters.local_delivered, 6);
    assertIdle(a);
    assertIdle(b);
  });

  it('ping each other', async () => {
    const socket = a.bind(4010);
    for (const address of [a.address, b.address]) {
      socket.sendmsg(Buffer.from('x'), { address, port: 0 });
      const [pong] = await receive(socket, 1);
      assert.deepEqual([pong?.address, pong?.port, pong?.length], [address, 0, 0]);
    }
    socket.sendmsg(Buffer.from('x'), { address: b.address, port: 9999 });
    assert.equal(b.counters.recv_drop_no_sock, 1);
  });

  it('are congested to each other', async () => {
    const from = a.bind(4020, { congestionMonitor: true });
    const to = b.bind(4020, { receiveBufferBytes: 2304 });
    from.sendmsg(Buffer.alloc(5000), to);
    assert.equal(
      codeOf(() => from.sendmsg(Buffer.alloc(1), to)),
      'ENOBUFS',
    );
    const waiting = from.send(Buffer.alloc(2), to);
    await receive(to, 1);
    assert.equal((await waiting).bytes, 2);
    assert.equal(from.recvmsg()?.kind, 'congestion');
    assert.equal((await receive(to, 1))[0]?.length, 2);
  });

  it('complete what is lent to them: it was copied', async () => {
    const from = a.bind(4030, { zerocopy: true });
    const to = b.bind(4030);
    for (let cookie = 0; cookie < 9; cookie++)
      from.sendmsg(Buffer.alloc(100), to, { zerocopy: true, cookie });
    assert.equal(from.recvmsg(), null, 'not during the call');
    await once(from, 'readable');
    assert.deepEqual(from.recvmsg(), { kind: 'completion', cookies: [0, 1, 2, 3, 4, 5, 6, 7] });
    assert.deepEqual(from.recvmsg(), { kind: 'completion', cookies: [8] });
    assert.deepEqual(await from.send(Buffer.alloc(7), to), { bytes: 7, copiedBytes: 7, exact: true });
    assertIdle(a);
  });

  it('an address becomes local when it is opened, and ceases to be when it is closed', async () => {
    const socket = a.bind(4040);
    const address = '127.20.12.3';
    socket.connect({ address, port: 5000 });
    assert.equal(a.peers.length, 1);
    socket.sendmsg(Buffer.from('early'));
    const late = testNode(address, { nodes });
    const to = late.bind(5000);
    assert.equal(String((await receive(to, 1))[0]?.data), 'early', 'what waited for the address comes');
    socket.sendmsg(Buffer.from('connected'));
    socket.sendmsg(Buffer.from('named'), { address, port: 5000 });
    assert.deepEqual(
      (await receive(to, 2)).map(({ data }) => String(data)),
      ['connected', 'named'],
    );
    await late.close();
    socket.sendmsg(Buffer.from('waits'));
    assert.equal(socket.queuedBytes, 5);
    const elsewhere = testNode(address);
    const there = elsewhere.bind(5000);
    assert.equal(String((await receive(there, 1))[0]?.data), 'waits');
    await elsewhere.close();
    await socket.close();
  });
});

describe('peers', { timeout: 60_000 }, () => {
  it('node and sockets hear of peers that come and go', async () => {
    const a = testNode('127.20.13.1');
    const b = testNode('127.20.13.2');
    const log: string[] = [];
    const [one, two] = [a.bind(4000), a.bind(4001)];
    for (const [name, emitter] of Object.entries({ node: a, one, two })) {
      emitter.on('peerUp', ({ address }: { address: string }) => log.push(`${name} up ${address}`));
      emitter.on('peerDown', ({ address, reason }: { address: string; reason: string }) => {
        assert.ok(reason.length > 0);
        log.push(`${name} down ${address}`);
      });
    }
    await two.close();
    one.sendmsg(Buffer.from('x'), { address: b.address, port: 1234 });
    await once(one, 'peerUp');
    assert.equal(a.stats().lanes[0]?.state, 'up');
    await Promise.all([once(one, 'peerDown'), b.close()]);
    assert.deepEqual(log, [
      'node up 127.20.13.2',
      'one up 127.20.13.2',
      'node down 127.20.13.2',
      'one down 127.20.13.2',
    ]);
    const again = testNode('127.20.13.2');
    await once(one, 'peerUp');
    await Promise.all([a.close(), again.close()]);
  });
});

describe('closing', { timeout: 60_000 }, () => {
  it('frees the port at once, discards what was received, withdraws what was not sent', async () => {
    const a = testNode('127.20.14.1');
    const socket = a.bind(4000);
    const other = a.bind(4001);
    socket.sendmsg(Buffer.alloc(100), { address: '127.20.14.200', port: 1 });
    other.sendmsg(Buffer.alloc(7), { address: '127.20.14.200', port: 1 });
    const closed = once(socket, 'close');
    const closing = socket.close();
    assert.equal(socket.closed, true);
    assert.equal(socket.close(), closing, 'once');
    a.bind(4000);
    await closing;
    await closed;
    assert.equal(a.stats().queuedBytes, 7, 'other sockets keep theirs');
    assert.equal(a.counters.send_cancelled, 1);
    await a.close();
  });

  it('rejects sends that wait', async () => {
    const a = testNode('127.20.14.2');
    const socket = a.bind(4000, { sendBufferBytes: 2304 });
    const to = { address: '127.20.14.200', port: 1 };
    socket.sendmsg(Buffer.alloc(2304), to);
    const waiting = socket.send(Buffer.alloc(1), to);
    await Promise.all([assert.rejects(waiting, { code: 'ECANCELED', message: /closed/ }), socket.close()]);
    await a.close();
  });

  it('with drain waits until all is acknowledged, sends that wait included', async () => {
    const a = testNode('127.20.14.3');
    const socket = a.bind(4000, { sendBufferBytes: 10_000 });
    const to = { address: '127.20.14.9', port: 5000 };
    const sends = Array.from({ length: 50 }, (_, i) => socket.send(Buffer.alloc(1000, i), to));
    let closed = false;
    const closing = socket.close({ drain: true }).then(() => {
      closed = true;
    });
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1), to)),
      'ENOTCONN',
    );
    await once(a, 'warning');
    assert.equal(closed, false);
    const b = testNode(to.address);
    const messages = await receive(b.bind(5000), 50);
    assert.deepEqual(
      messages.map(({ data }) => data[999]),
      sends.map((_, i) => i),
    );
    await Promise.all([closing, ...sends]);
    await Promise.all([a.close(), b.close()]);
  });

  it('with drain goes on when the last send that waits is given up, or is delivered here', async () => {
    const nodes = new Map<string, RdsNode>();
    const a = testNode('127.20.14.4', { nodes });
    const full = a.bind(5000, { receiveBufferBytes: 2304 });
    for (const how of ['abort', 'deliver']) {
      const socket = a.bind(4000);
      socket.sendmsg(Buffer.alloc(5000), full);
      const controller = new AbortController();
      const send = socket.send(Buffer.alloc(1), full, { signal: controller.signal });
      const closing = socket.close({ drain: true });
      if (how === 'abort') {
        controller.abort();
        await assert.rejects(send, { name: 'AbortError' });
      }
      await receive(full, how === 'abort' ? 0 : 1);
      await Promise.all([closing, how === 'abort' ? null : send]);
      if (how === 'abort') await receive(full, 1);
    }
    await a.close();
  });

  it('with drain gives up after timeoutMs', async () => {
    const a = testNode('127.20.14.5');
    const socket = a.bind(4000);
    socket.sendmsg(Buffer.alloc(100), { address: '127.20.14.200', port: 1 });
    await assert.rejects(socket.close({ drain: true, timeoutMs: 30 }), { code: 'ETIMEDOUT' });
    assert.equal(a.stats().queuedBytes, 0);
    await a.close();
  });

  it('a message that is half on the wire is finished', async () => {
    const a = testNode('127.20.14.6');
    const peer = new RawPeer('127.20.14.10', { receiveBytes: 4096, readBytes: 8288 });
    const to = { address: peer.address, port: 5000 };
    const socket = a.bind(4000, { sendBufferBytes: 16 * MIB });
    for (let i = 0; i < 12; i++) socket.sendmsg(Buffer.alloc(MIB, i), to);
    const connection = await peer.accept();
    await turnsUntil(
      () => (a.stats().lanes[0]?.writtenBytes ?? 0) > 2 * MIB && a.counters.tcp_sndbuf_full > 0,
    );
    await socket.close();
    a.bind(4001).sendmsg(Buffer.from('next'), to);
    connection.allow(Number.POSITIVE_INFINITY);
    await connection.until(() => connection.data.some(({ payload }) => String(payload) === 'next'));
    const sizes = connection.data.map(({ payload }) => payload.length);
    assert.ok(sizes.length > 2 && sizes.length < 13, `${sizes.length} messages`);
    assert.ok(sizes.slice(0, -1).every((size) => size === MIB));
    await turnsUntil(() => a.stats().queuedBytes === 0);
    assertIdle(a);
    peer.close();
    await a.close();
  });

  it('await using closes sockets and nodes', async () => {
    let socketWasClosed = false;
    {
      await using node = testNode('127.20.14.7');
      await using socket = node.bind(4000);
      socket.on('close', () => {
        socketWasClosed = true;
      });
    }
    assert.equal(socketWasClosed, true);
    await testNode('127.20.14.7').close();
  });

  it('a node closes its sockets, and with drain delivers what they sent', async () => {
    const a = testNode('127.20.14.11');
    const b = testNode('127.20.14.12');
    const sockets = [a.bind(4000), a.bind(4001)];
    const to = b.bind(5000);
    for (const socket of sockets) for (let i = 0; i < 100; i++) socket.sendmsg(Buffer.alloc(10_000), to);
    const [messages] = await Promise.all([receive(to, 200), a.close({ drain: true })]);
    assert.equal(messages.length, 200);
    assert.ok(a.closed && sockets.every((socket) => socket.closed));
    assert.deepEqual(a.stats().lanes, []);
    assert.equal(a.stats().sockets, 0);
    await b.close();
  });
});
