/**
 * Sends lent messages to a peer and prints what the zero-copy engine counted, as one JSON line.
 * Arguments: own address, peer address, messages, bytes each.
 */
import { RdsNode } from '../../../src/rds/index.ts';

const [address = '', peer = '', messages = '0', bytes = '0'] = process.argv.slice(2);
const node = await RdsNode.open({ address });
const socket = node.bind(4000, { zerocopy: true });
const buffers = Array.from({ length: 4 }, () => Buffer.alloc(Number(bytes), 1));
const outcomes = { bytes: 0, copiedBytes: 0 };
const rounds = Math.ceil(Number(messages) / buffers.length);
for (let i = 0; i < rounds; i++) {
  const sends = buffers.map((buffer) =>
    socket.send(buffer, { address: peer, port: 4000 }, { timeoutMs: 20_000 }),
  );
  for (const outcome of await Promise.all(sends)) {
    outcomes.bytes += outcome.bytes;
    outcomes.copiedBytes += outcome.copiedBytes;
  }
}
const { zerocopy, lentBytes, budget } = node.stats();
console.log(JSON.stringify({ outcomes, zerocopy, lentBytes, budget }));
process.exit();
