/**
 * What may end the process when it goes wrong: files that get shorter while they are mapped, and memory that is unmapped
 * while somebody looks at it. Run as `node guest-memory.js <mode>`; whatever is wrong makes the exit code another than 0.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { ftruncateSync, openSync, statfsSync } from 'node:fs';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { errnoOf } from '../../../src/core/errors.ts';
import { native } from '../../../src/sys/binding.ts';
import * as calls from '../../../src/sys/calls.ts';
import { SOCK_DGRAM } from '../../../src/sys/constants.ts';
import { adopt, memfd } from '../../../src/sys/fds.ts';
import { GuestSpace } from '../../../src/sys/space.ts';
import { socketPair } from '../../support/descriptors.ts';
import {
  addChain,
  addTarget,
  all,
  type GuestMemory,
  guestMemory,
  headOf,
  mappings,
  pattern,
  status,
  table,
} from '../../support/guest-memory.ts';

const PAGE = native().pageSize();
const MIB = 2 ** 20;
const NAME = 'zerotx-child';

function filled(bytes: number): GuestMemory {
  const memory = guestMemory(bytes, NAME);
  assert.equal(memory.space.write(0, new Uint8Array(bytes).fill(1)), 0);
  return memory;
}

function view(): void {
  const { space, truncate, end } = filled(16 * PAGE);
  const bytes = new Uint8Array(space.view(8 * PAGE, 8 * PAGE) as ArrayBuffer);
  truncate(8 * PAGE);
  assert.equal(space.poisoned, false, 'nobody has looked yet');
  assert.equal(bytes[0], 0);
  assert.equal(space.poisoned, true);
  bytes[PAGE] = 7;
  assert.equal(bytes[PAGE], 7);
  const head = new Uint8Array(8 * PAGE);
  assert.equal(space.read(0, head), 0);
  assert.ok(
    head.every((byte) => byte === 0),
    'the whole region went at once',
  );
  assert.equal(space.unmap(0, 16 * PAGE), 0);
  assert.equal(space.poisoned, true, 'for good');
  end();
}

function sum(bytes: Uint8Array): number {
  let total = 0;
  for (let i = 0; i < bytes.length; i++) total += bytes[i] as number;
  return total;
}

function optimised(): void {
  const memory = filled(64 * MIB);
  const bytes = new Uint8Array(memory.space.view(0, 64 * MIB) as ArrayBuffer);
  for (let i = 0; i < 3; i++) assert.equal(sum(bytes), 64 * MIB);
  memory.truncate(0);
  for (let i = 0; i < 3; i++) assert.equal(sum(bytes), 0);
  memory.end();

  const ring = filled(PAGE);
  const words = new Uint16Array(ring.space.view(0, PAGE) as ArrayBuffer);
  for (let i = 0; i < 100_000; i++) assert.equal(Atomics.load(words, i % 2048), 0x101);
  ring.truncate(0);
  assert.equal(Atomics.load(words, 100), 0);
  assert.equal(Atomics.exchange(words, 100, 5), 0);
  Atomics.store(words, 101, 6);
  assert.deepEqual([...words.subarray(99, 103)], [0, 5, 6, 0]);
  assert.equal(ring.space.poisoned, true);
  ring.end();
}

/** memcpy() in our own code: reading, writing, from guest to guest. */
function copies(): void {
  const modes = ['read', 'write', 'peek', 'deliver from', 'deliver to', 'gather', 'checksum'] as const;
  for (const mode of modes) {
    const [source, target] = [filled(16 * PAGE), filled(16 * PAGE)];
    const [from, to] = [table(4, 8, 256), table(4, 8, 64)];
    addChain(from, [{ address: 4 * PAGE, bytes: 9000, space: source.space.id }]);
    addTarget(to, 0, new Uint8Array(12), [{ address: 4 * PAGE, bytes: 10_000, space: target.space.id }]);
    if (mode !== 'peek') assert.equal(native().framesPeek(from.bytes, 1, 12, 256), 1);
    const cut = mode === 'deliver to' ? target : source;
    cut.truncate(0);
    const out = new Uint8Array(9000);
    const call: Record<typeof mode, () => number> = {
      read: () => cut.space.read(0, out),
      write: () => cut.space.write(0, out),
      peek: () => native().framesPeek(from.bytes, 1, 12, 256) - 1,
      'deliver from': () => native().framesDeliver(from.bytes, to.bytes, 1) - 1,
      'deliver to': () => native().framesDeliver(from.bytes, to.bytes, 1) - 1,
      gather: () => native().framesGather(from.bytes, 0, out) - (9000 - 12),
      checksum: () => native().framesChecksum(from.bytes, all(1), 1) - 256,
    };
    assert.equal(call[mode](), 0, mode);
    assert.equal(cut.space.poisoned, true, mode);
    assert.equal((cut === source ? target : source).space.poisoned, false, mode);
    if (mode === 'peek') assert.ok(headOf(from, 0).every((byte) => byte === 0));
    if (mode === 'deliver from') {
      assert.equal(target.space.read(4 * PAGE + 12, out), 0);
      assert.ok(out.subarray(0, 256).every((byte) => byte === 1));
      assert.ok(out.subarray(256, 9000 - 12).every((byte) => byte === 0));
    }
    source.end();
    target.end();
  }
}

