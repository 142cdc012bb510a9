/**
 * Zero-copy sends of RDS over TCP, with the kernel copying always (`off`), as it sees fit on loopback (`auto`), and with
 * every call flagged (`force`). The rules are the same in all three: who lends a buffer hears once, in order, when it is
 * his again.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { after, describe, it } from 'node:test';
import { FixedBudget } from '../../src/core/budget.ts';
import { processBudget } from '../../src/net/budget.ts';
import type { ZerocopyMode } from '../../src/net/policy.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsAddress } from '../../src/rds/options.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { native } from '../../src/sys/binding.ts';
import { markProtects } from '../../src/sys/lend.ts';
import { RETRANSMITTED } from '../../src/wire/rds.ts';
import {
  assertIdle,
  codeOf,
  completions,
  lendableBuffer,
  receive,
  testNode,
  turnsUntil,
} from '../support/rds-nodes.ts';
import { type RawConnection, RawPeer } from '../support/rds-raw-peer.ts';

const MIB = 1024 * 1024;
const noise = lendableBuffer(2 * MIB);
randomBytes(2 * MIB).copy(noise);
const MODES: readonly ZerocopyMode[] = ['auto', 'force', 'off'];
/** What a peer must read before messages come: our map and our probe. */
const HANDSHAKE_BYTES = 48 + 8192 + 48;

