/**
 * Ways to end a process or a worker while the kernel holds lent pages. Run as `node lifetime.js <mode> [count]`; whatever
 * is wrong makes the exit code something else than the mode's own.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { Worker } from 'node:worker_threads';
import { errnoOf } from '../../../src/core/errors.ts';
import { native } from '../../../src/sys/binding.ts';
import * as calls from '../../../src/sys/calls.ts';
import { EPOLLIN, EPOLLOUT } from '../../../src/sys/constants.ts';
import { reactor } from '../../../src/sys/reactor.ts';
import { fillZerocopy, lendable, listener, tcpPair, udpSocket, waitFor } from '../../support/sockets.ts';
import { BUDGET_PAGES, PATTERN, SLAB_BYTES, type WorkerEnd, type WorkerInput } from './lifetime-worker.ts';

async function pendingSends(): Promise<void> {
  const pair = await tcpPair({ zerocopy: true, receiveBytes: 4096 });
  fillZerocopy(pair.client, lendable(SLAB_BYTES), 1);
  assert.ok(native().outstanding(pair.client) > 0);
  // Registered, with events to come, but not keeping the loop alive.
  reactor()
    .add(pair.client, EPOLLIN | EPOLLOUT, () => {})
    .unref();
  reactor()
    .add(pair.server, EPOLLOUT, () => {})
    .unref();
}

function startWorker(input: WorkerInput): Worker {
  return new Worker(new URL('./lifetime-worker.js', import.meta.url), { workerData: input });
}

async function endWorkers(end: WorkerEnd, count: number, busy = false): Promise<void> {
  for (let i = 0; i < count; i++) {
    const worker = startWorker({ end, busy });
    const errors: unknown[] = [];
    worker.on('error', (error) => errors.push(error));
    const exit = new Promise((resolve) => worker.once('exit', resolve));
    if (end === 'terminated') {
      await once(worker, 'message');
      assert.equal(native().budgetUsed(), BUDGET_PAGES);
      await worker.terminate();
    }
    await exit;
    assert.deepEqual(errors.map(String), end === 'throw' ? ['Error: thrown on purpose'] : []);
    assert.equal(native().budgetUsed(), 0, 'the share of an ended worker is given back');
  }
  assert.equal(native().quarantinedBytes(), 0, 'TCP lets go of everything when it is aborted');
}

/** Lent memory that even an abort does not free stays mapped, and is counted. */
async function quarantine(): Promise<void> {
  const worker = startWorker({ end: 'terminated', unreachable: '10.99.0.2' });
  await once(worker, 'message');
  await worker.terminate();
  assert.equal(native().quarantinedBytes(), SLAB_BYTES);
  assert.equal(native().budgetUsed(), 0);
}

/** The peer of a terminated worker must see what was sent, then a reset, and never what the memory held later. */
async function peerOfTerminated(): Promise<void> {
  const { fd: listening, port } = listener({ receiveBytes: 64 * 1024 });
  const worker = startWorker({ end: 'terminated', port });
  const ready = once(worker, 'message');
  let accepted: calls.Accepted | undefined;
  await waitFor(listening, EPOLLIN, () => {
    accepted ??= calls.accept(listening);
    return accepted !== undefined;
  });
  await ready;
  await worker.terminate();
  const noise = Array.from({ length: 64 }, () => Buffer.alloc(1 << 20, 0x5a));
  const peer = accepted?.fd ?? -1;
  const into = Buffer.alloc(1 << 20);
  let total = 0;
  let last = 0;
  await waitFor(peer, EPOLLIN, () => {
    for (;;) {
      last = native().readv(peer, [into], 1);
      if (last <= 0) return last !== -errnoOf('EAGAIN');
      assert.ok(into.subarray(0, last).every((byte) => byte === PATTERN));
      total += last;
    }
  });
  assert.equal(last, -errnoOf('ECONNRESET'));
  assert.ok(total > 0 && noise.length > 0);
  calls.close(peer);
  calls.close(listening);
}

