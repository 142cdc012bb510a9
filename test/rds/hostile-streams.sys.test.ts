/**
 * Bytes of any kind over real TCP: seeded streams of right, wrong and changed messages, cut anywhere, from several peers at once; peers
 * that write or read a byte at a time; and beginnings of large messages on every lane, which nobody ends. What must hold: nothing is
 * delivered that was not sent, others are served meanwhile, and memory stays within the limits.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { after, before, type TestContext, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { CONG_BITMAP, HEADER_BYTES } from '../../src/wire/rds.ts';
import { CONG_MAP_BYTES } from '../../src/wire/rds-congestion.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { LANES, RawLanes } from '../support/raw-lanes.ts';
import { KernelRule, mapMessage, message, probeMessage, RawConnection, until } from '../support/raw-peer.ts';
import { RawPeer } from '../support/rds-raw-peer.ts';
import { PORT, TestNode, type TestNodeOptions } from '../support/tcp-nodes.ts';

const VICTIM = '127.78.5.5';
const MIB = 1024 * 1024;
const firstSeed = Number(process.env.ZEROTX_SEED ?? Date.now() % 1_000_000);
const options = { timeout: scaled(300_000, 3_600_000) };

let good: TestNode;
let nextHost = 1;

before(() => {
  good = new TestNode('127.78.5.4');
});

/** What would have ended the process: the runner blames no test for what comes behind its end. */
const crashes: Error[] = [];
process.on('uncaughtExceptionMonitor', (error) => crashes.push(error));

after(async () => {
  await good.close();
  assert.deepEqual(crashes, []);
});

async function victimOf(context: TestContext, nodeOptions: TestNodeOptions = {}): Promise<TestNode> {
  // Its drain of 5 s at the end takes a quarter of one.
  const node = new TestNode(VICTIM, { speed: 20, ...nodeOptions });
  context.after(() => node.close());
  await good.exchange(node);
  return node;
}

function randomBytes(random: Random, length: number): Buffer {
  return Buffer.from(Array.from({ length }, () => random.below(256)));
}

/** A message, right or not. */
function anyMessage(random: Random, text: string): Buffer {
  const seq = random.pick([0, 1, 1 + random.below(100), 2 ** 52]);
  const flags = random.pick([0, 0, 0, 4, CONG_BITMAP, random.below(256)]);
  const length = random.pick([0, 1, 100, 5000, 20_000, 70_000]);
  switch (random.below(8)) {
    case 0:
      return mapMessage();
    case 1:
      return probeMessage(random.pick(['ping', 'pong']), 1 + random.below(100));
    case 2:
      return message(0, 0, 0, Buffer.alloc(random.pick([0, 8191, CONG_MAP_BYTES]), 0xff), CONG_BITMAP);
    case 3:
      return randomBytes(random, 1 + random.below(200));
    case 4:
      return message(
        seq,
        random.below(65_536),
        random.pick([0, 1, PORT, 9]),
        text.padEnd(length, '.'),
        flags,
      );
    default:
      return message(seq, 1 + random.below(65_535), PORT, text.padEnd(length, '.'), flags & 4);
  }
}

/** Some of its bits are others, and some of its bytes are missing. */
function changed(random: Random, bytes: Buffer): Buffer {
  const out = Buffer.from(bytes);
  for (let i = random.below(4); i > 0; i--) {
    const at = random.below(Math.min(out.length, HEADER_BYTES));
    out[at] = (out[at] as number) ^ (1 << random.below(8));
  }
  return random.chance(0.2) ? out.subarray(0, 1 + random.below(out.length)) : out;
}