for (const [i, mode] of MODES.entries()) {
  describe(`mode ${mode}`, { timeout: 60_000 }, () => {
    const budget = new FixedBudget(-1);
    const a = testNode(`127.21.${i}.1`, { mode, thresholdBytes: 1024, budget });
    const b = testNode(`127.21.${i}.2`, { mode });
    const from = a.bind(4000, { zerocopy: true, sendBufferBytes: 32 * MIB });
    const to = b.bind(5000, { receiveBufferBytes: 64 * MIB });
    const target = { address: b.address, port: 5000 };
    after(async () => {
      await Promise.all([a.close(), b.close()]);
      for (const node of [a, b]) assertIdle(node);
    });

    it('one completion per message, first in first out, when it is acknowledged', async () => {
      const sizes = [1, 100, 1023, 1024, 4096, 8192, 8193, 65_536, 300_000, MIB];
      for (const [cookie, size] of sizes.entries()) {
        assert.equal(
          from.sendmsg(noise.subarray(cookie, cookie + size), target, { zerocopy: true, cookie }),
          size,
        );
      }
      assert.equal(
        from.lentBytes,
        sizes.reduce((sum, size) => sum + size),
      );
      assert.equal(a.stats().lentBytes, from.lentBytes);
      assert.ok(budget.used() > from.lentBytes / native().pageSize());
      assert.deepEqual(await completions(from, sizes.length), [...sizes.keys()]);
      assert.equal(from.lentBytes, 0);
      assert.equal(from.queuedBytes, 0);
      for (const [cookie, message] of (await receive(to, sizes.length)).entries()) {
        assert.ok(message.data.equals(noise.subarray(cookie, cookie + (sizes[cookie] ?? 0))));
      }
      assertIdle(a);
    });

    it('pieces are lent as they are, whatever the split', async () => {
      const pieces: Buffer[] = [];
      for (let at = 0, n = 1; at + n <= 200_000; at += n, n = (n * 7) % 5003)
        pieces.push(noise.subarray(at, at + n));
      pieces.splice(3, 0, Buffer.alloc(0));
      const whole = Buffer.concat(pieces);
      from.sendmsg(pieces, target, { zerocopy: true, cookie: 1 });
      pieces.length = 0;
      assert.deepEqual(await completions(from, 1), [1]);
      const [message] = await receive(to, 1);
      assert.ok(message?.data.equals(whole));
    });

    it('await send(): the outcome at the release', async () => {
      const { zerocopy } = a.stats();
      const outcome = await from.send(noise.subarray(0, MIB), target);
      assert.equal(outcome.bytes, MIB);
      // On loopback the kernel copies at the latest when it delivers; merged records may hide part of it.
      assert.ok(outcome.copiedBytes > 0 && outcome.copiedBytes <= MIB);
      if (outcome.exact) assert.equal(outcome.copiedBytes, MIB);
      const { zerocopy: now } = a.stats();
      if (mode === 'force') assert.ok(now.lentBytes > zerocopy.lentBytes);
      else assert.equal(now.lentBytes, 0);
      assert.equal(from.lentBytes, 0);
      await receive(to, 1);
    });

    it('a socket or a message without the flag copies during the call', async () => {
      const copying = a.bind(0);
      const data = Buffer.alloc(MIB, 1);
      from.sendmsg(data, target);
      copying.sendmsg(data, target);
      const outcome = copying.send(data, target);
      data.fill(2);
      assert.equal(from.lentBytes + copying.lentBytes + budget.used(), 0);
      assert.deepEqual(await outcome, { bytes: MIB, copiedBytes: MIB, exact: true });
      for (const message of await receive(to, 3)) assert.ok(message.data.every((byte) => byte === 1));
      assert.equal(from.recvErrqueue(), null);
    });

    for (const count of [1, 8, 9, 17, 10_000]) {
      it(`${count} completions, not read before the last: each once, in order`, async () => {
        const data = noise.subarray(0, 1500);
        const received = receive(to, count);
        for (let cookie = 0; cookie < count; cookie++) from.sendmsg(data, target, { zerocopy: true, cookie });
        await turnsUntil(() => from.lentBytes === 0);
        const channel = count % 2 === 0 ? 'errqueue' : 'control';
        assert.deepEqual(await completions(from, count, channel), [...new Array(count).keys()]);
        assert.equal(from.readable, false);
        await received;
      });
    }

    it('a completion handler that sends again', async () => {
      const seen: number[] = [];
      const count = 200;
      const received = receive(to, count + 4);
      await new Promise<void>((resolve) => {
        const next = (): void => {
          for (let record = from.recvErrqueue(); record !== null; record = from.recvErrqueue()) {
            seen.push(...record.cookies);
            for (const cookie of record.cookies) {
              if (cookie + 4 < count + 4)
                from.sendmsg(noise.subarray(0, 40_000), target, { zerocopy: true, cookie: cookie + 4 });
            }
          }
          if (seen.length < count + 4) return;
          from.off('readable', next);
          resolve();
        };
        from.on('readable', next);
        for (let cookie = 0; cookie < 4; cookie++)
          from.sendmsg(noise.subarray(0, 40_000), target, { zerocopy: true, cookie });
      });
      assert.deepEqual(seen, [...new Array(count + 4).keys()]);
      await received;
    });

    it('a bad piece: nothing is charged, nothing completes, the good ones stay usable', async () => {
      const good = Buffer.alloc(4096, 3);
      const bad = [good, null, good] as unknown as Buffer[];
      assert.throws(() => from.sendmsg(bad, target, { zerocopy: true, cookie: 9 }), {
        code: 'ERR_INVALID_ARG_TYPE',
        message: /data\[1\]/,
      });
      await assert.rejects(from.send(bad, target), { code: 'ERR_INVALID_ARG_TYPE' });
      assertIdle(a);
      from.sendmsg([good, good], target, { zerocopy: true, cookie: 10 });
      assert.deepEqual(await completions(from, 1), [10]);
      assert.equal((await receive(to, 1))[0]?.length, 8192);
    });

    it('memory that cannot be lent is copied, and completes all the same', async () => {
      const Resizable = ArrayBuffer as unknown as new (
        bytes: number,
        options: object,
      ) => ArrayBuffer & { resize(n: number): void };
      const memory = new Resizable(60_000, { maxByteLength: 60_000 });
      const data = new Uint8Array(memory, 0, 50_000).fill(4);
      from.sendmsg(data, target, { zerocopy: true, cookie: 11 });
      assert.equal(budget.used(), 0, 'nothing is pinned');
      const sent = from.send(data, target);
      memory.resize(0);
      assert.deepEqual(await completions(from, 1), [11]);
      assert.deepEqual(await sent, { bytes: 50_000, copiedBytes: 50_000, exact: true });
      for (const message of await receive(to, 2))
        assert.ok(message.length === 50_000 && message.data.every((byte) => byte === 4));
    });

    it('memory that was taken away before is empty: there is nothing to lend', () => {
      const data = new Uint8Array(5000);
      structuredClone(data, { transfer: [data.buffer] });
      assert.equal(
        codeOf(() => from.sendmsg(data, target, { zerocopy: true, cookie: 1 })),
        'EINVAL',
      );
    });

    it('shared memory that grows does not lengthen the message', async () => {
      const Growable = SharedArrayBuffer as unknown as new (
        bytes: number,
        options: object,
      ) => SharedArrayBuffer & { grow(n: number): void };
      const memory = new Growable(40_000, { maxByteLength: 80_000 });
      const data = new Uint8Array(memory).fill(5);
      from.sendmsg([Buffer.from('head'), data], target, { zerocopy: true, cookie: 12 });
      memory.grow(80_000);
      from.sendmsg(Buffer.from('next'), target);
      assert.deepEqual(await completions(from, 1), [12]);
      assert.deepEqual(
        (await receive(to, 2)).map(({ length }) => length),
        [40_004, 4],
      );
    });

    it('what the program lends cannot be taken away meanwhile', async () => {
      const data = new Uint8Array(100_000).fill(6);
      from.sendmsg(data, target, { zerocopy: true, cookie: 13 });
      try {
        structuredClone(data, { transfer: [data.buffer] });
      } catch {
        // Refusing is one way to keep it.
      }
      assert.deepEqual(await completions(from, 1), [13]);
      assert.ok((await receive(to, 1))[0]?.data.every((byte) => byte === 6));
    });
  });
}

