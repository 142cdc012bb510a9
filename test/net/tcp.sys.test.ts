/** A channel's connection: how it begins, what it says of the peer, and the sockets that cannot lend. */
import assert from 'node:assert/strict';
import { afterEach, describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';
import { TcpChannel, type TcpOptions } from '../../src/net/tcp.ts';
import { listenTcp } from '../../src/net/tcp-listener.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { AF_INET, EPOLLOUT, SO_ZEROCOPY, SOCK_STREAM, SOL_SOCKET } from '../../src/sys/constants.ts';
import {
  acceptOne,
  channelPair,
  closeChannels,
  fill,
  lend,
  listen,
  receive,
  Watched,
  write,
} from '../support/channels.ts';
import { DEADLINE_MS, waitFor } from '../support/sockets.ts';

const KIB = 1024;
const PIECE = 64 * KIB;
/** A port of this file alone, on an address of this file alone. */
const ADDRESS = '127.37.0.1';
const PORT = 16_385;

function options(over: Partial<TcpOptions> = {}): TcpOptions {
  return { mode: 'force', counters: zerocopyCounters(), ...over };
}

afterEach(closeChannels);

describe('dial and listen', { timeout: 3 * DEADLINE_MS }, () => {
  it('connect two channels that know each other', async () => {
    const server = new Watched();
    const accepted: TcpChannel[] = [];
    const listener = listenTcp({ address: ADDRESS, port: PORT, backlog: 8 }, (fd, peer) => {
      accepted.push(TcpChannel.adopt(fd, peer, options(), server));
      server.connected();
    });
    const client = new Watched();
    const local = { address: '127.37.0.2', port: 0 };
    const keepAlive = { idleS: 5, intervalS: 5, count: 12 };
    const dialled = TcpChannel.dial(local, { address: ADDRESS, port: PORT }, options({ keepAlive }), client);
    assert.equal(dialled.writable, false);
    await client.until(() => client.events.includes('connected'));
    await server.until(() => accepted.length === 1);
    const [other] = accepted as [TcpChannel];
    assert.equal(dialled.writable, true);
    assert.deepEqual([dialled.remoteAddress, dialled.remotePort], [ADDRESS, PORT]);
    assert.equal(other.remoteAddress, local.address);
    assert.equal(other.remotePort, dialled.localEndpoint.port);
    const lent = lend(PIECE);
    assert.equal(dialled.sendLent(lent.ubuf, [lent.bytes], 1), PIECE);
    const into = Buffer.alloc(2 * PIECE);
    let got = 0;
    await server.until(() => {
      got += Math.max(0, other.readv([into.subarray(got)], 1));
      return got === PIECE;
    });
    assert.ok(into.subarray(0, got).equals(lent.bytes));
    dialled.close();
    await server.until(() => other.readv([into], 1) === 0);
    other.close();
    listener.close();
    listener.close();
  });

  it('report a refused connection, once, with its address', async () => {
    const { fd, port } = listen('127.0.0.1');
    calls.close(fd);
    const watched = new Watched();
    const channel = TcpChannel.dial(
      { address: '127.0.0.1', port: 0 },
      { address: '127.0.0.1', port },
      options(),
      watched,
    );
    await watched.until(() => watched.error !== undefined);
    const { code, address, port: failedPort, next } = watched.error!;
    assert.deepEqual(
      { code, address, port: failedPort, next },
      { code: 'ECONNREFUSED', address: '127.0.0.1', port, next: 'reconnect' },
    );
    assert.deepEqual(watched.events, ['failed']);
    assert.equal(channel.closed, true);
  });

  it('throw what cannot be done here, and leave no descriptor behind', () => {
    const { fd, port } = listen('127.0.0.1');
    const target = { address: '127.0.0.1', port };
    const dialFrom = (address: string) =>
      TcpChannel.dial({ address, port: 0 }, target, options(), new Watched());
    assert.throws(() => dialFrom('192.0.2.1'), { code: 'EADDRNOTAVAIL', syscall: 'bind' });
    const accept = () => assert.fail('nobody dials');
    assert.throws(() => listenTcp({ ...target, backlog: 1 }, accept), {
      code: 'EADDRINUSE',
    });
    calls.close(fd);
  });

  it('give up on a channel that is closed while it connects', async () => {
    const { fd, port } = listen('127.0.0.1');
    const watched = new Watched();
    const channel = TcpChannel.dial(
      { address: '127.0.0.1', port: 0 },
      { address: '127.0.0.1', port },
      options(),
      watched,
    );
    channel.close();
    const peer = await acceptOne(fd);
    assert.deepEqual(await receive(peer), { total: 0, end: 0 });
    assert.deepEqual(watched.events, []);
    calls.close(peer);
    calls.close(fd);
  });
});

describe('acknowledged bytes', { timeout: 3 * DEADLINE_MS }, () => {
  it('are those that the peer TCP took, grow with its reading, and do not count the FIN', async () => {
    const pair = await channelPair({ receiveBytes: 64 * KIB });
    const { channel, watched } = pair;
    fill(pair, PIECE, 1000);
    const sent = channel.writtenBytes;
    const early = channel.ackedBytes();
    assert.ok(early < sent, `${early} of ${sent}`);
    channel.shutdownWrite();
    assert.ok(channel.ackedBytes() < sent);
    await receive(pair.peer, sent);
    let last = early;
    await watched.until(() => {
      const acked = channel.ackedBytes();
      assert.ok(acked >= last && acked <= sent);
      last = acked;
      return channel.outstanding === 0;
    });
    assert.equal(channel.ackedBytes(), sent);
  });

  it('stand still once the channel is closed, though an abort moves what the kernel would say', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    fill(pair, PIECE, 1000);
    const before = pair.channel.ackedBytes();
    pair.channel.reset();
    const after = pair.channel.ackedBytes();
    assert.ok(after >= before && after < pair.channel.writtenBytes);
    assert.equal(pair.channel.ackedBytes(), after);
  });
});

