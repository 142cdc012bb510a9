/**
 * receive() and 'readable' on virtual time: who waits is served in order, gives up when told, and hears of the end; events come
 * once for what is new. And what messages carry when a socket asks: room, time, latency.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { RdsMessage, RdsReceived } from '../../src/rds/received.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { WallClock } from '../../src/rds/socket-trace.ts';
import { codeFrom, type Fate, FROM, readAll, readMessages, run, scene, TO, watch } from '../support/scene.ts';

/** What a fate resolved with. */
function got(fate: Fate): RdsReceived | null {
  return fate.outcome() as unknown as RdsReceived | null;
}

function lengthOf(fate: Fate): number | null {
  const received = got(fate);
  return received?.kind === 'data' ? received.length : null;
}

describe('receive()', () => {
  it('resolves at once with what is there, else with what comes', async () => {
    const { world, socket, peer } = scene();
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 100);
    const first = watch(peer.receive());
    const second = watch(peer.receive());
    await run(world, 0);
    assert.deepEqual([lengthOf(first), second.resolved()], [1, false]);
    socket.sendmsg(Buffer.alloc(2), TO);
    await run(world, 100);
    assert.equal(lengthOf(second), 2);
    assert.equal(peer.recvmsg(), null);
  });

  it('serves those who wait in their order, before it tells of the rest', async () => {
    const { world, socket, peer } = scene();
    const heard: number[] = [];
    peer.on('readable', () => heard.push(...readAll(peer)));
    const waits = Array.from({ length: 3 }, () => watch(peer.receive()));
    for (let length = 1; length <= 5; length++) socket.sendmsg(Buffer.alloc(length), TO);
    await run(world, 100);
    assert.deepEqual(
      [waits.map(lengthOf), heard],
      [
        [1, 2, 3],
        [4, 5],
      ],
    );
  });

  it('who comes while others wait goes behind them, though something is there', async () => {
    const { world, socket, peer } = scene();
    const first = watch(peer.receive());
    socket.sendmsg(Buffer.alloc(1), TO);
    socket.sendmsg(Buffer.alloc(2), TO);
    // In the middle of the batch: the messages are there, and the first has not been served.
    const { deliver } = peer;
    let second: Fate | null = null;
    peer.deliver = (message: RdsMessage): void => {
      deliver.call(peer, message);
      second ??= watch(peer.receive());
    };
    await run(world, 100);
    assert.deepEqual([lengthOf(first), lengthOf(second as unknown as Fate)], [1, 2]);
  });

  it('gives up after timeoutMs, or SO_RCVTIMEO, or when it is aborted, and leaves nothing behind', async () => {
    const made = scene({ receiveTimeoutMs: 50 });
    const { world, socket, timers } = made;
    const before = timers();
    const controller = new AbortController();
    const fates = [
      watch(socket.receive({ timeoutMs: 20 })),
      watch(socket.receive()),
      watch(socket.receive({ signal: controller.signal, timeoutMs: 1000 })),
      watch(socket.receive({ signal: AbortSignal.abort(new Error('before')) })),
    ];
    await run(world, 30);
    assert.deepEqual(fates.map(codeFrom), ['ETIMEDOUT', undefined, undefined, undefined]);
    assert.equal(String(fates[3]?.error()), 'Error: before');
    await run(world, 30);
    assert.deepEqual(fates.map(codeFrom).slice(0, 3), ['ETIMEDOUT', 'ETIMEDOUT', undefined]);
    const reason = new Error('no more');
    controller.abort(reason);
    await run(world, 0);
    assert.equal(fates[2]?.error(), reason);
    assert.equal(timers(), before);
    made.peer.sendmsg(Buffer.alloc(7), FROM);
    await run(world, 100);
    assert.deepEqual(readAll(socket), [7], 'what came later was not given to them');
  });

  it('ends with the socket: ECANCELED for those who wait, ENOTCONN after that', async () => {
    const { world, socket } = scene();
    const waits = [watch(socket.receive()), watch(socket.receive({ timeoutMs: 1000 }))];
    const iterated = watch(socket[Symbol.asyncIterator]().next());
    const closing = socket.close();
    await run(world, 10);
    await closing;
    assert.deepEqual(waits.map(codeFrom), ['ECANCELED', 'ECANCELED']);
    assert.deepEqual(iterated.outcome(), { value: undefined, done: true });
    const late = watch(socket.receive());
    await run(world, 0);
    assert.equal(codeFrom(late), 'ENOTCONN');
  });

  it('brings congestion news, and leaves cookies alone to recvmsg()', async () => {
    const { world, b, socket, peer } = scene({ zerocopy: true, congestionMonitor: true });
    socket.sendmsg(Buffer.alloc(1), TO, { zerocopy: true, cookie: 4 });
    await run(world, 100);
    assert.deepEqual(readAll(peer), [1]);
    b.localMap.update(TO.port, 2, 1);
    await run(world, 100);
    assert.throws(() => socket.sendmsg(Buffer.alloc(1), TO), { code: 'ENOBUFS' });
    const fate = watch(socket.receive());
    await run(world, 100);
    assert.equal(fate.resolved(), false, 'the cookie has been there all the time');
    b.localMap.clear(TO.port);
    await run(world, 100);
    assert.deepEqual(got(fate), { kind: 'congestion', mask: 1n << BigInt(TO.port % 64) });
    assert.deepEqual(socket.recvmsg(), { kind: 'completion', cookies: [4] });
  });

  it('gets news that those before it do not want', async () => {
    const { world, b, socket, peer } = scene({ congestionMonitor: true });
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 100);
    assert.deepEqual(readAll(peer), [1]);
    b.localMap.update(TO.port, 2, 1);
    await run(world, 100);
    assert.throws(() => socket.sendmsg(Buffer.alloc(1), TO), { code: 'ENOBUFS' });
    const iterated = watch(socket[Symbol.asyncIterator]().next());
    const plain = watch(socket.receive({ control: false }));
    b.localMap.clear(TO.port);
    await run(world, 100);
    const fate = watch(socket.receive());
    await run(world, 0);
    assert.equal(got(fate)?.kind, 'congestion');
    assert.deepEqual([iterated.resolved(), plain.resolved()], [false, false]);
    peer.sendmsg(Buffer.alloc(2), FROM);
    peer.sendmsg(Buffer.alloc(3), FROM);
    await run(world, 100);
    assert.deepEqual([iterated.resolved(), lengthOf(plain)], [true, 3]);
  });

  it('and iterations wait in one row', async () => {
    const { world, socket, peer } = scene();
    const iterator = peer[Symbol.asyncIterator]();
    const fates = [watch(peer.receive()), watch(iterator.next()), watch(peer.receive())];
    for (let length = 1; length <= 3; length++) socket.sendmsg(Buffer.alloc(length), TO);
    await run(world, 100);
    const iterated = fates[1]?.outcome() as unknown as { value: RdsMessage };
    assert.deepEqual(
      [lengthOf(fates[0] as Fate), iterated.value.length, lengthOf(fates[2] as Fate)],
      [1, 2, 3],
    );
  });

  it('with peek leaves the message to the next one', async () => {
    const { world, socket, peer } = scene();
    const fates = [watch(peer.receive({ peek: true, maxBytes: 2 })), watch(peer.receive())];
    socket.sendmsg(Buffer.from('whole'), TO);
    await run(world, 100);
    const [, whole] = fates.map((fate) => got(fate) as RdsMessage);
    assert.deepEqual([String(whole?.data), whole?.truncated], ['whole', false]);
  });
});

