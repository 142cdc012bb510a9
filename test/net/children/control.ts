/**
 * A program with one socket, for tests of its control socket. Prints `ready <port>` and waits for the end of its input.
 *
 *   open       calls openControl() itself
 *   worker     has a second socket in a worker thread
 *   exit       ends by process.exit()
 *   end        ends because nothing keeps it alive, as soon as it is ready
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { isMainThread, parentPort, Worker } from 'node:worker_threads';
import { connect, createServer, openControl } from '../../../src/net/index.ts';

const modes = new Set(process.argv.slice(2));
if (modes.has('open')) {
  const control = openControl();
  assert.equal(openControl(), control, 'there is one for a thread');
}
const server = createServer((socket) => socket.resume());
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const { port } = server.address() as AddressInfo;
const socket = connect(port, '127.0.0.1');
await socket.send(Buffer.alloc(100_000));
const worker =
  isMainThread && modes.has('worker') ? new Worker(new URL(import.meta.url), { argv: [] }) : null;
if (worker !== null) await once(worker, 'message');
if (isMainThread) process.stdout.write(`ready ${port}\n`);
else parentPort?.postMessage('ready');
if (modes.has('end')) {
  socket.destroy();
  server.close();
} else if (isMainThread) {
  process.stdin.resume();
  await once(process.stdin, 'end');
  if (modes.has('exit')) process.exit(0);
  await worker?.terminate();
  socket.destroy();
  server.close();
}