describe('the memlock budget', { timeout: 60_000 }, () => {
  it('2048 pages are 7 messages of 1 MiB; over it ENOMEM, with nothing charged; send() waits', async () => {
    const budget = new FixedBudget(2048);
    const a = testNode('127.21.10.1', { mode: 'force', budget });
    const to = { address: '127.21.10.2', port: 5000 };
    const socket = a.bind(4000, { zerocopy: true, sendBufferBytes: 16 * MIB });
    const data = noise.subarray(0, MIB);
    let accepted = 0;
    while (codeOf(() => socket.sendmsg(data, to, { zerocopy: true, cookie: accepted })) === null)
      accepted += 1;
    const pages = Math.floor(MIB / native().pageSize()) + 2;
    assert.equal(accepted, Math.floor(2048 / pages));
    if (native().pageSize() === 4096) assert.equal(accepted, 7);
    for (let i = 0; i < 20; i++) {
      assert.equal(
        codeOf(() => socket.sendmsg(data, to, { zerocopy: true, cookie: 99 })),
        'ENOMEM',
      );
    }
    assert.equal(budget.used(), accepted * pages);
    assert.equal(socket.queuedBytes, accepted * MIB);
    assert.equal(
      codeOf(() => socket.sendmsg(data, to)),
      null,
      'a copy needs none',
    );
    const other = a.bind(4001, { zerocopy: true });
    let sent = 0;
    const sends = Array.from({ length: 10 }, () => other.send(data, to).then(() => sent++));
    const writable = once(socket, 'writable');
    const b = testNode(to.address);
    const messages = await receive(b.bind(5000, { receiveBufferBytes: 32 * MIB }), accepted + 11);
    assert.ok(messages.every((message) => message.data.equals(data)));
    await Promise.all([...sends, writable]);
    assert.equal(sent, 10);
    assert.deepEqual(await completions(socket, accepted), [...new Array(accepted).keys()]);
    assert.equal(socket.readable, false);
    // Nobody waits for the copy: its acknowledgement may be seen later.
    await turnsUntil(() => socket.queuedBytes === 0);
    assertIdle(a);
    await Promise.all([a.close(), b.close()]);
  });

  it("is the process's by default, shared by its nodes, and can be injected", async () => {
    const budget = new FixedBudget(100);
    const [a, b, c] = await Promise.all([
      RdsNode.open({ address: '127.21.11.1' }),
      RdsNode.open({ address: '127.21.11.2' }),
      RdsNode.open({ address: '127.21.11.3', budget }),
    ]);
    const before = processBudget().used();
    const away = { address: '127.21.11.200', port: 1 };
    for (const node of [a, b, c]) {
      node
        .bind(4000, { zerocopy: true })
        .sendmsg(noise.subarray(0, 1000), away, { zerocopy: true, cookie: 1 });
    }
    assert.equal(processBudget().used() - before, 4);
    assert.equal(a.stats().budget.usedPages, b.stats().budget.usedPages);
    assert.deepEqual(c.stats().budget, { usedPages: 2, limitPages: 100 });
    await Promise.all([a, b, c].map((node) => node.close()));
    assert.deepEqual([processBudget().used() - before, budget.used()], [0, 0]);
  });

  it('is charged for what is lent: ordinary memory where the runtime can keep it in place, or with `pin`', async () => {
    const budget = new FixedBudget(-1);
    const a = testNode('127.21.13.1', { budget });
    const away = { address: '127.21.13.200', port: 1 };
    const used = (pin: boolean): number => {
      const before = budget.used();
      a.bind(0, { zerocopy: true, pin }).sendmsg(new Uint8Array(1000), away, { zerocopy: true, cookie: 1 });
      return budget.used() - before;
    };
    assert.deepEqual([used(true), used(false)], [2, markProtects() ? 2 : 0]);
    await a.close();
    assert.equal(budget.used(), 0);
  });

  it('a kernel that pins no more for us is only a reason to copy', async () => {
    // An ordinary user's kernel refuses (ENOBUFS) beyond RLIMIT_MEMLOCK; a privileged one takes it all. Neither shows.
    const a = testNode('127.21.12.1', { mode: 'force' });
    const b = testNode('127.21.12.2');
    const to = b.bind(5000, { receiveBufferBytes: 64 * MIB });
    const socket = a.bind(4000, { zerocopy: true, sendBufferBytes: 32 * MIB });
    const received = receive(to, 30);
    for (let cookie = 0; cookie < 30; cookie++)
      socket.sendmsg(noise.subarray(0, MIB), to, { zerocopy: true, cookie });
    assert.deepEqual(await completions(socket, 30), [...new Array(30).keys()]);
    assert.ok((await received).every((message) => message.data.equals(noise.subarray(0, MIB))));
    assertIdle(a);
    await Promise.all([a.close(), b.close()]);
  });
});

