/** Datagrams in batches, on loopback: one call that sends many, one that receives many, and what goes wrong with either. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  AF_INET6,
  EPOLLIN,
  IPPROTO_IPV6,
  MSG_ZEROCOPY,
  SO_ERROR,
  SO_ZEROCOPY,
  SOCK_DGRAM,
  SOL_SOCKET,
  SOL_UDP,
  UDP_GRO,
} from '../../src/sys/constants.ts';
import { ERRQUEUE_WORDS } from '../../src/wire/errqueue.ts';
import { decodeSockaddr, encodeSockaddr, SOCKADDR_BYTES } from '../../src/wire/sockaddr.ts';
import { DEADLINE_MS, lendable, released, udpSocket, waitFor } from '../support/sockets.ts';
import { skipFamily } from '../support/udp.ts';

const EINVAL = -errnoOf('EINVAL');
const EAGAIN = -errnoOf('EAGAIN');

interface Received {
  readonly text: string;
  readonly segmentBytes: number;
  readonly cut: boolean;
  readonly port: number;
}

/** Receives until `count` messages came, at most `perCall` of them in a call. */
async function receive(fd: number, slotBytes: number, count: number, perCall = 64): Promise<Received[]> {
  const buffer = Buffer.alloc(slotBytes * perCall);
  const info = new Uint32Array(4 * perCall);
  const names = new Uint8Array(SOCKADDR_BYTES * perCall);
  const all: Received[] = [];
  await waitFor(fd, EPOLLIN, () => {
    for (;;) {
      const n = native().recvBatch(fd, buffer, slotBytes, 0, info, names);
      if (n < 0) {
        assert.equal(n, EAGAIN);
        return all.length >= count;
      }
      assert.ok(n <= perCall);
      for (let i = 0; i < n; i++) {
        const [length = 0, segmentBytes = 0, cut, nameLength = 0] = info.subarray(4 * i, 4 * i + 4);
        const name = names.subarray(SOCKADDR_BYTES * i, SOCKADDR_BYTES * (i + 1));
        all.push({
          text: buffer.toString('latin1', slotBytes * i, slotBytes * i + length),
          segmentBytes,
          cut: cut === 1,
          port: decodeSockaddr(name, nameLength).port,
        });
      }
    }
  });
  return all;
}

describe('datagrams', { timeout: 4 * DEADLINE_MS }, () => {
  it('come in batches, each with its sender, in order', async () => {
    const [a, b, to] = [udpSocket(), udpSocket(), udpSocket()];
    const target = encodeSockaddr('127.0.0.1', to.port);
    for (let i = 0; i < 10; i++) {
      const { fd } = i % 2 === 0 ? a : b;
      assert.equal(native().sendGso(fd, [Buffer.from('number '), Buffer.from(`${i}`)], 2, 0, 0, target), 8);
    }
    assert.equal(native().sendGso(a.fd, [], 0, 0, 0, target), 0);
    const expected = Array.from({ length: 11 }, (_, i) => ({
      text: i < 10 ? `number ${i}` : '',
      segmentBytes: 0,
      cut: false,
      port: i % 2 === 0 ? a.port : b.port,
    }));
    assert.deepEqual(await receive(to.fd, 100, 11, 4), expected);
    for (const { fd } of [a, b, to]) calls.close(fd);
  });

  it('that are longer than a slot are cut, and said to be', async () => {
    const [from, to] = [udpSocket(), udpSocket()];
    const target = encodeSockaddr('127.0.0.1', to.port);
    for (const text of ['longer', 'fits']) native().sendGso(from.fd, [Buffer.from(text)], 1, 0, 0, target);
    const [first, second] = await receive(to.fd, 4, 2);
    assert.deepEqual([first?.text, first?.cut, second?.text, second?.cut], ['long', true, 'fits', false]);
    for (const { fd } of [from, to]) calls.close(fd);
  });

  for (const gro of [false, true]) {
    it(`of one segmented call come ${gro ? 'together' : 'one by one'} ${gro ? 'with' : 'without'} UDP_GRO`, async () => {
      const [from, to] = [udpSocket(), udpSocket()];
      if (gro) calls.setOption(to.fd, SOL_UDP, UDP_GRO, 1);
      const text = 'abcdefghij'.repeat(10);
      const target = encodeSockaddr('127.0.0.1', to.port);
      assert.equal(native().sendGso(from.fd, [Buffer.from(text)], 1, 0, 30, target), 100);
      const all = await receive(to.fd, 1000, gro ? 1 : 4);
      assert.equal(all.map((one) => one.text).join(''), text);
      assert.deepEqual(
        all.map(({ text: { length }, segmentBytes }) => [length, segmentBytes]),
        gro ? [[100, 30]] : [30, 30, 30, 10].map((length) => [length, 0]),
      );
      for (const { fd } of [from, to]) calls.close(fd);
    });
  }

  it('of one lent call are one notification', async () => {
    const [from, to] = [udpSocket(), udpSocket()];
    calls.setOption(from.fd, SOL_SOCKET, SO_ZEROCOPY, 1);
    calls.connect(from.fd, '127.0.0.1', to.port);
    assert.equal(native().sendGso(from.fd, [lendable(60_000)], 1, MSG_ZEROCOPY, 1400, null), 60_000);
    assert.equal(native().outstanding(from.fd), 1);
    const records = await released(from.fd);
    assert.deepEqual([records.length, records[0]?.[4], records[0]?.[5]], [1, 0, 0]);
    for (const { fd } of [from, to]) calls.close(fd);
  });

  it('with arguments that make no sense are refused', () => {
    const { fd, port } = udpSocket();
    const target = encodeSockaddr('127.0.0.1', port);
    for (const segmentBytes of [-1, 0x10000])
      assert.equal(native().sendGso(fd, [], 0, 0, segmentBytes, target), EINVAL);
    assert.equal(native().sendGso(fd, [Buffer.alloc(1)], 1, 0, 0, null), -errnoOf('EDESTADDRREQ'));
    const [buffer, info, names] = [Buffer.alloc(100), new Uint32Array(8), new Uint8Array(56)] as const;
    assert.equal(native().recvBatch(fd, buffer, 50, 0, info, names), EAGAIN);
    assert.equal(native().recvBatch(fd, buffer, 0, 0, info, names), EINVAL);
    assert.equal(native().recvBatch(fd, buffer, 101, 0, info, names), EINVAL);
    assert.equal(native().recvBatch(fd, buffer, 50, 0, info.subarray(5), names), EINVAL);
    assert.equal(native().recvBatch(fd, buffer, 50, 0, info, names.subarray(29)), EINVAL);
    calls.close(fd);
  });
});

