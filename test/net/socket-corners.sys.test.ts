/** Corners of the sockets where a shortcut, or an order of things that is usual but not certain, would show. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { buffer, text } from 'node:stream/consumers';
import { afterEach, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { connect, createServer, Pool, socketStats, stats, type TcpSocket } from '../../src/net/index.ts';
import { native } from '../../src/sys/binding.ts';
import { closeDoor, doorPair, FORCE, HOST, KIB, listening, own, rawPair, turn } from '../support/door.ts';

const MSG_OOB = 1;
const CHILD = new URL('./children/unref-exit.js', import.meta.url);

afterEach(closeDoor);

describe('reading', { timeout: 20_000 }, () => {
  it('goes on behind urgent data, where a read stops short', async () => {
    const { client, peer } = await rawPair();
    let received = '';
    client.on('data', (chunk: Buffer) => {
      received += chunk;
    });
    native().sendv(peer.fd, [Buffer.from('aaa')], 1, 0);
    native().sendv(peer.fd, [Buffer.from('X')], 1, MSG_OOB);
    native().sendv(peer.fd, [Buffer.from('bbb')], 1, 0);
    while (received.length < 6) await once(client, 'data');
    assert.equal(received, 'aaabbb');
  });

  it('stops at pause() inside the callback of `onread`', async () => {
    let reads = 0;
    const onread = {
      buffer: Buffer.alloc(16),
      callback: (): boolean => {
        reads += 1;
        socket.pause();
        return true;
      },
    };
    const { port } = await listening({}, (peer) => peer.end(Buffer.alloc(64 * KIB)));
    const socket = own(connect({ port, host: HOST, onread }));
    await once(socket, 'connect');
    // All is there, and whatever goes on reading would do so in the next turns.
    while (reads === 0) await turn();
    for (let i = 0; i < 10; i++) await turn();
    assert.equal(reads, 1);
  });

  it('does not take an `onread` buffer that was taken away for the end of the stream', async () => {
    const memory = new ArrayBuffer(16);
    const onread = {
      buffer: new Uint8Array(memory),
      callback: (): boolean => {
        structuredClone(memory, { transfer: [memory] });
        return true;
      },
    };
    const { port } = await listening({}, (peer) => peer.write(Buffer.alloc(64)));
    const socket = own(connect({ port, host: HOST, onread }));
    const [error] = await once(socket, 'error');
    assert.equal(error.code, 'ENOBUFS');
  });
});

describe('options of a server', () => {
  it('are checked when it is made, not at the first connection', () => {
    const zerocopy = { mode: 'bogus' as 'auto' };
    assert.throws(() => createServer({ zerocopy }), { code: 'ERR_OUT_OF_RANGE' });
    assert.throws(() => createServer({ highWaterMark: -1 }), { code: 'ERR_INVALID_ARG_VALUE' });
  });
});

describe('a socket that connects again', { timeout: 20_000 }, () => {
  it('counts each connection once, and is listed while it is open', async () => {
    const { port } = await listening({}, (peer) => peer.resume());
    const before = stats().zerocopy.fallbackBytes;
    const socket = own(connect({ port, host: HOST, zerocopy: { mode: 'off' } }));
    const ids = new Set<number>();
    for (let life = 1; life <= 3; life++) {
      if (life > 1) socket.connect(port, HOST);
      await once(socket, 'connect');
      const { id } = socket.stats();
      ids.add(id);
      assert.ok(socketStats().some((one) => one.id === id));
      socket.end(Buffer.alloc(1000));
      await once(socket, 'close');
      assert.equal(stats().zerocopy.fallbackBytes - before, 1000 * life);
    }
    assert.equal(ids.size, 3);
  });
});

describe('send()', { timeout: 20_000 }, () => {
  it('of a released lease rejects, and holds nothing up', async () => {
    const { client, peer } = await doorPair();
    const lease = await new Pool().acquire(4 * KIB);
    lease.release();
    await assert.rejects(client.send(lease), { code: 'ZTX_RELEASED' });
    assert.equal(client.writableCorked, 0);
    client.end('hello');
    assert.equal(await text(peer), 'hello');
  });

  it('takes no leases in an array', async () => {
    const { client } = await doorPair();
    const lease = await new Pool().acquire(4 * KIB);
    const parts = [Buffer.from('a'), lease] as unknown as Uint8Array[];
    assert.throws(() => client.send(parts), { code: 'ERR_INVALID_ARG_TYPE' });
    assert.equal(lease.state, 'held');
    lease.release();
  });
});

it('a process that ends by itself delivers what an unref()ed socket has lent', {
  timeout: 30_000,
}, async () => {
  const { server, port } = await listening({ pauseOnConnect: true });
  const accepted = once(server, 'connection');
  const child = spawn(process.execPath, [fileURLToPath(CHILD), String(port), JSON.stringify(FORCE)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const [written] = await once(child.stdout, 'data');
  const [peer] = (await accepted) as [TcpSocket];
  // Only now, when nothing but the kernel's memory of it keeps the child.
  assert.equal((await buffer(peer)).length, Number(written));
  assert.deepEqual(await exited, [0, null]);
});
