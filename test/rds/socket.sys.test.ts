/**
 * What goes in at one socket comes out at another, over TCP on loopback: sizes, pieces, order, and the ways to read.
 */
import assert from 'node:assert/strict';
import { randomFillSync } from 'node:crypto';
import { once } from 'node:events';
import { after, describe, it } from 'node:test';
import { Deque } from '../../src/core/deque.ts';
import type { RdsAddress } from '../../src/rds/options.ts';
import type { RdsMessage } from '../../src/rds/received.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { Random } from '../support/random.ts';
import {
  assertIdle,
  codeOf,
  completions,
  deferred,
  receive,
  testNode,
  turnsUntil,
} from '../support/rds-nodes.ts';

const MIB = 1024 * 1024;
const noise = randomFillSync(Buffer.alloc(2 * MIB));

describe('messages', { timeout: 60_000 }, () => {
  const a = testNode('127.20.0.1');
  const b = testNode('127.20.0.2');
  const from = a.bind(4000);
  const to = b.bind(5000);
  const target = { address: b.address, port: 5000 };
  after(async () => {
    await Promise.all([a.close(), b.close()]);
    assertIdle(a);
    assertIdle(b);
  });

  for (const size of [0, 1, 64, 8191, 8192, 8193, 16_384, 16_385, 65_536, MIB - 1, MIB]) {
    it(`of ${size} bytes, there and back`, async () => {
      const data = noise.subarray(0, size);
      assert.equal(from.sendmsg(data, target), size);
      const [message] = await receive(to, 1);
      assert.ok(message !== undefined);
      assert.deepEqual(
        [message.kind, message.length, message.address, message.port, message.cookies.length],
        ['data', size, a.address, 4000, 0],
      );
      assert.ok(message.data.equals(data));
      to.sendmsg(message.data, message);
      message.recycle();
      const [answer] = await receive(from, 1);
      assert.ok(answer?.data.equals(data));
    });
  }

  const cuts: [string, number[]][] = [
    ['no piece', []],
    ['one piece', [100]],
    ['empty pieces among others', [0, 10, 0, 0, 20, 0]],
    ['only empty pieces', [0, 0]],
    ['200 pieces of 7 bytes', new Array<number>(200).fill(7)],
    ['300 pieces of 3001 bytes', new Array<number>(300).fill(3001)],
    ['a large piece between small ones', [1, 500_000, 1, 300_000, 3]],
  ];
  for (const [name, sizes] of cuts) {
    it(`from an array with ${name}`, async () => {
      let at = 0;
      const pieces = sizes.map((size) => {
        at += size;
        return noise.subarray(at - size, at);
      });
      assert.equal(from.sendmsg(pieces, target), at);
      const [message] = await receive(to, 1);
      assert.ok(message?.data.equals(noise.subarray(0, at)));
    });
  }

  it('are copied during the call: the buffer is free on return', async () => {
    for (const size of [100, 100_000]) {
      const data = Buffer.alloc(size, 1);
      from.sendmsg(data, target);
      data.fill(2);
      const outcome = from.send(data, target);
      data.fill(3);
      assert.deepEqual(await outcome, { bytes: size, copiedBytes: size, exact: true });
      const [first, second] = await receive(to, 2);
      assert.ok(first?.data.every((byte) => byte === 1));
      assert.ok(second?.data.every((byte) => byte === 2));
    }
  });

  it('of any kind of memory', async () => {
    const shared = new Uint8Array(new SharedArrayBuffer(9)).fill(7);
    const pieces = [new Uint8Array([1, 2, 3]).subarray(1), Buffer.from('abc'), shared.subarray(2, 4)];
    from.sendmsg(pieces, target);
    const [message] = await receive(to, 1);
    assert.deepEqual([...(message?.data ?? [])], [2, 3, 97, 98, 99, 7, 7]);
  });

  it('have data until they are recycled, and keep it for as long as they are not', async () => {
    for (let i = 0; i < 50; i++) from.sendmsg(noise.subarray(i, i + 30_000), target);
    const messages = await receive(to, 50);
    for (let i = 0; i < 50; i++) from.sendmsg(Buffer.alloc(30_000), target);
    for (const message of await receive(to, 50)) message.recycle();
    for (const [i, message] of messages.entries()) {
      assert.ok(message.data.equals(noise.subarray(i, i + 30_000)));
      message.recycle();
      message.recycle();
      assert.throws(() => message.data, /recycled/);
    }
  });
});

