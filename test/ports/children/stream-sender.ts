/**
 * Sends a guest's frames through a stream port to the wire peer: run as `node stream-sender.js ADDRESS PORT FIRST_BYTES`.
 * Sends so many bytes, says `ready`, waits for a line, sends the rest, and prints what became of it as JSON.
 */
import { once } from 'node:events';
import { StreamPort } from '../../../src/ports/stream.ts';
import { frame, GuestFrames, sendAll } from '../../support/frames.ts';
import { addHead, table } from '../../support/guest-memory.ts';
import { isUp, settled } from '../../support/ports.ts';

const [address, port, firstBytes] = [
  process.argv[2] as string,
  Number(process.argv[3]),
  Number(process.argv[4]),
];
const FRAMES = 8;
const TABLES = 128;
const ROUNDS = 8;

const stream = new StreamPort({ name: 's', address, port });
await stream.open();
await isUp(stream);
const first = table(1, 0, firstBytes);
addHead(first, frame(firstBytes - 4, 1));
await sendAll(stream, first);
process.stdout.write('ready\n');
await once(process.stdin, 'data');

// More than any cache holds, so that copying has to fetch it.
const source = new GuestFrames({ memoryBytes: 66 << 20, pieceBytes: 32 * 1024 });
const result: Record<string, unknown> = {};
for (const bytes of [200, 62_000]) {
  const frames = Array.from({ length: FRAMES }, (_, i) => frame(bytes, i));
  const tables = Array.from({ length: TABLES }, () => source.table(frames));
  const { txLentBytes, txBytes } = stream.counters;
  for (let i = 0; i < ROUNDS; i++) for (const one of tables) await sendAll(stream, one);
  const { counters } = stream;
  result[bytes] = (counters.txLentBytes - txLentBytes) / (counters.txBytes - txBytes);
}
await settled(source);
const { pinnedBytes, unexpectedCompletions } = stream.zerocopy;
const { txErrors, txDropped, txKernelCopiedBytes } = stream.counters;
Object.assign(result, { txErrors, txDropped, txKernelCopiedBytes, pinnedBytes, unexpectedCompletions });
result.loans = source.loans.length;
result.copied = source.loans.filter(({ outcome }) => outcome?.copiedBytes !== 0).length;
process.stdout.write(`${JSON.stringify(result)}\n`);
await stream.close();
process.exit();
