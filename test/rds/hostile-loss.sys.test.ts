/**
 * Connections that end at the worst moment, over real TCP: with data unread on either side, unacknowledged, half sent, or
 * in the middle of the handshake. What was acknowledged to the peer is delivered once; what the peer did not acknowledge is
 * sent again, and its buffer stays lent until then.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, type TestContext, test } from 'node:test';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { AF_INET, EPOLLIN, EPOLLOUT, SHUT_WR, SOCK_STREAM } from '../../src/sys/constants.ts';
import { RDS_TCP_PORT } from '../../src/wire/rds.ts';
import {
  KernelRule,
  mapMessage,
  message,
  probeMessage,
  RawConnection,
  RawListener,
  until,
} from '../support/raw-peer.ts';
import { waitFor } from '../support/sockets.ts';
import { PORT, TestNode, type TestNodeOptions } from '../support/tcp-nodes.ts';

const VICTIM = '127.72.5.5';
const MIB = 1024 * 1024;
const options = { timeout: 60_000 };

let good: TestNode;
let nextHost = 1;

before(() => {
  good = new TestNode('127.72.5.4');
});

after(() => good.close());

/** The node under test; closed behind the test. */
function victimOf(context: TestContext, nodeOptions: TestNodeOptions = {}): TestNode {
  const node = new TestNode(VICTIM, { speed: 20, ...nodeOptions });
  context.after(() => node.close());
  return node;
}

async function dial(context: TestContext, from: string): Promise<RawConnection> {
  const connection = await RawConnection.dial(from, VICTIM);
  context.after(() => connection.reset());
  return connection;
}

async function listen(context: TestContext, address: string): Promise<RawListener> {
  const listener = await RawListener.open(address);
  context.after(() => listener.close());
  return listener;
}

function smaller(): string {
  return `127.72.1.${nextHost++}`;
}

function larger(): string {
  return `127.72.9.${nextHost++}`;
}

/** `count` numbered messages of `bytes` bytes, from sequence number `first`. */
function numbered(first: number, count: number, bytes: number): Buffer[] {
  return Array.from({ length: count }, (_, i) =>
    message(first + i, 9, PORT, `${first + i} `.padEnd(bytes, 'x')),
  );
}

function numbersFrom(victim: TestNode, address: string): number[] {
  return victim.from(address).map((text) => Number.parseInt(text, 10));
}

function range(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, i) => first + i);
}

/** As exchange(), while the victim's program does not read. */
async function goodGoesOn(victim: TestNode): Promise<void> {
  victim.socket.sendmsg(Buffer.from('meanwhile'), { address: good.address, port: PORT });
  await until('a good peer', () => good.from(VICTIM).includes('meanwhile'));
  good.received.length = 0;
}

