/** Datagram ports over UDP and Unix sockets, against each other and against plain Node. */
import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, describe, it } from 'node:test';
import { type DgramAddress, DgramPort } from '../../src/ports/dgram.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { AF_UNIX, SOCK_DGRAM } from '../../src/sys/constants.ts';
import { encodeSockaddrUn } from '../../src/wire/sockaddr.ts';
import { assertFrames, FrameSink, frame, sendAll } from '../support/frames.ts';
import { addHead, table } from '../support/guest-memory.ts';
import { atEnd, closePorts, guest, isUp, opened } from '../support/ports.ts';

const folder = mkdtempSync(join(tmpdir(), 'zerotx-dgram-'));
let paths = 0;

after(() => rmSync(folder, { recursive: true }));
afterEach(closePorts);

function path(): { path: string } {
  return { path: join(folder, `${paths++}.sock`) };
}

function port(local: DgramAddress, remote: DgramAddress): DgramPort {
  return new DgramPort({ name: 'dgram', local, remote });
}

/** A UDP port of 127.0.0.1 that was free a moment ago. */
async function freePort(): Promise<{ address: string; port: number }> {
  const socket = createSocket('udp4');
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  const { port: number } = socket.address();
  await new Promise<void>((resolve) => socket.close(() => resolve()));
  return { address: '127.0.0.1', port: number };
}

/** Few enough for the buffers of a socket. */
const frames = [14, 60, 1514, 9014, 65_507].map((bytes, i) => frame(bytes, i));