async function exitWithWorkers(): Promise<void> {
  const workers = [startWorker({ end: 'terminated' }), startWorker({ end: 'terminated' })];
  await Promise.all(workers.map((worker) => once(worker, 'message')));
  await pendingSends();
  process.exit(0);
}

async function uncaughtInHandler(): Promise<void> {
  const { fd } = udpSocket();
  const other = udpSocket();
  const caught = once(process, 'uncaughtException');
  let survived = false;
  reactor().add(fd, EPOLLOUT, () => {
    throw new Error('thrown in a handler');
  });
  reactor().add(other.fd, EPOLLOUT, () => {
    survived = true;
  });
  assert.match(String((await caught)[0]), /thrown in a handler/);
  assert.equal(survived, true);
  calls.close(fd);
  calls.close(other.fd);
  process.exit(0);
}

/** The same one level below: an exception that leaves the addon's callback. The next events must still come. */
async function uncaughtInCallback(): Promise<void> {
  const { fd } = udpSocket();
  const { fd: next } = udpSocket();
  let batches = 0;
  const events = new Uint32Array(2);
  native().reactorStart(events, () => {
    batches += 1;
    queueMicrotask(() => process.emit('SIGUSR2' as never));
    throw new Error(`batch ${batches}`);
  });
  const microtasks = once(process, 'SIGUSR2');
  native().reactorRef(true);
  for (const [token, socket] of [fd, next].entries()) {
    const caught = once(process, 'uncaughtException');
    native().reactorAdd(socket, token, EPOLLOUT);
    assert.match(String((await caught)[0]), /batch/);
  }
  await microtasks;
  process.exit(0);
}

async function fatalInHandler(): Promise<void> {
  reactor().add(udpSocket().fd, EPOLLOUT, () => {
    throw new Error('fatal in a handler');
  });
  await once(process, 'never');
}

/** The loop ends by itself once nothing is ref()ed, though sockets are open and registered. */
async function unrefEnds(): Promise<void> {
  const { fd } = udpSocket();
  const registration = reactor().add(fd, EPOLLIN, () => {});
  setImmediate(() => registration.unref());
}

async function collectSlabs(): Promise<void> {
  const collect = globalThis.gc as () => void;
  const slabBytes = 4 << 20;
  const mapped = (): number =>
    Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[0]) * native().pageSize();
  const kept = new Uint8Array(native().slabCreate(slabBytes, true) as ArrayBuffer).subarray(5).fill(9);
  const make = (): number => Array.from({ length: 200 }, () => native().slabCreate(slabBytes, true)).length;
  const count = make();
  const most = mapped();
  // Not all of them must show: the allocator's own arenas appear meanwhile, 64 MiB each.
  const enough = most - (count - 80) * slabBytes;
  for (let turn = 0; mapped() > enough; turn++) {
    assert.ok(turn < 1000, `only ${(most - mapped()) >> 20} MiB were unmapped of ${count} slabs`);
    collect();
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.ok(kept.every((byte) => byte === 9));
}

const modes: Record<string, (count: number) => Promise<void>> = {
  'natural-exit': pendingSends,
  'process-exit': () => pendingSends().then(() => process.exit(0)),
  'exit-in-handler': async () => {
    await pendingSends();
    reactor().add(udpSocket().fd, EPOLLOUT, () => process.exit(0));
  },
  'uncaught-handler': uncaughtInHandler,
  'uncaught-callback': uncaughtInCallback,
  'fatal-handler': fatalInHandler,
  'unref-ends': unrefEnds,
  'collect-slabs': collectSlabs,
  'peer-of-terminated': peerOfTerminated,
  quarantine,
  'exit-with-workers': exitWithWorkers,
  terminated: (count) => endWorkers('terminated', count),
  'terminated-busy': (count) => endWorkers('terminated', count, true),
  exit: (count) => endWorkers('exit', count),
  return: (count) => endWorkers('return', count),
  throw: (count) => endWorkers('throw', count),
};

const [mode = '', count = '1'] = process.argv.slice(2);
const chosen = modes[mode];
assert.ok(chosen, `no mode ${mode}`);
await chosen(Number(count));
