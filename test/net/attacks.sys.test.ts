/** Programs and peers that mean no good, or make mistakes: nothing hangs, leaks, or reaches the peer wrong. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { LookupFunction } from 'node:net';
import { afterEach, describe, it } from 'node:test';
import {
  connect,
  createServer,
  createUdpSocket,
  type Lease,
  Pool,
  type ServerOptions,
  stats,
  TcpSocket,
} from '../../src/net/index.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { AF_INET, SOCK_STREAM } from '../../src/sys/constants.ts';
import {
  closeDoor,
  closing,
  doorPair,
  FORCE,
  fillNumbers,
  HOST,
  KIB,
  listening,
  MIB,
  numbers,
  own,
  rawPair,
  turn,
  turnsUntil,
} from '../support/door.ts';

const stalled = { zerocopy: FORCE, receiveBytes: 16 * KIB } as const;
/** More than the kernel takes from a sender whose peer does not read. */
const PLENTY = 12 * MIB;
const PIECE = 64 * KIB;

/** The number that the next descriptor gets: unchanged if none was left open. */
function nextDescriptor(): number {
  const fd = calls.socket(AF_INET, SOCK_STREAM);
  native().close(fd);
  return fd;
}

function portOf(server: { address(): unknown }): number {
  return (server.address() as { port: number }).port;
}

afterEach(closeDoor);

describe('chunks of other kinds', { timeout: 20_000 }, () => {
  const kinds: readonly [name: string, of: (memory: ArrayBuffer) => ArrayBufferView][] = [
    ['Float64Array', (memory) => new Float64Array(memory)],
    ['Uint16Array', (memory) => new Uint16Array(memory)],
    ['DataView', (memory) => new DataView(memory)],
  ];
  for (const [name, of] of kinds) {
    it(`a large ${name} is sent as it was, or refused: its memory is not the program's before the callback`, async () => {
      const { client, peer } = await rawPair(stalled);
      const bytes = numbers(MIB);
      const chunk = of(bytes.buffer as ArrayBuffer);
      let pinnedAtCallback = -1;
      try {
        client.write(chunk as unknown as Uint8Array, () => {
          pinnedAtCallback = client.stats().zerocopy.pinnedBytes;
          bytes.fill(0xee);
        });
      } catch (error) {
        assert.equal((error as NodeJS.ErrnoException).code, 'ERR_INVALID_ARG_TYPE');
        return;
      }
      for (let i = 0; i < 3; i++) await turn();
      await peer.read(MIB); // checks the bytes
      await turnsUntil('the callback', () => pinnedAtCallback >= 0);
      assert.equal(pinnedAtCallback, 0);
    });
  }
});

describe('sends that go wrong half-way', { timeout: 20_000 }, () => {
  const wrong: readonly [name: string, make: () => Uint8Array | Lease][] = [
    [
      'a detached view',
      () => {
        const view = new Uint8Array(PIECE);
        structuredClone(view.buffer, { transfer: [view.buffer] });
        return view;
      },
    ],
    [
      'a released lease',
      () => {
        const lease = new Pool({ maxBytes: MIB }).tryAcquire(PIECE) as Lease;
        lease.release();
        return lease;
      },
    ],
  ];
  for (const [name, make] of wrong) {
    it(`an array with ${name} leaves the socket as it was`, async () => {
      const { client } = await doorPair();
      try {
        client.send([numbers(8), make() as Uint8Array]).catch(() => {});
      } catch {
        // Refused at once, or as a whole: both are well.
      }
      assert.equal(client.writableCorked, 0);
      client.end('what comes later goes out');
      await once(client, 'finish');
    });
  }

  const reuses: readonly [name: string, make: () => { data: Uint8Array | Lease; reuse(): void }][] = [
    [
      'transferred',
      () => {
        const data = new Uint8Array(PIECE);
        return { data, reuse: () => void structuredClone(data.buffer, { transfer: [data.buffer] }) };
      },
    ],
    [
      'unmapped with its pool',
      () => {
        const pool = new Pool({ maxBytes: MIB });
        const data = pool.tryAcquire(PIECE) as Lease;
        return {
          data,
          reuse() {
            data.release();
            assert.ok(pool.trim() > 0);
          },
        };
      },
    ],
  ];
  for (const [name, make] of reuses) {
    it(`memory of a send that was withdrawn may be ${name}: the stream still ends`, async () => {
      const { client, peer } = await rawPair(stalled);
      client.write(numbers(PLENTY));
      const { data, reuse } = make();
      const withdrawal = new AbortController();
      const sent = client.send(data, { signal: withdrawal.signal });
      withdrawal.abort();
      await assert.rejects(sent, { code: 'ABORT_ERR' });
      reuse();
      client.end();
      const finished = once(client, 'finish');
      await peer.read();
      assert.deepEqual([peer.total, peer.end], [PLENTY, 0]);
      await finished;
      assert.equal(client.writableLength, 0);
    });
  }
});