describe('a connection that is lost after a partial acknowledgement', { timeout: 60_000 }, () => {
  for (const [i, mode] of MODES.entries()) {
    it(`mode ${mode}: what is not acknowledged is read again from the buffers, byte for byte; one completion each`, async () => {
      const a = testNode(`127.21.${20 + i}.1`, { mode });
      const peer = new RawPeer(`127.21.${20 + i}.9`, { receiveBytes: 8192, readBytes: HANDSHAKE_BYTES });
      const socket = a.bind(4000, { zerocopy: true, sendBufferBytes: 32 * MIB });
      const to = { address: peer.address, port: 5000 };
      const count = 8;
      const buffers = Array.from({ length: count }, (_, k) => noise.subarray(k * 1000, k * 1000 + MIB));
      for (const [cookie, data] of buffers.entries()) socket.sendmsg(data, to, { zerocopy: true, cookie });
      const first = await peer.accept();
      // Two and a half messages; more than 64 KiB beyond cannot be acknowledged with that receive buffer.
      first.allow(2.5 * MIB);
      await first.until(() => first.bytesRead === HANDSHAKE_BYTES + 2.5 * MIB);
      first.reset();
      const second = await peer.accept();
      second.allow(Number.POSITIVE_INFINITY);
      await second.until(() => second.data.length === count - 2);
      const messages = [...first.data, ...second.data];
      for (const [k, { payload }] of messages.entries())
        assert.ok(buffers[k]?.equals(payload), `message ${k}`);
      const flags = second.data.map(({ header }) => header.flags);
      const flagged = flags.filter((value) => value === RETRANSMITTED).length;
      assert.ok(flagged >= 1, 'the one that was begun, at least');
      assert.equal(flags.lastIndexOf(RETRANSMITTED) + 1, flagged, 'the begun ones come first');
      assert.deepEqual(
        messages.map(({ header }) => header.seqLo - (messages[0]?.header.seqLo ?? 0)),
        [...new Array(count).keys()],
      );
      assert.deepEqual(await completions(socket, count), [...new Array(count).keys()]);
      assert.equal(socket.readable, false);
      assert.equal(socket.lentBytes, 0);
      await turnsUntil(() => a.stats().zerocopy.pinnedBytes === 0);
      assertIdle(a);
      peer.close();
      await a.close();
    });
  }
});

