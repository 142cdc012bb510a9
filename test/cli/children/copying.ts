/**
 * A program with sockets of every kind on loopback, each of which has sent something in one of the ways that copy: for
 * `zerotx explain`. Prints `ready` with the ports of its server, then of the UDP receiver, and waits for the end of its input.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect, createServer, type TcpSocket, UdpSocket } from '../../../src/net/index.ts';

const LARGE = 300_000;
const SMALL = 100;

const server = createServer((socket) => socket.resume());
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const { port } = server.address() as AddressInfo;
const folder = mkdtempSync(join(tmpdir(), 'ztx-copying-'));
const path = join(folder, 'server.sock');
const unixServer = createServer((socket) => socket.resume());
unixServer.listen(path);
await once(unixServer, 'listening');

const sockets: TcpSocket[] = [];
for (const [mode, where] of [
  ['auto', { port, host: '127.0.0.1' }],
  ['force', { port, host: '127.0.0.1' }],
  ['off', { port, host: '127.0.0.1' }],
  ['auto', { path }],
] as const) {
  const socket = connect({ ...where, zerocopy: { mode, pin: true } });
  await socket.send(Buffer.alloc(LARGE));
  await socket.send(Buffer.alloc(SMALL));
  sockets.push(socket);
}
const gone = connect({ port, host: '127.0.0.1', zerocopy: { mode: 'off' } });
await gone.send(Buffer.alloc(LARGE));
await gone[Symbol.asyncDispose]();

const receiver = new UdpSocket({ type: 'udp4' });
receiver.bind(0, '127.0.0.1');
await once(receiver, 'listening');
const sender = new UdpSocket({ type: 'udp4', zerocopy: { pin: true } });
sender.connect(receiver.address().port, '127.0.0.1');
await once(sender, 'connect');
const { copiedBytes } = await sender.sendSegments(Buffer.alloc(40_000), 1000);
assert.equal(copiedBytes, 40_000);

process.stdout.write(`ready ${port} ${receiver.address().port}\n`);
process.stdin.resume();
await once(process.stdin, 'end');
for (const socket of sockets) socket.destroy();
server.close();
unixServer.close();
sender.close();
receiver.close();
rmSync(folder, { recursive: true });