describe('datagram ports', { timeout: 60_000 }, () => {
  for (const kind of ['UDP', 'Unix'] as const) {
    it(`exchange frames over ${kind}, byte for byte`, async () => {
      const [a, b] = kind === 'UDP' ? [await freePort(), await freePort()] : [path(), path()];
      const one = await opened(port(a, b));
      const other = await opened(port(b, a));
      await Promise.all([isUp(one), isUp(other)]);
      const sink = new FrameSink(other);
      const source = guest();
      for (let round = 1; round <= 20; round++) {
        await source.send(one, frames);
        await sink.until(round * frames.length);
      }
      assertFrames(sink.frames.slice(-frames.length), frames);
      assert.equal(one.counters.txFrames, 20 * frames.length);
      assert.equal(other.counters.rxFrames, 20 * frames.length);
      assert.equal(other.counters.rxBytes, one.counters.txBytes);
      assert.equal(source.loans.length, 0);
    });
  }

  it('receive from the remote end alone', async () => {
    const [a, b] = [await freePort(), await freePort()];
    const one = await opened(port(a, b));
    const sink = new FrameSink(one);
    const stranger = createSocket('udp4');
    atEnd(() => stranger.close());
    stranger.send(frame(60, 1), a.port, a.address);
    const friend = createSocket('udp4');
    atEnd(() => friend.close());
    friend.bind(b.port, b.address);
    await once(friend, 'listening');
    friend.send(new Uint8Array(13), a.port, a.address);
    friend.send(frame(60, 2), a.port, a.address);
    await sink.until(1);
    assertFrames(sink.frames, [frame(60, 2)]);
    assert.equal(one.counters.rxErrors, 1);
  });

  it('drop what is no frame, or too long, and go on when nobody listens', async () => {
    const [a, b] = [await freePort(), await freePort()];
    const one = await opened(port(a, b));
    const host = table(4, 0, 66_000);
    addHead(host, new Uint8Array(13));
    addHead(host, frame(65_508, 1));
    addHead(host, frame(100, 2));
    addHead(host, frame(100, 3));
    // Refused datagrams are told later, at another one's send.
    for (let i = 0; i < 10; i++) {
      await sendAll(one, host);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.equal(one.counters.txDropped, 10);
    assert.ok(one.counters.txErrors >= 10);
    assert.ok(one.refused > 0);
    const other = await opened(port(b, a));
    const sink = new FrameSink(other);
    while (sink.frames.length === 0) {
      await sendAll(one, host);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assertFrames(sink.frames.slice(0, 1), [frame(100, sink.frames[0]![20] === frame(100, 2)[20] ? 2 : 3)]);
  });

  it('find a Unix peer that comes late, goes, and comes again', async () => {
    const [a, b] = [path(), path()];
    const one = await opened(port(a, b));
    assert.equal(one.isUp, false);
    const source = guest();
    await source.send(one, [frame(60, 1)]);
    assert.equal(one.counters.txDropped, 1);
    for (let i = 0; i < 2; i++) {
      const other = await opened(port(b, a));
      const sink = new FrameSink(other);
      while (sink.frames.length === 0) {
        await source.send(one, [frame(60, 1)]);
        await new Promise((resolve) => setImmediate(resolve));
      }
      assertFrames(sink.frames.slice(0, 1), [frame(60, 1)]);
      await other.close();
      assert.equal(existsSync(b.path), false);
    }
  });

  it('take over a name that a process left behind, and no other', async () => {
    const [a, b] = [path(), path()];
    const one = await opened(port(a, b));
    await assert.rejects(port(a, b).open(), { code: 'EADDRINUSE' });
    assert.equal(one.isUp, false);
    await one.close();
    const left = calls.socket(AF_UNIX, SOCK_DGRAM);
    assert.equal(native().bind(left, encodeSockaddrUn(a.path)), 0);
    calls.close(left);
    assert.equal(existsSync(a.path), true);
    const again = await opened(port(a, b));
    await again.close();
    assert.equal(existsSync(a.path), false);
  });

  /** A peer that is not connected to us, as QEMU is not: it has room for a handful. */
  function plainPeer(where: { path: string }): { fd: number; readAll(): Buffer[] } {
    const fd = calls.socket(AF_UNIX, SOCK_DGRAM);
    assert.equal(native().bind(fd, encodeSockaddrUn(where.path)), 0);
    const buffer = Buffer.alloc(70_000);
    const readAll = (): Buffer[] => {
      const got: Buffer[] = [];
      for (;;) {
        const n = native().readv(fd, [buffer], 1);
        if (n < 0) return got;
        got.push(Buffer.from(buffer.subarray(0, n)));
      }
    };
    return { fd, readAll };
  }

  it('have room for a burst where a Unix peer has not, and send it when that has read', async () => {
    const [a, b] = [path(), path()];
    const peer = plainPeer(b);
    const one = await opened(port(a, b));
    assert.equal(one.isUp, true);
    const burst = Array.from({ length: 200 }, (_, i) => frame(60 + 7 * i, i));
    const source = guest();
    const which = Uint32Array.from(burst, (_, i) => i);
    assert.equal(one.send(source.table(burst), which, 0, 200), 200, 'all are taken at once');
    assert.ok(one.counters.txFrames < 200);
    const got: Buffer[] = [];
    while (got.length < 200) {
      got.push(...peer.readAll());
      await new Promise((resolve) => setImmediate(resolve));
    }
    assertFrames(got, burst);
    assert.deepEqual([one.counters.txFrames, one.counters.txDropped, one.counters.txErrors], [200, 0, 0]);
    const rest: Buffer[] = [];
    const many = Array.from({ length: 2000 }, (_, i) => frame(1514, i));
    const all = guest({ memoryBytes: 8 << 20 }).send(one, many);
    while (rest.length < many.length) {
      rest.push(...peer.readAll());
      await new Promise((resolve) => setImmediate(resolve));
    }
    await all;
    assertFrames(rest, many);
    calls.close(peer.fd);
  });

  it('drop what waits when the Unix peer goes, and say why there is no carrier', async () => {
    const [a, b] = [path(), path()];
    const peer = plainPeer(b);
    const one = await opened(port(a, b));
    const burst = Array.from({ length: 200 }, (_, i) => frame(600, i));
    const source = guest();
    assert.equal(
      one.send(
        source.table(burst),
        Uint32Array.from(burst, (_, i) => i),
        0,
        200,
      ),
      200,
    );
    calls.close(peer.fd);
    await isUp(one, false);
    const { txFrames, txDropped, txErrors } = one.counters;
    assert.equal(txFrames + txDropped + txErrors, 200, `${txFrames} ${txDropped} ${txErrors}`);
    assert.ok(one.refused > 0);
    assert.equal((one.lastError as NodeJS.ErrnoException | null)?.code, 'ECONNREFUSED');
    rmSync(b.path);
    const again = plainPeer(b);
    await isUp(one);
    assert.equal(one.lastError, null);
    calls.close(again.fd);
  });

  it('tell of a UDP peer that is away, and of one that has come', async () => {
    const [a, b] = [await freePort(), await freePort()];
    const one = await opened(port(a, b));
    const source = guest();
    const changes: boolean[] = [];
    one.onChange = () => changes.push(one.lastError === null);
    while (changes.length === 0) {
      await source.send(one, [frame(60, 1)]);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.equal((one.lastError as NodeJS.ErrnoException | null)?.code, 'ECONNREFUSED');
    assert.ok(one.refused > 0 && one.isUp);
    const other = await opened(port(b, a));
    while (changes.length === 1) {
      await source.send(other, [frame(60, 1)]);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.deepEqual(changes, [false, true]);
    assert.equal(one.lastError, null);
  });

  it('wait for room where a Unix peer does not read', async () => {
    const [a, b] = [path(), path()];
    const one = await opened(port(a, b));
    const other = await opened(port(b, a));
    await isUp(one);
    const sink = new FrameSink(other);
    sink.takes = 0;
    const many = Array.from({ length: 3000 }, (_, i) => frame(1514, i));
    const sent = guest({ memoryBytes: 8 << 20 }).send(one, many);
    await new Promise((resolve) => setImmediate(resolve));
    assert.ok(one.counters.txFrames < many.length, `${one.counters.txFrames}`);
    sink.takes = 5;
    while (sink.frames.length < many.length) {
      other.resume();
      await new Promise((resolve) => setImmediate(resolve));
    }
    await sent;
    assertFrames(sink.frames, many);
  });
});
