import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  EPOLLERR,
  EPOLLRDHUP,
  IPPROTO_IP,
  MSG_ZEROCOPY,
  SO_ERROR,
  SO_ZEROCOPY,
  SOL_SOCKET,
} from '../../src/sys/constants.ts';
import { completionRange, ERRQUEUE_WORDS, isZerocopyCompletion } from '../../src/wire/errqueue.ts';
import { encodeSockaddr } from '../../src/wire/sockaddr.ts';
import {
  closeWithReset,
  DEADLINE_MS,
  discard,
  drain,
  fillZerocopy,
  lendable,
  released,
  tcpPair,
  udpSocket,
  waitFor,
} from '../support/sockets.ts';

// linux/in.h
const IP_RECVERR = 11;
const SO_EE_ORIGIN_ICMP = 2; // linux/errqueue.h

/** How many calls a record confirms. */
function callCount(record: Uint32Array): number {
  const { lo, hi } = completionRange(record, 0);
  return ((hi - lo) >>> 0) + 1;
}

/** Numbers confirmed by `records`; fails on a gap, a repeat or a foreign record. */
function confirmed(records: readonly Uint32Array[]): number {
  let next = 0;
  for (const record of records) {
    assert.ok(isZerocopyCompletion(record, 0));
    assert.equal(completionRange(record, 0).lo, next, 'TCP confirms in order');
    next += callCount(record);
  }
  return next;
}

describe('zero-copy sends', { timeout: 12 * DEADLINE_MS }, () => {
  it('are counted until the error queue confirms them', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const stop = discard(pair.server);
    const sent = fillZerocopy(pair.client, lendable(64 * 1024), 20);
    assert.ok(sent > 0);
    assert.equal(native().outstanding(pair.client), sent);
    assert.equal(confirmed(await released(pair.client)), sent);
    assert.equal(native().outstanding(pair.client), 0);
    stop();
    pair.close();
  });

  it('complete in ranges when nobody reads the queue meanwhile', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const stop = discard(pair.server);
    const memory = lendable(4096);
    let sent = 0;
    // Every confirmation is an edge; the queue is left alone until the send buffer is empty, so records merge.
    await waitFor(pair.client, EPOLLERR, () => {
      if (sent < 100) sent += fillZerocopy(pair.client, memory, 10);
      return sent >= 100 && native().outq(pair.client) === 0;
    });
    const records = await released(pair.client);
    assert.equal(confirmed(records), sent);
    assert.ok(records.length < sent, `${records.length} records for ${sent} calls`);
    stop();
    pair.close();
  });

  it('are all released on one idle socket, one after the other, a thousand times', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const stop = discard(pair.server);
    const memory = lendable(8192);
    let confirmedCalls = 0;
    await waitFor(pair.client, EPOLLERR, () => {
      for (const record of drain(pair.client)) confirmedCalls += callCount(record);
      if (native().outstanding(pair.client) > 0) return false;
      if (confirmedCalls === 1000) return true;
      assert.equal(native().sendv(pair.client, [memory], 1, MSG_ZEROCOPY), memory.length);
      return false;
    });
    assert.equal(confirmedCalls, 1000);
    stop();
    pair.close();
  });

  it('are released to a program that neither reads nor writes again', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const stop = discard(pair.server);
    assert.ok(native().sendv(pair.client, [lendable(1 << 20)], 1, MSG_ZEROCOPY) > 0);
    // Not even interest in reading or writing: EPOLLERR comes unasked.
    await waitFor(pair.client, 0, () => drain(pair.client).length > 0);
    assert.equal(native().outstanding(pair.client), 0);
    stop();
    pair.close();
  });

  it('are all released by abort(), at once', async () => {
    const pair = await tcpPair({ zerocopy: true, receiveBytes: 4096 });
    const sent = fillZerocopy(pair.client, lendable(64 * 1024), 1000);
    drain(pair.client);
    assert.ok(native().outstanding(pair.client) > 0, 'the peer does not read');
    assert.ok(sent < 1000);
    assert.equal(native().abort(pair.client), 0);
    drain(pair.client);
    assert.equal(native().outstanding(pair.client), 0);
    pair.close();
  });

  it('come back before the error when the peer resets with 50 of them pending', async () => {
    const pair = await tcpPair({ zerocopy: true, receiveBytes: 4096 });
    const memory = lendable(4096);
    const filled = lendable(256 * 1024);
    native().sendv(pair.client, [filled], 1, 0);
    assert.equal(fillZerocopy(pair.client, memory, 50), 50);
    closeWithReset(pair.server);
    await waitFor(pair.client, EPOLLRDHUP, (events) => (events & EPOLLRDHUP) !== 0);
    assert.equal(confirmed(drain(pair.client)), 50);
    assert.equal(native().outstanding(pair.client), 0);
    assert.equal(native().getsockoptInt(pair.client, SOL_SOCKET, SO_ERROR), errnoOf('ECONNRESET'));
    assert.equal(native().getsockoptInt(pair.client, SOL_SOCKET, SO_ERROR), 0);
    calls.close(pair.client);
  });

  it('survive the switch-off of the option', async () => {
    const pair = await tcpPair({ zerocopy: true });
    const stop = discard(pair.server);
    const memory = lendable(4096);
    assert.equal(fillZerocopy(pair.client, memory, 3), 3);
    calls.setOption(pair.client, SOL_SOCKET, SO_ZEROCOPY, 0);
    assert.equal(fillZerocopy(pair.client, memory, 3), 3);
    assert.equal(native().outstanding(pair.client), 3);
    assert.equal(confirmed(await released(pair.client)), 3);
    stop();
    pair.close();
  });
});

