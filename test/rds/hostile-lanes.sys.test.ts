/**
 * Lanes over real TCP, against a scripted peer: what its source ports say is believed, whatever the order in which they come, and
 * connections from all of them at once hold up nobody else.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { after, before, type TestContext, test } from 'node:test';
import { RETRANSMITTED } from '../../src/wire/rds.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { LANES, RawLanes } from '../support/raw-lanes.ts';
import { mapMessage, message, type RawConnection, until } from '../support/raw-peer.ts';
import { PORT, TestNode, type TestNodeOptions } from '../support/tcp-nodes.ts';

const VICTIM = '127.76.5.5';
const seed = Number(process.env.ZEROTX_SEED ?? Date.now() % 1_000_000);
const options = { timeout: scaled(120_000, 3_600_000) };

let good: TestNode;
let nextHost = 1;

before(() => {
  good = new TestNode('127.76.5.4');
});

/** What would have ended the process: the runner blames no test for what comes behind its end. */
const crashes: Error[] = [];
process.on('uncaughtExceptionMonitor', (error) => crashes.push(error));

after(async () => {
  await good.close();
  assert.deepEqual(crashes, []);
});

function victimOf(context: TestContext, nodeOptions: TestNodeOptions = {}): TestNode {
  const node = new TestNode(VICTIM, nodeOptions);
  context.after(() => node.close());
  return node;
}

function lanesOf(context: TestContext, genNum?: number): RawLanes {
  const peer = new RawLanes(`127.76.1.${nextHost++}`, VICTIM, genNum);
  context.after(() => peer.reset());
  return peer;
}

function shuffled(random: Random, items: readonly number[]): number[] {
  const left = [...items];
  const out: number[] = [];
  while (left.length > 0) out.push(left.splice(random.below(left.length), 1)[0] as number);
  return out;
}

const allLanes = Array.from({ length: LANES }, (_, lane) => lane);

/** How many lanes of the victim to this peer are up. */
function lanesUp(victim: TestNode, { address }: RawLanes): number {
  const lanes = victim.node.peer(address)?.lanes ?? [];
  return lanes.filter(({ connection }) => connection.state === 'up').length;
}

test('all lanes are lost and come back in any order: each is what its port says', options, async (t) => {
  t.diagnostic(`seed ${seed}`);
  const random = new Random(seed);
  const victim = victimOf(t);
  const peer = lanesOf(t);
  await peer.up();
  await until('eight lanes', () => lanesUp(victim, peer) === LANES);
  const sent: string[][] = allLanes.map(() => []);
  const last: { seq: number; text: string }[] = [];
  let duplicates = 0;
  for (let round = 0; round < scaled(12, 200); round++) {
    for (const lane of shuffled(random, allLanes)) {
      // Sent, and not known to have arrived: a kernel sends it again, marked.
      const again = last[lane];
      if (again !== undefined) {
        peer.connections[lane]!.write(message(again.seq, 9, PORT, again.text, RETRANSMITTED));
        duplicates += 1;
      }
      const text = `${lane}.${round}`;
      last[lane] = { seq: peer.say(lane, PORT, text), text };
      sent[lane]!.push(text);
    }
    const count = (round + 1) * LANES;
    await until(`round ${round}`, () => victim.from(peer.address).length >= count);
    // In any order, lane 0 among them: an end by FIN and one by RST must come to the same.
    for (const lane of shuffled(random, allLanes)) {
      if (random.chance(0.5)) peer.connections[lane]!.reset();
      else peer.connections[lane]!.fin();
    }
    await until('all are down', () => lanesUp(victim, peer) === 0);
    await peer.up(shuffled(random, allLanes));
    await until('all are up', () => lanesUp(victim, peer) === LANES);
  }
  const received = victim.from(peer.address);
  assert.deepEqual(
    allLanes.map((lane) => received.filter((text) => text.startsWith(`${lane}.`))),
    sent,
  );
  assert.equal(victim.node.counters.recv_drop_old_seq, duplicates);
  await good.exchange(victim);
});

test('every socket is heard on every lane, and sends on one', options, async (t) => {
  const victim = victimOf(t);
  const peer = lanesOf(t);
  await peer.up();
  await until('eight lanes', () => lanesUp(victim, peer) === LANES);
  const sockets = Array.from({ length: 24 }, () => victim.node.bind(0));
  const perSocket = 40;
  for (let i = 0; i < perSocket; i++) {
    for (const socket of sockets) socket.sendmsg(Buffer.from(`${i}`), { address: peer.address, port: 7 });
  }
  const count = (): number => peer.rules.reduce((sum, { delivered }) => sum + delivered.length, 0);
  await until('all of them', () => count() === sockets.length * perSocket);
  const expected = Array.from({ length: perSocket }, (_, i) => `${i}`);
  for (const { port } of sockets) {
    const lanes = peer.rules.map(({ delivered }) => delivered.filter(({ sport }) => sport === port));
    const used = lanes.filter((messages) => messages.length > 0);
    assert.equal(used.length, 1, `port ${port} was sent on ${used.length} lanes`);
    assert.deepEqual(
      used[0]!.map(({ payload }) => payload.toString()),
      expected,
    );
  }
  const busy = peer.rules.filter(({ delivered }) => delivered.length > 0).length;
  assert.ok(busy >= 4, `24 sockets on ${busy} lanes`);
  // The other way: one port of the peer, on all lanes in turn.
  for (let i = 0; i < 80; i++) peer.say(i % LANES, PORT, `on any ${i}`);
  await until('all of those', () => victim.from(peer.address).length === 80);
});

