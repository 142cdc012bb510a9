/**
 * Ways to end a process or a worker that has RDS nodes and lent memory. Run as `node lifetime.js <mode> [count]`; whatever is
 * wrong makes the exit code something else than the mode's own.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { processBudget } from '../../../src/net/budget.ts';
import { closerStats } from '../../../src/net/closer.ts';
import { RdsNode } from '../../../src/rds/node.ts';
import { native } from '../../../src/sys/binding.ts';
import { receive, testNode, turnsUntil } from '../../support/rds-nodes.ts';
import { RawPeer } from '../../support/rds-raw-peer.ts';
import {
  HANDSHAKE_BYTES,
  MESSAGES,
  openAndLend,
  payload,
  type WorkerEnd,
  type WorkerInput,
} from './lifetime-worker.ts';

const MIB = 1024 * 1024;

/** A peer that answers the handshake and then reads nothing. */
function silentPeer(address: string): RawPeer {
  return new RawPeer(address, { receiveBytes: 4096, readBytes: HANDSHAKE_BYTES });
}

/** Nodes that have talked and are closed leave nothing that keeps the process alive. */
async function closed(): Promise<void> {
  const [a, b] = [testNode('127.23.0.1'), testNode('127.23.0.2')];
  const [from, to] = [a.bind(4000, { zerocopy: true }), b.bind(5000)];
  const iteration = (async () => {
    for await (const message of from) message.recycle();
  })();
  await from.send(Buffer.alloc(MIB), to);
  // For a peer that is away.
  const waits = Promise.allSettled([from.send(Buffer.alloc(10), { address: '127.23.0.200', port: 1 })]);
  await receive(to, 1);
  await Promise.all([a.close(), b.close(), waits, iteration]);
}

async function processExit(): Promise<void> {
  silentPeer('127.23.1.9');
  const node = await openAndLend('127.23.1.1', '127.23.1.9');
  assert.ok(node.stats().lentBytes > 0);
  process.exit(0);
}

async function uncaught(): Promise<void> {
  silentPeer('127.23.2.9');
  await openAndLend('127.23.2.1', '127.23.2.9');
  throw new Error('thrown on purpose');
}

/** Nobody waits for close(), the peer never reads: the process ends when the kernel lets go, here because of a reset. */
async function naturalExit(): Promise<void> {
  const peer = silentPeer('127.23.3.9');
  const node = await openAndLend('127.23.3.1', '127.23.3.9');
  await assert.rejects(node.close({ timeoutMs: 0 }), { code: 'ZTX_STILL_LENT' });
  assert.ok(node.stats().lentBytes > 0);
  assert.equal(closerStats().lingering, 1);
  peer.close();
}

/** Workers that are terminated over and over, with the same address, and a peer that sees only what was sent. */
async function workers(end: WorkerEnd, count: number): Promise<void> {
  const net = end === 'terminated' ? 4 : 5;
  const input: WorkerInput = { end, address: `127.23.${net}.1`, peer: `127.23.${net}.9` };
  const peer = silentPeer(input.peer);
  for (let i = 0; i < count; i++) {
    const worker = new Worker(new URL('./lifetime-worker.js', import.meta.url), { workerData: input });
    const failed = new Promise<never>((_, reject) => worker.once('error', reject));
    const exit = new Promise((resolve) => worker.once('exit', resolve));
    const connection = await Promise.race([peer.accept(), failed]);
    if (end === 'terminated') {
      await once(worker, 'message');
      assert.ok(processBudget().used() > 0, 'the budget is one for all threads');
      await worker.terminate();
    }
    await Promise.race([exit, failed]);
    assert.equal(processBudget().used(), 0, 'the share of an ended worker is given back');
    connection.allow(Number.POSITIVE_INFINITY);
    await connection.until(() => connection.ended !== null);
    for (const [k, message] of connection.data.entries()) assert.ok(message.payload.equals(payload(k)));
  }
  assert.equal(native().quarantinedBytes(), 0);
  peer.close();
}

/** Nothing refers to the lent memory any more but the kernel and the books. */
async function collected(): Promise<void> {
  const collect = globalThis.gc as () => void;
  const peer = silentPeer('127.23.6.9');
  await (async () => {
    // Neither node nor socket stay in reach of this program.
    await openAndLend('127.23.6.1', peer.address, { small: 100 });
  })();
  const connection = await peer.accept();
  const noise: Buffer[] = [];
  for (let i = 0; i < 10; i++) {
    collect();
    await new Promise((resolve) => setImmediate(resolve));
    for (let k = 0; k < 6; k++) noise.push(Buffer.alloc(MIB, 0x5a));
    for (let k = 0; k < 500; k++) noise.push(Buffer.from(new Uint8Array(2000).fill(0x5a)));
  }
  connection.allow(Number.POSITIVE_INFINITY);
  await connection.until(() => connection.data.length === MESSAGES + 100);
  for (const [k, message] of connection.data.entries()) {
    assert.ok(message.payload.equals(payload(k).subarray(0, message.payload.length)), `message ${k}`);
  }
  assert.ok(noise.length > 0);
  process.exit(0);
}

/** The data of a received message is the program's for as long as it keeps it, with or without the message. */
async function kept(): Promise<void> {
  const collect = globalThis.gc as () => void;
  const [a, b] = [testNode('127.23.7.1'), testNode('127.23.7.2')];
  const [from, to] = [a.bind(4000), b.bind(5000)];
  const views: Buffer[] = [];
  for (let i = 0; i < 40; i++) {
    from.sendmsg(payload(i).subarray(0, i % 2 === 0 ? 100 : 100_000), to);
    views.push(...(await receive(to, 1)).map(({ data }) => data));
    collect();
  }
  for (let i = 0; i < 100; i++) from.sendmsg(Buffer.alloc(i % 2 === 0 ? 100 : 100_000, 0x5a), to);
  for (const message of await receive(to, 100)) message.recycle();
  for (const [i, view] of views.entries()) assert.ok(view.equals(payload(i).subarray(0, view.length)));
  await turnsUntil(() => from.queuedBytes === 0);
  await Promise.all([a.close(), b.close()]);
}

const modes: Record<string, (count: number) => Promise<void>> = {
  closed,
  'process-exit': processExit,
  uncaught,
  'natural-exit': naturalExit,
  terminated: (count) => workers('terminated', count),
  exit: (count) => workers('exit', count),
  collected,
  kept,
  // A door that is only imported opens nothing.
  imported: async () => assert.equal(typeof RdsNode.open, 'function'),
};

const [mode = '', count = '1'] = process.argv.slice(2);
const chosen = modes[mode];
assert.ok(chosen, `no mode ${mode}`);
await chosen(Number(count));