describe('drainErrors', { timeout: 3 * DEADLINE_MS }, () => {
  it('reads on where a full array made it stop, among records of other origins', async () => {
    const { fd } = udpSocket();
    calls.setOption(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
    calls.setOption(fd, IPPROTO_IP, IP_RECVERR, 1);
    const closed = udpSocket();
    calls.close(closed.fd);
    const target = encodeSockaddr('127.0.0.1', closed.port);
    const memory = [lendable(4096)];
    const wanted = 6;
    let sent = 0;
    // Each datagram leaves a completion and an ICMP error; the error of one also fails the call after it, once.
    for (let tries = 0; sent < wanted && tries < 3 * wanted; tries++) {
      const n = native().sendGso(fd, memory, 1, MSG_ZEROCOPY, 0, target);
      if (n > 0) sent += 1;
      else assert.equal(n, -errnoOf('ECONNREFUSED'));
    }
    assert.equal(sent, wanted);
    const one = new Uint32Array(ERRQUEUE_WORDS + 3);
    const origins = { zerocopy: 0, icmp: 0 };
    await waitFor(fd, 0, () => {
      while (native().drainErrors(fd, one) === 1) {
        if (isZerocopyCompletion(one, 0)) origins.zerocopy += callCount(one);
        else if (one[1] === SO_EE_ORIGIN_ICMP) origins.icmp += 1;
        assert.deepEqual([...one.subarray(ERRQUEUE_WORDS)], [0, 0, 0], 'nothing beyond the record');
      }
      // outstanding() is no help here: the calls that failed may have taken numbers, for all it knows.
      return origins.zerocopy === wanted && origins.icmp === wanted;
    });
    assert.deepEqual(origins, { zerocopy: wanted, icmp: wanted });
    assert.equal(native().drainErrors(fd, one), 0);
    calls.close(fd);
  });

  it('refuses an array without room for a record, and finds an empty queue empty', async () => {
    const pair = await tcpPair({ zerocopy: true });
    assert.equal(native().drainErrors(pair.client, new Uint32Array(5)), -errnoOf('EINVAL'));
    assert.equal(native().drainErrors(pair.client, new Uint32Array(6)), 0);
    pair.close();
  });
});