test('streams of anything, cut anywhere, from several peers at once', options, async (t) => {
  const victim = await victimOf(t, { limits: { heldBytesPerPeer: 4 * MIB } });
  const descriptors = readdirSync('/proc/self/fd').length;
  /** By address: what it said the last times, as what waited for its lane comes later. */
  const sent = new Map<string, Buffer[]>();
  for (let round = 0; round < scaled(30, 3000); round++) {
    const seed = firstSeed + round;
    const random = new Random(seed);
    const peers = Array.from({ length: 3 }, async (_, i) => {
      const address = `127.78.1.${1 + ((round * 3 + i) % 250)}`;
      const connection = await RawConnection.dial(address, VICTIM);
      const parts: Buffer[] = [];
      for (let k = random.below(30); k >= 0; k--) {
        const one = anyMessage(random, `${seed} ${i} ${k} `);
        parts.push(random.chance(0.15) ? changed(random, one) : one);
      }
      const stream = Buffer.concat(parts);
      sent.set(address, [...(sent.get(address) ?? []).slice(-3), stream]);
      for (let at = 0; at < stream.length && connection.ended === null; ) {
        const size = random.pick([1, 47, 48, 1000, 65_536, stream.length]);
        connection.write(stream.subarray(at, at + size));
        at += size;
        if (random.chance(0.3)) await turn();
      }
      if (random.chance(0.5)) connection.fin();
      else if (random.chance(0.7)) connection.reset();
      return connection;
    });
    const connections = await Promise.all(peers);
    try {
      await good.exchange(victim);
      for (const connection of connections) if (!connection.closed) connection.reset();
      await until('nothing is held', () => victim.node.heldBytes === 0);
      for (const { address, data } of victim.received.splice(0)) {
        if (address === good.address) continue;
        const isFrom = sent.get(address)?.some((stream) => stream.includes(data));
        assert.ok(isFrom, `${data.length} bytes from ${address} were never sent by it`);
      }
    } catch (error) {
      throw new Error(`seed ${seed}: ${(error as Error).message}`, { cause: error });
    }
  }
  // Those of the good peer's lanes may come late.
  await until('no descriptor stays', () => readdirSync('/proc/self/fd').length <= descriptors + 2 * LANES);
});

test('a peer that writes a byte at a time, in turns of the event loop', options, async (t) => {
  const victim = await victimOf(t);
  const address = `127.78.2.${nextHost++}`;
  const connection = await RawConnection.dial(address, VICTIM);
  t.after(() => connection.reset());
  const stream = Buffer.concat([
    probeMessage('ping', 1),
    message(2, 9, PORT, 'slow'),
    message(3, 9, PORT, ''),
  ]);
  for (const [at, byte] of stream.entries()) {
    connection.write(Buffer.from([byte]));
    await turn();
    if (at % 48 === 0) await good.exchange(victim);
  }
  await until('both messages', () => victim.from(address).length === 2);
  assert.deepEqual(victim.from(address), ['slow', '']);
  await until('the answer', () => connection.kinds.includes('probe-pong'));
});

test('a peer that reads a byte at a time: it gets all, and others do not wait', options, async (t) => {
  const victim = await victimOf(t);
  const address = `127.78.9.${nextHost++}`;
  const peer = new RawPeer(address, { receiveBytes: 4096, readBytes: 0 });
  t.after(() => peer.close());
  const payload = Buffer.alloc(MIB, 'x');
  for (let i = 0; i < 4; i++) victim.socket.sendmsg(payload, { address, port: 7 });
  const connection = await peer.accept();
  for (let i = 0; i < 3000; i++) {
    connection.allow(1);
    if (i % 100 === 0) await good.exchange(victim);
  }
  assert.ok(victim.socket.queuedBytes >= 4 * MIB, 'what is not read is not acknowledged');
  connection.allow(Number.POSITIVE_INFINITY);
  await connection.until(() => connection.data.length === 4);
  assert.ok(connection.data.every(({ payload: got }) => got.equals(payload)));
  await until('all is acknowledged', () => {
    victim.node.checkAcks();
    return victim.socket.queuedBytes === 0;
  });
});

test('maps of all ones, and none, in a flood: who waits goes on after the last', options, async (t) => {
  const victim = await victimOf(t);
  const address = `127.78.3.${nextHost++}`;
  const connection = await RawConnection.dial(address, VICTIM);
  t.after(() => connection.reset());
  const rule = new KernelRule();
  connection.speak(rule);
  await until('the gate', () => victim.node.peer(address)?.lanes[0]?.connection.settled === true);
  const full = message(0, 0, 0, Buffer.alloc(CONG_MAP_BYTES, 0xff), CONG_BITMAP);
  const before = victim.node.counters.cong_update_received;
  const flood = scaled(400, 20_000);
  connection.write(full);
  await until('the first', () => victim.node.counters.cong_update_received > before);
  const waiting = Array.from({ length: 50 }, (_, i) =>
    victim.socket.send(Buffer.from(`w${i}`), { address, port: 7 }),
  );
  for (let i = 0; i < flood; i++) connection.write(i % 2 === 0 ? mapMessage() : full);
  // No pong goes to a port that is congested, and pings are not what opens one.
  connection.write(full, message(5, 9, 0));
  await good.exchange(victim);
  await until('all maps', () => victim.node.counters.cong_update_received === before + flood + 2);
  assert.ok(!connection.kinds.includes('pong'));
  connection.write(mapMessage());
  await Promise.all(waiting);
  await until('each once', () => rule.delivered.length === 50);
  assert.equal(new Set(rule.delivered.map(({ payload }) => payload.toString())).size, 50);
});