describe('what was acknowledged is delivered, once', () => {
  const held = { limits: { heldBytesPerPeer: 64 * 1024 } };

  for (const dials of [false, true]) {
    test(
      `200 messages and FIN while the program does not read; we ${dials ? 'dialled' : 'accepted'}`,
      options,
      async (t) => {
        const victim = victimOf(t, held);
        victim.reading = false;
        const address = dials ? larger() : smaller();
        let connection: RawConnection;
        if (dials) {
          const listener = await listen(t, address);
          victim.socket.sendmsg(Buffer.from('dial'), { address, port: 7 });
          connection = await listener.next();
        } else connection = await dial(t, address);
        connection.write(...numbered(1, 200, 4096));
        connection.fin();
        await until('the lane is not read any more', () => victim.node.counters.recv_held_back > 0);
        assert.ok(victim.node.heldBytes < 1024 * 1024);
        await goodGoesOn(victim);
        victim.reading = true;
        victim.read();
        await until('all of them', () => victim.from(address).length === 200);
        assert.deepEqual(numbersFrom(victim, address), range(1, 200));
        assert.equal(await connection.gone(), 'fin');
      },
    );
  }

  for (const answers of [true, false]) {
    test(
      `we drop a lane with 1 MiB unread; the peer ${answers ? 'answers' : 'ignores'} our FIN`,
      options,
      async (t) => {
        const victim = victimOf(t, held);
        victim.reading = false;
        const address = smaller();
        const old = await dial(t, address);
        old.write(...numbered(1, 300, 4096));
        await until('the lane is not read any more', () => victim.node.counters.recv_held_back > 0);
        const next = await dial(t, address);
        next.write(mapMessage(), ...numbered(301, 10, 100));
        assert.equal(await old.gone(), 'fin');
        if (answers) old.fin();
        // Neither is read while too much waits for the program: or each new connection would bring some more.
        assert.equal(next.messages.length, 0);
        victim.reading = true;
        victim.read();
        await until('all of them', () => victim.from(address).length === 310);
        assert.deepEqual(numbersFrom(victim, address), range(1, 310));
        assert.equal(victim.node.counters.accept_replaced, 1);
        await good.exchange(victim);
      },
    );
  }

  test('a node that closes with 1 MiB unread says FIN, not RST', options, async (t) => {
    const victim = victimOf(t, held);
    victim.reading = false;
    const connection = await dial(t, smaller());
    connection.speak();
    connection.write(...numbered(1, 300, 4096));
    await until('the lane is not read any more', () => victim.node.counters.recv_held_back > 0);
    await victim.close();
    assert.equal(await connection.gone(), 'fin');
  });
});

/** A connection made without a turn of the event loop: its bytes lie in our socket before it is accepted. */
function burst(from: string, bytes: Uint8Array): { fd: number; sent: number } {
  const fd = calls.socket(AF_INET, SOCK_STREAM);
  calls.bind(fd, from, 0);
  calls.connect(fd, VICTIM, RDS_TCP_PORT);
  return { fd, sent: push(fd, bytes, 0) };
}

/** Sends from `at` on until the transport is full; the new position. */
function push(fd: number, bytes: Uint8Array, at: number): number {
  for (let sent = at; ; ) {
    const n = sent === bytes.length ? 0 : native().sendv(fd, [bytes.subarray(sent)], 1, 0);
    if (n <= 0) return sent;
    sent += n;
  }
}

describe('data before the connection is accepted', () => {
  test('as much as the buffers take: read without another event', options, async (t) => {
    const victim = victimOf(t);
    const address = smaller();
    const stream = Buffer.concat(numbered(1, 1000, 10_000));
    const { fd, sent } = burst(address, stream);
    t.after(() => native().close(fd));
    assert.ok(sent > 0 && sent < stream.length);
    let at = sent;
    await waitFor(fd, EPOLLOUT, () => {
      at = push(fd, stream, at);
      return at === stream.length;
    });
    await until('all of them', () => victim.from(address).length === 1000);
    assert.deepEqual(numbersFrom(victim, address), range(1, 1000));
    await good.exchange(victim);
  });

  test('data and FIN: delivered, then dropped', options, async (t) => {
    const victim = victimOf(t);
    const address = smaller();
    const { fd, sent } = burst(address, Buffer.concat(numbered(1, 5, 1000)));
    t.after(() => native().close(fd));
    assert.ok(sent > 0);
    calls.shutdown(fd, SHUT_WR);
    await until('all of them', () => victim.from(address).length === 5);
    const into = [Buffer.alloc(65_536)];
    await waitFor(fd, EPOLLIN, () => {
      for (;;) {
        const n = native().readv(fd, into, 1);
        if (n <= 0) return n === 0;
      }
    });
    await until('the lane is down', () => victim.node.peer(address)?.lanes[0]?.connection.state === 'down');
    assert.deepEqual(numbersFrom(victim, address), range(1, 5));
    await good.exchange(victim);
  });
});

