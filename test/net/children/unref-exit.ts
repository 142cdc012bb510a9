/** Writes what the kernel takes at once, unref()s the socket and has nothing else to do. Prints how much was accepted. */
import { once } from 'node:events';
import { connect } from '../../../src/net/index.ts';

const [port, zerocopy] = process.argv.slice(2) as [string, string];
const socket = connect({ port: Number(port), host: '127.0.0.1', zerocopy: JSON.parse(zerocopy) });
await once(socket, 'connect');
const chunk = Buffer.alloc(1 << 20, 'u');
let accepted = 0;
socket.write(chunk);
accepted += chunk.length;
// Accepted, and not acknowledged yet.
await new Promise((resolve) => (socket.writableNeedDrain ? socket.once('drain', resolve) : resolve(null)));
process.stdout.write(String(accepted));
socket.unref();
