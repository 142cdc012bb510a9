/**
 * Signals that never wait. Each hostile case would stop the process for good if it did: the test's time limit is the oracle,
 * and a child process where the main thread would hang.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { constants, mkdtempSync, openSync, readFileSync, readSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  AF_INET,
  EPOLLIN,
  EPOLLRDHUP,
  SO_SNDBUF,
  SOCK_DGRAM,
  SOCK_SEQPACKET,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../../src/sys/constants.ts';
import * as fds from '../../src/sys/fds.ts';
import { reactor } from '../../src/sys/reactor.ts';
import { receiveWithFds, sendWithFds, socketPair } from '../support/descriptors.ts';
import { tcpPair, waitFor } from '../support/sockets.ts';

const EINVAL = -errnoOf('EINVAL');
const EPIPE = -errnoOf('EPIPE');
const FULL = 2n ** 64n - 2n;
const O_NONBLOCK = 0o4000;

const signal = (fd: number): number => native().eventfdSignal(fd);

/** write(2) of a number to an eventfd, as another process would. */
function add(fd: number, value: bigint): void {
  assert.equal(writeSync(fd, new Uint8Array(BigUint64Array.of(value).buffer)), 8);
}

/** read(2): the count, which is 0 afterwards. */
function take(fd: number): bigint {
  const into = new BigUint64Array(1);
  assert.equal(readSync(fd, new Uint8Array(into.buffer)), 8);
  return into[0] as bigint;
}

function isNonBlocking(fd: number): boolean {
  const info = readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8');
  return (Number.parseInt(/flags:\s+(\d+)/.exec(info)?.[1] ?? '', 8) & O_NONBLOCK) !== 0;
}

/** What a process that shares the open file can do at any time. libuv does it for a child's standard input. */
function clearNonBlocking(fd: number): void {
  assert.equal(spawnSync('true', { stdio: [fd, 'ignore', 'ignore'] }).status, 0);
  assert.ok(!isNonBlocking(fd));
}

describe('a signal to an eventfd', { timeout: 30_000 }, () => {
  it('adds one to its count', () => {
    const fd = fds.eventfd();
    for (let i = 0; i < 3; i++) assert.equal(signal(fd), 0);
    add(fd, 4n);
    assert.equal(take(fd), 7n);
    calls.close(fd);
  });

  it('does not wait at a full counter, by whatever flags', () => {
    const fd = fds.eventfd();
    add(fd, FULL);
    assert.throws(() => add(fd, 1n), { code: 'EAGAIN' });
    assert.equal(signal(fd), 0);
    clearNonBlocking(fd);
    // write(2) would wait from here on.
    for (let i = 0; i < 1000; i++) assert.equal(signal(fd), 0);
    assert.ok(take(fd) >= FULL);
    assert.equal(signal(fd), 0);
    assert.equal(take(fd), 1n, 'it counts again');
    calls.close(fd);
  });

  it('goes through any of its descriptors', () => {
    const [one, other] = socketPair();
    const fd = fds.eventfd();
    sendWithFds(one, Buffer.from('x'), [fd, fd]);
    const received = receiveWithFds(other, Buffer.alloc(1))?.fds ?? [];
    assert.equal(received.length, 2);
    for (const each of [fd, ...received]) assert.equal(signal(each), 0);
    assert.equal(take(fd), 3n);
    calls.close(fd);
    assert.equal(signal(received[0] as number), 0);
    assert.equal(take(received[1] as number), 1n);
    for (const each of [...received, one, other]) fds.closeReceived(each);
  });

  it('can be made a hundred thousand times: the results of the kernel are forgotten', () => {
    const fd = fds.eventfd();
    for (let i = 0; i < 100_000; i++) if (signal(fd) !== 0) assert.fail(`signal ${i}`);
    assert.equal(take(fd), 100_000n);
    calls.close(fd);
  });

  it('is decided anew when the number of the descriptor is another’s', () => {
    const fd = fds.memfd('not an eventfd', 1);
    assert.equal(signal(fd), EINVAL);
    calls.close(fd);
    const again = fds.eventfd();
    assert.equal(again, fd);
    assert.equal(signal(again), 0);
    calls.close(again);
  });

  it('works in workers, which end with it', async () => {
    for (let i = 0; i < 3; i++) {
      const worker = new Worker(fileURLToPath(new URL('./children/signal-worker.js', import.meta.url)));
      const [counted, code] = await new Promise<[unknown, number]>((resolve, reject) => {
        let told: unknown;
        worker.on('message', (value) => {
          told = value;
        });
        worker.on('error', reject);
        worker.on('exit', (exit) => resolve([told, exit]));
      });
      assert.deepEqual([counted, code], [1000n, 0]);
    }
  });
});

