/** UDP sockets on loopback: sending, receiving and the life of a socket, over both families, connected and not. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import { Pool } from '../../src/net/pool.ts';
import { createUdpSocket, UdpSocket } from '../../src/net/udp.ts';
import type { UdpSocketOptions } from '../../src/net/udp-options.ts';
import { DEADLINE_MS } from '../support/sockets.ts';
import {
  bound,
  closeSockets,
  Inbox,
  LOCALHOST,
  make,
  pattern,
  skipFamily,
  type UdpType,
} from '../support/udp.ts';

afterEach(closeSockets);

interface Pair {
  readonly sender: UdpSocket;
  readonly receiver: UdpSocket;
  readonly inbox: Inbox;
  /** Arguments that name the destination: none on a connected socket. */
  readonly to: [port: number, address: string] | [];
  readonly where: { port?: number; address?: string };
}

async function pair(
  type: UdpType,
  connected: boolean,
  options: Partial<UdpSocketOptions> = {},
): Promise<Pair> {
  const { socket: receiver, port } = await bound({ type, recvBufferSize: 1 << 20 });
  const sender = make({ type, ...options });
  const address = LOCALHOST[type];
  if (connected) {
    sender.connect(port, address);
    await once(sender, 'connect');
  }
  return {
    sender,
    receiver,
    inbox: new Inbox(receiver),
    to: connected ? [] : [port, address],
    where: connected ? {} : { port, address },
  };
}

type AnySend = (...args: unknown[]) => void;

/** send() with a promise instead of the callback. */
function sent(socket: UdpSocket, ...args: unknown[]): Promise<number> {
  return new Promise((resolve, reject) => {
    (socket.send as AnySend).call(socket, ...args, (error: Error | null, bytes: number) => {
      if (error) reject(error);
      else resolve(bytes);
    });
  });
}

const variants = (['udp4', 'udp6'] as const).flatMap((type) => [
  { type, connected: false },
  { type, connected: true },
]);

