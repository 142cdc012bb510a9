/** What the guest checks by itself, between sockets of its own kernel; each returns what the tests outside assert. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { FixedBudget } from '../../src/core/budget.ts';
import { Pool } from '../../src/net/pool.ts';
import type { KernelRdsNode } from '../../src/rds/kernel/node.ts';
import { RdsNode } from '../../src/rds/node.ts';
import { deviations } from '../rds/table/deviations.ts';
import { groups } from '../rds/table/index.ts';
import { type Result, Table } from '../rds/table/run.ts';
import { type Factory, rowName } from '../rds/table/shape.ts';
import { until } from '../support/raw-peer.ts';
import { codeOf, lendableBuffer } from '../support/rds-nodes.ts';
import { underMemlock } from '../support/under-memlock.ts';

/** Addresses of the guest besides its first, which the checks need. */
export const SECOND = '10.88.0.101';
/** Of nobody. */
export const ABSENT = '10.88.0.250';

type Check = (node: KernelRdsNode) => unknown;

/** An address of 127/8 has the loopback transport, which lends nothing. */
async function loopback(): Promise<unknown> {
  await using node = await RdsNode.open({ transport: 'kernel', address: '127.0.0.1' });
  const [from, to] = [node.bind(0, { zerocopy: true }), node.bind(0)];
  const buffer = lendableBuffer(10_000);
  const code = codeOf(() => from.sendmsg(buffer, to, { zerocopy: true, cookie: 1 }));
  const outcome = await from.send(buffer, to);
  const got = await to.receive();
  assert.ok(got.kind === 'data' && got.data.equals(buffer));
  return { code, outcome, transport: from.getsockopt('SO_RDS_TRANSPORT') };
}

/** A message to the same host is handed over as it is: it completes when it was read. */
async function localLoan(node: KernelRdsNode): Promise<unknown> {
  const [from, to] = [node.bind(0, { zerocopy: true }), node.bind(0)];
  from.sendmsg(lendableBuffer(100_000), to, { zerocopy: true, cookie: 7 });
  const before = { lentBytes: from.lentBytes, received: from.recvmsg() };
  const got = await to.receive();
  assert.ok(got.kind === 'data' && got.length === 100_000);
  while (!from.readable) await new Promise((resolve) => from.once('readable', () => resolve(null)));
  const after = { received: from.recvmsg(), lentBytes: from.lentBytes };
  await Promise.all([from.close(), to.close()]);
  return { before, after };
}

/** What waits to be given to TCP. The kernel goes on to call whom it cannot reach. */
function waiting(node: KernelRdsNode): number {
  return node.info().sendQueue.filter(({ remoteAddress }) => remoteAddress !== ABSENT).length;
}

/** All that was sent is with TCP. */
function sendQueueEmpty(node: KernelRdsNode): Promise<void> {
  return until('the send queue is empty', () => waiting(node) === 0);
}

/** TCP takes no more: what waits has been the same for many looks. */
async function tcpIsFull(node: KernelRdsNode): Promise<void> {
  let before = '';
  let same = 0;
  await until('TCP is full', () => {
    const { tcpSockets } = node.info();
    const now = JSON.stringify([waiting(node), tcpSockets.map(({ lastSentNext }) => lastSentNext)]);
    same = now === before ? same + 1 : 0;
    before = now;
    return waiting(node) > 0 && same >= 20;
  });
}

/** Cookies of withdrawn messages came back, and TCP still has what was in them. */
function settling(node: KernelRdsNode): Promise<void> {
  return until('withdrawn memory is held', () => node.stats().settlingBytes > 0);
}

function nothingLent(node: KernelRdsNode): Promise<void> {
  return until('nothing is lent', () => node.stats().lentBytes === 0);
}

/**
 * Rows about congestion are run with both nodes at one address: between two addresses of one host the kernel marks the port in the
 * map of the wrong one, so that nobody is held back (rds_loop_xmit gives the sender's connection to rds_recv_incoming).
 */
const atOneAddress: readonly string[] = [
  'sendmsg refuses: a congested port, even when the send buffer is full',
  'sendmsg refuses: no port of an address that is not congested',
  'sendmsg accepts: again when the port was read',
  'RDS_CONG_MONITOR: off: no news',
  'a closed socket: frees its congested port',
  // The answer, too, is looked up at the wrong address.
  'sendmsg accepts: a ping, to port 0: answered from there by an empty message',
];

/**
 * Within one host a port is seen to be free before the news of it come, which a workqueue sends: rds-transport.ts has this row
 * over the wire.
 */
const overTheWire = 'RDS_CONG_MONITOR: ENOBUFS, and then news of the port, modulo 64, before data';

