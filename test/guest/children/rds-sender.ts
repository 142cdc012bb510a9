/**
 * A process of its own that sends a part of a flow to the guest, says "acknowledged" when the peer has it all, and then
 * stays until it is killed: rds-sender ADDRESS TO PORT FIRST COUNT BYTES [bye].
 */
import { RdsNode } from '../../../src/rds/index.ts';
import { BYE, pattern } from '../messages.ts';

const [address = '', to = '', ...rest] = process.argv.slice(2);
const [port = 0, first = 0, count = 0, bytes = 0] = rest.map(Number);

const node = await RdsNode.open({ address });
const socket = node.bind(0, { zerocopy: true });
const target = { address: to, port };
const sends: Promise<unknown>[] = [];
for (let i = first; i < first + count; i++) sends.push(socket.send(pattern(i, bytes), target));
if (rest.includes('bye')) sends.push(socket.send(BYE, target));
await Promise.all(sends);
console.log('acknowledged');