for (const { type, connected } of variants) {
  const name = `${type}, ${connected ? 'connected' : 'unconnected'}`;
  describe(name, { timeout: 6 * DEADLINE_MS, skip: skipFamily(type) }, () => {
    it('sends strings, views, lists and slices, and calls back with the bytes', async () => {
      const { sender, inbox, to } = await pair(type, connected);
      const forms: [args: unknown[], text: string][] = [
        [['text'], 'text'],
        [[Buffer.from('buffer')], 'buffer'],
        [[new Uint16Array([0x4142, 0x4344])], 'BADC'],
        [[['a', Buffer.from('bc'), new DataView(Buffer.from('-de-').buffer, 0, 0)]], 'abc'],
        [[[]], ''],
        [[''], ''],
        [['0123456789', 3, 4], '3456'],
      ];
      for (const [args, text] of forms) {
        assert.equal(await sent(sender, ...args, ...to), text.length);
        const [message] = await inbox.take(1);
        assert.equal(message?.data.toString('latin1'), text);
        assert.equal(message?.from.size, text.length);
        assert.equal(message?.from.port, sender.address().port);
        assert.equal(message?.from.address, LOCALHOST[type]);
        assert.equal(message?.from.family, type === 'udp4' ? 'IPv4' : 'IPv6');
      }
      assert.equal(sender.stats().datagramsWritten, forms.length);
    });

    for (const mode of ['off', 'force'] as const) {
      it(`sends payloads of any size as segments, ${mode === 'off' ? 'copied' : 'lent'}`, async () => {
        const { sender, inbox, where } = await pair(type, connected, { zerocopy: { mode, pin: true } });
        for (const [bytes, segmentBytes] of [
          [1, 1],
          [1400, 1400],
          [1401, 1400],
          [64 * 1000, 1000],
          [65 * 1000, 1000],
          [130, 1],
          [150_000, 9000],
          [100_000, 60_000],
        ] as const) {
          const payload = pattern(bytes);
          const outcome = await sender.sendSegments(payload, segmentBytes, where);
          assert.equal(outcome.bytes, bytes);
          assert.equal(outcome.copiedBytes, bytes, 'loopback always copies');
          const messages = await inbox.take(Math.ceil(bytes / segmentBytes));
          assert.ok(messages.slice(0, -1).every(({ data }) => data.length === segmentBytes));
          assert.deepEqual(Buffer.concat(messages.map(({ data }) => data)), payload);
        }
        const { lentCalls, copied } = sender.stats().zerocopy;
        if (mode === 'off') assert.equal(lentCalls, 0);
        else assert.ok(lentCalls > 0 && copied.threshold > 0, 'large calls are lent, small ones copied');
      });
    }

    it('sends many small pieces as one payload', async () => {
      const { sender, inbox, where } = await pair(type, connected, {
        zerocopy: { mode: 'force', pin: true },
      });
      const payload = pattern(60_000);
      for (const pieces of [20, 200]) {
        const length = payload.length / pieces;
        const list = Array.from({ length: pieces }, (_, i) =>
          Buffer.from(payload.subarray(i * length, (i + 1) * length)),
        );
        assert.equal(
          await sent(sender, list, ...(where.port === undefined ? [] : [where.port, where.address])),
          60_000,
        );
        const [one] = await inbox.take(1);
        assert.deepEqual(one?.data, payload);
        await sender.sendSegments(list, 1300, where);
        const many = await inbox.take(Math.ceil(60_000 / 1300));
        assert.deepEqual(Buffer.concat(many.map(({ data }) => data)), payload);
      }
      const { lentCalls, copied } = sender.stats().zerocopy;
      assert.equal(lentCalls, 0, 'one datagram may refer to 17 pages');
      assert.equal(copied.fragments, 4 * 60_000);
    });

    it('hands over runs of datagrams to who listens for batches', async () => {
      const { sender, receiver, where } = await pair(type, connected);
      const arrived = once(receiver, 'batch');
      await sender.sendSegments(pattern(10_000), 1200, where);
      const [datagrams, segmentBytes, from] = await arrived;
      assert.deepEqual(datagrams, pattern(10_000));
      assert.equal(segmentBytes, 1200);
      assert.equal(from.size, 10_000);
      assert.equal(from.port, sender.address().port);
      assert.equal(receiver.stats().datagramsRead, 9);
      const single = once(receiver, 'batch');
      await sender.sendSegments(pattern(100), 1200, where);
      assert.deepEqual((await single).slice(0, 2), [pattern(100), 100]);
    });

    it('sends a lease, whose memory comes back', async () => {
      const { sender, inbox, where } = await pair(type, connected, {
        zerocopy: { mode: 'force', pin: true },
      });
      const pool = new Pool({ maxBytes: 1 << 20, slabBytes: 1 << 20 });
      const lease = await pool.acquire(64_000);
      const before = lease.buffer;
      pattern(64_000).copy(before);
      const sending = sender.sendSegments(lease, 1000, where);
      assert.equal(lease.state, 'lent');
      assert.equal(before.length, 0, 'nobody can change what is sent');
      assert.equal((await sending).bytes, 64_000);
      assert.equal(lease.state, 'held');
      assert.deepEqual(lease.buffer, pattern(64_000));
      assert.deepEqual(Buffer.concat((await inbox.take(64)).map(({ data }) => data)), pattern(64_000));
      lease.release();
      assert.equal(pool.stats().leases, 0);
    });

    it('ends what waits when it is closed, and gives back what was taken', async () => {
      const { sender, where } = await pair(type, connected, { zerocopy: { mode: 'force', pin: true } });
      await sender.sendSegments(pattern(10), 10, where); // bound from now on
      // More calls than one turn makes: the rest waits for the next.
      const first = sender.sendSegments(pattern(100 * 64_000), 1000, where);
      const second = sender.sendSegments(pattern(10), 10, where);
      assert.equal(sender.getSendQueueCount(), 2);
      assert.ok(sender.getSendQueueSize() > 0);
      sender.close();
      await assert.rejects(first, { code: 'ECANCELED', syscall: 'send' });
      await assert.rejects(second, { code: 'ECANCELED' });
      assert.equal(sender.stats().zerocopy.pinnedBytes, 0);
      assert.equal(sender.stats().queuedSends, 0);
    });

    it('stops a send that is aborted, and says when the memory is free', async () => {
      const { sender, where } = await pair(type, connected, { zerocopy: { mode: 'force', pin: true } });
      await sender.sendSegments(pattern(10), 10, where);
      const abort = new AbortController();
      const payload = pattern(100 * 64_000);
      const lent = sender.sendSegments(payload, 1000, { ...where, signal: abort.signal });
      const waiting = sender.sendSegments(pattern(10), 10, { ...where, signal: abort.signal });
      const after = sender.sendSegments(pattern(20), 10, where);
      assert.equal(sender.getSendQueueCount(), 3);
      abort.abort(new Error('enough'));
      assert.deepEqual([sender.getSendQueueCount(), sender.getSendQueueSize()], [1, 20]);
      await assert.rejects(waiting, { name: 'AbortError', code: 'ABORT_ERR' });
      const error = await lent.then(
        () => assert.fail('it was aborted'),
        (reason) => reason,
      );
      assert.equal(error.code, 'ZTX_STILL_LENT');
      assert.equal(error.cause.code, 'ABORT_ERR');
      assert.equal((await error.released).bytes, payload.length);
      assert.equal((await after).bytes, 20, 'other sends go on');
      assert.deepEqual([sender.getSendQueueCount(), sender.getSendQueueSize()], [0, 0]);
      assert.equal(sender.stats().zerocopy.pinnedBytes, 0);
      const aborted = sender.sendSegments(payload, 1000, { ...where, signal: AbortSignal.abort() });
      await assert.rejects(aborted, { code: 'ABORT_ERR' });
    });
  });
}

