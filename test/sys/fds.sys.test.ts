import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  AF_INET,
  AF_UNIX,
  EPOLLIN,
  SHUT_WR,
  SO_LINGER,
  SO_SNDBUF,
  SOCK_DGRAM,
  SOCK_SEQPACKET,
  SOCK_STREAM,
  SOL_SOCKET,
} from '../../src/sys/constants.ts';
import * as fds from '../../src/sys/fds.ts';
import { reactor } from '../../src/sys/reactor.ts';
import { encodeSockaddrUn } from '../../src/wire/sockaddr.ts';
import {
  receiveWithFds,
  S_IFCHR,
  S_IFDIR,
  S_IFSOCK,
  sendWithFds,
  socketPair,
} from '../support/descriptors.ts';
import { until } from '../support/raw-peer.ts';
import { tcpPair, waitFor } from '../support/sockets.ts';

const [EAGAIN, EBADF, EINVAL, EPERM] = ['EAGAIN', 'EBADF', 'EINVAL', 'EPERM'].map((name) => -errnoOf(name));

const openFds = (): number => readdirSync('/proc/self/fd').length;
const flagsOf = (fd: number): number =>
  Number.parseInt(/flags:\s+(\d+)/.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))?.[1] ?? '', 8);
const O_CLOEXEC = 0o2000000;
const O_NONBLOCK = 0o4000;

