/** Ways to end a process or a worker that has UDP sockets. Run as `node udp-lifetime.js <mode>`; throws when all is not well. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { UdpSocket } from '../../../src/net/udp.ts';

const MESSAGES = 40;

async function bound(): Promise<{ socket: UdpSocket; port: number }> {
  const socket = new UdpSocket({ type: 'udp4', zerocopy: { mode: 'force', pin: true } });
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  return { socket, port: socket.address().port };
}

/** A socket with calls that the kernel has not confirmed, and with calls that were not made yet. */
async function busy(): Promise<UdpSocket> {
  const { socket } = await bound();
  const { port } = (await bound()).socket.unref().address();
  socket.sendSegments(Buffer.alloc(100 * 64_000, 7), 1000, { port }).catch(() => {});
  assert.ok(socket.getSendQueueSize() > 0);
  assert.ok(socket.stats().zerocopy.pinnedBytes > 0);
  return socket;
}

/** Neither what came with a message whose listener threw is lost, nor what comes later. */
async function throwing(): Promise<void> {
  const { socket, port } = await bound();
  let thrown = 0;
  process.on('uncaughtException', (error) => {
    assert.match(error.message, /on purpose/);
    thrown += 1;
    if (thrown === 2 * MESSAGES) socket.close();
  });
  socket.on('message', () => {
    throw new Error('on purpose');
  });
  for (let i = 0; i < MESSAGES; i++) socket.send('x', port);
  await socket.sendSegments(Buffer.alloc(MESSAGES), 1, { port });
  await once(socket, 'close');
  assert.equal(thrown, 2 * MESSAGES);
}

async function inWorker(): Promise<void> {
  await busy();
  parentPort?.postMessage('busy');
}

async function terminated(): Promise<void> {
  for (let i = 0; i < 5; i++) {
    const worker = new Worker(new URL(import.meta.url), { argv: ['in-worker'] });
    await once(worker, 'message');
    await worker.terminate();
  }
}

const modes: Record<string, () => Promise<unknown>> = {
  throwing,
  terminated,
  'in-worker': inWorker,
  'natural-exit': async () => (await busy()).unref(),
  'process-exit': () => busy().then(() => process.exit(0)),
  'exit-in-listener': async () => {
    const { socket, port } = await bound();
    socket.on('message', () => process.exit(0));
    await socket.sendSegments(Buffer.alloc(64_000), 1000, { port });
  },
  'unref-ends': async () => (await bound()).socket.unref(),
  'close-ends': async () => (await busy()).close(),
};

const [mode = ''] = process.argv.slice(2);
assert.ok(isMainThread || mode === 'in-worker');
await modes[mode]?.();