describe('loopback', { timeout: 2 * DEADLINE_MS }, () => {
  it('is copied to at once, and counted', async () => {
    const { sender, where } = await pair('udp4', false);
    const outcome = await sender.sendSegments(pattern(60_000), 1000, where);
    assert.deepEqual(outcome, { bytes: 60_000, copiedBytes: 60_000, exact: true });
    const { lentCalls, copied } = sender.stats().zerocopy;
    assert.equal(lentCalls, 0);
    assert.equal(copied.loopback, 60_000);
  });
});

describe('a peer that is gone', { timeout: 4 * DEADLINE_MS }, () => {
  for (const mode of ['off', 'force'] as const) {
    it(`is an error of a connected socket (${mode})`, async () => {
      const { sender, receiver, inbox } = await pair('udp4', true, { zerocopy: { mode, pin: true } });
      const { port } = receiver.address();
      receiver.close();
      const failed = once(sender, 'error');
      const first = sender.sendSegments(pattern(60_000), 1000);
      const [error] = await failed;
      assert.equal(error.code, 'ECONNREFUSED');
      assert.equal(error.syscall, 'recvmsg');
      assert.equal((await first).bytes, 60_000, 'it was sent');
      assert.equal(sender.stats().zerocopy.unexpectedCompletions, 0);
      assert.deepEqual(inbox.messages, []);
      // The socket goes on: somebody else may take the port.
      const next = make({ type: 'udp4' });
      next.bind(port, '127.0.0.1');
      await once(next, 'listening');
      const again = new Inbox(next);
      await sender.sendSegments(pattern(60_000), 1000);
      assert.deepEqual(Buffer.concat((await again.take(60)).map(({ data }) => data)), pattern(60_000));
    });
  }

  it('is none of an unconnected one', async () => {
    const { sender, receiver, where } = await pair('udp4', false);
    receiver.close();
    for (let i = 0; i < 3; i++) await sender.sendSegments(pattern(100), 10, where);
  });
});

