/**
 * Sockets of the public door that are lost, and processes and workers that end with some, while the kernel reads what they sent.
 * Run as `node --expose-gc socket-lifetime.js <mode> [argument]`; whatever is wrong makes the exit code something else than 0.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { connect, createServer, Pool, stats, type TcpSocket } from '../../../src/net/index.ts';
import { native } from '../../../src/sys/binding.ts';
import {
  FORCE,
  fillNumbers,
  HOST,
  KIB,
  MIB,
  numbers,
  type RawPeer,
  rawPair,
  turn,
} from '../../support/door.ts';

const PIECE = 256 * KIB;
const TOTAL = 6 * MIB;
const stalled = { zerocopy: FORCE, receiveBytes: 64 * KIB };

/** Writes pieces and keeps nothing: neither them, nor what becomes of them. */
type Sender = (client: TcpSocket, from: number) => Promise<void>;

const senders: Record<string, Sender> = {
  buffer: async (client, from) => {
    client.write(numbers(PIECE, from));
  },
  'buffer-with-callback': async (client, from) => {
    client.write(numbers(PIECE, from), () => {});
  },
  send: async (client, from) => {
    client.send(numbers(PIECE, from)).catch(() => {});
  },
  shared: async (client, from) => {
    const view = new Uint8Array(new SharedArrayBuffer(PIECE));
    fillNumbers(view, from);
    client.write(view);
  },
  lease: async (client, from) => {
    const lease = new Pool({ maxBytes: MIB, slabBytes: PIECE }).tryAcquire(PIECE);
    assert.ok(lease);
    fillNumbers(lease.buffer, from);
    client.write(lease);
  },
  'released-lease': async (client, from) => {
    const lease = new Pool({ maxBytes: MIB, slabBytes: PIECE }).tryAcquire(PIECE);
    assert.ok(lease);
    fillNumbers(lease.buffer, from);
    client.write(lease);
    lease.release();
  },
};

/** A sender to whom nobody refers, with all of it written. What is returned is its peer. */
async function writeAndForget(send: Sender, ending: string): Promise<RawPeer> {
  const { client, peer } = await rawPair(stalled, undefined, false);
  for (let from = 0; from < TOTAL; from += PIECE) await send(client, from);
  await turn();
  assert.ok(client.stats().zerocopy.pinnedBytes > 0, 'the kernel still holds some of it');
  if (ending === 'ended') client.end();
  return peer;
}

async function collected(sender: string, ending: string): Promise<void> {
  const peer = await writeAndForget(senders[sender] as Sender, ending);
  const noise: Buffer[] = [];
  for (let round = 0; round < 10; round++) {
    globalThis.gc?.();
    for (let i = 0; i < 20; i++) noise.push(Buffer.alloc(PIECE, 0x5a));
    await turn();
  }
  assert.equal(noise.length * PIECE, 50 * MIB);
  await peer.read(ending === 'ended' ? undefined : TOTAL);
  assert.equal(peer.total, TOTAL);
  if (ending === 'ended') assert.equal(peer.end, 0);
  process.exit();
}

/** A server and a client with calls that the kernel has not confirmed, some of which wait in the stream. */
async function busy(): Promise<TcpSocket> {
  const server = createServer({ zerocopy: FORCE }, (socket) => {
    socket.on('error', () => {});
    socket.pause();
    socket.write(numbers(8 * MIB), () => {});
  });
  server.listen(0, HOST);
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  const client = connect({ port, host: HOST, zerocopy: FORCE }).on('error', () => {});
  await once(client, 'connect');
  client.write(numbers(8 * MIB), () => {});
  client.send(numbers(MIB)).catch(() => {});
  client.pause();
  await turn();
  // Another thread may have used up the budget.
  assert.ok(stats().pinnedBytes > 0 || stats().memlockUsedPages > 0);
  server.unref();
  return client;
}

async function inWorker(): Promise<void> {
  await busy();
  const lease = await new Pool().acquire(PIECE);
  lease.buffer.fill(1);
  parentPort?.postMessage('busy');
}

/** Ends workers in the middle of everything; nothing crashes, and the process's account is as before. */
async function terminated(count: string): Promise<void> {
  const before = native().budgetUsed();
  for (let i = 0; i < Number(count); i++) {
    const worker = new Worker(new URL(import.meta.url), { argv: ['in-worker'] });
    await once(worker, 'message');
    await worker.terminate();
  }
  assert.equal(native().budgetUsed(), before);
  assert.equal(native().quarantinedBytes(), 0);
}

/** Writes the stream to a server elsewhere, and exits while it is under way. */
async function exits(port: string): Promise<void> {
  const client = connect({ port: Number(port), host: HOST, zerocopy: FORCE });
  for (let from = 0; from < 16 * MIB; from += PIECE) {
    const chunk = numbers(PIECE, from);
    client.write(chunk, () => chunk.fill(0xee));
  }
  await once(client, 'connect');
  await turn();
  process.exit(0);
}

const modes: Record<string, (...args: string[]) => Promise<unknown>> = {
  collected,
  terminated,
  'in-worker': inWorker,
  exits,
  'natural-exit': async () => {
    const client = await busy();
    client.unref();
    // The server's end of it keeps the process until then.
    client.resetAndDestroy();
  },
  'process-exit': () => busy().then(() => process.exit(0)),
  'exit-in-callback': async () => {
    const { client, peer } = await rawPair({ zerocopy: FORCE });
    client.write(numbers(8 * MIB));
    client.write(numbers(PIECE, 8 * MIB), () => process.exit(0));
    await peer.read();
  },
  'exit-with-worker': async () => {
    const worker = new Worker(new URL(import.meta.url), { argv: ['in-worker'] });
    await once(worker, 'message');
    await busy();
    process.exit(0);
  },
};

const [mode = '', ...args] = process.argv.slice(2);
assert.ok(isMainThread || mode === 'in-worker');
assert.ok(modes[mode]);
await modes[mode](...args);
