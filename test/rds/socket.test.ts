/**
 * What sockets do while they wait, on virtual time: for room, for a congested port, for the memlock budget, for the
 * release of what they lent, and for the end.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ZerotxError } from '../../src/core/errors.ts';
import { StillLentError } from '../../src/core/still-lent.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { scaled } from '../support/counts.ts';
import { codeOf } from '../support/rds-nodes.ts';
import { codeFrom, readAll, run, scene, stall, TO, watch } from '../support/scene.ts';

describe('100 senders of a congested port', () => {
  it('all go on after the last clear, though it flickers', async () => {
    const { world, a, b, socket, peer } = scene({ sendBufferBytes: 1 << 20 });
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 100);
    let sent = 0;
    const waiters: RdsSocket[] = [];
    for (let i = 0; i < 50; i++) {
      const waiter = a.bind(0);
      waiters.push(waiter);
      const attempt = (): void => {
        if (codeOf(() => waiter.sendmsg(Buffer.alloc(10), TO)) !== null) return;
        waiter.off('writable', attempt);
        sent += 1;
      };
      waiter.on('writable', attempt);
      b.localMap.update(TO.port, 2, 1);
      if (i === 0) await run(world, 100);
      attempt();
    }
    const sends = Array.from({ length: 50 }, () =>
      watch((waiters[0] as RdsSocket).send(Buffer.alloc(10), TO)),
    );
    assert.equal(sent, 0);
    // Set and cleared every millisecond: maps are coalesced, so what senders hear differs from what happened.
    for (let i = 0; i < 200; i++) {
      b.localMap.clear(TO.port);
      if (i % 3 === 0) await run(world, 1);
      b.localMap.update(TO.port, 2, 1);
      await run(world, 1);
    }
    b.localMap.clear(TO.port);
    await run(world, 1000);
    assert.equal(sent, 50);
    assert.equal(sends.filter((fate) => fate.outcome() !== null).length, 50);
    assert.equal(readAll(peer).length, 101);
  });
});

describe('completions', () => {
  for (const channel of ['control', 'errqueue'] as const) {
    for (const count of [1, 8, 9, 17, scaled(10_000, 100_000)]) {
      it(`${count} unread, then by ${channel}: each once, in order, at most 8 a record`, async () => {
        const limits = { b: { heldBytesPerPeer: 1 << 28 } };
        const { world, socket, peer } = scene({ zerocopy: true, sendBufferBytes: 1 << 27 }, { limits });
        const data = Buffer.alloc(600);
        for (let cookie = 0; cookie < count; cookie++) {
          assert.equal(socket.sendmsg(data, TO, { zerocopy: true, cookie }), 600);
        }
        await run(world, 20_000);
        assert.equal(readAll(peer).length, count);
        assert.equal(socket.lentBytes, 0);
        const cookies: number[] = [];
        const next = () => (channel === 'control' ? socket.recvmsg() : socket.recvErrqueue());
        for (let record = next(); record !== null; record = next()) {
          assert.ok('cookies' in record);
          if (channel === 'errqueue')
            assert.deepEqual(record, { origin: 'ZCOOKIE', cookies: record.cookies });
          assert.equal(record.cookies.length, Math.min(8, count - cookies.length));
          cookies.push(...record.cookies);
        }
        assert.deepEqual(
          cookies,
          Array.from({ length: count }, (_, i) => i),
        );
        assert.equal(socket.recvmsg(), null);
        assert.equal(socket.recvErrqueue(), null);
        assert.equal(socket.readable, false);
      });
    }
  }

  it('ride on data, and a cookie read one way is gone from the other', async () => {
    const { world, socket, peer } = scene();
    for (let cookie = 0; cookie < 20; cookie++) {
      socket.sendmsg(Buffer.alloc(600), TO, { zerocopy: true, cookie });
    }
    peer.sendmsg(Buffer.alloc(3), { address: '10.0.0.1', port: 4000 });
    await run(world, 1000);
    const message = socket.recvmsg();
    assert.deepEqual(message?.kind === 'data' && [message.length, message.cookies], [
      3,
      [0, 1, 2, 3, 4, 5, 6, 7],
    ]);
    assert.deepEqual(socket.recvErrqueue()?.cookies, [8, 9, 10, 11, 12, 13, 14, 15]);
    assert.deepEqual(socket.recvmsg(), { kind: 'completion', cookies: [16, 17, 18, 19] });
    assert.equal(socket.recvErrqueue(), null);
  });

  it('need not be unique, and are discarded on close', async () => {
    const { world, a, socket } = scene();
    for (let i = 0; i < 3; i++) socket.sendmsg(Buffer.alloc(600), TO, { zerocopy: true, cookie: 7 });
    await run(world, 1000);
    assert.deepEqual(socket.recvErrqueue()?.cookies, [7, 7, 7]);
    socket.sendmsg(Buffer.alloc(600), TO, { zerocopy: true, cookie: 8 });
    await run(world, 1000);
    const closing = socket.close();
    await run(world, 10);
    await closing;
    assert.equal(socket.recvErrqueue(), null);
    assert.equal(socket.recvmsg(), null);
    assert.equal(a.stats().lentBytes, 0);
  });

  it('a handler may send again from where it hears of them', async () => {
    const { world, socket, peer } = scene();
    const data = Buffer.alloc(600);
    let sent = 1;
    const seen: number[] = [];
    socket.on('readable', () => {
      for (let m = socket.recvmsg(); m !== null; m = socket.recvmsg()) {
        if (m.kind !== 'completion') continue;
        seen.push(...m.cookies);
        for (const _ of m.cookies)
          if (sent < 500) socket.sendmsg(data, TO, { zerocopy: true, cookie: sent++ });
      }
    });
    socket.sendmsg(data, TO, { zerocopy: true, cookie: 0 });
    await run(world, 100_000);
    assert.deepEqual(
      seen,
      Array.from({ length: 500 }, (_, i) => i),
    );
    assert.equal(readAll(peer).length, 500);
  });

  it('come in the order of acceptance to each peer, and one that is away holds back no other', async () => {
    const { world, socket } = scene();
    const away = { address: '10.0.0.9', port: 1 };
    for (let cookie = 0; cookie < 10; cookie++) {
      socket.sendmsg(Buffer.alloc(600), cookie % 2 === 0 ? TO : away, { zerocopy: true, cookie });
    }
    await run(world, 1000);
    assert.deepEqual(socket.recvErrqueue()?.cookies, [0, 2, 4, 6, 8]);
    socket.cancelSentTo(away.address);
    await run(world, 1);
    assert.deepEqual(socket.recvErrqueue()?.cookies, [1, 3, 5, 7, 9]);
  });
});

describe('the memlock budget', () => {
  const MIB = 1 << 20;

  it('of 2048 pages holds 7 messages of 1 MiB: the next is refused, and waits in send()', async () => {
    const { world, socket, budget, peer } = scene(
      { zerocopy: true, sendBufferBytes: 1 << 24 },
      { budgetPages: 2048 },
    );
    const data = Buffer.alloc(MIB);
    for (let cookie = 0; cookie < 7; cookie++) socket.sendmsg(data, TO, { zerocopy: true, cookie });
    assert.equal(budget.used(), 7 * 258);
    assert.equal(
      codeOf(() => socket.sendmsg(data, TO, { zerocopy: true, cookie: 7 })),
      'ENOMEM',
    );
    assert.equal(budget.used(), 7 * 258);
    assert.equal(socket.lentBytes, 7 * MIB);
    const sent = watch(socket.send(data, TO));
    await run(world, 0);
    assert.equal(sent.outcome(), null);
    await run(world, 100_000);
    assert.equal(sent.outcome()?.bytes, MIB);
    assert.deepEqual(socket.recvErrqueue()?.cookies, [0, 1, 2, 3, 4, 5, 6]);
    assert.equal(socket.recvErrqueue(), null);
    assert.equal(budget.used(), 0);
    assert.equal(readAll(peer).length, 8);
  });

  it('freed by another thread, of which nobody tells, is noticed; one timer watches it', async () => {
    const { world, socket, budget, timers } = scene({ zerocopy: true }, { budgetPages: 100 });
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 1000);
    budget.charge(100);
    const before = timers();
    const sends = Array.from({ length: 10 }, () => watch(socket.send(Buffer.alloc(600), TO)));
    let writable = 0;
    socket.on('writable', () => {
      writable += 1;
      if (writable < 20) codeOf(() => socket.sendmsg(Buffer.alloc(600), TO, { zerocopy: true, cookie: 1 }));
    });
    for (let i = 0; i < 50; i++) {
      socket.roomMade();
      await run(world, 1);
    }
    assert.ok(timers() <= before + 1, `${timers()} timers`);
    await run(world, 1000);
    assert.ok(sends.every((fate) => fate.outcome() === null));
    budget.uncharge(100);
    await run(world, 1000);
    assert.ok(sends.every((fate) => fate.outcome()?.bytes === 600));
  });

  it('that can never hold a message: sendmsg() says so, send() copies', async () => {
    const { world, socket, budget } = scene({ zerocopy: true }, { budgetPages: 10 });
    const data = Buffer.alloc(60_000);
    assert.equal(
      codeOf(() => socket.sendmsg(data, TO, { zerocopy: true, cookie: 1 })),
      'ENOMEM',
    );
    const sent = watch(socket.send(data, TO));
    await run(world, 1000);
    assert.deepEqual(sent.outcome(), { bytes: 60_000, copiedBytes: 60_000, exact: true });
    assert.equal(budget.used(), 0);
  });
});

describe('send() that is given up', () => {
  it('before it begins: nothing is queued', async () => {
    const { world, socket, peer } = scene();
    const reason = new Error('no more');
    const sent = watch(socket.send(Buffer.alloc(600), TO, { signal: AbortSignal.abort(reason) }));
    await run(world, 1000);
    assert.equal(sent.error(), reason);
    assert.deepEqual([socket.queuedBytes, readAll(peer)], [0, []]);
  });

  for (const how of ['abort', 'timeout'] as const) {
    const begin = (): { options: { signal?: AbortSignal; timeoutMs?: number }; abort: () => void } => {
      const controller = new AbortController();
      if (how === 'timeout') return { options: { timeoutMs: 50 }, abort: () => {} };
      return { options: { signal: controller.signal }, abort: () => controller.abort() };
    };
    const isReason = (error: unknown): boolean =>
      how === 'abort'
        ? (error as Error).name === 'AbortError'
        : error instanceof ZerotxError && error.code === 'ETIMEDOUT' && error.next === 'retry';

    it(`by ${how}, while it waits for room: rejected, never sent`, async () => {
      const { world, socket, peer, timers } = scene({ zerocopy: true, sendBufferBytes: 2304 });
      const away = { address: '10.0.0.9', port: 1 };
      socket.sendmsg(Buffer.alloc(2304), away);
      await run(world, 1);
      const before = timers();
      const { options, abort } = begin();
      const first = watch(socket.send(Buffer.alloc(600), TO, options));
      const second = watch(socket.send(Buffer.alloc(700), TO));
      await run(world, 10);
      assert.equal(first.error(), null);
      abort();
      await run(world, 100);
      assert.ok(isReason(first.error()), String(first.error()));
      socket.cancelSentTo(away.address);
      await run(world, 1000);
      assert.equal(second.outcome()?.bytes, 700);
      assert.deepEqual(readAll(peer), [700]);
      assert.ok(timers() <= before);
    });

    it(`by ${how}, first of those that wait: the next one's turn comes`, async () => {
      const { world, b, socket, peer } = scene();
      socket.sendmsg(Buffer.alloc(1), TO);
      b.localMap.update(TO.port, 2, 1);
      await run(world, 100);
      const other = b.bind(5001);
      const { options, abort } = begin();
      const first = watch(socket.send(Buffer.alloc(600), TO, options));
      const second = watch(socket.send(Buffer.alloc(700), TO));
      const elsewhere = watch(socket.send(Buffer.alloc(800), { ...TO, port: 5001 }));
      await run(world, 10);
      assert.equal(second.outcome(), null, 'behind another one to the same port');
      assert.equal(elsewhere.outcome()?.bytes, 800, 'another port of the same peer does not wait');
      abort();
      await run(world, 1000);
      assert.ok(isReason(first.error()), String(first.error()));
      b.localMap.clear(TO.port);
      await run(world, 100);
      assert.equal(second.outcome()?.bytes, 700);
      assert.deepEqual([readAll(other), readAll(peer)], [[800], [1, 700]]);
    });

    it(`by ${how}, lent and not begun: withdrawn, and the buffer is the caller's, whoever else waits`, async () => {
      const { world, socket, peer, a } = scene({ zerocopy: true, sendBufferBytes: 1 << 24 });
      socket.sendmsg(Buffer.alloc(1), TO);
      await run(world, 1000);
      stall(world);
      const before = watch(socket.send(Buffer.alloc(1 << 20), TO));
      const { options, abort } = begin();
      const sent = watch(socket.send(Buffer.alloc(600), TO, options));
      await run(world, 10);
      assert.equal(socket.lentBytes, (1 << 20) + 600);
      abort();
      await run(world, 100);
      assert.ok(isReason(sent.error()), String(sent.error()));
      assert.equal(socket.lentBytes, 1 << 20);
      assert.deepEqual([before.outcome(), before.error()], [null, null]);
      assert.equal(a.counters.send_cancelled, 1);
      for (const link of world.links) link.stalledUntil = 0;
      for (const link of world.links) for (const end of link.ends) end.kick();
      await run(world, 1e5);
      assert.equal(before.outcome()?.bytes, 1 << 20);
      assert.deepEqual(readAll(peer), [1, 1 << 20]);
    });

    it(`by ${how}, lent and begun: ZTX_STILL_LENT at once, and the message goes on`, async () => {
      const { world, socket, peer } = scene({ zerocopy: true, sendBufferBytes: 1 << 24 });
      socket.sendmsg(Buffer.alloc(1), TO);
      await run(world, 1000);
      stall(world);
      const { options, abort } = begin();
      const sent = watch(socket.send(Buffer.alloc(1 << 20), TO, options));
      await run(world, 10);
      abort();
      await run(world, 100);
      assert.equal(codeFrom(sent), 'ZTX_STILL_LENT');
      assert.ok(isReason((sent.error() as ZerotxError).cause));
      assert.equal(socket.lentBytes, 1 << 20);
      assert.ok(sent.error() instanceof StillLentError);
      const released = watch((sent.error() as StillLentError).released);
      await run(world, 100);
      assert.equal(released.outcome(), null, 'not yet');
      await run(world, 2e5);
      assert.equal(socket.lentBytes, 0);
      assert.equal(released.outcome()?.bytes, 1 << 20, 'the buffer is the caller’s after all');
      assert.deepEqual(readAll(peer), [1, 1 << 20]);
    });

    it(`by ${how}, after it was settled: too late`, async () => {
      const { world, socket, timers } = scene();
      const { options, abort } = begin();
      const sent = watch(socket.send(Buffer.alloc(600), TO, options));
      await run(world, 40);
      assert.equal(sent.outcome()?.bytes, 600);
      const before = timers();
      abort();
      await run(world, 1000);
      assert.equal(sent.error(), null);
      assert.ok(timers() <= before);
    });
  }
});

describe('closing with memory lent', () => {
  it('waits for it; after timeoutMs it says so, and the books are kept until the end', async () => {
    const { world, a, socket, budget } = scene({ zerocopy: true, sendBufferBytes: 1 << 24 });
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 1000);
    stall(world);
    const sends = Array.from({ length: 8 }, () => watch(socket.send(Buffer.alloc(1 << 20), TO)));
    await run(world, 10);
    assert.equal(socket.lentBytes, 8 << 20);
    const closing = watch(socket.close({ timeoutMs: 500 }));
    await run(world, 100);
    assert.equal(closing.error(), null);
    // What was not begun is free; the rest is with the kernel.
    assert.ok(socket.lentBytes > 0 && socket.lentBytes < 8 << 20, `${socket.lentBytes} bytes lent`);
    assert.equal(a.stats().lentBytes, socket.lentBytes);
    assert.ok(budget.used() > 0);
    await run(world, 1000);
    assert.equal(codeFrom(closing), 'ZTX_STILL_LENT');
    const rejected = sends.filter((fate) => codeFrom(fate) === 'ZTX_STILL_LENT');
    assert.equal(rejected.length, socket.lentBytes >> 20, 'their buffers are not the caller’s');
    const released = rejected.map((fate) => watch((fate.error() as StillLentError).released));
    const withdrawn = sends.filter((fate) => codeFrom(fate) === 'ECANCELED');
    assert.equal(withdrawn.length, 8 - rejected.length, 'withdrawn, and free');
    await run(world, 2e5);
    assert.equal(socket.lentBytes, 0);
    assert.deepEqual([a.stats().lentBytes, a.stats().queuedBytes, budget.used()], [0, 0, 0]);
    assert.ok(released.every((fate) => fate.outcome()?.bytes === 1 << 20));
  });
});