describe('arguments', { timeout: 4 * DEADLINE_MS }, () => {
  const wrong = (call: () => unknown, code: string, text?: string) =>
    assert.throws(call, (error: Error & { code?: string }) => error.code === code, text);

  it('of the constructor are checked', () => {
    wrong(() => new UdpSocket('udp5' as 'udp4'), 'ERR_SOCKET_BAD_TYPE');
    wrong(() => new UdpSocket(undefined as unknown as 'udp4'), 'ERR_INVALID_ARG_TYPE');
    wrong(() => createUdpSocket({ type: 'udp4', lookup: 1 as never }), 'ERR_INVALID_ARG_TYPE');
    wrong(() => createUdpSocket({ type: 'udp4', gro: 1 as never }), 'ERR_INVALID_ARG_TYPE');
    wrong(() => createUdpSocket({ type: 'udp4', recvBufferSize: -1 }), 'ERR_OUT_OF_RANGE');
    wrong(() => createUdpSocket({ type: 'udp4', zerocopy: { mode: 'on' as 'off' } }), 'ERR_OUT_OF_RANGE');
    wrong(() => createUdpSocket({ type: 'udp4', signal: {} as AbortSignal }), 'ERR_INVALID_ARG_TYPE');
  });

  it('of sends are checked before anything is sent', async () => {
    const { sender, receiver } = await pair('udp4', false);
    const send = sender.send.bind(sender) as AnySend;
    wrong(() => send('x'), 'ERR_SOCKET_BAD_PORT');
    wrong(() => send('x', 0), 'ERR_SOCKET_BAD_PORT');
    wrong(() => send('x', 65_536), 'ERR_SOCKET_BAD_PORT');
    wrong(() => send(1, 53), 'ERR_INVALID_ARG_TYPE');
    wrong(() => send(['x', 1], 53), 'ERR_INVALID_ARG_TYPE');
    wrong(() => send('x', 53, 127), 'ERR_INVALID_ARG_TYPE');
    wrong(() => send('x', 2, 1, 53), 'ERR_BUFFER_OUT_OF_BOUNDS');
    const segments = sender.sendSegments.bind(sender) as (...args: unknown[]) => unknown;
    for (const bytes of [0, 1.5, 65_508]) wrong(() => segments('x', bytes), 'ERR_OUT_OF_RANGE');
    wrong(() => segments('x', 10, { port: 53 }), 'ERR_INVALID_ARG_TYPE');
    wrong(() => segments([1], 10, { port: 53 }), 'ERR_INVALID_ARG_TYPE');
    wrong(() => segments(pattern(1), 10), 'ERR_SOCKET_BAD_PORT');
    wrong(() => segments(pattern(1), 10, { port: 53, signal: 1 }), 'ERR_INVALID_ARG_TYPE');
    assert.equal(sender.stats().datagramsWritten, 0);
    sender.connect(receiver.address().port);
    await once(sender, 'connect');
    wrong(() => send('x', 53, '127.0.0.1'), 'ERR_SOCKET_DGRAM_IS_CONNECTED');
    wrong(() => segments(pattern(1), 10, { port: 53 }), 'ERR_SOCKET_DGRAM_IS_CONNECTED');
    wrong(() => sender.connect(53), 'ERR_SOCKET_DGRAM_IS_CONNECTED');
  });

  it('that the kernel refuses end the send with its error', async () => {
    const { sender, to } = await pair('udp4', false);
    await assert.rejects(sent(sender, pattern(65_508), ...to), { code: 'EMSGSIZE', syscall: 'send' });
    await assert.rejects(sent(sender, 'x', 53, '::1'), { code: 'EINVAL', address: '::1', port: 53 });
    await assert.rejects(sent(sender, 'x', 53, '255.255.255.255'), { code: 'EACCES' });
    assert.equal(await sent(sender, pattern(65_507), ...to), 65_507);
    assert.equal(sender.stats().failedSends, 2, 'the wrong family never got that far');
  });

  it('that were taken away while they waited end the send', async () => {
    const { sender, where } = await pair('udp4', false);
    await sender.sendSegments(pattern(1), 1, where);
    const filling = sender.sendSegments(pattern(100 * 64_000), 1000, where);
    const memory = new Uint8Array(1000);
    const taken = sender.sendSegments(memory, 10, where);
    structuredClone(memory.buffer, { transfer: [memory.buffer] });
    await assert.rejects(taken, { code: 'EFAULT' });
    assert.equal((await filling).bytes, 100 * 64_000);
  });
});