describe('descriptors over a Unix socket', () => {
  let left: number;
  let right: number;
  let baseline: number;

  before(() => {
    // What the addon opens for itself, once.
    fds.requireSignals();
    reactor();
    [left, right] = socketPair();
  });
  beforeEach(() => {
    baseline = openFds();
  });

  it('arrive with their bytes, are ours, close-on-exec, and otherwise as they were', () => {
    const memory = fds.memfd('sent', 4096);
    const event = fds.eventfd();
    assert.equal(sendWithFds(left, Buffer.from('two'), [memory, event]), 3);
    const buffer = Buffer.alloc(16);
    const got = receiveWithFds(right, buffer);
    assert.ok(got !== undefined);
    assert.deepEqual([got.bytes, got.fds.length, got.fdsLost], [3, 2, false]);
    assert.equal(buffer.subarray(0, 3).toString(), 'two');
    const [gotMemory = -1, gotEvent = -1] = got.fds;
    assert.equal(fds.fileKind(gotMemory), fds.S_IFREG);
    assert.equal(fds.fileKind(gotEvent), 0);
    for (const fd of got.fds) assert.ok((flagsOf(fd) & O_CLOEXEC) !== 0);
    assert.equal(flagsOf(gotMemory) & O_NONBLOCK, 0, 'flags are the sender’s as well: not changed');
    assert.equal(native().eventfdSignal(event), 0);
    assert.match(
      readFileSync(`/proc/self/fdinfo/${gotEvent}`, 'utf8'),
      /eventfd-count:\s+1\n/,
      'one open file',
    );
    for (const fd of [memory, event]) calls.close(fd);
    for (const fd of got.fds) fds.closeReceived(fd);
    for (const fd of got.fds) assert.equal(native().close(fd), EBADF);
    assert.equal(openFds(), baseline);
  });

  it('come with the first byte of their message, and end a read', () => {
    const event = fds.eventfd();
    sendWithFds(left, Buffer.from('ab'), []);
    sendWithFds(left, Buffer.from('cd'), [event]);
    sendWithFds(left, Buffer.from('ef'), [event]);
    const seen: [string, number][] = [];
    const buffer = Buffer.alloc(64);
    for (let i = 0; i < 6; i++) {
      const got = receiveWithFds(right, buffer);
      if (got === undefined) break;
      seen.push([buffer.toString('latin1', 0, got.bytes), got.fds.length]);
      got.fds.forEach(fds.closeReceived);
    }
    // Whether the bytes before are a read of their own is the kernel's affair; that nothing follows a descriptor is relied on.
    assert.equal(seen.map(([text]) => text).join(''), 'abcdef');
    assert.deepEqual(
      seen.filter(([, count]) => count > 0).map(([text]) => text.at(-1)),
      ['d', 'f'],
    );
    calls.close(event);
    assert.equal(openFds(), baseline);
  });

  it('are told about in order: nothing waiting, the end, a peer that is gone', () => {
    const [one, other] = socketPair();
    assert.equal(receiveWithFds(other, Buffer.alloc(8)), undefined);
    sendWithFds(one, Buffer.from('x'), [one]);
    calls.shutdown(one, SHUT_WR);
    const last = receiveWithFds(other, Buffer.alloc(8));
    assert.deepEqual([last?.bytes, last?.fds.length], [1, 1]);
    assert.deepEqual(receiveWithFds(other, Buffer.alloc(8)), { bytes: 0, fds: [], fdsLost: false });
    last?.fds.forEach(fds.closeReceived);
    calls.close(one);
    assert.throws(() => sendWithFds(other, Buffer.from('x'), []), { code: 'EPIPE', syscall: 'sendmsg' });
    calls.close(other);
    assert.equal(openFds(), baseline);
  });

  it('are all closed when more come than there is room for', () => {
    const event = fds.eventfd();
    const room = new Int32Array(4);
    for (const [sent, expected] of [
      [3, 3],
      [4, -1],
      [fds.MESSAGE_FDS_MAX, -1],
    ] as const) {
      assert.equal(sendWithFds(left, Buffer.from('many'), Array(sent).fill(event)), 4);
      assert.equal(native().recvFds(right, Buffer.alloc(8), room), 4, 'the bytes come all the same');
      assert.equal(room[0], expected);
      for (let i = 1; i <= expected; i++) assert.equal(native().close(room[i] as number), 0);
      assert.equal(openFds(), baseline + 1);
    }
    // No room at all, not even for the first.
    sendWithFds(left, Buffer.from('x'), [event]);
    assert.equal(native().recvFds(right, Buffer.alloc(8), room.subarray(0, 1)), 1);
    assert.equal(room[0], -1);
    calls.close(event);
    assert.equal(openFds(), baseline);
  });

  it('may be 253 in a message, and not one more', () => {
    const event = fds.eventfd();
    sendWithFds(left, Buffer.from('x'), Array(fds.MESSAGE_FDS_MAX).fill(event));
    const got = receiveWithFds(right, Buffer.alloc(8));
    assert.equal(got?.fds.length, fds.MESSAGE_FDS_MAX);
    got?.fds.forEach(fds.closeReceived);
    const tooMany = Array(fds.MESSAGE_FDS_MAX + 1).fill(event);
    assert.throws(() => sendWithFds(left, Buffer.from('x'), tooMany), { code: 'EINVAL' });
    calls.close(event);
    assert.equal(openFds(), baseline);
  });

  it('are lost on a stream that takes no byte with them, and come with an empty packet', () => {
    const event = fds.eventfd();
    assert.equal(sendWithFds(left, new Uint8Array(0), [event]), 0);
    assert.equal(receiveWithFds(right, Buffer.alloc(8)), undefined);
    for (const type of [SOCK_SEQPACKET, SOCK_DGRAM]) {
      const [one, other] = socketPair(type);
      assert.equal(sendWithFds(one, new Uint8Array(0), [event, event]), 0);
      const got = receiveWithFds(other, Buffer.alloc(8));
      assert.deepEqual([got?.bytes, got?.fds.length], [0, 2]);
      got?.fds.forEach(fds.closeReceived);
      for (const fd of [one, other]) calls.close(fd);
    }
    calls.close(event);
    assert.equal(openFds(), baseline);
  });

  it('stay where they are when the socket takes no more', () => {
    const [one, other] = socketPair();
    const event = fds.eventfd();
    calls.setOption(one, SOL_SOCKET, SO_SNDBUF, 4096);
    let sent = 0;
    while (sendWithFds(one, Buffer.alloc(1024), [event]) !== undefined) assert.ok(++sent < 1000);
    assert.ok(sent > 0);
    for (const fd of [one, other, event]) calls.close(fd);
    assert.equal(openFds(), baseline, 'what was on the way is the kernel’s');
  });

  it('must be ours to be sent, as must both ends', () => {
    for (const foreign of [0, 1, 2, -1, 1 << 20]) {
      assert.equal(native().sendFds(left, Buffer.from('x'), Int32Array.of(foreign), 1), EBADF);
      assert.equal(native().sendFds(foreign, Buffer.from('x'), new Int32Array(1), 0), EBADF);
      assert.equal(native().recvFds(foreign, Buffer.alloc(1), new Int32Array(1)), EBADF);
      assert.equal(native().closeReceived(foreign), EBADF);
      assert.equal(native().fdStat(foreign), EBADF);
      assert.equal(native().eventfdSignal(foreign), EBADF);
    }
    assert.equal(native().recvFds(right, Buffer.alloc(1), new Int32Array(1)), EAGAIN);
    assert.equal(native().recvFds(right, Buffer.alloc(0), new Int32Array(1)), EINVAL);
    assert.equal(native().recvFds(right, Buffer.alloc(1), new Int32Array(0)), EINVAL);
    assert.equal(native().sendFds(left, Buffer.alloc(1), new Int32Array(1), 2), EINVAL);
    assert.equal(native().sendFds(left, Buffer.alloc(1), new Int32Array(1), -1), EINVAL);
    assert.equal(native().socketpair(AF_UNIX, SOCK_STREAM, new Int32Array(1)), EINVAL);
    assert.throws(() => native().recvFds(right, Buffer.alloc(1), new Uint32Array(4) as never), TypeError);
  });

  it('wake the reactor', async () => {
    const waiting = waitFor(right, EPOLLIN, (events) => (events & EPOLLIN) !== 0);
    sendWithFds(left, Buffer.from('x'), [left]);
    await waiting;
    const got = receiveWithFds(right, Buffer.alloc(8));
    assert.equal(got?.fds.length, 1);
    got?.fds.forEach(fds.closeReceived);
    assert.equal(openFds(), baseline);
  });
});

