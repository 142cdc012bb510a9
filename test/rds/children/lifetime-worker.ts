/**
 * Opens a node and lends memory to a peer that does not read. As a worker it says when it is ready, and then ends in
 * the way it was told.
 */
import assert from 'node:assert/strict';
import { parentPort, workerData } from 'node:worker_threads';
import { RdsNode } from '../../../src/rds/node.ts';
import { lendableBuffer, turnsUntil } from '../../support/rds-nodes.ts';

export type WorkerEnd = 'terminated' | 'exit';

export interface WorkerInput {
  readonly end: WorkerEnd;
  readonly address: string;
  readonly peer: string;
}

/** What a peer reads before messages come: our map and our probe. */
export const HANDSHAKE_BYTES: number = 48 + 8192 + 48;
/** Large messages lent: within the budget of an ordinary user. */
export const MESSAGES = 6;
const MIB = 1024 * 1024;

/** What message `k` holds; fresh memory each time. */
export function payload(k: number): Buffer {
  const bytes = lendableBuffer(MIB);
  for (let at = 0; at < bytes.length; at += 4) bytes.writeUInt32LE(((k + 1) * 0x9e3779b1 + at) >>> 0, at);
  return bytes;
}

export async function openAndLend(
  address: string,
  peer: string,
  { small = 0 }: { small?: number } = {},
): Promise<RdsNode> {
  const node = await RdsNode.open({ address, mode: 'force', thresholdBytes: 1024 });
  const socket = node.bind(4000, { zerocopy: true, sendBufferBytes: 16 * MIB });
  const to = { address: peer, port: 5000 };
  for (let cookie = 0; cookie < MESSAGES; cookie++) {
    socket.sendmsg(payload(cookie), to, { zerocopy: true, cookie });
  }
  // From Buffer's pool, which many small ones share.
  for (let cookie = MESSAGES; cookie < MESSAGES + small; cookie++) {
    socket.sendmsg(Buffer.from(payload(cookie).subarray(0, 2000)), to, { zerocopy: true, cookie });
  }
  await turnsUntil(() => node.stats().zerocopy.pinnedBytes > 0 && node.counters.tcp_sndbuf_full > 0);
  assert.ok(node.stats().budget.usedPages > 0);
  return node;
}

if (parentPort !== null) {
  const { end, address, peer } = workerData as WorkerInput;
  await openAndLend(address, peer);
  if (end === 'exit') process.exit(0);
  parentPort.postMessage('ready');
}
