/**
 * An address that moves to another host and comes back, on virtual time: the peer's generation number is one, then another, then the first
 * again. Generations are not of an age: it is the later connection that tells who is there now. And a late word of the one
 * before, on a connection that was not read until now, changes nothing.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { RETRANSMITTED } from '../../src/wire/rds.ts';
import { Random } from '../support/random.ts';
import { newProcess, readMessages, run } from '../support/scene.ts';
import { World } from '../support/sim.ts';
import { type SimConnection, SimPeer } from '../support/sim-peer.ts';

const PORT = 5000;
const LANES = 8;
const [HERE, THERE] = [0xaaaa, 0xbbbb];
const [SMALL, LARGE] = ['10.0.0.1', '10.0.0.2'];

const probe = (genNum: number) => ({ npaths: LANES, genNum, sportIdx: true });

interface Scene {
  readonly world: World;
  readonly node: RdsNode;
  readonly socket: RdsSocket;
  readonly peer: SimPeer;
  readonly got: string[];
}

/** With one lane everything goes on the connection at hand. */
function scene(own: string, theirs: string, lanes: number = LANES): Scene {
  const world = new World(new Random(41));
  const node = new RdsNode(own, newProcess(world).environment, {}, null, lanes);
  const socket = node.bind(PORT);
  const got: string[] = [];
  socket.on('readable', () => {
    for (const { data } of readMessages(socket)) got.push(data.toString());
  });
  return { world, node, socket, peer: new SimPeer(world, theirs), got };
}

/** The host at the address speaks, and is heard within a second. */
async function serves(made: Scene, connection: SimConnection, genNum: number, text: string): Promise<void> {
  const { world, got, node } = made;
  connection.speak(probe(genNum));
  connection.say(PORT, text);
  await run(world, 1000);
  assert.ok(got.includes(text), `${got}`);
  assert.deepEqual([node.peers[0]?.generation, connection.hasEnded], [genNum, false]);
}

const HOSTS = [
  [HERE, 'here'],
  [THERE, 'there'],
  [HERE, 'here again'],
  [THERE, 'there again'],
] as const;

describe('an address that moves to another host and back', () => {
  it('is served at once, each time, when the peer dials', async () => {
    const made = scene(LARGE, SMALL, 1);
    const { world, node, socket, peer, got } = made;
    for (const [genNum, text] of HOSTS) {
      const connection = peer.dial(node.address, 0);
      socket.sendmsg(Buffer.from(`to ${text}`), { address: peer.address, port: 7 });
      await run(world, 10);
      await serves(made, connection, genNum, text);
      assert.deepEqual(connection.texts, [`to ${text}`]);
      connection.reset();
      await run(world, 50);
    }
    assert.deepEqual(
      got,
      HOSTS.map(([, text]) => text),
    );
    assert.equal(node.counters.peer_restarts, HOSTS.length - 1);
  });

  it('is served at once, each time, when it is dialled', async () => {
    const made = scene(SMALL, LARGE);
    const { world, node, peer, got, socket } = made;
    let current = 0;
    let onLane0: SimConnection | undefined;
    // The port tells the lane: lanes above 0 are told apart by it.
    peer.listen((connection) => {
      connection.speak(probe(HOSTS[current]?.[0] as number));
      onLane0 ??= connection;
    });
    for (const [i, [genNum, text]] of HOSTS.entries()) {
      current = i;
      onLane0 = undefined;
      socket.sendmsg(Buffer.from(`to ${text}`), { address: peer.address, port: 7 });
      const before = peer.accepted.length;
      // A back-off may be running.
      for (let ms = 0; ms < 1000 && onLane0 === undefined; ms++) await run(world, 1);
      (onLane0 as SimConnection | undefined)?.say(PORT, text);
      await run(world, 1000);
      assert.equal(got.at(-1), text);
      const heard = peer.accepted.slice(before > 0 ? before - 1 : 0).flatMap(({ texts }) => texts);
      assert.ok(heard.includes(`to ${text}`), `${heard}`);
      assert.equal(node.peers[0]?.generation, genNum);
      for (const connection of peer.accepted) if (!connection.hasEnded) connection.reset();
      await run(world, 5);
    }
    assert.deepEqual(
      got,
      HOSTS.map(([, text]) => text),
    );
    assert.equal(node.counters.peer_restarts, HOSTS.length - 1);
    assert.deepEqual(
      peer.accepted.flatMap(({ texts }) => texts),
      HOSTS.map(([, text]) => `to ${text}`),
    );
  });
});

it('a late word of the host before, on a connection that waited: what it says is taken, who it is is not', async () => {
  const made = scene(LARGE, SMALL);
  const { world, node, peer, got } = made;
  const before = peer.dial(node.address, 0);
  await run(world, 10);
  await serves(made, before, HERE, 'here');
  before.reset();
  await run(world, 50);
  // Of the process before: it is not read, as lane 0 is not there.
  const late = peer.dial(node.address, 3);
  late.nextSeq = 5_000_000;
  late.ping(probe(HERE));
  late.say(PORT, 'late');
  await run(world, 50);
  late.fin();
  await run(world, 50);
  assert.deepEqual(got, ['here']);
  const next = peer.dial(node.address, 0);
  await run(world, 10);
  await serves(made, next, THERE, 'there');
  await run(world, 1000);
  assert.deepEqual(got.sort(), ['here', 'late', 'there']);
  assert.deepEqual([node.peers[0]?.generation, node.counters.peer_restarts], [THERE, 1]);
  // Nor do its numbers count.
  const same = peer.dial(node.address, 3);
  same.speak(probe(THERE));
  same.say(PORT, 'there, on the same lane', RETRANSMITTED);
  next.say(PORT, 'there again');
  await run(world, 1000);
  assert.deepEqual(got.slice(3).sort(), ['there again', 'there, on the same lane']);
  assert.equal(next.hasEnded, false);
});