test(
  'pings on every lane from one that does not read: bounded, and others are served',
  options,
  async (t) => {
    const victim = await victimOf(t);
    const peer = new RawLanes(`127.78.3.${nextHost++}`, VICTIM);
    t.after(() => peer.reset());
    await peer.up();
    for (const { socket } of peer.connections) socket.pause();
    const pings = Buffer.concat(Array.from({ length: 5000 }, (_, i) => message(100 + i, 9, 0)));
    const arrayBuffers = process.memoryUsage().arrayBuffers;
    for (let i = 0; i < scaled(2, 50); i++) {
      const since = victim.node.counters.recv_ping;
      for (const { socket } of peer.connections) socket.write(pings);
      await until('all pings', () => victim.node.counters.recv_ping >= since + LANES * 5000);
      await good.exchange(victim);
    }
    for (const { connection } of victim.node.peer(peer.address)!.lanes)
      assert.ok(
        connection.sender.queue.controlQueued <= 64,
        `${connection.sender.queue.controlQueued} queued`,
      );
    assert.ok(victim.node.counters.pong_drop_full > 0);
    const grown = process.memoryUsage().arrayBuffers - arrayBuffers;
    assert.ok(grown < 64 * MIB, `${grown} bytes more`);
  },
);

test(
  'beginnings of large messages on all lanes of many peers: bounded, and ended they arrive',
  options,
  async (t) => {
    const heldBytes = 24 * MIB;
    // What one may hold is far above: it is what all may hold that counts.
    const victim = await victimOf(t, { limits: { heldBytes, heldBytesPerPeer: 64 * MIB } });
    const peers = Array.from({ length: 12 }, () => new RawLanes(`127.78.4.${nextHost++}`, VICTIM));
    t.after(() => {
      for (const peer of peers) peer.reset();
    });
    for (const peer of peers) await peer.up();
    const before = process.memoryUsage().arrayBuffers;
    const whole = message(1000, 9, PORT, Buffer.alloc(MIB, 'y'));
    const cut = HEADER_BYTES + 20_000;
    for (const peer of peers)
      for (const connection of peer.connections) connection.write(whole.subarray(0, cut));
    // The first ones may have begun on all their lanes by then, and are not read for want of anything.
    const held = peers.length - heldBytes / (LANES * MIB) - 1;
    await until('no more is taken', () => victim.node.counters.recv_held_back >= held);
    const grown = process.memoryUsage().arrayBuffers - before;
    // 96 messages of 1 MiB were announced. Each lane may begin one more as the limit is reached.
    assert.ok(victim.node.heldBytes <= 2 * heldBytes + peers.length * MIB, `${victim.node.heldBytes} held`);
    assert.ok(grown < 3 * heldBytes, `${grown} bytes more`);
    for (const peer of peers)
      for (const connection of peer.connections) connection.write(whole.subarray(cut));
    const messages = (): number => peers.reduce((sum, { address }) => sum + victim.from(address).length, 0);
    await until('all of them', () => messages() === peers.length * LANES);
    await until('nothing is held', () => victim.node.heldBytes === 0);
    await good.exchange(victim);
  },
);

test('beginnings that nobody ends do not keep others from being read', options, async (t) => {
  const victim = await victimOf(t, { limits: { heldBytes: 8 * MIB, heldBytesPerPeer: 64 * MIB } });
  const peers = Array.from({ length: 4 }, () => new RawLanes(`127.78.4.${nextHost++}`, VICTIM));
  t.after(() => {
    for (const peer of peers) peer.reset();
  });
  for (const peer of peers) await peer.up();
  const whole = message(1000, 9, PORT, Buffer.alloc(MIB, 'z'));
  for (const peer of peers)
    for (const connection of peer.connections) connection.write(whole.subarray(0, 70_000));
  await until('it is full', () => victim.node.counters.recv_held_back > 0);
  for (let i = 0; i < 20; i++) await good.exchange(victim);
});
