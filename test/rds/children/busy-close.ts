/**
 * A node that is closed while its lanes are half open, connecting, backing off and busy. Prints what is left in the event
 * loop, and must then end by itself.
 */
import { native } from '../../../src/sys/binding.ts';
import * as calls from '../../../src/sys/calls.ts';
import { AF_INET, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET } from '../../../src/sys/constants.ts';
import { RDS_TCP_PORT } from '../../../src/wire/rds.ts';
import { RawConnection, RawListener, until } from '../../support/raw-peer.ts';
import { TestNode } from '../../support/tcp-nodes.ts';

const HOME = '127.74.5.5';
const node = new TestNode(HOME, { speed: 50 });

// Half open: they dialled and say nothing.
const silent = [await RawConnection.dial('127.74.1.1', HOME), await RawConnection.dial('127.74.1.2', HOME)];

// Busy: it reads nothing, and megabytes wait for it.
const deaf = await RawConnection.dial('127.74.1.3', HOME);
deaf.speak();
await until('the busy lane', () => node.node.peer('127.74.1.3')?.lanes[0]?.connection.settled === true);
deaf.socket.pause();
try {
  for (;;) node.socket.sendmsg(Buffer.alloc(256 * 1024), { address: '127.74.1.3', port: 7 });
} catch (error) {
  if ((error as { code?: string }).code !== 'EAGAIN') throw error;
}

// Connecting: the accept queue there is full, so SYNs are dropped.
const full = '127.74.9.1';
const listening = calls.socket(AF_INET, SOCK_STREAM);
calls.setOption(listening, SOL_SOCKET, SO_REUSEADDR, 1);
calls.bind(listening, full, RDS_TCP_PORT);
calls.listen(listening, 0);
const fillers = [1, 2, 3].map(() => {
  const fd = calls.socket(AF_INET, SOCK_STREAM);
  calls.connect(fd, full, RDS_TCP_PORT);
  return fd;
});
const other = node.node.bind(0);
for (const address of [full, '127.74.9.2']) other.sendmsg(Buffer.from('x'), { address, port: 7 });

// Dialled and not adopted: it accepted and says nothing.
const listener = await RawListener.open('127.74.9.3');
other.sendmsg(Buffer.from('x'), { address: '127.74.9.3', port: 7 });
await listener.next();

// Backing off: nobody listens there.
await until('a refusal', () => node.warningsOf('127.74.9.2').length > 0);
const states = node.node.peers.map(({ lanes }) => lanes[0]?.connection.state).sort();

await node.node.close({ timeoutMs: 1000 });
const left = process.getActiveResourcesInfo().filter((name) => name === 'Timeout');

for (const connection of [...silent, deaf]) connection.reset();
listener.close();
for (const fd of [...fillers, listening]) native().close(fd);
process.stdout.write(`${JSON.stringify({ states, left, lanes: node.node.peers.length })}\n`);