describe('order', { timeout: 60_000 }, () => {
  it('10,000 messages of mixed sizes from 4 sockets to 3 peers', async () => {
    const random = new Random(7);
    const total = 10_000;
    const a = testNode('127.20.1.1');
    const peers = ['127.20.1.2', '127.20.1.3', '127.20.0.9'].map((address) => testNode(address));
    const senders = [4000, 4001, 4002, 4003].map((port) => a.bind(port, { sendBufferBytes: MIB }));
    const sizes = [0, 1, 63, 64, 1000, 1024, 4000, 8192, 8193, 20_000, 65_536];
    const expected = new Map<string, Deque<Buffer>>();
    let received = 0;
    const all = deferred<void>();
    const take = (to: RdsSocket, message: RdsMessage): void => {
      const next = expected.get(flowName(message.port, to))?.shift();
      assert.ok(next?.equals(message.data), `message ${received} is not the one expected`);
      message.recycle();
      received += 1;
      if (received === total) all.resolve();
    };
    for (const socket of peers.flatMap((peer) => [peer.bind(5000), peer.bind(5001)])) {
      socket.on('readable', () => {
        for (let m = socket.recvmsg(); m !== null; m = socket.recvmsg())
          if (m.kind === 'data') take(socket, m);
      });
    }
    for (let i = 0; i < total; i++) {
      const socket = random.pick(senders);
      const to = { address: random.pick(peers).address, port: random.pick([5000, 5001]) };
      const offset = random.below(MIB);
      const data = noise.subarray(offset, offset + (random.chance(0.002) ? MIB : random.pick(sizes)));
      const flow = flowName(socket.port, to);
      if (!expected.has(flow)) expected.set(flow, new Deque<Buffer>());
      expected.get(flow)?.push(data);
      await sendWhenRoom(socket, data, to);
    }
    await all.promise;
    assert.equal(received, total);
    await turnsUntil(() => senders.every((socket) => socket.queuedBytes === 0));
    assert.ok(a.counters.send_queue_full > 0, 'the send buffer was full at times');
    for (const node of [a, ...peers]) {
      assert.equal(node.counters.recv_drop_no_sock + node.counters.conn_reset, 0);
      assertIdle(node);
    }
    await Promise.all([a, ...peers].map((node) => node.close()));
  });
});

function flowName(sport: number, to: RdsAddress): string {
  return `${sport}>${to.address}:${to.port}`;
}

/** As a program would: try, and wait for 'writable' when told so. */
async function sendWhenRoom(socket: RdsSocket, data: Uint8Array, to: RdsAddress): Promise<void> {
  for (let code = codeOf(() => socket.sendmsg(data, to)); code !== null; ) {
    assert.ok(code === 'EAGAIN' || code === 'ENOBUFS', code);
    await once(socket, 'writable');
    code = codeOf(() => socket.sendmsg(data, to));
  }
}

describe('connect', { timeout: 60_000 }, () => {
  const a = testNode('127.20.2.1');
  const b = testNode('127.20.2.2');
  const c = testNode('127.20.2.3');
  after(() => Promise.all([a.close(), b.close(), c.close()]));

  it('sets the default destination, and may be repeated', async () => {
    const socket = a.bind(4000);
    const [first, second] = [b.bind(5000), c.bind(5000)];
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.from('x'))),
      'ENOTCONN',
    );
    await assert.rejects(socket.send(Buffer.from('x')), { code: 'ENOTCONN', syscall: 'send' });
    socket.connect({ address: b.address, port: 5000 });
    socket.sendmsg(Buffer.from('to b'));
    socket.sendmsg(Buffer.from('named'), { address: c.address, port: 5000 });
    socket.connect({ address: c.address, port: 5000 });
    await socket.send(Buffer.from('to c'));
    assert.deepEqual(String((await receive(first, 1))[0]?.data), 'to b');
    assert.deepEqual(
      (await receive(second, 2)).map(({ data }) => String(data)),
      ['named', 'to c'],
    );
    // It does not filter what is received.
    first.sendmsg(Buffer.from('from b'), { address: a.address, port: 4000 });
    assert.equal((await receive(socket, 1))[0]?.address, b.address);
  });

  it('does not block, nor dial', () => {
    const socket = a.bind(0);
    socket.connect({ address: '127.20.2.200', port: 1234 });
    assert.equal(a.stats().lanes.find(({ address }) => address === '127.20.2.200')?.state, 'down');
  });
});