test(
  'connections from every source port at once, of every kind: then the peer comes, and works',
  options,
  async (t) => {
    t.diagnostic(`seed ${seed}`);
    const random = new Random(seed);
    const victim = victimOf(t, { speed: 20 });
    await good.exchange(victim);
    const descriptors = readdirSync('/proc/self/fd').length;
    const peer = lanesOf(t);
    for (let wave = 0; wave < scaled(6, 100); wave++) {
      const storm: RawConnection[] = [];
      const dials = Array.from({ length: 48 }, async (_, i) => {
        const connection = await peer.dial(i % LANES);
        storm.push(connection);
        const kind = random.below(5);
        if (kind === 0) connection.write(mapMessage());
        else if (kind === 1) connection.write(Buffer.alloc(48 * 4, 0xff));
        else if (kind === 2) connection.fin();
        else if (kind === 3) connection.reset();
      });
      await Promise.all(dials);
      // In between, a lane that works for a moment.
      if (wave % 2 === 1) (await peer.open(random.below(LANES))).reset();
      await good.exchange(victim);
      const lanes = victim.node.peer(peer.address)?.lanes.length ?? 0;
      assert.ok(lanes <= LANES, `${lanes} lanes`);
      for (const connection of storm) if (!connection.closed) connection.reset();
      await until('the wave is over', () => storm.every(({ closed }) => closed));
    }
    await until('nothing is left', () => readdirSync('/proc/self/fd').length <= descriptors);
    await peer.up();
    await until('eight lanes', () => lanesUp(victim, peer) === LANES);
    for (const lane of allLanes) peer.say(lane, PORT, `after all ${lane}`);
    const heard = (): string[] => victim.from(peer.address).filter((text) => text.startsWith('after all'));
    await until('each lane', () => heard().length === LANES);
    victim.socket.sendmsg(Buffer.from('and back'), { address: peer.address, port: 7 });
    await until('the way back', () => peer.rules.some(({ delivered }) => delivered.length === 1));
    assert.ok(victim.node.counters.conn_reset >= 6, 'each wave had a connection that was taken');
    assert.equal(victim.node.heldBytes, 0);
    await good.exchange(victim);
  },
);

test(
  'the first connection is of another lane: it stays, as that lane, and lane 0 is what comes from its own',
  options,
  async (t) => {
    const victim = victimOf(t);
    const peer = lanesOf(t);
    // Our process is new to a kernel that knows of lanes: they come in any order (rds_tcp_conn_slots_available).
    const early = await peer.open(3);
    await until('how many there are', () => victim.node.peer(peer.address)?.npaths === LANES);
    const seq = peer.say(3, PORT, 'early');
    await until('what it says', () => victim.from(peer.address).length === 1);
    await peer.up([0, 1, 2, 4, 5, 6, 7]);
    await until('eight lanes', () => lanesUp(victim, peer) === LANES);
    assert.equal(early.ended, null);
    // Not known to have arrived, it is sent again, on this lane.
    early.reset();
    await until('its end', () => lanesUp(victim, peer) === LANES - 1);
    const again = await peer.open(3);
    await until('eight lanes again', () => lanesUp(victim, peer) === LANES);
    again.write(message(seq, 9, PORT, 'early', RETRANSMITTED));
    for (const lane of allLanes) peer.say(lane, PORT, `${lane}`);
    await until('all', () => victim.from(peer.address).length === 1 + LANES);
    assert.equal(victim.node.counters.recv_drop_old_seq, 1);
    await good.exchange(victim);
  },
);

test(
  'a peer that restarts, again and again, on any lane: nothing of before counts against it',
  options,
  async (t) => {
    t.diagnostic(`seed ${seed}`);
    const random = new Random(seed);
    const victim = victimOf(t);
    const { address } = lanesOf(t);
    const rounds = scaled(6, 60);
    const texts: string[] = [];
    for (let round = 0; round < rounds; round++) {
      // It numbers from 1 again and marks what it sent before its connection was lost: to the one before this it would be old.
      const peer = new RawLanes(address, VICTIM, 1 + round);
      t.after(() => peer.reset());
      await peer.up();
      await until('eight lanes', () => lanesUp(victim, peer) === LANES);
      for (const lane of shuffled(random, allLanes)) {
        texts.push(`${round}.${lane}`);
        peer.connections[lane]!.write(message(500 - round, 9, PORT, `${round}.${lane}`, RETRANSMITTED));
      }
      await until(`generation ${round}`, () => victim.from(address).length === texts.length);
      peer.reset();
    }
    assert.deepEqual(victim.from(address).sort(), texts.sort());
    assert.equal(victim.node.counters.peer_restarts, rounds - 1);
    assert.equal(victim.node.counters.recv_drop_old_seq, 0);
    await good.exchange(victim);
  },
);
