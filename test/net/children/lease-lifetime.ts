/**
 * Ways to lose leases, or to end a process or a worker that has some, while the kernel reads them. Run as
 * `node --expose-gc lease-lifetime.js <mode> [count]`; whatever is wrong makes the exit code something else than 0.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { markAsUntransferable, Worker } from 'node:worker_threads';
import type { ZerotxError } from '../../../src/core/errors.ts';
import { type Lease, lendLease, returnLease } from '../../../src/net/lease.ts';
import { borrow } from '../../../src/net/lending.ts';
import { Pool } from '../../../src/net/pool.ts';
import { native } from '../../../src/sys/binding.ts';
import { fillPattern, receive } from '../../support/channels.ts';
import { drain, fillZerocopy, tcpPair } from '../../support/sockets.ts';
import { SLAB_BYTES } from './lease-worker.ts';

const MIB = 1 << 20;
const PIECE = 256 * 1024;
const collect = globalThis.gc as () => void;
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Size of the address space. */
function mappedBytes(): number {
  return Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[0]) * native().pageSize();
}

/** Has the collector run and the allocator hand out 50 MiB of 0x5A. */
async function makeNoise(): Promise<void> {
  const noise: Buffer[] = [];
  for (let round = 0; round < 10; round++) {
    collect();
    for (let i = 0; i < 20; i++) noise.push(Buffer.alloc(PIECE, 0x5a));
    await turn();
  }
  assert.equal(noise.length * PIECE, 50 * MIB);
}

type Sender = (lease: Lease) => { view: Uint8Array; done: () => void };

const moved: Sender = (lease) => ({ view: lendLease(lease), done: () => returnLease(lease) });

const shared: Sender = (lease) => {
  const borrowed = borrow(lease.buffer, false);
  assert.ok(borrowed !== null);
  return { view: borrowed.view, done: borrowed.giveBack };
};

/** Lends until the peer's side is full. What is returned to call when the kernel is done is all that is left of the leases. */
async function fill(
  pool: Pool,
  send: Sender,
  release: boolean,
): Promise<{
  readonly client: number;
  readonly server: number;
  readonly sent: number;
  readonly dones: (() => void)[];
}> {
  const { client, server } = await tcpPair({ zerocopy: true, receiveBytes: 64 * 1024 });
  const dones: (() => void)[] = [];
  for (let sent = 0; ; sent += PIECE) {
    const lease = await pool.acquire(PIECE);
    fillPattern(lease.buffer, sent);
    const { view, done } = send(lease);
    dones.push(done);
    if (release) lease.release();
    const n = Math.max(0, native().sendv(client, [view], 1, 0x4000000));
    if (n < PIECE) {
      assert.ok(native().outstanding(client) > 0, 'the kernel still holds some of it');
      return { client, server, sent: sent + n, dones };
    }
  }
}

/** The leases are dropped; `keep`: those in flight are still known to whoever has to return them. */
async function dropped(send: Sender, keep: boolean, release: boolean): Promise<void> {
  const pool = new Pool({ slabBytes: PIECE, maxBytes: 64 * MIB });
  const { client, server, sent, dones } = await fill(pool, send, release);
  const flying = dones.length;
  if (!keep) dones.length = 0;
  await makeNoise();
  // All that the pool has to give, too.
  const rest: Lease[] = [];
  for (let lease = pool.tryAcquire(PIECE); lease !== undefined; lease = pool.tryAcquire(PIECE)) {
    lease.buffer.fill(0x5a);
    rest.push(lease);
  }
  assert.equal(rest.length + flying, (64 * MIB) / PIECE);
  const { total } = await receive(server, sent);
  assert.equal(total, sent);
  for (let i = 0; native().outstanding(client) > 0; i++) {
    assert.ok(i < 10_000, 'not released');
    drain(client);
    await turn();
  }
  for (const done of dones) done();
  assert.equal(pool.stats().lent, keep ? 0 : flying);
  // A release() after which nothing is kept is no leak.
  assert.equal(pool.stats().leaked, keep || release ? 0 : flying);
}

async function inFlight(): Promise<void> {
  const pool = new Pool({ slabBytes: MIB });
  const { client } = await tcpPair({ zerocopy: true, receiveBytes: 4096 });
  for (const send of [moved, shared]) {
    for (const release of [true, false]) {
      const lease = await pool.acquire(PIECE);
      lease.buffer.fill(1);
      fillZerocopy(client, send(lease).view, 1);
      if (release) lease.release();
    }
  }
  assert.ok(native().outstanding(client) > 0);
  assert.equal(pool.stats().lent, 4);
}

