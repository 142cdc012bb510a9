/**
 * A program with RDS nodes and nothing else, for `zerotx explain`: it sends to the peer whose address is its argument. Prints `ready` and waits
 * for the end of its input.
 *
 *   127.43.1.1   auto: a large message, and one below the threshold; and one to the node below, in this process
 *   127.43.1.2   force: a large message
 *   127.43.1.3   binds a socket, and has lent nothing
 */
import { once } from 'node:events';
import { RdsNode } from '../../../src/rds/index.ts';

const [peer = ''] = process.argv.slice(2);
const auto = await RdsNode.open({ address: '127.43.1.1' });
const force = await RdsNode.open({ address: '127.43.1.2', mode: 'force' });
const idle = await RdsNode.open({ address: '127.43.1.3' });

const options = { zerocopy: true, pin: true };
const socket = auto.bind(4000, options);
await socket.send(Buffer.alloc(300_000), { address: peer, port: 4000 });
await socket.send(Buffer.alloc(10_000), { address: peer, port: 4000 });
await socket.send(Buffer.alloc(5000), { address: force.address, port: 4000 });
await force.bind(4000, options).send(Buffer.alloc(300_000), { address: peer, port: 4000 });
// Copied because the program wants it so: nothing to be explained.
await idle.bind(4000).send(Buffer.alloc(1000), { address: peer, port: 4000 });

process.stdout.write('ready\n');
process.stdin.resume();
await once(process.stdin, 'end');
await Promise.all([auto, force, idle].map((node) => node.close()));
