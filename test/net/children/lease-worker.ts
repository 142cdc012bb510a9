/**
 * A worker with a pool: leases in flight to a peer that never reads, in every state that a lease can be in. It says when it
 * is ready, and waits to be terminated.
 */
import { parentPort } from 'node:worker_threads';
import { type Lease, lendLease, returnLease } from '../../../src/net/lease.ts';
import { borrow } from '../../../src/net/lending.ts';
import { Pool } from '../../../src/net/pool.ts';
import { native } from '../../../src/sys/binding.ts';
import { fillZerocopy, tcpPair } from '../../support/sockets.ts';

/** So much address space that it shows when it is not given back; of the memory only what is touched is used. */
export const SLAB_BYTES: number = 256 << 20;
const PIECE = 64 * 1024;

function take(pool: Pool): Lease {
  const lease = pool.tryAcquire(PIECE) as Lease;
  lease.buffer.fill(1);
  return lease;
}

/** Sent once and filled again. */
function takeUsed(pool: Pool): Lease {
  const lease = take(pool);
  lendLease(lease);
  returnLease(lease);
  lease.buffer.fill(2);
  return lease;
}

async function run(port: NonNullable<typeof parentPort>): Promise<void> {
  const pool = new Pool({ slabBytes: SLAB_BYTES });
  const { client } = await tcpPair({ zerocopy: true, receiveBytes: 4096 });
  const kept = [take(pool), takeUsed(pool), take(pool), takeUsed(pool), take(pool), takeUsed(pool)];
  for (const lease of kept.slice(0, 4)) fillZerocopy(client, lendLease(lease), 1);
  kept[0]?.release();
  const shared = borrow((kept[4] as Lease).buffer, false);
  if (shared !== null) fillZerocopy(client, shared.view, 1);
  kept[4]?.release();
  take(pool).release();
  if (native().outstanding(client) === 0) throw new Error('nothing is in flight');
  const memory = kept[5]?.buffer.buffer as ArrayBuffer;
  try {
    port.postMessage({ memory }, [memory]);
  } catch {
    // Refused, as it should be where it does not turn into a copy: the memory ends with this worker.
    port.postMessage({});
  }
  setInterval(() => kept.length, 1000);
}

if (parentPort !== null) await run(parentPort);