/** What the peer's TCP has accepted and its program not read, from the kernel's own table. */
function receiveQueueBytes(connection: RawConnection): number {
  const { localAddress, localPort, remoteAddress, remotePort } = connection.socket;
  const hex = (address: string | undefined, port: number | undefined): string => {
    const bytes = address!.split('.').map((part) => Number(part).toString(16).padStart(2, '0'));
    return `${bytes.reverse().join('')}:${port!.toString(16).padStart(4, '0')}`.toUpperCase();
  };
  const wanted = `${hex(localAddress, localPort)} ${hex(remoteAddress, remotePort)}`;
  const line = readFileSync('/proc/net/tcp', 'utf8')
    .split('\n')
    .find((entry) => entry.includes(wanted));
  assert.ok(line !== undefined, 'the connection is not in /proc/net/tcp');
  return Number.parseInt(line.trim().split(/\s+/)[4]!.split(':')[1]!, 16);
}

/** Stops reading as soon as `condition` holds, before anything else is read. */
function pauseWhen(connection: RawConnection, condition: () => boolean): void {
  const look = (): void => {
    if (condition()) connection.socket.pause();
  };
  connection.socket.on('data', look);
  look();
}

/** How the peer comes by its next connection: it dials, or waits for the victim to do so. */
async function connector(
  context: TestContext,
  weDial: boolean,
): Promise<{ address: string; connect: () => Promise<RawConnection> }> {
  if (!weDial) {
    const address = smaller();
    return { address, connect: () => dial(context, address) };
  }
  const address = larger();
  const listener = await listen(context, address);
  return { address, connect: () => listener.next() };
}

for (const mode of ['off', 'force'] as const) {
  test(`a zero window, 5 MiB queued, then RST (zero-copy ${mode})`, options, async (t) => {
    const victim = victimOf(t, { mode, socket: { zerocopy: true } });
    const { address, connect } = await connector(t, false);
    const rule = new KernelRule();
    const first = await connect();
    first.speak(rule);
    const to = { address, port: 7 };
    const lend = (cookie: number, bytes: number): Buffer => {
      const payload = Buffer.alloc(bytes, cookie);
      victim.socket.sendmsg(payload, to, { zerocopy: true, cookie });
      return payload;
    };
    const small = [1, 2].map((cookie) => lend(cookie, 1000));
    await until('the small ones', () => rule.delivered.length === 2 && victim.cookies.length === 2);
    first.socket.pause();
    const openingBytes = first.receivedBytes;
    const payloads = [...small, ...range(3, 5).map((cookie) => lend(cookie, MIB))];
    await transportFull(victim, address);
    victim.node.peer(address)!.lanes[0]!.checkAcks();
    const ackedBytes = first.receivedBytes + first.socket.readableLength + receiveQueueBytes(first);
    assert.ok(ackedBytes > openingBytes && ackedBytes < openingBytes + MIB, `${ackedBytes} acknowledged`);
    first.reset();
    await until('the lane is down', () => victim.node.peer(address)!.lanes[0]!.connection.state !== 'up');
    await good.exchange(victim);
    // Part of one is not enough: nothing comes back before the peer has it.
    assert.deepEqual(victim.cookies, [1, 2]);
    assert.equal(victim.socket.lentBytes, 5 * MIB);
    assert.ok(victim.node.counters.send_retransmitted > 0);

    const second = await connect();
    second.speak(rule);
    await until('the rest', () => victim.cookies.length === 7);
    assert.deepEqual(victim.cookies, range(1, 7));
    assert.equal(victim.socket.lentBytes, 0);
    await until('all of them', () => rule.delivered.length === 7);
    for (const [i, { payload }] of rule.delivered.entries()) {
      assert.ok(payload.equals(payloads[i]!), `payload ${i + 1} changed`);
    }
    assert.equal(rule.duplicates, 0);
  });
}

/** Full when the position in the stream has not moved for a while. */
async function transportFull(victim: TestNode, address: string): Promise<void> {
  let lastBytes = -1;
  let looks = 0;
  await until('the transport is full', () => {
    const { writtenBytes } = victim.node.peer(address)!.lanes[0]!.connection.sender;
    looks = writtenBytes === lastBytes ? looks + 1 : 0;
    lastBytes = writtenBytes;
    return looks > 50;
  });
}

