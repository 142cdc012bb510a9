import assert from 'node:assert/strict';
import { readFileSync, readlinkSync } from 'node:fs';
import { describe, it } from 'node:test';
import { errnoOf, type ZerotxError } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  AF_INET,
  AF_INET6,
  EPOLLIN,
  EPOLLRDHUP,
  IPPROTO_IPV6,
  IPPROTO_TCP,
  IPV6_V6ONLY,
  SHUT_WR,
  SO_ERROR,
  SO_LINGER,
  SOCK_STREAM,
  SOL_SOCKET,
  TCP_NODELAY,
} from '../../src/sys/constants.ts';
import { DEADLINE_MS, listener, tcpPair, waitFor } from '../support/sockets.ts';

const EAGAIN = -errnoOf('EAGAIN');
const EBADF = -errnoOf('EBADF');

/** Reads until `bytes` arrived. */
async function receive(fd: number, bytes: number): Promise<Buffer> {
  const into = Buffer.alloc(bytes);
  let got = 0;
  await waitFor(fd, EPOLLIN, () => {
    for (;;) {
      const n = native().readv(fd, [into.subarray(got)], 1);
      if (n <= 0) break;
      got += n;
    }
    return got === bytes;
  });
  return into;
}

describe('TCP sockets', { timeout: 6 * DEADLINE_MS }, () => {
  it('carry gathered buffers to scattered ones', async () => {
    const pair = await tcpPair();
    const parts = [Buffer.from('gather '), Buffer.alloc(0), Buffer.from('and'), Buffer.from(' scatter')];
    assert.equal(native().sendv(pair.client, parts, parts.length, 0), 18);
    await waitFor(pair.server, EPOLLIN, (events) => (events & EPOLLIN) !== 0);
    const into = [Buffer.alloc(5), Buffer.alloc(0), Buffer.alloc(50)];
    assert.equal(native().readv(pair.server, into, 3), 18);
    assert.equal(Buffer.concat(into).subarray(0, 18).toString(), 'gather and scatter');
    pair.close();
  });

  it('send only the first count entries, up to 64', async () => {
    const pair = await tcpPair();
    const parts = Array.from({ length: 65 }, (_, i) => Buffer.of(i));
    assert.equal(native().sendv(pair.client, parts, 2, 0), 2);
    assert.equal(native().sendv(pair.client, parts.slice(2), 62, 0), 62);
    assert.deepEqual(
      [...(await receive(pair.server, 64))],
      Array.from({ length: 64 }, (_, i) => i),
    );
    assert.throws(() => native().sendv(pair.client, parts, 65, 0), RangeError);
    assert.throws(() => native().sendv(pair.client, parts, -1, 0), RangeError);
    assert.throws(() => native().sendv(pair.client, parts.slice(0, 2), 3, 0), TypeError);
    pair.close();
  });

  it('know both their addresses', async () => {
    const pair = await tcpPair();
    assert.deepEqual(calls.localAddress(pair.client), calls.peerAddress(pair.server));
    assert.deepEqual(calls.peerAddress(pair.client), calls.localAddress(pair.server));
    assert.equal(calls.localAddress(pair.client).address, '127.0.0.1');
    pair.close();
  });

  it('report the end of the stream as 0, and an empty socket as EAGAIN', async () => {
    const pair = await tcpPair();
    const into = [Buffer.alloc(10)];
    assert.equal(native().readv(pair.server, into, 1), EAGAIN);
    calls.shutdown(pair.client, SHUT_WR);
    await waitFor(pair.server, EPOLLIN | EPOLLRDHUP, (events) => (events & EPOLLRDHUP) !== 0);
    assert.equal(native().readv(pair.server, into, 1), 0);
    pair.close();
  });

  it('tell who refused a connection', async () => {
    const { fd: unused, port } = listener();
    calls.close(unused);
    const fd = calls.socket(AF_INET, SOCK_STREAM);
    // Over loopback the refusal may come before connect(2) returns.
    try {
      calls.connect(fd, '127.0.0.1', port);
      await waitFor(fd, EPOLLIN, (events) => events !== 0);
      const pending = calls.getOption(fd, SOL_SOCKET, SO_ERROR);
      assert.equal(pending, errnoOf('ECONNREFUSED'));
      assert.equal(calls.getOption(fd, SOL_SOCKET, SO_ERROR), 0, 'reading it clears it');
    } catch (error) {
      assert.equal((error as ZerotxError).code, 'ECONNREFUSED');
      assert.equal((error as ZerotxError).next, 'reconnect');
    }
    calls.close(fd);
  });

  it('carry IPv6, and IPv4 in its mapped form', async () => {
    const listening = calls.socketFor('::', SOCK_STREAM);
    calls.setOption(listening, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    calls.bind(listening, '::', 0);
    calls.listen(listening, 4);
    const { port } = calls.localAddress(listening);
    for (const address of ['::1', '127.0.0.1']) {
      const client = calls.socketFor(address, SOCK_STREAM);
      calls.connect(client, address, port);
      let accepted: calls.Accepted | undefined;
      await waitFor(listening, EPOLLIN, () => {
        accepted ??= calls.accept(listening);
        return accepted !== undefined;
      });
      assert.equal(accepted?.peer.address, address);
      assert.equal(accepted?.peer.family, AF_INET6);
      calls.close(accepted?.fd ?? -1);
      calls.close(client);
    }
    calls.close(listening);
  });

  it('have options as numbers and as structures', async () => {
    const pair = await tcpPair();
    calls.setOption(pair.client, IPPROTO_TCP, TCP_NODELAY, 1);
    assert.equal(calls.getOption(pair.client, IPPROTO_TCP, TCP_NODELAY), 1);
    const wanted = new Uint8Array(Int32Array.of(1, 7).buffer);
    assert.equal(native().setsockopt(pair.client, SOL_SOCKET, SO_LINGER, wanted), 0);
    const linger = new Int32Array(4);
    assert.equal(calls.getOptionBytes(pair.client, SOL_SOCKET, SO_LINGER, new Uint8Array(linger.buffer)), 8);
    assert.deepEqual([...linger], [1, 7, 0, 0]);
    assert.throws(() => calls.setOption(pair.client, SOL_SOCKET, 9999, 1), {
      code: 'ENOPROTOOPT',
      syscall: 'setsockopt',
    });
    pair.close();
  });

  it('stop at once when aborted: the peer meets a reset', async () => {
    const pair = await tcpPair();
    assert.equal(native().abort(pair.client), 0);
    await waitFor(pair.server, EPOLLIN | EPOLLRDHUP, (events) => events !== 0);
    assert.equal(native().readv(pair.server, [Buffer.alloc(1)], 1), -errnoOf('ECONNRESET'));
    pair.close();
  });

  it('name the address in set-up errors', () => {
    const { fd, port } = listener();
    const other = calls.socket(AF_INET, SOCK_STREAM);
    assert.throws(() => calls.bind(other, '127.0.0.1', port), {
      code: 'EADDRINUSE',
      syscall: 'bind',
      address: '127.0.0.1',
      port,
    });
    calls.close(other);
    calls.close(fd);
  });
});

describe('descriptors', () => {
  it('must be open and of this environment', () => {
    const fd = calls.socket(AF_INET, SOCK_STREAM);
    calls.close(fd);
    // 0 to 2 exist but are not ours: closing one by mistake would be a disaster for somebody else.
    for (const foreign of [fd, 0, 1, 2, -1, 1 << 30]) {
      assert.equal(native().close(foreign), EBADF);
      assert.equal(native().sendv(foreign, [], 0, 0), EBADF);
      assert.equal(native().readv(foreign, [], 0), EBADF);
      assert.equal(native().outq(foreign), EBADF);
      assert.equal(native().outstanding(foreign), EBADF);
      assert.equal(native().drainErrors(foreign, new Uint32Array(6)), EBADF);
    }
    assert.throws(() => calls.close(fd), { code: 'EBADF', syscall: 'close' });
  });

  it('are not inherited by child processes, and do not block', () => {
    const fd = calls.socket(AF_INET, SOCK_STREAM);
    assert.match(readlinkSync(`/proc/self/fd/${fd}`), /^socket:/);
    const flags = /flags:\s+(\d+)/.exec(readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8'))?.[1] ?? '';
    const value = Number.parseInt(flags, 8);
    assert.ok((value & 0o2000000) !== 0, 'O_CLOEXEC');
    assert.ok((value & 0o4000) !== 0, 'O_NONBLOCK');
    calls.close(fd);
  });

  it('take wrong kinds of arguments as bugs', () => {
    const sys = native() as unknown as Record<string, (...args: unknown[]) => unknown>;
    assert.throws(() => sys.socket?.(), { name: 'TypeError', code: 'ERR_INVALID_ARG_TYPE' });
    assert.throws(() => sys.bind?.(1, 'text'), TypeError);
    assert.throws(() => sys.sendv?.(1, [new Uint32Array(1)], 1, 0), TypeError);
    assert.throws(() => sys.sendv?.(1, { 0: new Uint8Array(1) }, 1, 0), TypeError);
    assert.throws(() => sys.drainErrors?.(1, new Uint8Array(24)), TypeError);
    assert.throws(() => sys.reactorStart?.(new Uint32Array(4)), TypeError);
  });
});
