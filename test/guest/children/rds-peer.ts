/**
 * A process of its own that sends to a program of the guest and receives from another, checks what comes, says how far it is,
 * and stays until it is killed:
 *
 *   rds-peer '{ "address", "port", "to": { "address", "port" }, "bytes", "epoch", "sends", "reads", "lastNumber", "last" }'
 *
 * prints `acknowledged N` and `received FIRST COUNT` as they grow. It sends `sends` messages whose number's upper half is the
 * epoch. It reads at most `reads` messages, with little room for more, or until the one numbered `lastNumber`; a process
 * before this one may have had those below the first. The `last` process says bye to both programs, and then prints `done`.
 */
import { once } from 'node:events';
import { RdsNode, type RdsSocket } from '../../../src/rds/index.ts';
import { BYE, checkMessage, pattern } from '../messages.ts';

export interface RdsPeerOptions {
  readonly address: string;
  readonly port: number;
  readonly to: { readonly address: string; readonly port: number };
  readonly bytes: number;
  readonly epoch: number;
  readonly sends: number;
  readonly reads: number;
  readonly lastNumber: number;
  readonly last: boolean;
}

const ROOM_MESSAGES = 8;

const options = JSON.parse(process.argv[2] ?? '{}') as RdsPeerOptions;
const node = await RdsNode.open({ address: options.address });
const socket = node.bind(options.port, {
  zerocopy: true,
  sendBufferBytes: ROOM_MESSAGES * options.bytes,
  receiveBufferBytes: ROOM_MESSAGES * options.bytes,
});
await Promise.all([sendAll(socket), receiveAll(socket)]);
if (options.last) console.log('done');

async function sendAll(socket: RdsSocket): Promise<void> {
  const { epoch, sends, bytes, to, last } = options;
  let acknowledged = 0;
  const under: Promise<void>[] = [];
  for (let i = 0; i < sends; i++) {
    // A turn each: while the guest acknowledges fast, there is always room.
    await new Promise((resolve) => setImmediate(resolve));
    while (!socket.writable) await once(socket, 'writable');
    const sent = socket.send(pattern(epoch * 0x10000 + i, bytes), to);
    under.push(sent.then(() => console.log(`acknowledged ${++acknowledged}`)));
  }
  await Promise.all(under);
  if (last) await socket.send(BYE, to);
}

async function receiveAll(socket: RdsSocket): Promise<void> {
  const { reads, lastNumber, bytes, last } = options;
  let first: number | null = null;
  let next = 0;
  while (first === null || (next <= lastNumber && next - first < reads)) {
    const message = socket.recvmsg();
    if (message === null) {
      await once(socket, 'readable');
      continue;
    }
    if (message.kind !== 'data') continue;
    if (first === null) next = first = message.data.readUInt32BE(0);
    checkMessage(message.data, next++, bytes);
    console.log(`received ${first} ${next - first}`);
    const from = { address: message.address, port: message.port };
    message.recycle();
    if (next > lastNumber && last) await socket.send(BYE, from);
  }
}
