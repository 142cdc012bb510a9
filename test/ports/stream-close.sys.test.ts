/**
 * The ends of stream connections: with much in flight, in the middle of a frame, by a reset; and how often a port tries
 * again.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { afterEach, describe, it } from 'node:test';
import type { Clock } from '../../src/core/clock.ts';
import { closerStats } from '../../src/net/closer.ts';
import { StreamPort } from '../../src/ports/stream.ts';
import { readU32 } from '../../src/wire/bytes.ts';
import { frame, type GuestFrames, sendAll } from '../support/frames.ts';
import { all } from '../support/guest-memory.ts';
import { atEnd, closePorts, guest, isUp, opened, settled } from '../support/ports.ts';
import { until } from '../support/raw-peer.ts';

afterEach(closePorts);

const MIB = 1 << 20;

async function listening(): Promise<{ server: Server; port: number }> {
  const server = createServer({ pauseOnConnect: true });
  atEnd(() => server.close());
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  assert.ok(address !== null && typeof address === 'object');
  return { server, port: address.port };
}

async function connected(
  server: Server,
  port: number,
  options: Partial<ConstructorParameters<typeof StreamPort>[0]> = {},
): Promise<{ port: StreamPort; peer: Socket }> {
  const accepted = once(server, 'connection') as Promise<[Socket]>;
  const one = await opened(new StreamPort({ name: 's', port, zerocopy: 'force', ...options }));
  const [peer] = await accepted;
  atEnd(() => peer.destroy());
  peer.on('error', () => {});
  await isUp(one);
  return { port: one, peer };
}

/** Sends until nothing more is taken; the frames that were. */
function fill(port: StreamPort, source: GuestFrames, seed: number): Uint8Array[] {
  const taken: Uint8Array[] = [];
  for (let i = 0; i < 10_000; i++) {
    const frames = Array.from({ length: 4 }, (_, j) => frame(62_000, seed + 4 * i + j));
    const table = source.table(frames);
    const at = port.send(table, all(4), 0, 4);
    taken.push(...frames.slice(0, at));
    if (at < 4) return taken;
  }
  throw new Error('the send buffer has no end');
}

/** Reads a peer to its end: whole frames, and the bytes behind them. */
async function drain(peer: Socket): Promise<{ frames: Buffer[]; rest: number }> {
  const chunks: Buffer[] = [];
  peer.on('data', (data: Buffer) => chunks.push(data));
  peer.resume();
  await new Promise<void>((resolve) => peer.once('close', () => resolve()));
  const bytes = Buffer.concat(chunks);
  const frames: Buffer[] = [];
  let at = 0;
  while (at + 4 <= bytes.length && at + 4 + readU32(bytes, at) <= bytes.length) {
    const length = readU32(bytes, at);
    frames.push(bytes.subarray(at + 4, at + 4 + length));
    at += 4 + length;
  }
  return { frames, rest: bytes.length - at };
}

function descriptors(): number {
  return readdirSync('/proc/self/fd').length;
}

