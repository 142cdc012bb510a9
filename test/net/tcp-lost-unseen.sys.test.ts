/** A connection that was established, brought something, and was reset, all while this thread was busy elsewhere. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { errnoName, type ZerotxError } from '../../src/core/errors.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import { TcpChannel } from '../../src/net/tcp.ts';
import { until } from '../support/raw-peer.ts';

/** Listens, says so, writes to the connection that comes, resets it, and wakes whoever waits for that. */
const server = `
  const { parentPort, workerData: { host, port, flag } } = require('node:worker_threads');
  const server = require('node:net').createServer((socket) => {
    socket.write('brought', () => {
      socket.resetAndDestroy();
      server.close();
      Atomics.store(flag, 0, 1);
      Atomics.notify(flag, 0);
    });
  });
  server.listen(port, host, () => parentPort.postMessage('listening'));
`;

test('what it brought is read, and then its error met', { timeout: 20_000 }, async (t) => {
  const [host, port] = ['127.24.9.1', 16_387];
  const flag = new Int32Array(new SharedArrayBuffer(4));
  const worker = new Worker(server, { eval: true, workerData: { host, port, flag } });
  t.after(() => worker.terminate());
  await new Promise((resolve) => worker.once('message', resolve));
  const events: string[] = [];
  let over = false;
  const local = { address: '127.24.9.2', port: 0 };
  const options = { mode: 'off', counters: zerocopyCounters() } as const;
  const channel = TcpChannel.dial(local, { address: host, port }, options, {
    connected: () => events.push('connected'),
    readable: () => {
      const into = Buffer.alloc(100);
      let n: number;
      do {
        n = channel.readv([into], 1);
        events.push(n > 0 ? String(into.subarray(0, n)) : n === 0 ? 'end' : errnoName(n));
      } while (n > 0);
      over = true;
    },
    writable: () => {},
    released: () => {},
    failed: (error: ZerotxError) => {
      events.push(error.code);
      over = true;
    },
  });
  Atomics.wait(flag, 0, 0, 10_000);
  assert.equal(flag[0], 1);
  await until('the events', () => over);
  assert.deepEqual(events, ['connected', 'brought', 'ECONNRESET']);
  channel.close();
});