/** The kernel finds nothing where the frame was, and says EFAULT: no signal, and nothing is replaced. */
function kernel(): void {
  const memory = filled(16 * PAGE);
  const [a, b] = socketPair(SOCK_DGRAM);
  const frames = table(4, 8, 64);
  for (const page of [0, 8, 1]) {
    addChain(frames, [{ address: page * PAGE, bytes: 1000, space: memory.space.id }]);
  }
  assert.equal(native().framesPeek(frames.bytes, 3, 0, 64), 3);
  memory.truncate(4 * PAGE);
  const EFAULT = errnoOf('EFAULT');
  for (const call of ['framesWrite', 'framesSendmmsg'] as const) {
    assert.equal(native()[call](a, frames.bytes, all(3), 0, 3, new Uint8Array(0), 0), 3);
    assert.deepEqual(
      [0, 1, 2].map((frame) => status(frames, frame)),
      [0, EFAULT, 0],
    );
    const into = table(8, 8, 2000);
    assert.equal(native().framesRead(b, into.bytes, 8, 0), 2);
    assert.deepEqual([...headOf(into, 1)], [...new Uint8Array(1000).fill(1)]);
  }
  assert.equal(native().framesStream(a, frames.bytes, all(3), 1, 2, new Uint8Array(0), 0, 0, 0), -EFAULT);
  assert.equal(memory.space.poisoned, false);
  for (const fd of [a, b]) calls.close(fd);
  memory.end();
}

function neighbours(): void {
  const guests = Array.from({ length: 200 }, () => filled(PAGE));
  const views = guests.map(({ space }) => new Uint8Array(space.view(0, PAGE) as ArrayBuffer));
  const bad = (i: number): boolean => i % 3 === 1;
  guests.forEach(({ truncate }, i) => {
    if (bad(i)) truncate(0);
  });
  const expected = guests.map((_, i) => bad(i));
  assert.deepEqual(
    views.map((bytes) => bytes[5]),
    expected.map((gone) => (gone ? 0 : 1)),
  );
  assert.deepEqual(
    guests.map(({ space }) => space.poisoned),
    expected,
  );
  guests.forEach(({ end }, i) => {
    if (bad(i)) end();
  });
  assert.deepEqual(
    views.map((bytes) => bytes[5]),
    expected.map((gone) => (gone ? undefined : 1)),
  );
  guests.forEach(({ end }, i) => {
    if (!bad(i)) end();
  });
}

/** Many regions, one after the other, some of them in the same space, so that places in the table are used again. */
function repeated(): void {
  const lasting = filled(PAGE);
  for (let i = 0; i < 300; i++) {
    const fd = memfd(NAME, PAGE);
    const space = new GuestSpace();
    for (let region = 0; region < 3; region++) {
      assert.equal(space.map(fd, region * 2 * PAGE, PAGE, 0, BigInt(region * 2 * PAGE)), 0);
    }
    assert.equal(space.write(2 * PAGE, pattern(100)), 0);
    assert.equal(space.poisoned, false);
    calls.close(fd);
    const again = guestMemory(PAGE, NAME);
    again.truncate(0);
    assert.equal(again.space.write(0, pattern(100)), 0);
    assert.equal(again.space.poisoned, true);
    assert.equal(space.poisoned, false);
    again.end();
    space.destroy();
  }
  assert.equal(lasting.space.poisoned, false);
  lasting.end();
}

/** A file on the hugetlbfs that is mounted on /mnt. Pages of it may have been set aside, or not. */
function huge(): void {
  const page = statfsSync('/mnt').bsize;
  assert.ok(page > PAGE);
  const fd = adopt(openSync('/mnt/zerotx-child', 'wx+'));
  ftruncateSync(fd, 4 * page);
  const space = new GuestSpace();
  const EINVAL = -errnoOf('EINVAL');
  for (const offset of [PAGE, page - PAGE, page + PAGE])
    assert.equal(space.map(fd, 0, page, offset, 0n), EINVAL);
  assert.equal(space.map(fd, 0, 3 * page, page, 0n), 0);
  assert.equal(space.map(fd, 16 * page, PAGE, 0, BigInt(16 * page)), 0, 'less than a page is mapped as one');
  const bytes = new Uint8Array(PAGE);
  const first = space.view(0, page) as ArrayBuffer;
  const last = space.view(3 * page - PAGE, PAGE) as ArrayBuffer;
  // Without huge pages the first access fails as one beyond the end of the file does, and ends the same way.
  assert.equal(space.write(0, pattern(PAGE)), 0);
  assert.equal(space.read(0, bytes), 0);
  assert.deepEqual(bytes, pattern(PAGE));
  ftruncateSync(fd, 0);
  assert.equal(new Uint8Array(last)[1], 0);
  assert.equal(space.poisoned, true);
  new Uint8Array(first).fill(7);
  new Uint8Array(last).fill(7);
  assert.equal(space.write(16 * page, bytes), 0);
  assert.equal(space.unmap(0, 3 * page), 0);
  assert.deepEqual([first.byteLength, last.byteLength], [0, 0]);
  space.destroy();
  calls.close(fd);
}