describe('closing a stream port', { timeout: 120_000 }, () => {
  it('with 64 MiB in flight delivers them, and gives the memory back afterwards', async () => {
    const { server, port: where } = await listening();
    // Whatever is opened once and kept, such as the reactor.
    await (await connected(server, where)).port.close();
    const before = descriptors();
    const ends: { port: StreamPort; peer: Socket; source: GuestFrames; taken: Uint8Array[] }[] = [];
    let bytes = 0;
    while (bytes < 64 * MIB && ends.length < 32) {
      const source = guest({ memoryBytes: 32 * MIB });
      const { port, peer } = await connected(server, where, { sendBufferBytes: 32 * MIB });
      const taken = fill(port, source, ends.length * 100_000);
      bytes += taken.reduce((sum, one) => sum + one.length, 0);
      ends.push({ port, peer, source, taken });
    }
    assert.ok(bytes >= 64 * MIB, `${bytes} bytes in ${ends.length} connections`);
    for (const { port } of ends) await port.close();
    assert.ok(closerStats().lingering > 0);
    assert.ok(ends.some(({ source }) => source.outstanding > 0));
    for (const { peer, source, taken } of ends) {
      const { frames, rest } = await drain(peer);
      // The last one may have been taken, and not yet all of it be out.
      assert.ok(
        frames.length >= taken.length - 9 && frames.length <= taken.length,
        `${frames.length} of ${taken.length}`,
      );
      assert.ok(rest < 62_004);
      frames.forEach((one, i) => {
        assert.equal(Buffer.compare(one, taken[i]!), 0, `frame ${i}`);
      });
      await settled(source);
    }
    assert.equal(closerStats().lingering, 0);
    await closePorts();
    await until('all descriptors are closed', () => descriptors() <= before);
  });

  it('gives the memory back when the peer does not read and the time is over', async () => {
    const { server, port: where } = await listening();
    const source = guest({ memoryBytes: 16 * MIB });
    const { port, peer } = await connected(server, where, { lingerMs: 50 });
    fill(port, source, 1);
    assert.ok(source.outstanding > 0);
    await port.close();
    await settled(source);
    assert.ok(source.loans.every(({ quarantined }) => !quarantined));
    assert.equal(closerStats().lingering, 0);
    peer.destroy();
  });

  it('called back, what a peer does not confirm is given back at once, and there is another connection', async () => {
    const { server, port: where } = await listening();
    const source = guest({ memoryBytes: 16 * MIB });
    const { port } = await connected(server, where);
    const accepted = once(server, 'connection') as Promise<[Socket]>;
    port.recall();
    assert.equal(port.isUp, true, 'nothing was lent');
    fill(port, source, 1);
    assert.ok(source.outstanding > 0);
    port.recall();
    assert.equal(port.isUp, false);
    await settled(source);
    assert.ok(source.loans.every(({ quarantined }) => !quarantined));
    assert.match(String(port.lastError), /ETIMEDOUT/);
    atEnd((await accepted)[0].destroy.bind((await accepted)[0]));
    await isUp(port);
  });

  it('called back, what an earlier connection lent is given back at once, and this one goes on', async () => {
    const { server, port: where } = await listening();
    const source = guest({ memoryBytes: 16 * MIB });
    const { port, peer } = await connected(server, where);
    fill(port, source, 1);
    // Its end is heard, though it has read nothing.
    peer.end();
    const [again] = (await once(server, 'connection')) as [Socket];
    atEnd(() => again.destroy());
    await isUp(port);
    assert.ok(source.outstanding > 0);
    assert.equal(closerStats().lingering, 1);
    port.recall();
    assert.equal(port.isUp, true);
    await settled(source);
    assert.equal(closerStats().lingering, 0);
    port.recall();
    assert.equal(port.isUp, true);
  });

  it('by a reset of the peer loses what was in flight, and only that', async () => {
    const { server, port: where } = await listening();
    const source = guest({ memoryBytes: 16 * MIB });
    const { port, peer } = await connected(server, where);
    fill(port, source, 1);
    const accepted = once(server, 'connection') as Promise<[Socket]>;
    let writable = 0;
    port.onWritable = () => {
      writable += 1;
    };
    const down = isUp(port, false);
    peer.resetAndDestroy();
    await down;
    assert.equal(writable, 1, 'who waited for room is told');
    await settled(source);
    const [again] = await accepted;
    atEnd(() => again.destroy());
    await isUp(port);
    const one = frame(1000, 7);
    await source.send(port, [one]);
    const [data] = (await once(again.resume(), 'data')) as [Buffer];
    assert.equal(Buffer.compare(data.subarray(4), one), 0);
  });

  it('from within the receiver is heard at once', async () => {
    const port = await opened(new StreamPort({ name: 's', listen: true, port: 0 }));
    const peer = connect(port.listeningPort, '127.0.0.1');
    atEnd(() => peer.destroy());
    let calls = 0;
    let closed: Promise<void> = Promise.resolve();
    port.receiver = (table) => {
      calls += 1;
      closed = port.close();
      return table.count;
    };
    const two = Buffer.concat([Buffer.of(0, 0, 0, 14), frame(14, 1), Buffer.of(0, 0, 0, 14), frame(14, 2)]);
    peer.write(Buffer.concat([two, Buffer.of(0xff, 0xff, 0xff, 0xff)]));
    await new Promise<void>((resolve) => peer.once('close', () => resolve()));
    await closed;
    assert.equal(calls, 1);
    assert.equal(port.hostileConnections, 0);
  });

  it('a hundred times leaves nothing behind', async () => {
    const { server, port: where } = await listening();
    server.on('connection', (socket: Socket) => socket.on('error', () => {}).resume());
    const source = guest();
    const once100 = async (): Promise<void> => {
      for (let i = 0; i < 100; i++) {
        const port = new StreamPort({ name: 's', port: where, zerocopy: 'force' });
        await port.open();
        await isUp(port);
        await source.send(port, [frame(3000, i), frame(100, i)]);
        await port.close();
      }
      await settled(source);
    };
    await once100();
    const before = descriptors();
    await once100();
    assert.ok(descriptors() <= before + 8, `${descriptors()} descriptors, ${before} before`);
    assert.ok(source.loans.length >= 200);
  });
});

describe('connecting', { timeout: 30_000 }, () => {
  it('is tried again after 0, 100, 200, 400 ... 5000 ms', async () => {
    const waits: number[] = [];
    const tasks: (() => void)[] = [];
    let nowMs = 0;
    const clock: Clock = {
      now: () => nowMs,
      after(ms, task) {
        waits.push(ms);
        tasks.push(task);
        return () => {};
      },
      soon(task) {
        const immediate = setImmediate(task);
        return () => clearImmediate(immediate);
      },
    };
    const { server, port: where } = await listening();
    await new Promise<void>((resolve) => server.close(() => resolve()));
    const port = await opened(new StreamPort({ name: 's', port: where, clock }));
    const next = async (): Promise<void> => {
      while (tasks.length === 0) await new Promise((resolve) => setImmediate(resolve));
      tasks.shift()?.();
    };
    for (let i = 0; i < 9; i++) await next();
    while (tasks.length === 0) await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(waits, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    server.listen(where, '127.0.0.1');
    await once(server, 'listening');
    const accepted = once(server, 'connection') as Promise<[Socket]>;
    await next();
    const [peer] = await accepted;
    await isUp(port);
    peer.destroy();
    await isUp(port, false);
    assert.equal(waits.at(-1), 5000, 'it did not last');
    const again = once(server, 'connection') as Promise<[Socket]>;
    await next();
    const [steady] = await again;
    await isUp(port);
    nowMs += 1000;
    steady.destroy();
    await isUp(port, false);
    assert.equal(waits.at(-1), 0);
    assert.equal(await sendAll(port, guest().table([frame(60, 1)])), undefined);
    assert.equal(port.counters.txDropped, 1);
  });

  it('to a path that is none is refused at once', () => {
    const path = `/${'x'.repeat(200)}`;
    assert.throws(() => new StreamPort({ name: 's', path }), { code: 'ENAMETOOLONG' });
    assert.throws(() => new StreamPort({ name: 's' }), { code: 'EINVAL' });
  });
});