describe('closing with 8 MiB lent to a peer that does not read', { timeout: 120_000 }, () => {
  interface Stuck {
    a: RdsNode;
    budget: FixedBudget;
    socket: RdsSocket;
    peer: RawPeer;
    connection: RawConnection;
    to: RdsAddress;
  }

  async function stuck(net: number, mode: ZerocopyMode): Promise<Stuck> {
    const budget = new FixedBudget(-1);
    const a = testNode(`127.21.${net}.1`, { mode, budget });
    const peer = new RawPeer(`127.21.${net}.9`, { receiveBytes: 4096, readBytes: HANDSHAKE_BYTES });
    const to = { address: peer.address, port: 5000 };
    const socket = a.bind(4000, { zerocopy: true, sendBufferBytes: 16 * MIB });
    for (let cookie = 0; cookie < 8; cookie++) {
      socket.sendmsg(noise.subarray(cookie, cookie + MIB), to, { zerocopy: true, cookie });
    }
    const connection = await peer.accept();
    await turnsUntil(() => a.counters.tcp_sndbuf_full > 0);
    assert.equal(socket.lentBytes, 8 * MIB);
    return { a, budget, socket, peer, connection, to };
  }

  for (const [i, mode] of MODES.entries()) {
    for (const [j, how] of ['reads', 'resets'].entries()) {
      it(`mode ${mode}: everything is kept until the peer ${how}, then nothing is left`, async () => {
        const { a, budget, socket, peer, connection } = await stuck(30 + 2 * i + j, mode);
        const writtenBytes = (a.stats().lanes[0]?.writtenBytes ?? 0) - HANDSHAKE_BYTES;
        const begun = Math.ceil(writtenBytes / (MIB + 48));
        let closed = false;
        const closing = socket.close().then(() => {
          closed = true;
        });
        for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
        assert.equal(closed, false);
        const { lentBytes, sockets } = a.stats();
        assert.equal(sockets, 0);
        assert.ok(lentBytes > 0 && lentBytes < 8 * MIB, 'what was not begun is free already');
        assert.equal(lentBytes, socket.lentBytes);
        assert.equal(budget.used(), (lentBytes / MIB) * (Math.floor(MIB / native().pageSize()) + 2));
        if (how === 'reads') connection.allow(Number.POSITIVE_INFINITY);
        else connection.reset();
        await closing;
        await turnsUntil(() => a.stats().zerocopy.pinnedBytes === 0 && a.stats().queuedBytes === 0);
        assertIdle(a);
        assert.equal(socket.recvErrqueue(), null);
        if (how === 'reads') {
          assert.equal(connection.data.length, begun, 'begun ones are finished');
          for (const [k, { payload }] of connection.data.entries())
            assert.ok(payload.equals(noise.subarray(k, k + MIB)));
        }
        peer.close();
        await a.close();
      });
    }
  }

  it('close() says after timeoutMs that memory is still lent, and the books stay open', async () => {
    const { a, budget, socket, peer, connection } = await stuck(40, 'force');
    await assert.rejects(socket.close({ timeoutMs: 30 }), { code: 'ZTX_STILL_LENT', message: /bytes lent/ });
    assert.ok(a.stats().lentBytes > 0 && budget.used() > 0);
    connection.reset();
    await turnsUntil(() => a.stats().lentBytes === 0);
    assertIdle(a);
    peer.close();
    await a.close();
  });
});