/** Sends SIGBUS to itself: not a fault of any guest's. */
function killed(): void {
  filled(PAGE);
  process.kill(process.pid, 'SIGBUS');
  for (;;);
}

async function collect(): Promise<void> {
  for (let i = 0; i < 5; i++) {
    (globalThis as unknown as { gc(): void }).gc();
    await new Promise((resolve) => setImmediate(resolve));
  }
}

async function collected(): Promise<void> {
  const memory = filled(16 * PAGE);
  let kept = new Uint8Array(memory.space.view(0, PAGE) as ArrayBuffer);
  for (let i = 0; i < 1000; i++) memory.space.view((i % 16) * PAGE, PAGE);
  await collect();
  assert.equal(kept[0], 1);
  assert.equal(mappings(NAME), 1);
  memory.space.destroy();
  assert.equal(kept.length, 0);
  await collect();
  assert.equal(mappings(NAME), 0);

  const second = filled(16 * PAGE);
  for (let i = 0; i < 1000; i++) kept = new Uint8Array(second.space.view(0, PAGE) as ArrayBuffer);
  second.space.destroy();
  await collect();
  assert.equal(kept.length, 0);
  assert.equal(mappings(NAME), 0, 'views that nobody looked at any more are no reason to keep it');
}

interface ModernArrayBuffer extends ArrayBuffer {
  transfer?(): ArrayBuffer;
}

/** Memory that a program moved out of a view cannot be taken away; so it stays, and goes with the last that has it. */
async function moved(): Promise<void> {
  const memory = filled(PAGE);
  const shell = memory.space.view(0, PAGE) as ModernArrayBuffer;
  if (shell.transfer === undefined) return;
  let other: Uint8Array | null = new Uint8Array(shell.transfer());
  assert.equal(shell.byteLength, 0);
  memory.space.destroy();
  await collect();
  assert.equal(mappings(NAME), 1);
  assert.equal(other[0], 1);
  memory.truncate(0);
  assert.equal(other[0], 0, 'still guarded');
  other = null;
  await collect();
  assert.equal(mappings(NAME), 0);
}

function startWorker(mode: string): Worker {
  return new Worker(new URL(import.meta.url), { workerData: mode, argv: [mode] });
}

/** In a worker: leaves memory mapped, some of it poisoned, with views; keeps running if it is to be terminated. */
function leaveBehind(mode: string): void {
  const guests = Array.from({ length: 4 }, () => filled(64 * PAGE));
  const views = guests.map(({ space }) => new Uint8Array(space.view(0, PAGE) as ArrayBuffer));
  guests[1]?.truncate(0);
  assert.equal(views[1]?.[0], 0);
  guests[2]?.space.destroy();
  parentPort?.postMessage(views[0]?.[0]);
  if (mode === 'terminated') setInterval(() => views[0]?.[0], 1);
}

async function workers(mode: string): Promise<void> {
  for (let i = 0; i < 10; i++) {
    const worker = startWorker(mode);
    const exit = new Promise<number>((resolve) => worker.once('exit', resolve));
    const [first] = await once(worker, 'message');
    assert.equal(first, 1);
    if (mode === 'terminated') await worker.terminate();
    assert.equal(await exit, mode === 'terminated' ? 1 : 0);
    assert.equal(mappings(NAME), 0);
  }
}

/** A fault in one thread while another one maps and unmaps. */
async function faultsInWorker(): Promise<void> {
  const worker = startWorker('repeated');
  const exit = new Promise<number>((resolve) => worker.once('exit', resolve));
  let done = false;
  void exit.then(() => {
    done = true;
  });
  while (!done) {
    repeated();
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.equal(await exit, 0);
  assert.equal(mappings(NAME), 0);
}

function aliveAtEnd(): void {
  const memory = filled(PAGE);
  const bytes = new Uint8Array(memory.space.view(0, PAGE) as ArrayBuffer);
  process.on('exit', () => {
    assert.equal(bytes[0], 1);
  });
}

const modes: Record<string, () => void | Promise<void>> = {
  view,
  optimised,
  copies,
  kernel,
  neighbours,
  repeated: () => {
    repeated();
    assert.equal(isMainThread ? mappings(NAME) : 0, 0);
  },
  huge,
  killed,
  collected,
  moved,
  worker: faultsInWorker,
  terminated: () => (isMainThread ? workers('terminated') : leaveBehind('terminated')),
  returned: () => (isMainThread ? workers('returned') : leaveBehind('returned')),
  exit: () => {
    aliveAtEnd();
    process.exit(0);
  },
  natural: aliveAtEnd,
};

const mode = isMainThread ? process.argv[2] : String(workerData);
await modes[mode ?? '']?.();