interface Shown {
  readonly row: string;
  readonly holds: boolean;
  readonly outcome: string;
  readonly expected: string;
}

/** A thread ends with loans under way: the process and the other threads live on, and the port is free. */
async function threadEnds(node: KernelRdsNode): Promise<unknown> {
  const worker = new Worker(new URL('./children/rds-transport-thread.js', import.meta.url), {
    workerData: { address: node.address, to: { address: ABSENT, port: 4000 } },
  });
  const [port, lentBytes] = await new Promise<[number, number]>((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
  });
  await worker.terminate();
  const socket = node.bind(port);
  await socket.close();
  return { lentBytes, isSamePort: socket.port === port };
}

/** What the kernel says of more pages than a user may pin, and that a send waits for them. */
async function memlock(node: KernelRdsNode): Promise<unknown> {
  const child = fileURLToPath(new URL('./children/rds-transport-memlock.js', import.meta.url));
  return await underMemlock(1024, child, node.address, ABSENT);
}

/** The same with the budget of this process: nothing is asked of the kernel that does not fit. */
async function budget(node: KernelRdsNode): Promise<unknown> {
  const pages = new FixedBudget(100);
  await using limited = await RdsNode.open({ transport: 'kernel', address: node.address, budget: pages });
  const socket = limited.bind(0, { zerocopy: true });
  const to = { address: ABSENT, port: 4000 };
  const lend = (bytes: number): string | null =>
    codeOf(() => socket.sendmsg(lendableBuffer(bytes), to, { zerocopy: true, cookie: 1 }));
  const codes = [lend(300_000), lend(300_000), lend(1)];
  const used = pages.used();
  const tooLarge = await socket.send(lendableBuffer(500_000), to);
  socket.cancelSentTo(to);
  await until('the pages are back', () => pages.used() === 0);
  return { codes, used, tooLarge, again: lend(300_000) };
}

/** A lease that was released while it is lent is not used for anybody else until the kernel has let go of it. */
async function lease(node: KernelRdsNode): Promise<unknown> {
  const pool = new Pool();
  const socket = node.bind(0, { zerocopy: true });
  const held = await pool.acquire(100_000);
  const sent = socket.send(held.buffer, { address: ABSENT, port: 4000 }).catch((error) => error.code);
  held.release();
  const during = pool.stats().leases;
  const lentBytes = socket.lentBytes;
  await socket.close();
  return { during, lentBytes, sent: await sent, after: pool.stats().leases };
}

/** What the program sees besides calls: an iteration that ends with the socket, cookies as error-queue records, disposal. */
async function surface(node: KernelRdsNode): Promise<unknown> {
  await using from = node.bind(0, { zerocopy: true });
  const to = node.bind(0);
  for (let i = 0; i < 10; i++) {
    from.sendmsg(lendableBuffer(10 + i), to, { zerocopy: true, cookie: i });
  }
  const lengths: number[] = [];
  for await (const message of to) {
    lengths.push(message.length);
    if (lengths.length === 10) void to.close();
  }
  await until('all is free', () => from.lentBytes === 0);
  const records = [from.recvErrqueue(), from.recvErrqueue(), from.recvErrqueue()];
  return { lengths, records };
}

async function table(node: KernelRdsNode): Promise<Shown[]> {
  const factory = (second: string): Factory => ({
    transport: 'kernel',
    addresses: [node.address, second],
    absent: ABSENT,
    open: (address) => RdsNode.open({ transport: 'kernel', address }),
  });
  const two = await Table.open(factory(SECOND), deviations);
  const one = await Table.open(factory(node.address), deviations);
  const results: Shown[] = [];
  for (const group of groups) {
    for (const row of group.rows) {
      const name = rowName(group, row);
      if (name === overTheWire) continue;
      results.push(await shown(name, (atOneAddress.includes(name) ? one : two).run(group, row)));
    }
  }
  await two.close();
  await one.close();
  return results;
}

/** A row that breaks is shown as one that does not hold; the others run all the same. */
async function shown(row: string, run: Promise<Result>): Promise<Shown> {
  try {
    const { holds, outcome, expected } = await run;
    return { row, holds, outcome: text(outcome), expected: text(expected) };
  } catch (error) {
    return { row, holds: false, outcome: `${(error as Error).stack}`, expected: '' };
  }
}

function text(value: unknown): string {
  return JSON.stringify(value, (_, each) => (typeof each === 'bigint' ? `${each}n` : each)) ?? 'undefined';
}

export const guestChecks: Readonly<Record<string, Check>> = {
  loopback,
  localLoan,
  sendQueueEmpty,
  tcpIsFull,
  settling,
  nothingLent,
  threadEnds,
  memlock,
  budget,
  lease,
  surface,
  table,
};