describe('Unix sockets with names', () => {
  it('carry descriptors between a listener and who connects', async () => {
    const address = encodeSockaddrUn(`\0zerotx-fds-${process.pid}`);
    const listening = calls.socket(AF_UNIX, SOCK_STREAM);
    assert.equal(native().bind(listening, address), 0);
    calls.listen(listening, 1);
    const client = calls.socket(AF_UNIX, SOCK_STREAM);
    assert.equal(native().connect(client, address), 0);
    const server = native().accept(listening, new Uint8Array(110));
    assert.ok(server >= 0);
    sendWithFds(client, Buffer.from('x'), [client]);
    await waitFor(server, EPOLLIN, (events) => (events & EPOLLIN) !== 0);
    const got = receiveWithFds(server, Buffer.alloc(8));
    assert.equal(got?.fds.length, 1);
    got?.fds.forEach(fds.closeReceived);
    for (const fd of [listening, client, server]) calls.close(fd);
  });
});

describe('a process at its limit of descriptors', { timeout: 60_000 }, () => {
  it('closes all of a message that it cannot take whole, and goes on', () => {
    const child = fileURLToPath(new URL('./children/fds-limit.js', import.meta.url));
    const script = 'ulimit -n 64; exec "$0" "$@"';
    const result = spawnSync('sh', ['-c', script, process.execPath, child], {
      encoding: 'utf8',
      timeout: 50_000,
    });
    const { status, signal, stdout, stderr } = result;
    assert.deepEqual({ status, signal, stdout, stderr }, { status: 0, signal: null, stdout: '', stderr: '' });
  });
});

describe('memory files', () => {
  it('have the size and the seals asked for', () => {
    const fd = fds.memfd('a name', 12_345, fds.F_SEAL_SHRINK | fds.F_SEAL_SEAL);
    const path = `/proc/self/fd/${fd}`;
    assert.equal(readFileSync(path).length, 12_345);
    assert.throws(() => writeFileSync(path, ''), { code: 'EPERM' }, 'it cannot be cut');
    calls.close(fd);
    assert.throws(() => fds.memfd('bad seals', 1, 1 << 30), { code: 'EINVAL', syscall: 'memfd_create' });
    assert.throws(() => fds.memfd('x'.repeat(250), 1), { code: 'EINVAL' });
    assert.throws(() => fds.memfd('negative', -1), { code: 'EINVAL' });
    calls.close(fds.memfd('x'.repeat(249), 0));
    calls.close(fds.memfd('', 0));
  });
});