describe('readiness', { timeout: 3 * DEADLINE_MS }, () => {
  it('is remembered until a call meets the end of it', async () => {
    const pair = await channelPair({ receiveBytes: 4 * KIB });
    const { channel, watched } = pair;
    await watched.until(() => channel.writable);
    fill(pair, PIECE, 1000);
    assert.equal(channel.writable, true, 'a part was taken: only a full buffer ends it');
    assert.equal(channel.send([Buffer.alloc(PIECE)], 1, false), 0);
    assert.equal(channel.writable, false);
    const room = watched.until(() => channel.writable);
    await receive(pair.peer, channel.writtenBytes);
    await room;
    native().sendv(pair.peer, [Buffer.from('abc')], 1, 0);
    await watched.until(() => channel.readable);
    const into = Buffer.alloc(2);
    assert.equal(channel.readv([into], 1), 2);
    assert.equal(channel.readable, true);
    assert.equal(channel.readv([into], 1), 1);
    assert.equal(channel.readv([into], 1), -errnoOf('EAGAIN'));
    assert.equal(channel.readable, false);
  });
});

/** Multipath TCP takes the options of TCP but refuses SO_ZEROCOPY; the flag is then ignored. */
const IPPROTO_MPTCP = 262;
const probe = native().socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
const refuses = probe >= 0 && native().setsockoptInt(probe, SOL_SOCKET, SO_ZEROCOPY, 1) < 0;
if (probe >= 0) calls.close(probe);
const skip = refuses ? false : 'needs a kernel with multipath TCP that refuses SO_ZEROCOPY on it';

it('a socket that refuses the option never lends, even when forced', {
  skip,
  timeout: 3 * DEADLINE_MS,
}, async () => {
  const { fd, port } = listen('127.0.0.1');
  const client = calls.socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
  calls.connect(client, '127.0.0.1', port);
  await waitFor(client, EPOLLOUT, (events) => (events & EPOLLOUT) !== 0);
  const peer = await acceptOne(fd);
  const watched = new Watched();
  const counters = zerocopyCounters();
  const channel = TcpChannel.adopt(client, { address: '127.0.0.1', port }, options({ counters }), watched);
  const lent = lend(4 * PIECE);
  const received = receive(peer, 4 * PIECE);
  await write({ channel, watched }, lent);
  await received;
  assert.deepEqual(lent.outcomes, [{ bytes: 4 * PIECE, copiedBytes: 4 * PIECE, exact: true }]);
  assert.equal(counters.lentCalls, 0);
  channel.reset();
  calls.close(peer);
  calls.close(fd);
});
