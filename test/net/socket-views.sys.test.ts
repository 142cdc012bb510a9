/** Views of a lease's Buffer that are written like any other: the lease waits for them, also while they wait in the stream. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { buffer } from 'node:stream/consumers';
import { it } from 'node:test';
import { connect, createServer, Pool, type TcpSocket } from '../../src/net/index.ts';

const BYTES = 64 * 1024;

it('release() right after write() lets go of nothing that still has to be sent', {
  timeout: 20_000,
}, async () => {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const zerocopy = { mode: 'force', thresholdBytes: 1024 } as const;
  const socket = connect({ port, host: '127.0.0.1', zerocopy });
  const [peer] = (await once(server, 'connection')) as [TcpSocket];
  peer.pause();
  const pool = new Pool();
  // More than the kernel takes at once: most of it waits in the stream, behind a peer that does not read yet.
  const count = 256;
  for (let i = 0; i < count; i++) {
    const lease = await pool.acquire(BYTES);
    lease.buffer.fill(i);
    socket.write(lease.buffer.subarray(0, BYTES));
    lease.release();
  }
  assert.equal(pool.stats().usedBytes, count * BYTES, 'all are still in use');
  socket.end();
  const received = await buffer(peer);
  assert.equal(received.length, count * BYTES);
  for (let i = 0; i < count; i++) assert.equal(received[i * BYTES + 7], i, `piece ${i}`);
  peer.end();
  server.close();
  if (!socket.closed) await once(socket, 'close');
  assert.equal(pool.stats().usedBytes, 0);
});