describe('descriptors of node:fs', () => {
  let folder: string;
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'zerotx-fds-'));
  });
  after(() => rmSync(folder, { recursive: true }));

  it('become ours, non-blocking and close-on-exec, once', () => {
    const opened = openSync('/dev/null', 'r+');
    assert.equal(native().close(opened), EBADF);
    assert.equal(fds.adopt(opened), opened);
    assert.equal(flagsOf(opened) & (O_CLOEXEC | O_NONBLOCK), O_CLOEXEC | O_NONBLOCK);
    assert.throws(() => fds.adopt(opened), { code: 'EEXIST' });
    calls.close(opened);
    assert.throws(() => fds.adopt(opened), { code: 'EBADF', syscall: 'fcntl' });
    assert.throws(() => fds.adopt(-1), { code: 'EBADF' });
  });

  it('say of what kind they are; what cannot be polled is refused by the reactor', () => {
    const file = join(folder, 'file');
    writeFileSync(file, 'x');
    for (const [path, kind, pollable] of [
      [file, fds.S_IFREG, false],
      [folder, S_IFDIR, false],
      ['/dev/null', S_IFCHR, false],
    ] as const) {
      const fd = fds.adopt(openSync(path, 'r'));
      assert.equal(fds.fileKind(fd), kind);
      assert.equal(fds.isSafeToWatch(fd), pollable);
      if (!pollable) assert.throws(() => waitForNothing(fd), { code: 'EPERM', syscall: 'epoll_ctl' });
      fds.closeReceived(fd);
    }
    const [one, other] = socketPair();
    assert.equal(fds.fileKind(one), S_IFSOCK);
    assert.ok(fds.isSafeToWatch(one));
    const tcp = calls.socket(AF_INET, SOCK_STREAM);
    const event = fds.eventfd();
    assert.deepEqual([fds.isSafeToWatch(tcp), fds.isSafeToWatch(event)], [false, true]);
    assert.deepEqual(
      [native().isEventfd(tcp), native().isEventfd(one), native().isEventfd(event)],
      [0, 0, 1],
    );
    for (const fd of [tcp, event]) calls.close(fd);
    for (const fd of [one, other]) calls.close(fd);
  });

  function waitForNothing(fd: number): void {
    const result = native().reactorAdd(fd, 0xfffffff0, EPOLLIN);
    if (result === EPERM) throw Object.assign(new Error('refused'), { code: 'EPERM', syscall: 'epoll_ctl' });
  }
});

describe('closing what a peer sent', { timeout: 30_000 }, () => {
  it('waits for nothing, whatever is behind it', async () => {
    const pair = await tcpPair({ receiveBytes: 4096 });
    const lingering = new Uint8Array(Int32Array.of(1, 30).buffer);
    assert.equal(native().setsockopt(pair.client, SOL_SOCKET, SO_LINGER, lingering), 0);
    while (native().sendv(pair.client, [Buffer.alloc(1 << 20)], 1, 0) > 0);
    const [one, other] = socketPair();
    sendWithFds(one, Buffer.from('x'), [pair.client]);
    const [received = -1] = receiveWithFds(other, Buffer.alloc(8))?.fds ?? [];
    calls.close(pair.client);
    // The last descriptor of a socket that lingers: close(2) takes 30 s, or until the other side has read all.
    const began = performance.now();
    fds.closeReceived(received);
    assert.ok(performance.now() - began < 5_000);
    assert.equal(native().close(received), EBADF, 'not ours any more');
    const into = [Buffer.alloc(1 << 20)];
    await waitFor(pair.server, EPOLLIN, () => {
      let got: number;
      do got = native().readv(pair.server, into, 1);
      while (got > 0);
      return got === 0;
    });
    await until('the end of close(2)', () => !existsSync(`/proc/self/fd/${received}`));
    pair.close();
    for (const fd of [one, other]) calls.close(fd);
  });

  it('is done when it returns, as a rule, whatever it is', async () => {
    const baseline = openFds();
    const [one, other] = socketPair();
    const folder = fds.adopt(openSync('/', 'r'));
    for (const fd of [one, other, folder, fds.eventfd(), fds.memfd('m', 1)]) {
      assert.equal(native().closeReceived(fd), 0);
      assert.equal(native().close(fd), EBADF);
    }
    await until('all are closed', () => openFds() === baseline);
  });
});
