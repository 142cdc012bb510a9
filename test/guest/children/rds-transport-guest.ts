/**
 * Runs inside the guest: sockets of its kernel's RDS, and what the tests outside want done with them. Requests come as lines of
 * JSON over TCP, `{ id, call, args }`, several at a time; each is answered with `{ id, value }` or `{ id, error }`.
 *
 *   node rds-transport-guest.js ADDRESS TCP_PORT
 */
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import { RdsNode } from '../../../src/rds/node.ts';
import { guestCalls } from '../rds-transport-calls.ts';

const [address = '', port = ''] = process.argv.slice(2);
const node = await RdsNode.open({ transport: 'kernel', address });
const calls = guestCalls(node) as unknown as Readonly<Record<string, (...args: unknown[]) => unknown>>;

createServer((connection) => {
  createInterface(connection).on('line', async (line) => {
    const { id, call, args } = JSON.parse(line) as { id: number; call: string; args: unknown[] };
    let answer: object;
    try {
      answer = { id, value: await calls[call]?.(...args) };
    } catch (error) {
      const { message, code, stack } = error as Error & { code?: string };
      answer = { id, error: { message, code, stack } };
    }
    const text = JSON.stringify(answer, (_, value) => (typeof value === 'bigint' ? `${value}` : value));
    connection.write(`${text}\n`);
  });
  connection.on('error', () => {});
}).listen(Number(port), () => console.log('listening'));
