/**
 * A peer that comes with connections from several source ports before it has said how many lanes it has (doubts.ts, two-views.ts), on
 * virtual time, one way of going on after the other: what is held, for how long, and that everything is delivered, once.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { RdsNode } from '../../src/rds/node.ts';
import type { NodeLimits } from '../../src/rds/options.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { RETRANSMITTED } from '../../src/wire/rds.ts';
import { Random } from '../support/random.ts';
import { mapMessage, message } from '../support/raw-peer.ts';
import { newProcess, readMessages, run } from '../support/scene.ts';
import { World } from '../support/sim.ts';
import { type SimConnection, SimPeer } from '../support/sim-peer.ts';

const PORT = 5000;
const OLD_6X = { npaths: 8 };
const NEW_7X = { npaths: 8, genNum: 0x7007, sportIdx: true };
/** UNCLEAR_TIMEOUT_MS of two-views.ts. */
const UNCLEAR_MS = 5000;

interface Meeting {
  readonly world: World;
  readonly node: RdsNode;
  readonly socket: RdsSocket;
  /** It knew our former process, and dials. */
  readonly peer: SimPeer;
  readonly got: string[];
}

function meeting(limits: Partial<NodeLimits> = {}): Meeting {
  const world = new World(new Random(21));
  const node = new RdsNode('10.0.0.2', newProcess(world).environment, limits);
  const socket = node.bind(PORT, { receiveBufferBytes: 1 << 28 });
  const got: string[] = [];
  socket.on('readable', () => {
    for (const { data } of readMessages(socket)) got.push(data.toString());
  });
  return { world, node, socket, peer: new SimPeer(world, '10.0.0.1'), got };
}

/**
 * The peer's first connection: `texts` from number 1000 on, and it is lost before its handshake. The next one, from another source
 * port modulo 8, has said nothing.
 */
async function second({ world, node, peer, got }: Meeting, texts: readonly string[]): Promise<SimConnection> {
  const first = peer.dial(node.address, 3);
  first.nextSeq = 1000;
  first.write(mapMessage());
  for (const text of texts) first.say(PORT, text);
  await run(world, 100);
  assert.deepEqual(got, texts, 'nothing is in doubt yet');
  first.reset();
  await run(world, 50);
  const next = peer.dial(node.address, 4);
  next.write(mapMessage());
  await run(world, 50);
  return next;
}

/** Runs until messages are held, to the millisecond. */
async function untilHeld({ world, node }: Meeting): Promise<void> {
  for (let i = 0; i < 1000 && node.counters.recv_held_unclear === 0; i++) await run(world, 1);
  assert.ok(node.counters.recv_held_unclear > 0, 'held');
}

describe('messages that may have come before', () => {
  it('are held for five seconds if the peer does not say a word, and then delivered, once', async () => {
    const scene = meeting();
    const { world, node, got } = scene;
    const next = await second(scene, ['first']);
    for (const seq of [5, 6, 7]) next.write(message(seq, 9, PORT, `low ${seq}`, RETRANSMITTED));
    await untilHeld(scene);
    await run(world, UNCLEAR_MS - 100);
    assert.deepEqual(got, ['first']);
    assert.equal(node.counters.recv_held_unclear, 3);
    assert.ok(node.heldBytes > 0);
    await run(world, 200);
    const all = ['first', 'low 5', 'low 6', 'low 7'];
    assert.deepEqual(got, all);
    assert.equal(node.heldBytes, 0);
    // What it says now comes too late to change that.
    next.answer(OLD_6X);
    await run(world, 60_000);
    assert.deepEqual(got, all);
  });

  it('are delivered at once when they fill what the peer may hold', async () => {
    const limitBytes = 1 << 20;
    const scene = meeting({ heldBytesPerPeer: limitBytes });
    const { world, node, got } = scene;
    const next = await second(scene, ['first']);
    const COUNT = Math.ceil((3 * limitBytes) / 15_000);
    for (let seq = 1; seq <= COUNT; seq++)
      next.write(message(seq, 9, PORT, Buffer.alloc(15_000), RETRANSMITTED));
    await untilHeld(scene);
    const since = world.now;
    for (let i = 0; i < 2 * UNCLEAR_MS && node.counters.recv_held_back === 0; i++) await run(world, 1);
    const filledMs = world.now - since;
    assert.ok(filledMs < UNCLEAR_MS / 2, `full after ${filledMs} ms`);
    await run(world, 10);
    assert.ok(got.length > 1 + limitBytes / 15_000 / 2, `${got.length} delivered`);
    await run(world, 60_000);
    assert.equal(got.length, 1 + COUNT);
    assert.equal(node.heldBytes, 0);
  });
});

describe('a kernel that knew our former process, and whose first connection dies before its handshake', () => {
  it('6.x repeats on a connection from any port what was not acknowledged: everything once', async () => {
    const scene = meeting();
    const { world, node, got } = scene;
    const next = await second(scene, ['0', '1', '2']);
    for (const [i, text] of ['0', '1', '2'].entries())
      next.write(message(1000 + i, 9, PORT, text, RETRANSMITTED));
    next.nextSeq = 1003;
    next.say(PORT, '3');
    await run(world, 500);
    // Another lane's, or come before? It has not said yet.
    assert.deepEqual(got, ['0', '1', '2']);
    assert.equal(node.counters.recv_held_unclear, 4);
    next.answer(OLD_6X);
    await run(world, 500);
    assert.deepEqual(got, ['0', '1', '2', '3']);
    assert.equal(node.counters.recv_drop_old_seq, 3);
    assert.equal(node.peers[0]?.npaths, 1);
    next.say(PORT, '4');
    await run(world, 60_000);
    assert.deepEqual(got, ['0', '1', '2', '3', '4']);
  });

  it('7.x has another lane come next, with numbers of its own: nothing is lost', async () => {
    const scene = meeting();
    const { world, node, peer, got } = scene;
    const next = await second(scene, ['0', '1', '2']);
    // Sent to our former process, and again to us; and new ones.
    for (const seq of [5, 6]) next.write(message(seq, 9, PORT, `on 4: ${seq}`, RETRANSMITTED));
    next.nextSeq = 7;
    next.say(PORT, 'on 4: 7');
    await run(world, 500);
    assert.deepEqual(got, ['0', '1', '2']);
    next.answer(NEW_7X);
    await run(world, 500);
    const heard = ['0', '1', '2', 'on 4: 5', 'on 4: 6', 'on 4: 7'];
    assert.deepEqual(got, heard);
    assert.equal(node.peers[0]?.npaths, 8);
    assert.equal(node.counters.recv_drop_old_seq, 0);
    // Lane 3 comes again, and is what it was: with what it repeats, and something new.
    peer.dial(node.address, 0).speak(NEW_7X);
    await run(world, 1000);
    const again = peer.dial(node.address, 3);
    again.nextSeq = 1003;
    again.speak(NEW_7X);
    again.write(message(1002, 9, PORT, '2', RETRANSMITTED));
    again.say(PORT, '3');
    await run(world, 60_000);
    assert.deepEqual(got, [...heard, '3']);
    assert.equal(node.counters.recv_drop_old_seq, 1);
  });
});
