/** What options change while a socket is in use, on virtual time. What they accept and refuse is in the table (table/rows-options.ts). */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ZerotxError } from '../../src/core/errors.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { codeOf } from '../support/rds-nodes.ts';
import { codeFrom, readAll, run, scene, stall, TO, watch } from '../support/scene.ts';

const AWAY = { address: '10.0.0.9', port: 1 } as const;

/** A socket whose send buffer is full: nobody is there. */
function fill(socket: RdsSocket): void {
  while (codeOf(() => socket.sendmsg(Buffer.alloc(1000), AWAY)) === null);
}

describe('options of bind()', () => {
  it('are those of setsockopt() under other names', () => {
    const { socket } = scene({
      sendBufferBytes: 5000,
      receiveBufferBytes: 6000,
      sendTimeoutMs: 7,
      receiveTimeoutMs: 8,
      zerocopy: true,
      timestamp: true,
      receiveErrors: true,
      congestionMonitor: true,
      receiveLatency: [1],
    });
    const names = [
      'SO_SNDBUF',
      'SO_RCVBUF',
      'SO_SNDTIMEO',
      'SO_RCVTIMEO',
      'SO_ZEROCOPY',
      'SO_TIMESTAMP',
      'RDS_RECVERR',
    ] as const;
    assert.deepEqual(
      names.map((name) => socket.getsockopt(name)),
      [10_000, 12_000, 7, 8, true, true, true],
    );
    assert.deepEqual([socket.sendBufferBytes, socket.receiveBufferBytes], [5000, 6000]);
  });

  it('that are wrong: the port is not taken', () => {
    const { a } = scene();
    assert.throws(() => a.bind(4100, { receiveLatency: [3] }), { code: 'EFAULT' });
    assert.throws(() => a.bind(4100, { receiveTimeoutMs: -1 }), RangeError);
    assert.equal(a.receiveTimes.wanted, 0);
    assert.equal(a.bind(4100).port, 4100);
  });
});

describe('SO_SNDTIMEO', () => {
  it('bounds the wait of send() for room, also behind others; sendmsg() never waits', async () => {
    const { world, socket, timers } = scene({ sendBufferBytes: 4096, sendTimeoutMs: 50 });
    fill(socket);
    await run(world, 1);
    const before = timers();
    const sends = [1, 2].map(() => watch(socket.send(Buffer.alloc(600), AWAY)));
    await run(world, 40);
    assert.ok(sends.every((fate) => fate.error() === null));
    await run(world, 20);
    assert.deepEqual(sends.map(codeFrom), ['ETIMEDOUT', 'ETIMEDOUT']);
    const [error] = sends.map((fate) => fate.error());
    assert.ok(error instanceof ZerotxError && error.next === 'retry');
    assert.ok(timers() <= before);
  });

  it('is over when the message is accepted: what is lent may take its time', async () => {
    const { world, socket, peer, timers } = scene({ zerocopy: true, sendTimeoutMs: 50 });
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 100);
    stall(world);
    const before = timers();
    const sent = watch(socket.send(Buffer.alloc(1 << 20), TO));
    await run(world, 1000);
    assert.deepEqual([sent.resolved(), sent.error()], [false, null]);
    assert.ok(timers() <= before + 1, 'that of the lane');
    await run(world, 2e5);
    assert.equal(sent.outcome()?.bytes, 1 << 20);
    assert.deepEqual(readAll(peer), [1, 1 << 20]);
  });

  it('stops counting when room comes in time', async () => {
    const { world, socket } = scene({ zerocopy: true, sendBufferBytes: 4096, sendTimeoutMs: 50 });
    fill(socket);
    const other = { ...AWAY, port: 2 };
    const sent = watch(socket.send(Buffer.alloc(600), other));
    await run(world, 30);
    socket.setsockopt('RDS_CANCEL_SENT_TO', AWAY);
    await run(world, 1000);
    assert.deepEqual([sent.resolved(), sent.error(), socket.queuedBytes], [false, null, 600]);
    socket.setsockopt('RDS_CANCEL_SENT_TO', other);
    await run(world, 1);
    assert.equal(codeFrom(sent), 'ECANCELED');
  });

  it('gives way to timeoutMs of the call, and 0 is none', async () => {
    const { world, socket } = scene({ sendBufferBytes: 4096, sendTimeoutMs: 20 });
    fill(socket);
    const longer = watch(socket.send(Buffer.alloc(600), AWAY, { timeoutMs: 100 }));
    socket.setsockopt('SO_SNDTIMEO', 0);
    const endless = watch(socket.send(Buffer.alloc(600), AWAY));
    await run(world, 90);
    assert.equal(longer.error(), null);
    await run(world, 20);
    assert.deepEqual([codeFrom(longer), endless.error()], ['ETIMEDOUT', null]);
    await run(world, 1e5);
    assert.equal(endless.error(), null);
  });
});