describe('the life of a socket', { timeout: 8 * DEADLINE_MS }, () => {
  it('begins with bind() and ends with close(), each of which is possible once', async () => {
    const socket = make({ type: 'udp4' });
    const events: string[] = [];
    for (const event of ['listening', 'close'] as const) socket.on(event, () => events.push(event));
    assert.throws(() => socket.address(), { code: 'EBADF' });
    assert.throws(() => socket.setTTL(5), { code: 'EBADF' });
    assert.throws(() => socket.disconnect(), { code: 'ERR_SOCKET_DGRAM_NOT_CONNECTED' });
    assert.equal(
      socket.bind(0, () => events.push('callback')),
      socket,
    );
    assert.throws(() => socket.bind(0), { code: 'ERR_SOCKET_ALREADY_BOUND' });
    await once(socket, 'listening');
    assert.deepEqual(socket.address().address, '0.0.0.0');
    assert.throws(() => socket.remoteAddress(), { code: 'ERR_SOCKET_DGRAM_NOT_CONNECTED' });
    socket.close(() => events.push('closed'));
    await once(socket, 'close');
    assert.deepEqual(events, ['listening', 'callback', 'close', 'closed']);
    for (const call of [
      () => socket.close(),
      () => socket.bind(),
      () => socket.address(),
      () => socket.send('x', 53),
      () => socket.connect(53),
      () => socket.sendSegments(pattern(1), 1, { port: 53 }),
      () => socket.addMembership('224.0.0.114'),
    ]) {
      assert.throws(call, { code: 'ERR_SOCKET_DGRAM_NOT_RUNNING' });
    }
  });

  it('is bound by its first send, and sends what came before that in order', async () => {
    const { socket: receiver, port } = await bound({ type: 'udp4' });
    const inbox = new Inbox(receiver);
    const sender = make({ type: 'udp4' });
    sender.send('one', port);
    const two = sender.sendSegments(Buffer.from('two'), 10, { port });
    sender.close();
    await two;
    assert.deepEqual(
      (await inbox.take(2)).map(({ data }) => data.toString()),
      ['one', 'two'],
    );
  });

  it('whose bind() fails says so, also to the sends that waited, and can be bound again', async () => {
    const { port } = await bound({ type: 'udp4' });
    const socket = make({ type: 'udp4' });
    const failed = once(socket, 'error');
    socket.bind(port, '127.0.0.1', () => assert.fail('it is taken'));
    const waiting = sent(socket, 'x', port);
    const [error] = await failed;
    assert.equal(error.message, `bind EADDRINUSE 127.0.0.1:${port}`);
    await assert.rejects(waiting, { code: 'EADDRINUSE' });
    socket.bind(0);
    await once(socket, 'listening');
  });

  it('can change its peer', async () => {
    const { sender, receiver, inbox } = await pair('udp4', true);
    assert.deepEqual(sender.remoteAddress(), receiver.address());
    await sent(sender, 'x');
    await inbox.take(1);
    sender.disconnect();
    assert.throws(() => sender.send('x', () => {}), { code: 'ERR_SOCKET_BAD_PORT' });
    await sent(sender, 'y', receiver.address().port);
    const [message] = await inbox.take(1);
    assert.equal(message?.data.toString(), 'y');
    await new Promise<void>((resolve) => sender.connect(receiver.address().port, () => resolve()));
    assert.equal(sender.stats().remote, `127.0.0.1:${receiver.address().port}`);
  });

  it('asks the lookup of the program for names, with the family', async () => {
    const { socket: receiver, port } = await bound({ type: 'udp4' });
    const inbox = new Inbox(receiver);
    const asked: unknown[] = [];
    const sender = make({
      type: 'udp4',
      lookup: (name, family, callback) => {
        asked.push([name, family]);
        if (name === 'nowhere')
          callback(Object.assign(new Error('no such name'), { code: 'ENOTFOUND' }), '', 0);
        else callback(null, name === 'somewhere' ? '127.0.0.1' : name, 4);
      },
    });
    await sent(sender, 'x', port, 'somewhere');
    await inbox.take(1);
    await assert.rejects(sent(sender, 'x', port, 'nowhere'), { code: 'ENOTFOUND' });
    await assert.rejects(sender.sendSegments(pattern(1), 1, { port, address: 'nowhere' }), {
      code: 'ENOTFOUND',
    });
    const failed = once(sender, 'error');
    sender.send('x', port, 'nowhere');
    assert.equal((await failed)[0].code, 'ENOTFOUND');
    const connecting = new Promise<Error | undefined>((resolve) => sender.connect(port, 'nowhere', resolve));
    assert.equal(((await connecting) as Error & { code: string }).code, 'ENOTFOUND');
    assert.deepEqual(asked[0], ['0.0.0.0', 4]);
    assert.deepEqual(asked[1], ['somewhere', 4]);
  });

  it('takes what a lookup throws for its answer, and gives back what it would have sent', async () => {
    let fails = true;
    const socket = make({
      type: 'udp4',
      lookup: (name, family, callback) => {
        if (fails) throw new Error(`no ${name}`);
        callback(null, name, family);
        callback(null, 'twice', family);
      },
    });
    for (let i = 0; i < 2; i++) {
      const failed = once(socket, 'error');
      socket.bind(0, () => assert.fail('it has no address'));
      assert.equal((await failed)[0].message, 'no 0.0.0.0');
    }
    fails = false;
    socket.bind(0); // the lookup answers at once
    assert.notEqual(socket.address().port, 0);
    fails = true;
    const pool = new Pool();
    const lease = await pool.acquire(1000);
    const { signal } = new AbortController();
    const sending = socket.sendSegments(lease, 100, { port: 9, address: 'nowhere', signal });
    await assert.rejects(sending, { message: 'no nowhere' });
    assert.equal(lease.state, 'held');
    lease.release();
    assert.equal(pool.stats().leases, 0);
    await assert.rejects(sent(socket, 'x', 9, 'nowhere'), { message: 'no nowhere' });
    const error = await new Promise<Error | undefined>((resolve) => socket.connect(9, 'nowhere', resolve));
    assert.equal(error?.message, 'no nowhere');
  });

  it('lets through what a listener throws inside of the answer to a lookup', async () => {
    const socket = make({ type: 'udp4', lookup: (name, family, callback) => callback(null, name, family) });
    const thrown = new Error('of the listener');
    socket.once('listening', () => {
      throw thrown;
    });
    socket.on('error', () => assert.fail('the lookup was right'));
    assert.throws(() => socket.bind(0, '127.0.0.1'), thrown);
    assert.equal(socket.address().address, '127.0.0.1');
  });

  it('ends when close() waited for a bind() that fails', async () => {
    const { port } = await bound({ type: 'udp4' });
    const socket = make({ type: 'udp4' });
    const events: string[] = [];
    for (const event of ['error', 'close'] as const) socket.on(event, () => events.push(event));
    socket.bind(port, '127.0.0.1');
    const waiting = sent(socket, 'x', port);
    const closed = new Promise<void>((resolve) => socket.close(resolve));
    await assert.rejects(waiting, { code: 'EADDRINUSE' });
    await closed;
    assert.deepEqual(events, ['error', 'close']);
    assert.throws(() => socket.close(), { code: 'ERR_SOCKET_DGRAM_NOT_RUNNING' });
  });

  it('ends with its signal', async () => {
    const abort = new AbortController();
    const socket = make({ type: 'udp4', signal: abort.signal });
    socket.bind(0);
    await once(socket, 'listening');
    const closed = once(socket, 'close');
    abort.abort();
    await closed;
    const late = make({ type: 'udp4', signal: AbortSignal.abort() });
    await once(late, 'close');
  });

  it('gives other work a turn while datagrams keep coming', async () => {
    const { sender, receiver, inbox, where } = await pair('udp4', false);
    let seen = -1;
    receiver.once('message', () => {
      setImmediate(() => {
        seen = inbox.messages.length;
      });
    });
    for (let i = 0; i < 300; i++) sender.send('x', where.port as number);
    await inbox.take(300);
    assert.ok(seen > 0 && seen < 200, `${seen} of 300 messages in the first turn`);
  });
});