// linux/in6.h
const IPV6_MTU = 24;
const IPV6_RECVERR = 25;
const IPV6_MTU_MIN = 1280;

/** On IPv6 a socket may limit its own MTU. */
const skip = skipFamily('udp6');

describe('flagged calls that fail', { timeout: 2 * DEADLINE_MS, skip }, () => {
  /** A lending socket whose segments may have 1232 bytes at most, and one it can send to. */
  function open() {
    const [fd, to] = [0, 0].map(() => {
      const made = calls.socket(AF_INET6, SOCK_DGRAM);
      calls.bind(made, '::1', 0);
      return made;
    }) as [number, number];
    calls.setOption(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
    calls.setOption(fd, IPPROTO_IPV6, IPV6_MTU, IPV6_MTU_MIN);
    const target = encodeSockaddr('::1', calls.localAddress(to).port);
    const memory = [lendable(5000)];
    const send = (segmentBytes: number) =>
      native().sendGso(fd, memory, 1, MSG_ZEROCOPY, segmentBytes, target);
    /** Refused when the datagrams are made and have got a number: EMSGSIZE, before Linux 6.14 EINVAL. */
    const refused = () => assert.ok([-errnoOf('EMSGSIZE'), EINVAL].includes(send(2000)));
    return { fd, to, target, send, refused };
  }
  const one = new Uint32Array(ERRQUEUE_WORDS);
  const many = new Uint32Array(16 * ERRQUEUE_WORDS);

  it('count until the queue was read, whether they have a number or not', () => {
    const { fd, to, target, send, refused } = open();
    refused();
    assert.equal(native().outstanding(fd), 1, 'it may have one');
    assert.equal(native().drainErrors(fd, many), 1);
    assert.deepEqual([...many.subarray(4, 6)], [0, 0], 'it had');
    assert.equal(native().outstanding(fd), 0);
    const tooLong = [lendable(70_000)];
    assert.equal(native().sendGso(fd, tooLong, 1, MSG_ZEROCOPY, 0, target), -errnoOf('EMSGSIZE'));
    assert.equal(native().outstanding(fd), 1);
    assert.equal(native().drainErrors(fd, many), 0, 'it had none');
    assert.equal(native().outstanding(fd), 0);
    assert.equal(send(1000), 5000);
    assert.equal(native().outstanding(fd), 1);
    assert.equal(native().drainErrors(fd, many), 1);
    assert.deepEqual([...many.subarray(4, 6)], [1, 1]);
    assert.equal(native().outstanding(fd), 0);
    for (const each of [fd, to]) calls.close(each);
  });

  it('never make others look confirmed that are not', async () => {
    const { fd, to, send, refused } = open();
    const closed = calls.socket(AF_INET6, SOCK_DGRAM);
    calls.bind(closed, '::1', 0);
    const nobody = encodeSockaddr('::1', calls.localAddress(closed).port);
    calls.close(closed);
    calls.setOption(fd, IPPROTO_IPV6, IPV6_RECVERR, 1);
    refused();
    // An ICMP error in between keeps the kernel from merging the records of the two calls.
    native().sendGso(fd, [Buffer.from('x')], 1, 0, 0, nobody);
    let errors = 0;
    await waitFor(fd, 0, () => {
      errors ||= native().getsockoptInt(fd, SOL_SOCKET, SO_ERROR);
      return errors !== 0;
    });
    assert.equal(send(1000), 5000);
    assert.equal(native().outstanding(fd), 2);
    assert.equal(native().drainErrors(fd, one), 1);
    assert.deepEqual([...one.subarray(4)], [0, 0], 'of the call that failed');
    assert.equal(native().outstanding(fd), 1, 'the other one is not confirmed');
    assert.equal(native().drainErrors(fd, many), 2);
    assert.equal(native().outstanding(fd), 0);
    for (const each of [fd, to]) calls.close(each);
  });
});