describe('buffers', () => {
  it('a larger send buffer: who waits goes on, and hears of it', async () => {
    const { world, socket } = scene({ sendBufferBytes: 4096 });
    fill(socket);
    let writable = 0;
    socket.on('writable', () => {
      writable += 1;
    });
    const sent = watch(socket.send(Buffer.alloc(600), AWAY));
    await run(world, 10);
    assert.equal(sent.resolved(), false);
    socket.setsockopt('SO_SNDBUF', 1 << 20);
    await run(world, 10);
    assert.deepEqual([sent.outcome()?.bytes, writable], [600, 1]);
    assert.equal(socket.sendmsg(Buffer.alloc(1 << 20), AWAY), 1 << 20);
  });

  it('a smaller one refuses until less is queued', () => {
    const { socket } = scene();
    socket.sendmsg(Buffer.alloc(10_000), AWAY);
    socket.setsockopt('SO_SNDBUF', 5000);
    assert.equal(socket.writable, false);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1), AWAY)),
      'EAGAIN',
    );
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(5001), AWAY)),
      'EMSGSIZE',
    );
  });

  it('a receive buffer that changes tells peers at once', async () => {
    const { world, socket, peer } = scene();
    socket.sendmsg(Buffer.alloc(20_000), TO);
    await run(world, 100);
    peer.setsockopt('SO_RCVBUF', 10_000);
    await run(world, 100);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1), TO)),
      'ENOBUFS',
    );
    const sent = watch(socket.send(Buffer.alloc(5), TO));
    peer.setsockopt('SO_RCVBUF', 100_000);
    await run(world, 100);
    assert.equal(sent.outcome()?.bytes, 5);
    assert.deepEqual(readAll(peer), [20_000, 5]);
  });
});

describe('RDS_CONG_MONITOR', () => {
  it('turned off forgets what was watched, and the news', async () => {
    const { world, b, socket, peer } = scene({ congestionMonitor: true });
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 100);
    assert.deepEqual(readAll(peer), [1]);
    const meet = async (): Promise<void> => {
      b.localMap.update(TO.port, 2, 1);
      await run(world, 100);
      assert.equal(
        codeOf(() => socket.sendmsg(Buffer.alloc(1), TO)),
        'ENOBUFS',
      );
      b.localMap.clear(TO.port);
    };
    await meet();
    await run(world, 100);
    assert.equal(socket.readable, true);
    socket.setsockopt('RDS_CONG_MONITOR', false);
    assert.deepEqual([socket.readable, socket.recvmsg()], [false, null]);
    await meet();
    await run(world, 100);
    assert.equal(socket.recvmsg(), null);
    socket.setsockopt('RDS_CONG_MONITOR', true);
    await meet();
    await run(world, 100);
    assert.equal(socket.recvmsg()?.kind, 'congestion');
  });
});

describe('wrong values', () => {
  it('name the argument, and change nothing', () => {
    const { socket } = scene();
    const any = socket as unknown as { setsockopt(name: unknown, value: unknown): void };
    const wrong: readonly [string, unknown][] = [
      ['SO_SNDBUF', -1],
      ['SO_SNDBUF', 1.5],
      ['SO_RCVBUF', '5000'],
      ['SO_RCVBUF', 2 ** 31],
      ['SO_SNDTIMEO', -1],
      ['SO_RCVTIMEO', Number.NaN],
      ['SO_ZEROCOPY', 1],
      ['SO_TIMESTAMP', undefined],
      ['RDS_RECVERR', 'on'],
      ['RDS_CONG_MONITOR', null],
      ['RDS_CANCEL_SENT_TO', '10.0.0.2'],
      ['RDS_CANCEL_SENT_TO', { address: 5, port: 1 }],
      ['SO_RDS_MSG_RXPATH_LATENCY', 2],
    ];
    for (const [name, value] of wrong) {
      assert.throws(
        () => any.setsockopt(name, value),
        (error: Error) => /"value"|"to\.address" argument/.test(error.message),
        `${name} ${value}`,
      );
    }
    assert.throws(() => any.setsockopt('RDS_CANCEL_SENT_TO', { address: '10.0.0.2', port: 70_000 }), {
      code: 'EINVAL',
    });
    assert.throws(() => any.setsockopt('RDS_CANCEL_SENT_TO', { address: '224.0.0.1', port: 1 }), {
      code: 'EINVAL',
    });
    for (const name of ['toString', '__proto__', Symbol.iterator, 5, undefined])
      assert.throws(
        () => any.setsockopt(name, true),
        (error) => error instanceof ZerotxError && error.code === 'ENOPROTOOPT',
        String(name),
      );
    assert.deepEqual(
      [socket.getsockopt('SO_SNDBUF'), socket.getsockopt('SO_ZEROCOPY'), socket.getsockopt('SO_TIMESTAMP')],
      [16 << 20, true, false],
    );
  });
});
