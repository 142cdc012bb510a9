/**
 * A process of its own that sends to programs of the guest and receives from others, checks what comes, says how far it is, and
 * stays until it is killed:
 *
 *   rds-peer '{ "address", "flows": [{ "port", "to": { "address", "port" } }], "bytes", ... }'
 *
 * Each of `flows` is a socket. For each the process prints `acknowledged FLOW N` and `received FLOW FIRST COUNT` as they grow.
 * A socket sends `sends` messages whose number's upper half is the epoch. It reads at most `reads` messages, with little room
 * for more, or until the one numbered `lastNumber`; a process before this one may have had those below the first. The `last`
 * process says bye to both programs of a flow, and then prints `done FLOW`.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { RdsNode, type RdsSocket } from '../../../src/rds/index.ts';
import { BYE, checkMessage, pattern } from '../messages.ts';

export interface RdsPeerFlow {
  readonly port: number;
  readonly to: { readonly address: string; readonly port: number };
}

export interface RdsPeerOptions {
  readonly address: string;
  readonly flows: readonly RdsPeerFlow[];
  readonly bytes: number;
  readonly epoch: number;
  readonly sends: number;
  readonly reads: number;
  readonly lastNumber: number;
  readonly last: boolean;
  /** By how much this process's clock is behind. */
  readonly clockBackMs: number;
  /** Of what comes only the content is checked, not the order. */
  readonly anyOrder: boolean;
}

const ROOM_MESSAGES = 8;

const options = JSON.parse(process.argv[2] ?? '{}') as RdsPeerOptions;
if (options.clockBackMs !== 0) {
  const { now } = Date;
  Date.now = () => now() - options.clockBackMs;
}
const node = await RdsNode.open({ address: options.address });
await Promise.all(options.flows.map(runFlow));

async function runFlow(flow: RdsPeerFlow, index: number): Promise<void> {
  const socket = node.bind(flow.port, {
    zerocopy: true,
    sendBufferBytes: ROOM_MESSAGES * options.bytes,
    receiveBufferBytes: ROOM_MESSAGES * options.bytes,
  });
  await Promise.all([sendAll(socket, flow, index), receiveAll(socket, index)]);
  if (options.last) console.log(`done ${index}`);
}

async function sendAll(socket: RdsSocket, { to }: RdsPeerFlow, index: number): Promise<void> {
  const { epoch, sends, bytes, last } = options;
  let acknowledged = 0;
  const under: Promise<void>[] = [];
  for (let i = 0; i < sends; i++) {
    // A turn each: while the guest acknowledges fast, there is always room.
    await new Promise((resolve) => setImmediate(resolve));
    while (!socket.writable) await once(socket, 'writable');
    const sent = socket.send(pattern(epoch * 0x10000 + i, bytes), to);
    under.push(sent.then(() => console.log(`acknowledged ${index} ${++acknowledged}`)));
  }
  await Promise.all(under);
  if (last) await socket.send(BYE, to);
}

async function receiveAll(socket: RdsSocket, index: number): Promise<void> {
  const { epoch, reads, lastNumber, bytes, last, anyOrder } = options;
  let first: number | null = null;
  let number = -1;
  for (let count = 0; number < lastNumber && count < reads; ) {
    const message = socket.recvmsg();
    if (message === null) {
      await once(socket, 'readable');
      continue;
    }
    if (message.kind !== 'data') continue;
    const expected = number + 1;
    number = message.data.readUInt32BE();
    first ??= number;
    if (count > 0 && !anyOrder) assert.equal(number, expected, `in process ${epoch + 1}, socket ${index}`);
    checkMessage(message.data, number, bytes);
    console.log(`received ${index} ${first} ${++count}`);
    const from = { address: message.address, port: message.port };
    message.recycle();
    if (number === lastNumber && last) await socket.send(BYE, from);
  }
}