describe("'readable'", () => {
  function counting(socket: RdsSocket): () => number {
    let events = 0;
    socket.on('readable', () => {
      events += 1;
    });
    return () => events;
  }

  it('comes once for what is new, whether the program reads it or not', async () => {
    const { world, socket, peer } = scene();
    const events = counting(peer);
    for (let i = 0; i < 10; i++) socket.sendmsg(Buffer.alloc(10), TO);
    await run(world, 100);
    const first = events();
    assert.ok(first >= 1 && first <= 10);
    // Things happen to the socket, but nothing new is there to read.
    peer.sendmsg(Buffer.alloc(100), FROM);
    peer.roomMade();
    await run(world, 1000);
    assert.equal(events(), first);
    socket.sendmsg(Buffer.alloc(10), TO);
    await run(world, 100);
    assert.equal(events(), first + 1);
    assert.equal(readAll(peer).length, 11);
  });

  it('does not come for what those who wait took', async () => {
    const { world, socket, peer } = scene();
    const events = counting(peer);
    const fate = watch(peer.receive());
    socket.sendmsg(Buffer.alloc(10), TO);
    await run(world, 100);
    assert.deepEqual([lengthOf(fate), events()], [10, 0]);
  });

  it('comes for cookies, with SO_ZEROCOPY on', async () => {
    const { world, socket, peer } = scene({ zerocopy: true });
    const events = counting(socket);
    socket.sendmsg(Buffer.alloc(10), TO, { zerocopy: true, cookie: 1 });
    await run(world, 1000);
    assert.deepEqual([readAll(peer), events()], [[10], 1]);
  });
});