describe('reading', { timeout: 60_000 }, () => {
  const a = testNode('127.20.3.1');
  const b = testNode('127.20.3.2');
  const target = { address: b.address, port: 5000 };
  const from = a.bind(4000, { zerocopy: true });
  after(() => Promise.all([a.close(), b.close()]));

  it('iterates over messages until the socket is closed', async () => {
    const socket = b.bind(5000);
    const seen: string[] = [];
    const iteration = (async () => {
      for await (const message of socket) {
        seen.push(String(message.data));
        message.recycle();
        if (seen.length === 3) from.sendmsg(Buffer.from('late'), target);
        if (seen.length === 4) void socket.close();
      }
    })();
    for (const text of ['one', 'two', 'three']) from.sendmsg(Buffer.from(text), target);
    await iteration;
    assert.deepEqual(seen, ['one', 'two', 'three', 'late']);
    assert.equal(socket.listenerCount('readable') + socket.listenerCount('close'), 0);
  });

  it('an iteration that waits ends at once when the socket is closed, even if that takes longer', async () => {
    const socket = b.bind(5000);
    const iteration = socket[Symbol.asyncIterator]();
    const next = iteration.next();
    socket.sendmsg(Buffer.from('x'), { address: '127.20.3.200', port: 1 });
    let closed = false;
    const closing = assert
      .rejects(socket.close({ drain: true, timeoutMs: 200 }), { code: 'ETIMEDOUT' })
      .then(() => {
        closed = true;
      });
    assert.deepEqual(await next, { done: true, value: undefined });
    assert.equal(closed, false);
    await closing;
  });

  it('an iteration that is left keeps nothing', async () => {
    const socket = b.bind(5000);
    for (let i = 0; i < 3; i++) from.sendmsg(Buffer.from([i]), target);
    for await (const message of socket) {
      assert.equal(message.data[0], 0);
      break;
    }
    const rest = await receive(socket, 2);
    assert.deepEqual(
      rest.map(({ data }) => data[0]),
      [1, 2],
    );
    assert.equal(socket.listenerCount('readable'), 0);
    await socket.close();
  });

  it('peek leaves the message and the cookies where they are', async () => {
    const socket = b.bind(5000);
    from.sendmsg(Buffer.from('one'), target, { zerocopy: true, cookie: 5 });
    from.sendmsg(Buffer.from('two'), target);
    await turnsUntil(() => socket.unreadBytes === 6 && from.readable);
    const peeked = socket.recvmsg({ peek: true });
    assert.equal(peeked, socket.recvmsg({ peek: true }));
    assert.equal(socket.unreadBytes, 6);
    assert.equal(socket.recvmsg(), peeked);
    assert.equal(from.recvmsg({ peek: true }), null);
    assert.deepEqual(from.recvmsg(), { kind: 'completion', cookies: [5] });
    await socket.close();
  });

  it('control: false leaves cookies and news for later', async () => {
    const socket = b.bind(5000);
    from.sendmsg(Buffer.from('one'), target, { zerocopy: true, cookie: 6 });
    await turnsUntil(() => from.readable);
    assert.equal(from.recvmsg({ control: false }), null);
    assert.equal(from.readable, true);
    socket.sendmsg(Buffer.from('two'), { address: a.address, port: 4000 });
    await turnsUntil(() => from.unreadBytes === 3);
    const message = from.recvmsg({ control: false });
    assert.deepEqual(message?.kind === 'data' && message.cookies, []);
    assert.deepEqual(await completions(from, 1, 'errqueue'), [6]);
    await socket.close();
  });

  it('a message to nobody is dropped and counted', async () => {
    const before = b.counters.recv_drop_no_sock;
    from.sendmsg(Buffer.from('x'), { address: b.address, port: 9999 });
    await turnsUntil(() => b.counters.recv_drop_no_sock === before + 1);
    await turnsUntil(() => from.queuedBytes === 0);
  });
});

describe('buffers', { timeout: 60_000 }, () => {
  it('defaults hold messages of 1 MiB, and what is queued and unread is told', async () => {
    const a = testNode('127.20.4.1');
    const b = testNode('127.20.4.2');
    const from = a.bind(4000);
    const to = b.bind(5000);
    assert.ok(from.sendBufferBytes >= 2 * MIB && to.receiveBufferBytes >= 2 * MIB);
    const target = { address: b.address, port: 5000 };
    from.sendmsg(noise.subarray(0, MIB), target);
    from.sendmsg(noise.subarray(0, 5), target);
    assert.equal(from.queuedBytes, MIB + 5);
    assert.equal(a.stats().queuedBytes, MIB + 5);
    await turnsUntil(() => to.unreadBytes === MIB + 5 && from.queuedBytes === 0);
    assert.ok(b.stats().heldBytes >= MIB + 5);
    await receive(to, 2);
    assert.equal(to.unreadBytes, 0);
    assert.equal(b.stats().heldBytes, 0);
    await Promise.all([a.close(), b.close()]);
  });

  it('options are in bytes: the last message may overshoot, and empty ones are bounded, too', async () => {
    const a = testNode('127.20.4.3');
    const absent = { address: '127.20.4.200', port: 1 };
    const socket = a.bind(4000, { sendBufferBytes: 6400, receiveBufferBytes: 2304 });
    assert.deepEqual([socket.sendBufferBytes, socket.receiveBufferBytes], [6400, 2304]);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(6401), absent)),
      'EMSGSIZE',
    );
    socket.sendmsg(Buffer.alloc(6399), absent);
    assert.equal(socket.writable, true);
    socket.sendmsg(Buffer.alloc(6400), absent);
    assert.equal(socket.writable, false);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(0), absent)),
      'EAGAIN',
    );
    socket.cancelSentTo(absent.address);
    assert.deepEqual([socket.queuedBytes, socket.writable], [0, true]);
    let taken = 0;
    while (codeOf(() => socket.sendmsg(Buffer.alloc(0), absent)) === null) taken += 1;
    assert.equal(taken, 100);
    await a.close();
  });
});