describe('a signal to what is no eventfd', { timeout: 30_000 }, () => {
  let folder: string;
  let fifo: string;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'zerotx-signal-'));
    fifo = join(folder, 'fifo');
    assert.equal(spawnSync('mkfifo', [fifo]).status, 0);
  });
  after(() => rmSync(folder, { recursive: true }));

  it('is refused for files, folders, devices, and sockets of other families', async () => {
    const pair = await tcpPair();
    const udp = calls.socket(AF_INET, SOCK_DGRAM);
    const refused = [
      fds.memfd('memory', 4096),
      ...['/', fifo.replace('fifo', ''), '/dev/null', '/proc/self/status'].map((path) =>
        fds.adopt(openSync(path, 'r')),
      ),
      fds.adopt(openSync(join(folder, 'file'), 'w')),
      pair.client,
      udp,
    ];
    for (const fd of refused) {
      assert.equal(signal(fd), EINVAL);
      assert.equal(signal(fd), EINVAL, 'and again');
    }
    assert.equal(native().readv(pair.server, [Buffer.alloc(1)], 1), -errnoOf('EAGAIN'), 'nothing was sent');
    for (const fd of refused) native().close(fd);
    pair.close();
  });

  it('is eight bytes to a Unix socket, and nothing to one that is full', () => {
    for (const type of [SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM]) {
      const [one, other] = socketPair(type);
      assert.equal(signal(one), 0);
      const into = Buffer.alloc(16);
      assert.equal(native().readv(other, [into], 1), 8);
      assert.equal(into.readBigUInt64LE(), 1n);
      calls.setOption(one, SOL_SOCKET, SO_SNDBUF, 4096);
      let sent = 0;
      while (native().sendv(one, [into], 1, 0) > 0) assert.ok(++sent < 100_000);
      clearNonBlocking(one);
      assert.equal(signal(one), 0, 'signalled already');
      for (const fd of [one, other]) calls.close(fd);
    }
  });

  it('tells of a peer that is gone, and raises no SIGPIPE', async () => {
    let raised = 0;
    let arrived = (): void => {};
    const count = (): void => {
      raised += 1;
      arrived();
    };
    process.on('SIGPIPE', count);
    for (const type of [SOCK_STREAM, SOCK_SEQPACKET]) {
      const [one, other] = socketPair(type);
      calls.close(other);
      assert.equal(signal(one), EPIPE);
      calls.close(one);
    }
    const [one, other] = socketPair(SOCK_DGRAM);
    calls.close(other);
    assert.equal(signal(one), -errnoOf('ECONNREFUSED'));
    calls.close(one);
    const reader = openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK);
    const writer = fds.adopt(openSync(fifo, constants.O_WRONLY | constants.O_NONBLOCK));
    assert.equal(signal(writer), 0);
    calls.close(fds.adopt(reader));
    for (let i = 0; i < 3; i++) assert.equal(signal(writer), EPIPE);
    calls.close(writer);
    // libuv hands signals over in the order in which they came: this one would be the last of several.
    const alive = setInterval(() => {}, 1000);
    const last = new Promise<void>((resolve) => {
      arrived = resolve;
    });
    process.kill(process.pid, 'SIGPIPE');
    await last;
    clearInterval(alive);
    process.off('SIGPIPE', count);
    assert.equal(raised, 1, 'the one raised on purpose');
  });

  it('does not wait for a full pipe with a name, which is opened once more', () => {
    const before = fds.eventfd();
    const pipe = fds.adopt(openSync(fifo, constants.O_RDWR | constants.O_NONBLOCK));
    assert.equal(signal(pipe), 0);
    assert.equal(readSync(pipe, Buffer.alloc(64)), 8);
    assert.throws(
      () => {
        for (;;) writeSync(pipe, Buffer.alloc(4096));
      },
      { code: 'EAGAIN' },
    );
    clearNonBlocking(pipe);
    for (let i = 0; i < 10; i++) assert.equal(signal(pipe), 0);
    calls.close(pipe);
    const next = fds.eventfd();
    assert.equal(next, pipe, 'the lowest number that is free');
    const last = fds.eventfd();
    assert.equal(last, pipe + 1, 'the second opening went with the first');
    for (const fd of [before, next, last]) calls.close(fd);
  });

  it('cannot go into the end of a pipe that is read', () => {
    const reader = fds.adopt(openSync(fifo, constants.O_RDONLY | constants.O_NONBLOCK));
    assert.ok(signal(reader) < 0);
    calls.close(reader);
  });

  it('does not wait for a pipe without a name, open, full, or closed', () => {
    const child = fileURLToPath(new URL('./children/signal-pipe.js', import.meta.url));
    const args = ['-c', '"$0" "$1" | true', process.execPath, child];
    const { stdout, stderr } = spawnSync('sh', args, { encoding: 'utf8', timeout: 20_000 });
    assert.deepEqual({ stdout, stderr }, { stdout: '', stderr: 'done\n' });
  });
});

