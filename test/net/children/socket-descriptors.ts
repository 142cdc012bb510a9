/**
 * Sockets of the public door in a process whose descriptors are used up; run under a small RLIMIT_NOFILE. Prints what happened as
 * JSON.
 */

import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import type { LookupFunction } from 'node:net';
import {
  connect,
  createServer,
  type TcpSocket,
  UdpSocket,
  type ZerotxError,
} from '../../../src/net/index.ts';
import * as calls from '../../../src/sys/calls.ts';
import { AF_INET, SOCK_STREAM } from '../../../src/sys/constants.ts';
import { turn } from '../../support/door.ts';

const HOST = '127.0.0.1';
const WAITING = 3;

async function errorOf(socket: TcpSocket | UdpSocket): Promise<object> {
  const [error] = (await once(socket, 'error')) as [ZerotxError];
  const { code, syscall, next } = error;
  return { code, syscall, next };
}

let accepted = 0;
const ends: TcpSocket[] = [];
const server = createServer((socket) => {
  accepted += 1;
  ends.push(socket);
});
let serverErrors = 0;
server.on('error', () => serverErrors++);
server.listen(0, HOST);
await once(server, 'listening');
const { port } = server.address() as { port: number };

// Connected in the kernel, and to be accepted when the event loop turns.
const waiting = Array.from({ length: WAITING }, () => calls.socket(AF_INET, SOCK_STREAM));
for (const fd of waiting) calls.connect(fd, HOST, port);
const held: number[] = [];
try {
  for (;;) held.push(openSync('/dev/null', 'r'));
} catch {
  // All are used up.
}
for (let i = 0; i < 5; i++) await turn();
const whileFull = accepted;
const connecting = await errorOf(connect(port, HOST));
const found = [HOST, '127.0.0.2'].map((address) => ({ address, family: 4 }));
const lookup: LookupFunction = (_host, _options, done) => done(null, found);
const several = await errorOf(connect({ port, host: 'two', lookup }));
const binding = await errorOf(new UdpSocket({ type: 'udp4' }).bind(0));
const other = createServer();
const listening = once(other.listen(0, HOST), 'error').then(([error]) => ({
  code: error.code,
  syscall: error.syscall,
}));
const listenError = await listening;

for (const fd of held.splice(0)) closeSync(fd);
while (accepted < WAITING) await once(server, 'connection');
const late = connect(port, HOST);
await once(server, 'connection');
const echoed = once(late, 'data');
ends.at(-1)?.write('still here');
process.stdout.write(
  JSON.stringify({
    whileFull,
    accepted,
    serverErrors,
    connecting,
    several,
    binding,
    listenError,
    echoed: String((await echoed)[0]),
  }),
);
for (const fd of waiting) calls.close(fd);
for (const end of [late, ...ends]) end.destroy();
server.close();
