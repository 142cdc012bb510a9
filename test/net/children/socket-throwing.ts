/**
 * Listeners that throw, in a program that goes on after it (an 'uncaughtException' listener): nothing may get lost behind them,
 * as edges of readiness do not come again. Run as `node socket-throwing.js <mode>`; throws, or hangs, when all is not well.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer, type TcpSocket } from '../../../src/net/index.ts';
import { doorPair, FORCE, HOST, KIB, MIB, numbers, own, rawPair, turn } from '../../support/door.ts';

const ON_PURPOSE = 'on purpose';
let thrown = 0;
process.on('uncaughtException', (error) => {
  if (error.message !== ON_PURPOSE) {
    process.stderr.write(`${error.stack}\n`);
    process.exit(2);
  }
  thrown += 1;
});

function fail(): never {
  throw new Error(ON_PURPOSE);
}

/** Each 'data' listener throws: the rest of the data comes all the same. */
async function data(): Promise<void> {
  const { client, peer } = await doorPair();
  const total = 4 * MIB;
  let received = 0;
  client.on('data', (chunk: Buffer) => {
    received += chunk.length;
    fail();
  });
  peer.end(numbers(total));
  await once(client, 'end');
  assert.equal(received, total);
  assert.ok(thrown > 1);
}

/** So does each 'connection' listener: the connections behind the first are accepted. */
async function connection(): Promise<void> {
  const count = 5;
  const all = new Promise<void>((resolve) => {
    let connections = 0;
    const server = createServer((socket) => {
      own(socket);
      connections += 1;
      if (connections === count) {
        server.close();
        resolve();
      }
      fail();
    });
    server.listen(0, HOST, () => {
      const { port } = server.address() as { port: number };
      for (let i = 0; i < count; i++) own(connect(port, HOST));
    });
  });
  await all;
  await turn();
  assert.equal(thrown, count);
}

/** A 'drain' listener throws, in an event that also brings data and the end. */
async function drain(): Promise<void> {
  const { client, peer } = await rawPair({ zerocopy: FORCE, receiveBytes: 16 * KIB });
  const received: Buffer[] = [];
  client.on('data', (chunk: Buffer) => received.push(chunk));
  let at = 0;
  for (const piece = 64 * KIB; client.writableLength === 0; at += piece) {
    client.write(numbers(piece, at));
    await turn();
  }
  client.on('drain', fail);
  // Before the event loop turns: room to write, something to read, and nothing later.
  peer.send(Buffer.from('x'));
  peer.shutdownWrite();
  for (let i = 0; i < 1000; i++) peer.readNow();
  await once(client, 'end');
  assert.equal(String(Buffer.concat(received)), 'x');
  assert.equal(thrown, 1);
}

/** Callbacks of writes throw: the others are called all the same, each once. */
async function callbacks(): Promise<void> {
  const { client, peer } = await rawPair({ zerocopy: FORCE });
  const count = 50;
  let called = 0;
  const finished = new Promise<void>((resolve) => {
    for (let i = 0; i < count; i++) {
      client.write(numbers(8 * KIB, i * 8 * KIB), () => {
        called += 1;
        if (called === count) resolve();
        fail();
      });
    }
  });
  await peer.read(count * 8 * KIB);
  await finished;
  await turn();
  assert.deepEqual([called, thrown], [count, count]);
}

/** The listener of 'connect' throws: the socket works. */
async function connected(): Promise<void> {
  const { server, port } = await (async () => {
    const server = createServer((socket: TcpSocket) =>
      own(socket).once('data', (early: Buffer) => socket.end(`hello ${early}`)),
    );
    server.listen(0, HOST);
    await once(server, 'listening');
    return { server, port: (server.address() as { port: number }).port };
  })();
  const client = own(connect(port, HOST, fail));
  client.write('early');
  let text = '';
  client.on('data', (chunk) => {
    text += chunk;
  });
  await once(client, 'end');
  assert.deepEqual([text, thrown], ['hello early', 1]);
  server.close();
}

const modes: Record<string, () => Promise<void>> = { data, connection, drain, callbacks, connected };
const [mode = ''] = process.argv.slice(2);
assert.ok(modes[mode]);
await modes[mode]();
process.exit();