describe('writes behind one that failed, before the program is told', { timeout: 20_000 }, () => {
  const ways: readonly [name: string, write: (client: TcpSocket, bytes: Buffer) => void][] = [
    ['send()', (client, bytes) => void client.send(bytes).catch(() => {})],
    [
      'a corked write()',
      (client, bytes) => {
        client.cork();
        client.write(bytes);
        client.uncork();
      },
    ],
    ['write()', (client, bytes) => void client.write(bytes)],
  ];
  for (const [name, write] of ways) {
    it(`${name} in 'drain' sends nothing behind a chunk whose memory was taken`, async () => {
      const { client, peer } = await rawPair({ receiveBytes: 16 * KIB });
      const victim = new Uint8Array(1000);
      client.write(numbers(PLENTY));
      client.write(victim);
      structuredClone(victim.buffer, { transfer: [victim.buffer] });
      client.once('drain', () => write(client, numbers(PIECE, PLENTY)));
      const closed = closing(client);
      await peer.read();
      assert.deepEqual((await closed).codes, ['ZTX_MEMORY_TAKEN']);
      assert.equal(peer.total, PLENTY);
    });
  }

  it('an empty lease that is sent when the connection is gone is settled, and comes back', async () => {
    const { client, peer } = await rawPair({ zerocopy: FORCE });
    const pool = new Pool({ maxBytes: MIB });
    const lease = pool.tryAcquire(1000) as Lease;
    lease.length = 0;
    const closed = closing(client);
    peer.reset();
    client.write('fails');
    const sent = client.send(lease);
    const written = new Promise<unknown>((resolve) => {
      client.cork();
      client.write(lease, resolve);
      client.uncork();
    });
    lease.release();
    await Promise.allSettled([sent, written]);
    await closed;
    assert.equal(pool.stats().leases, 0);
  });
});

describe('mistakes of servers', { timeout: 20_000 }, () => {
  const bad: readonly ServerOptions[] = [
    { zerocopy: { mode: 'bogus' as 'auto' } },
    { highWaterMark: Number.NaN },
  ];
  for (const options of bad) {
    it(`createServer(${JSON.stringify(options)}) throws at once`, () => {
      assert.throws(() => createServer(options), { name: /Error/ });
    });
  }

  it('a signal among the options of createServer() does no harm, fired before or after', async () => {
    for (const when of ['before', 'after']) {
      const controller = new AbortController();
      if (when === 'before') controller.abort();
      const options = { signal: controller.signal } as ServerOptions;
      const { server, port } = await listening(options);
      const client = own(connect(port, HOST));
      const [peer] = (await once(server, 'connection')) as [TcpSocket];
      if (when === 'after') controller.abort();
      for (let i = 0; i < 3; i++) await turn();
      client.destroy();
      peer.destroy();
      const closed = once(server, 'close');
      server.close();
      await closed;
    }
  });

  it('listen(), close() and listen() in one turn listen where the last one says', async () => {
    const [first, second] = [await listening(), await listening()];
    const ports = [first.port, second.port] as const;
    await Promise.all(
      [first, second].map(({ server }) => new Promise<void>((resolve) => server.close(() => resolve()))),
    );
    const server = createServer();
    server.listen(ports[0], HOST);
    server.close();
    server.listen(ports[1], HOST);
    await once(server, 'listening');
    const port = portOf(server);
    server.close();
    assert.equal(port, ports[1]);
  });

  it('an accepted socket that connects elsewhere is counted once', async () => {
    const { server, port } = await listening();
    const other = await listening({}, (socket) => socket.resume());
    const accepted = once(server, 'connection');
    const client = own(connect(port, HOST));
    const [socket] = (await accepted) as [TcpSocket];
    const closed = once(socket, 'close');
    socket.destroy();
    client.destroy();
    await closed;
    socket.connect(other.port, HOST);
    await once(socket, 'connect');
    const again = once(socket, 'close');
    socket.destroy();
    await again;
    const count = await new Promise((resolve) => server.getConnections((_error, value) => resolve(value)));
    assert.equal(count, 0);
  });
});

