/**
 * The other end in a laboratory: an ordinary program on an ordinary kernel. Run as `node lab-peer.js ADDRESS PORT`; says
 * `ready` when it listens, and ends with its parent.
 *
 *   TCP   the first 8 bytes say how many bytes the client will send, and how many it wants (big-endian, 32 bits each); the answer
 *         is the SHA-256 of what came, and then what is wanted: a pattern
 *   UDP   echo
 */
import { createHash } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { createServer } from 'node:net';
import { labPattern } from '../../support/lab-client.ts';

const [address, port] = [process.argv[2], Number(process.argv[3])];

const server = createServer((socket) => {
  const hash = createHash('sha256');
  let head: Buffer = Buffer.alloc(0);
  let left = -1;
  socket.on('error', () => {});
  socket.on('data', (data: Buffer) => {
    if (left < 0) {
      head = Buffer.concat([head, data]);
      if (head.length < 8) return;
      left = head.readUInt32BE(0);
      data = head.subarray(8);
    }
    hash.update(data);
    left -= data.length;
    if (left === 0) socket.end(Buffer.concat([hash.digest(), labPattern(head.readUInt32BE(4))]));
  });
});
const udp = createSocket('udp4');
udp.on('message', (data, { address: from, port: at }) => udp.send(data, at, from));

server.listen(port, address, () => udp.bind(port, address, () => process.stdout.write('ready\n')));
process.stdin.on('end', () => process.exit()).resume();