/** Two processes of ours on one address, and a peer that remembers the first; the second loses its first attempts. */
async function checkRestart(context: TestContext, weDial: boolean, epochMs: () => number): Promise<void> {
  const { address, connect } = await connector(context, weDial);
  const rule = new KernelRule();
  const old = victimOf(context);
  const to = { address, port: 7 };
  for (let i = 0; i < 20; i++) old.socket.sendmsg(Buffer.from(`before ${i}`), to);
  (await connect()).speak(rule);
  await until('the first process', () => rule.delivered.length === 20);
  await old.close();

  const victim = victimOf(context, { epochMs });
  const expected = range(0, 5);
  for (const i of expected) victim.socket.sendmsg(Buffer.alloc(MIB, i), to);
  for (const attempt of [1, 2]) {
    const lost = await connect();
    lost.speak(rule);
    // It reads up to the probe, so that we go on, and then nothing.
    pauseWhen(lost, () => lost.kinds.includes('probe-ping'));
    const { sender } = victim.node.peer(address)!.lanes[0]!.connection;
    await until('something was begun', () => sender.writtenBytes > 100_000);
    // Acknowledged by its TCP and never read: gone with it, by the protocol.
    const unreadBytes = lost.partialBytes + lost.socket.readableLength + receiveQueueBytes(lost);
    expected.splice(rule.delivered.length - 20, Math.floor(unreadBytes / (MIB + 48)));
    lost.reset();
    await until('the loss is seen', () => victim.node.counters.conn_reset === attempt);
  }
  const settled = rule.delivered.length - 20;
  assert.ok(settled < expected.length, 'nothing was left to lose');
  (await connect()).speak(rule);
  const numbers = (): number[] => rule.delivered.slice(20).map(({ payload }) => payload[0]!);
  await until('the rest', () => expected.every((number) => numbers().includes(number)));
  // In order and once; one that its TCP had, but had not yet acknowledged, may be among them.
  assert.deepEqual(
    numbers(),
    [...new Set(numbers())].sort((x, y) => x - y),
  );
  assert.ok(victim.node.counters.send_retransmitted > 0);
  assert.equal(rule.duplicates, 0);
  await good.exchange(victim);
}

for (const weDial of [true, false]) {
  const role = weDial ? 'we dial' : 'we accept';

  test(`our restart, first attempts lost, a peer that remembers; ${role}`, options, (t) =>
    checkRestart(t, weDial, Date.now),
  );

  test(`the same with a clock that stepped back; ${role}`, options, (t) =>
    checkRestart(t, weDial, () => 1000),
  );

  test(`the peer dies in the middle of the handshake, again and again; ${role}`, options, async (t) => {
    const victim = victimOf(t);
    const { address, connect } = await connector(t, weDial);
    victim.socket.sendmsg(Buffer.from('survives'), { address, port: 7 });
    const openings = [
      Buffer.alloc(0),
      mapMessage().subarray(0, 4000),
      mapMessage(),
      Buffer.concat([mapMessage(), probeMessage('ping', 1).subarray(0, 20)]),
      Buffer.concat([mapMessage(), probeMessage('ping', 1)]),
    ];
    for (const bytes of openings) {
      for (const end of ['fin', 'reset'] as const) {
        const connection = await connect();
        connection.write(bytes);
        if (end === 'fin') connection.fin();
        else connection.reset();
        await until('it is over', () => connection.closed || connection.ended !== null);
        assert.ok(!connection.kinds.includes('data'), 'data before the peer has answered');
      }
    }
    const rule = (await connect()).speak();
    await until('the message', () => rule.delivered.length === 1);
    assert.equal(rule.delivered[0]!.payload.toString(), 'survives');
    await good.exchange(victim);
    assert.equal(rule.delivered.length, 1);
  });
}