describe('sockets that are destroyed while they connect', { timeout: 20_000 }, () => {
  const lookups: readonly [name: string, lookup: LookupFunction][] = [
    ['at once', (_host, _options, done) => done(null, [{ address: HOST, family: 4 }])],
    ['later', (_host, _options, done) => void setImmediate(() => done(null, [{ address: HOST, family: 4 }]))],
  ];
  for (const [name, lookup] of lookups) {
    for (const event of ['lookup', 'connectionAttempt'] as const) {
      it(`in '${event}', by a lookup that answers ${name}: no connection, no descriptor`, async () => {
        const { port } = await listening();
        const before = nextDescriptor();
        const socket = own(new TcpSocket());
        const heard: string[] = [];
        socket.on('connect', () => heard.push('connect'));
        socket.on(event, () => socket.destroy());
        const closed = once(socket, 'close');
        socket.connect({ port, host: 'name.test', lookup });
        await closed;
        for (let i = 0; i < 5; i++) await turn();
        assert.deepEqual(heard, []);
        assert.equal(nextDescriptor(), before);
      });
    }
  }

  it('host: null is this host, as in node:net', async () => {
    const server = createServer();
    server.listen(0, 'localhost');
    await once(server, 'listening');
    const client = own(connect({ port: portOf(server), host: null as unknown as string }));
    await once(client, 'connect');
    server.close();
  });
});

describe('onread', { timeout: 20_000 }, () => {
  it('a buffer without room is an error, and not the end of the stream', async () => {
    const { server, port } = await listening({}, (socket) => socket.write('something'));
    const callback = (): boolean => true;
    const client = own(connect({ port, host: HOST, onread: { buffer: new Uint8Array(0), callback } }));
    const heard: string[] = [];
    client.on('end', () => heard.push('end'));
    client.on('error', (error: NodeJS.ErrnoException) => heard.push(String(error.code)));
    await new Promise((resolve) => client.on('close', resolve));
    server.close();
    assert.equal(heard.length, 1);
    assert.notEqual(heard[0], 'end');
  });
});

describe('one lease to many sockets, some of which die', { timeout: 20_000 }, () => {
  it('settles every send, sends the right bytes to the others, and comes back', async () => {
    const pool = new Pool({ maxBytes: 4 * MIB });
    const lease = pool.tryAcquire(MIB) as Lease;
    fillNumbers(lease.buffer);
    const pairs = await Promise.all(Array.from({ length: 40 }, () => rawPair(stalled)));
    const sends = pairs.map(({ client, peer }, i) => {
      const sent = client.send(lease);
      if (i % 4 === 1) client.destroy();
      if (i % 4 === 2) peer.reset();
      if (i % 8 === 3) client.resetAndDestroy();
      return sent;
    });
    lease.release();
    assert.equal(pool.stats().leases, 1);
    const survivors = pairs.filter((_, i) => i % 4 === 0 || i % 8 === 7);
    await Promise.all(survivors.map(({ peer }) => peer.read(MIB)));
    for (const { peer } of pairs) peer.close();
    await Promise.allSettled(sends);
    await turnsUntil('nothing is pinned', () => stats().pinnedBytes === 0);
    assert.deepEqual([pool.stats().leases, pool.stats().lent], [0, 0]);
  });
});

describe('UDP', { timeout: 20_000 }, () => {
  it('a lookup that throws fails the send, and the lease comes back', async () => {
    const lookup = (host: string, _family: 4 | 6, done: (e: null, ip: string, f: number) => void): void => {
      if (host === 'name.test') throw new Error('no such luck');
      setImmediate(() => done(null, host, 4));
    };
    const socket = createUdpSocket({ type: 'udp4', lookup });
    socket.bind(0, HOST);
    await once(socket, 'listening');
    const pool = new Pool({ maxBytes: MIB });
    const lease = pool.tryAcquire(5000) as Lease;
    const sent = (async () => socket.sendSegments(lease, 1000, { port: 9, address: 'name.test' }))();
    await assert.rejects(sent, /no such luck/);
    lease.release();
    await turn();
    socket.close();
    assert.equal(pool.stats().leases, 0);
  });
});