describe('a host without asynchronous I/O', { timeout: 60_000 }, () => {
  it('is told, with what to do, and nothing waits', (t) => {
    const child = fileURLToPath(new URL('./children/signal-refused.js', import.meta.url));
    const filter = fileURLToPath(new URL('../../../test/sys/children/without-aio.py', import.meta.url));
    if (spawnSync('python3', ['-c', 'import ctypes']).status !== 0) return t.skip('needs python3');
    for (const code of ['ENOSYS', 'EAGAIN', 'EPERM']) {
      const args = [filter, String(errnoOf(code)), process.execPath, child, code];
      const { status, stdout, stderr } = spawnSync('python3', args, { encoding: 'utf8', timeout: 50_000 });
      assert.deepEqual({ status, stdout, stderr }, { status: 0, stdout: '', stderr: '' });
    }
  });
});

describe('a kick that is never read', { timeout: 30_000 }, () => {
  /** Counts the events of `fd`; `seen(n)` resolves when there were n. */
  function watch(fd: number): { events: number[]; seen(count: number): Promise<void>; stop(): void } {
    const events: number[] = [];
    let check = (): void => {};
    const registration = reactor().add(fd, EPOLLIN, (what) => {
      events.push(what);
      check();
    });
    return {
      events,
      seen: (count) =>
        new Promise((resolve) => {
          check = () => events.length >= count && resolve();
          check();
        }),
      stop: () => registration.remove(),
    };
  }

  it('is an event for each write, though nobody empties the counter', async () => {
    const fd = fds.eventfd();
    const watched = watch(fd);
    for (let i = 1; i <= 100; i++) {
      add(fd, 1n);
      await watched.seen(i);
      assert.equal(watched.events.length, i, 'one event, not two');
    }
    assert.ok(watched.events.every((events) => events === EPOLLIN));
    watched.stop();
    assert.equal(take(fd), 100n);
    calls.close(fd);
  });

  it('is one at a full counter: a signal of the kernel’s, as KVM makes them, is not lost', async () => {
    const fd = fds.eventfd();
    const watched = watch(fd);
    add(fd, FULL);
    await watched.seen(1);
    for (let i = 2; i <= 20; i++) {
      assert.equal(signal(fd), 0);
      await watched.seen(i);
    }
    // Whoever writes is told that the counter is full: nothing is lost unnoticed.
    assert.throws(() => add(fd, 1n), { code: 'EAGAIN' });
    watched.stop();
    calls.close(fd);
  });

  it('was there before it was watched: one event tells so', async () => {
    const fd = fds.eventfd();
    add(fd, 1n);
    const watched = watch(fd);
    await watched.seen(1);
    watched.stop();
    calls.close(fd);
  });

  it('may be a socket or a pipe, whose other end says when it goes', async () => {
    const [one, other] = socketPair();
    await Promise.all([
      waitFor(one, EPOLLIN | EPOLLRDHUP, (events) => (events & EPOLLRDHUP) !== 0),
      Promise.resolve().then(() => calls.close(other)),
    ]);
    calls.close(one);
  });
});
