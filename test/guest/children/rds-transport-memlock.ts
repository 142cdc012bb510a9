/**
 * Lends more than the kernel lets an ordinary user pin, with a budget of ours that has no limit: so it is the kernel that says
 * ENOMEM. Prints what came of it as JSON.
 */
import { FixedBudget } from '../../../src/core/budget.ts';
import { RdsNode } from '../../../src/rds/node.ts';
import { codeOf, lendableBuffer } from '../../support/rds-nodes.ts';

const [address = '', absent = ''] = process.argv.slice(2);
const BYTES = 256 * 1024;
const COUNT = 4;

const node = await RdsNode.open({ transport: 'kernel', address, budget: new FixedBudget(-1) });
const socket = node.bind(0, { zerocopy: true, sendBufferBytes: 2 * COUNT * BYTES });
const to = { address: absent, port: 4000 };
const lend = (cookie: number): string | null =>
  codeOf(() => socket.sendmsg(lendableBuffer(BYTES), to, { zerocopy: true, cookie }));
const codes = Array.from({ length: COUNT }, (_, i) => lend(i));
const lentBytes = socket.lentBytes;
// To another port, so that the withdrawal is not its own. It waits for memory, which comes back with what is withdrawn.
const waiting = socket.send(lendableBuffer(BYTES), { ...to, port: 4001 }).then(
  () => 'sent',
  (error) => error.code,
);
const writable = new Promise((resolve) => socket.once('writable', () => resolve(true)));
socket.cancelSentTo(to);
const wasWritable = await writable;
while (socket.lentBytes !== BYTES) await new Promise((resolve) => setImmediate(resolve));
await node.close();
process.stdout.write(JSON.stringify({ codes, lentBytes, wasWritable, waiting: await waiting }));
