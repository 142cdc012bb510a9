/**
 * What the kernel is believed to do, each belief with a test of its own: when one of these fails on a new kernel, the
 * code that relies on it is named.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  AF_INET,
  AF_UNIX,
  EPOLLERR,
  EPOLLIN,
  IPPROTO_TCP,
  MSG_ZEROCOPY,
  SHUT_WR,
  SO_ERROR,
  SO_SNDBUF,
  SO_ZEROCOPY,
  SOCK_STREAM,
  SOL_SOCKET,
  TCP_CONGESTION,
} from '../../src/sys/constants.ts';
import { completionRange, isCopied } from '../../src/wire/errqueue.ts';
import {
  DEADLINE_MS,
  discard,
  drain,
  fillZerocopy,
  lendable,
  listener,
  released,
  tcpPair,
  waitFor,
} from '../support/sockets.ts';

describe('kernel: congestion control', () => {
  it('an ordinary process may choose reno for a connection', () => {
    const fd = calls.socket(AF_INET, SOCK_STREAM);
    try {
      assert.equal(native().setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, Buffer.from('reno')), 0);
      const name = Buffer.alloc(16);
      calls.getOptionBytes(fd, IPPROTO_TCP, TCP_CONGESTION, name);
      assert.equal(name.toString('latin1').replace(/\0+$/, ''), 'reno');
    } finally {
      calls.close(fd);
    }
  });
});

describe('kernel: SO_ZEROCOPY', { timeout: 6 * DEADLINE_MS }, () => {
  it('is inherited by accepted sockets (so the listener is where to set it)', async () => {
    const { fd: listening, port } = listener();
    calls.setOption(listening, SOL_SOCKET, SO_ZEROCOPY, 1);
    const client = calls.socket(AF_INET, SOCK_STREAM);
    calls.connect(client, '127.0.0.1', port);
    let accepted: calls.Accepted | undefined;
    await waitFor(listening, EPOLLIN, () => {
      accepted ??= calls.accept(listening);
      return accepted !== undefined;
    });
    const server = accepted?.fd ?? -1;
    assert.equal(calls.getOption(server, SOL_SOCKET, SO_ZEROCOPY), 1);
    const stop = discard(client);
    assert.equal(fillZerocopy(server, lendable(4096), 1), 1);
    assert.equal(native().outstanding(server), 1, 'the addon knows it, too');
    assert.equal((await released(server)).length, 1);
    stop();
    for (const fd of [listening, client, server]) calls.close(fd);
  });

  it('must be set: the flag alone is ignored, and never confirmed', async () => {
    const pair = await tcpPair();
    assert.equal(native().sendv(pair.client, [lendable(4096)], 1, MSG_ZEROCOPY), 4096);
    assert.equal(native().outstanding(pair.client), 0);
    await readable(pair.server);
    assert.equal(native().readv(pair.server, [Buffer.alloc(4096)], 1), 4096);
    // The answer carries the acknowledgement, with which a confirmation would have come.
    native().sendv(pair.server, [Buffer.alloc(1)], 1, 0);
    await readable(pair.client);
    assert.equal(native().outq(pair.client), 0);
    assert.deepEqual(drain(pair.client), []);
    pair.close();
  });

  it('takes 0 and 1 only, and not on every family', () => {
    const tcp = calls.socket(AF_INET, SOCK_STREAM);
    assert.throws(() => calls.setOption(tcp, SOL_SOCKET, SO_ZEROCOPY, 2), { code: 'EINVAL' });
    const unix = calls.socket(AF_UNIX, SOCK_STREAM);
    const result = native().setsockoptInt(unix, SOL_SOCKET, SO_ZEROCOPY, 1);
    assert.ok(result === -errnoOf('EOPNOTSUPP') || result === -524, `${result}`);
    calls.close(tcp);
    calls.close(unix);
  });

  it('numbers a partial send as one, and a refused one not at all', async () => {
    const pair = await tcpPair({ zerocopy: true, receiveBytes: 4096 });
    // Small enough for an ordinary user's RLIMIT_MEMLOCK, larger than the send buffer.
    calls.setOption(pair.client, SOL_SOCKET, SO_SNDBUF, 64 * 1024);
    const memory = lendable(2 << 20);
    const first = native().sendv(pair.client, [memory], 1, MSG_ZEROCOPY);
    assert.ok(first > 0 && first < memory.length, 'partial');
    const next = native().sendv(pair.client, [memory], 1, MSG_ZEROCOPY);
    const numbers = next > 0 ? 2 : 1;
    assert.equal(
      native().sendv(pair.client, [Buffer.alloc(0)], 1, MSG_ZEROCOPY),
      0,
      'nothing sent, no number',
    );
    discard(pair.server);
    const records = await released(pair.client);
    assert.equal(completionRange(records.at(-1) as Uint32Array, 0).hi, numbers - 1);
    pair.close();
  });

  it('copies on loopback, and says so', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const stop = discard(pair.server);
    fillZerocopy(pair.client, lendable(4096), 1);
    assert.ok(isCopied((await released(pair.client))[0] as Uint32Array, 0));
    stop();
    pair.close();
  });
});

function readable(fd: number): Promise<void> {
  return waitFor(fd, EPOLLIN, (events) => (events & EPOLLIN) !== 0);
}

describe('kernel: SIOCOUTQ', { timeout: 6 * DEADLINE_MS }, () => {
  it('is written minus acknowledged, so it falls to 0 though the peer program read nothing', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const size = 8192;
    native().sendv(pair.client, [lendable(size)], 1, MSG_ZEROCOPY);
    // The confirmation of a zero-copy call comes with its acknowledgement.
    await released(pair.client);
    assert.equal(native().outq(pair.client), 0);
    assert.equal(
      native().readv(pair.server, [Buffer.alloc(size)], 1),
      size,
      'acknowledged, unread until now',
    );
    pair.close();
  });

  it('counts what a full receiver did not take', async () => {
    const pair = await tcpPair({ receiveBytes: 4096 });
    let written = 0;
    for (;;) {
      const n = native().sendv(pair.client, [Buffer.alloc(256 * 1024)], 1, 0);
      if (n <= 0) break;
      written += n;
    }
    const queued = native().outq(pair.client);
    assert.ok(queued > 0 && queued <= written);
    let received = 0;
    const into = [Buffer.alloc(256 * 1024)];
    await waitFor(pair.server, EPOLLIN, () => {
      for (let n = 1; n > 0; ) {
        n = native().readv(pair.server, into, 1);
        if (n > 0) received += n;
      }
      return received === written;
    });
    assert.ok(native().outq(pair.client) < queued);
    pair.close();
  });

  it('counts a FIN as one byte until it is acknowledged', async () => {
    const pair = await tcpPair({ receiveBytes: 4096 });
    while (native().sendv(pair.client, [Buffer.alloc(256 * 1024)], 1, 0) > 0);
    const before = native().outq(pair.client);
    calls.shutdown(pair.client, SHUT_WR);
    assert.equal(native().outq(pair.client), before + 1);
    pair.close();
  });

  it('is worthless after connect(AF_UNSPEC): it jumps (so freeze the count before)', async () => {
    const pair = await tcpPair({ receiveBytes: 4096 });
    let written = 0;
    for (;;) {
      const n = native().sendv(pair.client, [Buffer.alloc(256 * 1024)], 1, 0);
      if (n <= 0) break;
      written += n;
    }
    const acked = written - native().outq(pair.client);
    native().abort(pair.client);
    const after = native().outq(pair.client);
    assert.notEqual(written - after, acked);
    pair.close();
  });
});

describe('kernel: error queue', { timeout: 3 * DEADLINE_MS }, () => {
  it('does not make reads, writes or SO_ERROR fail', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const stop = discard(pair.server);
    native().sendv(pair.client, [lendable(4096)], 1, MSG_ZEROCOPY);
    await waitFor(pair.client, 0, (events) => (events & EPOLLERR) !== 0);
    assert.equal(native().getsockoptInt(pair.client, SOL_SOCKET, SO_ERROR), 0);
    assert.equal(native().sendv(pair.client, [Buffer.alloc(10)], 1, 0), 10);
    assert.equal(native().readv(pair.client, [Buffer.alloc(10)], 1), -errnoOf('EAGAIN'));
    assert.equal(drain(pair.client).length, 1, 'and none of these took the record');
    stop();
    pair.close();
  });

  it('merges adjacent numbers into one record while nobody reads', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const stop = discard(pair.server);
    const memory = lendable(4096);
    assert.equal(fillZerocopy(pair.client, memory, 1), 1);
    await waitFor(pair.client, 0, (events) => (events & EPOLLERR) !== 0);
    assert.equal(fillZerocopy(pair.client, memory, 1), 1);
    // One edge per confirmation, also when the record is merged into an unread one.
    let edges = 0;
    await waitFor(pair.client, 0, (events) => {
      if ((events & EPOLLERR) !== 0) edges += 1;
      return edges > 0 && native().outq(pair.client) === 0;
    });
    const records = drain(pair.client);
    assert.deepEqual(
      records.map((record) => completionRange(record, 0)),
      [{ lo: 0, hi: 1 }],
    );
    stop();
    pair.close();
  });
});