/** All slabs of ended workers are unmapped, and no memory of theirs has come out. */
async function endWorkers(count: number): Promise<void> {
  const sizes: number[] = [];
  for (let i = 0; i < count; i++) {
    const worker = new Worker(new URL('./lease-worker.js', import.meta.url));
    // once() rejects when the worker fails.
    const [{ memory }] = (await once(worker, 'message')) as [{ memory?: ArrayBuffer }];
    await worker.terminate();
    if (memory !== undefined) assert.ok(new Uint8Array(memory, 0, PIECE / 4).every((byte) => byte === 2));
    sizes.push(mappedBytes());
  }
  assert.equal(native().quarantinedBytes(), 0, 'TCP lets go of everything when it is aborted');
  const grown = (sizes.at(-1) as number) - (sizes[0] as number);
  assert.ok(grown < (SLAB_BYTES * (count - 1)) / 2, `${grown >> 20} MiB more after ${count} workers`);
}

/** Programs may mark the memory of leases; that must not be fatal at the end. */
async function marked(): Promise<void> {
  const pool = new Pool();
  const leases = [await pool.acquire(PIECE), await pool.acquire(PIECE)];
  leases[0]?.buffer.fill(1);
  for (const lease of leases) {
    lendLease(lease);
    returnLease(lease);
    markAsUntransferable(lease.buffer.buffer);
  }
  process.once('exit', () => assert.ok(leases.every((lease) => lease.buffer.length === PIECE)));
}

const INTACT = 0x11;

/**
 * A window that moved from the pool to a worker, which looks at it when nothing else of the pool is left: on the main thread
 * windows that came from transfer() are not marked, and so can be posted.
 */
async function posted(): Promise<void> {
  const code = `
    const { parentPort } = require('node:worker_threads');
    let bytes;
    parentPort.on('message', (memory) => {
      if (memory !== null) bytes = new Uint8Array(memory);
      parentPort.postMessage(bytes.length + ' ' + bytes.every((byte) => byte === ${INTACT}));
      if (memory === null) parentPort.close();
    });`;
  const worker = new Worker(code, { eval: true });
  const post = (): void => {
    const lease = new Pool().tryAcquire(PIECE) as Lease;
    lease.buffer.fill(INTACT);
    lendLease(lease);
    returnLease(lease);
    const memory = lease.buffer.buffer as ArrayBuffer;
    worker.postMessage(memory, [memory]);
    assert.equal(memory.byteLength, 0);
    lease.release();
    assert.equal(lease.pool.stats().mappedBytes, 0);
  };
  post();
  assert.deepEqual(await once(worker, 'message'), [`${PIECE} true`]);
  await makeNoise();
  for (let i = 0; i < 32; i++) (new Pool().tryAcquire(PIECE) as Lease).buffer.fill(0x5a);
  const answer = once(worker, 'message');
  // Both at once: a last message may come with the end.
  const exited = once(worker, 'exit');
  worker.postMessage(null);
  assert.deepEqual(await answer, [`${PIECE} true`]);
  await exited;
}

/** Slabs that are trimmed are unmapped without the collector's help. */
async function trimmed(): Promise<void> {
  const pool = new Pool({ slabBytes: 16 * MIB });
  const before = mappedBytes();
  const lease = await pool.acquire(256 * MIB);
  lease.buffer.fill(1);
  lease.release();
  assert.ok(mappedBytes() >= before + 256 * MIB);
  assert.equal(pool.trim(), 256 * MIB);
  for (let i = 0; mappedBytes() >= before + 128 * MIB; i++) {
    assert.ok(i < 100, 'not unmapped');
    await turn();
  }
}

/** When the system has no memory, only the return of a lease can help: with none out, waiting would never end. */
async function noMemory(): Promise<void> {
  const pool = new Pool({ maxBytes: 4096 * MIB });
  const held = await pool.acquire(1);
  const limit = spawnSync('prlimit', [`--pid=${process.pid}`, `--as=${mappedBytes() + 64 * MIB}`]);
  assert.equal(limit.status, 0, String(limit.stderr));
  assert.equal(pool.tryAcquire(1024 * MIB), undefined);
  const waiting = pool.acquire(1024 * MIB);
  assert.equal(pool.stats().waiting, 1);
  held.release();
  for (const request of [waiting, pool.acquire(1024 * MIB)]) {
    await assert.rejects(request, (error: ZerotxError) => error.code === 'ENOMEM' && error.next === 'retry');
  }
  assert.equal((await pool.acquire(1)).state, 'held');
}

const modes: Record<string, (count: number) => Promise<void>> = {
  'dropped-moved': () => dropped(moved, true, false),
  'dropped-shared': () => dropped(shared, true, false),
  'released-moved': () => dropped(moved, true, true),
  'released-shared': () => dropped(shared, true, true),
  abandoned: () => dropped(moved, false, false),
  'abandoned-released': () => dropped(shared, false, true),
  'natural-exit': inFlight,
  'process-exit': () => inFlight().then(() => process.exit(0)),
  terminated: endWorkers,
  marked,
  posted,
  trimmed,
  'no-memory': noMemory,
};

const [mode = '', count = '1'] = process.argv.slice(2);
const chosen = modes[mode];
assert.ok(chosen, `no mode ${mode}`);
await chosen(Number(count));