describe('messages', () => {
  it('with less room than they need: what was peeked at is whole again', async () => {
    const { world, socket, peer } = scene();
    socket.sendmsg(Buffer.from('0123456789'), TO);
    await run(world, 100);
    const peeked = peer.recvmsg({ peek: true, maxBytes: 4 }) as RdsMessage;
    const part = peeked.data;
    assert.deepEqual(
      [String(part), peeked.length, peeked.fullLength, peeked.truncated],
      ['0123', 4, 10, true],
    );
    const counted = peer.recvmsg({ peek: true, maxBytes: 0, trunc: true }) as RdsMessage;
    assert.deepEqual([counted.data.length, counted.length, counted.truncated], [0, 10, true]);
    const whole = peer.recvmsg() as RdsMessage;
    assert.deepEqual([String(whole.data), whole.length, whole.truncated], ['0123456789', 10, false]);
    assert.equal(String(part), '0123');
    whole.recycle();
  });

  it('with less room free the whole of what they held', async () => {
    const { world, b, socket, peer } = scene();
    socket.sendmsg(Buffer.alloc(50_000), TO);
    await run(world, 1000);
    assert.equal(peer.unreadBytes, 50_000);
    (peer.recvmsg({ maxBytes: 10 }) as RdsMessage).recycle();
    assert.deepEqual([peer.unreadBytes, b.stats().heldBytes], [0, 0]);
  });

  it('a large one over a slow link: the points add up to its way, and nothing is measured for others', async () => {
    const { world, b, socket, peer } = scene({}, { peer: { receiveLatency: [0, 1, 2] } });
    const other = b.bind(5001);
    socket.sendmsg(Buffer.alloc(1 << 20), TO);
    socket.sendmsg(Buffer.alloc(10), { ...TO, port: 5001 });
    await run(world, 10_000);
    const atMs = world.now;
    await run(world, 500);
    const [, whole, read] = (peer.recvmsg() as RdsMessage).latency ?? [];
    assert.ok((whole?.ns ?? 0) > 1e6, `${whole?.ns} ns from first to last byte`);
    assert.ok((read?.ns ?? 0) >= (world.now - atMs) * 1e6, `${read?.ns} ns until it was read`);
    const none = other.recvmsg() as RdsMessage;
    assert.deepEqual([none.latency, none.timestamp], [null, null]);
  });

  it('small ones that came together have no way of their own', async () => {
    const { world, socket, peer } = scene({}, { peer: { receiveLatency: [0, 1] } });
    for (let i = 0; i < 3; i++) socket.sendmsg(Buffer.alloc(10), TO);
    await run(world, 100);
    readMessages(peer)
      .slice(1)
      .forEach(({ latency }) => {
        assert.deepEqual(latency, [
          { point: 0, ns: 0 },
          { point: 1, ns: 0 },
        ]);
      });
  });

  it('are measured for as long as a socket asks', async () => {
    const { world, b, socket, peer } = scene();
    peer.setsockopt('SO_RDS_MSG_RXPATH_LATENCY', [1]);
    assert.equal(b.receiveTimes.wanted, 1);
    peer.setsockopt('SO_RDS_MSG_RXPATH_LATENCY', [2]);
    assert.equal(b.receiveTimes.wanted, 1);
    assert.throws(() => peer.setsockopt('SO_RDS_MSG_RXPATH_LATENCY', [0, 3]), { code: 'EFAULT' });
    assert.equal(b.receiveTimes.wanted, 0, 'a wrong point leaves nothing set');
    peer.setsockopt('SO_RDS_MSG_RXPATH_LATENCY', [2]);
    assert.throws(() => peer.setsockopt('SO_RDS_MSG_RXPATH_LATENCY', [0, 1, 2, 0]), { code: 'EFAULT' });
    assert.equal(b.receiveTimes.wanted, 1, 'too many leave what was set');
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 100);
    assert.deepEqual(
      (peer.recvmsg() as RdsMessage).latency?.map(({ point }) => point),
      [2],
    );
    const closing = peer.close();
    await run(world, 10);
    await closing;
    assert.equal(b.receiveTimes.wanted, 0);
  });
});

describe('the wall clock', () => {
  it('has fractions, follows the wall, and does not jump with each reading', () => {
    let now = 5000;
    let wall = 1_000_000;
    const clock = new WallClock(
      () => Math.floor(wall),
      () => now,
    );
    let last = clock.read();
    for (let i = 0; i < 10_000; i++) {
      now += 0.37;
      wall += 0.37;
      const read = clock.read();
      assert.ok(read > last, 'it never goes back');
      if (i > 1000) assert.ok(Math.abs(read - wall) < 0.02 && Math.abs(read - last - 0.37) < 0.02);
      last = read;
    }
    wall -= 60_000;
    assert.ok(Math.abs(clock.read() - wall) <= 2, 'set back');
    wall += 3_600_000;
    assert.ok(Math.abs(clock.read() - wall) <= 2, 'set forth');
  });
});