describe('options', { timeout: 4 * DEADLINE_MS }, () => {
  it('are set and read as those of node:dgram', async () => {
    const { socket } = await bound({ type: 'udp4', recvBufferSize: 8192, sendBufferSize: 10_000 });
    assert.equal(socket.getRecvBufferSize(), 2 * 8192);
    assert.equal(socket.getSendBufferSize(), 2 * 10_000);
    socket.setRecvBufferSize(16_384);
    assert.equal(socket.getRecvBufferSize(), 2 * 16_384);
    assert.throws(() => socket.setSendBufferSize(-1), { code: 'ERR_SOCKET_BAD_BUFFER_SIZE' });
    assert.throws(() => make({ type: 'udp4' }).getRecvBufferSize(), { code: 'ERR_SOCKET_BUFFER_SIZE' });
    assert.equal(socket.setTTL(1), 1);
    for (const ttl of [0, 256])
      assert.throws(() => socket.setTTL(ttl), { code: 'EINVAL', syscall: 'setTTL' });
    assert.equal(socket.setMulticastTTL(0), 0);
    assert.throws(() => socket.setMulticastTTL(256), { code: 'EINVAL' });
    assert.equal(socket.setMulticastLoopback(true), true);
    socket.setBroadcast(true);
    socket.setMulticastInterface('127.0.0.1');
    assert.throws(() => socket.setMulticastInterface('::%lo'), { code: 'EINVAL' });
  });

  it('let several sockets have one port', async () => {
    const { port } = await bound({ type: 'udp4', reusePort: true });
    const other = make({ type: 'udp4', reusePort: true });
    other.bind(port, '127.0.0.1');
    await once(other, 'listening');
    assert.equal(other.address().port, port);
  });

  it('let a socket join and leave groups, which binds it', async () => {
    const socket = make({ type: 'udp4' });
    const inbox = new Inbox(socket);
    socket.addMembership('224.0.0.114', '127.0.0.1');
    const { port } = socket.address();
    await once(socket, 'listening');
    assert.throws(() => socket.addMembership('224.0.0.114', '127.0.0.1'), { code: 'EADDRINUSE' });
    assert.throws(() => socket.addMembership('127.0.0.1', '127.0.0.1'), { code: 'EINVAL' });
    assert.throws(() => socket.addMembership(''), { code: 'ERR_MISSING_ARGS' });
    const { socket: sender } = await bound({ type: 'udp4' });
    sender.setMulticastInterface('127.0.0.1');
    await sent(sender, 'to all', port, '224.0.0.114');
    assert.equal((await inbox.take(1))[0]?.data.toString(), 'to all');
    socket.dropMembership('224.0.0.114', '127.0.0.1');
    assert.throws(() => socket.dropMembership('224.0.0.114', '127.0.0.1'), { code: 'EADDRNOTAVAIL' });
    socket.addSourceSpecificMembership('127.0.0.1', '232.1.1.1', '127.0.0.1');
    socket.dropSourceSpecificMembership('127.0.0.1', '232.1.1.1', '127.0.0.1');
  });

  it('of IPv6 name interfaces by zone', { skip: skipFamily('udp6') }, async () => {
    const { socket } = await bound({ type: 'udp6' });
    assert.equal(socket.setTTL(64), 64);
    assert.throws(() => socket.addMembership('ff02::1', '::%nosuch'), { code: 'EADDRNOTAVAIL' });
    assert.throws(() => socket.addMembership('ff02::1', '127.0.0.1'), { code: 'EINVAL' });
    socket.addMembership('ff02::114', '::%1');
    socket.dropMembership('ff02::114', '::%1');
    socket.addSourceSpecificMembership('::1', 'ff3e::114', '::%1');
    socket.dropSourceSpecificMembership('::1', 'ff3e::114', '::%1');
  });
});
