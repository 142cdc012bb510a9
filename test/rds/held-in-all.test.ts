/**
 * The bound on bytes held of all peers together (limits.heldBytes), on virtual time, with peers whose own bound is far above it: over it a
 * peer that has its share takes nothing more, on none of its lanes, and whoever has less may take up to it.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { CHUNK_BYTES } from '../../src/rds/memory.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { HEADER_BYTES } from '../../src/wire/rds.ts';
import { Random } from '../support/random.ts';
import { message } from '../support/raw-peer.ts';
import { newProcess, readAll, readMessages, run } from '../support/scene.ts';
import { World } from '../support/sim.ts';
import { type SimConnection, SimPeer } from '../support/sim-peer.ts';

const MIB = 1 << 20;
const LANES = 8;
const PEERS = 4;
const PORT = 5000;

interface Victim {
  readonly world: World;
  readonly node: RdsNode;
  readonly socket: RdsSocket;
  /** By peer, and by lane. */
  readonly lanes: readonly (readonly SimConnection[])[];
}

/** A node that holds up to `heldBytes` of all, and any number of one, with all lanes of all peers up. */
async function victim(heldBytes: number): Promise<Victim> {
  const world = new World(new Random(3));
  const limits = { heldBytes, heldBytesPerPeer: 1 << 30 };
  const node = new RdsNode('10.0.1.0', newProcess(world).environment, limits);
  const socket = node.bind(PORT, { receiveBufferBytes: 1 << 28 });
  const lanes: SimConnection[][] = [];
  for (let p = 0; p < PEERS; p++) {
    const peer = new SimPeer(world, `10.0.0.${p + 1}`);
    const connections: SimConnection[] = [];
    for (let lane = 0; lane < LANES; lane++) {
      const connection = peer.dial(node.address, lane);
      connection.speak({ npaths: LANES, genNum: 100 + p, sportIdx: true });
      connections.push(connection);
      if (lane === 0) await run(world, 1000);
    }
    lanes.push(connections);
  }
  await run(world, 2000);
  // The first message of a lane has lane 0 read before it, whatever is held. Nobody has this port.
  for (const connection of lanes.flat()) connection.say(7777, 'first');
  await run(world, 1000);
  for (const peer of node.peers)
    assert.ok(peer.lanes.length === LANES && peer.lanes.every(({ connection }) => connection.settled));
  return { world, node, socket, lanes };
}

describe('with many lanes that each begin a large message', () => {
  const whole = message(1000, 9, PORT, Buffer.alloc(MIB, 'y'));
  const [beginning, rest] = [whole.subarray(0, HEADER_BYTES + 20_000), whole.subarray(HEADER_BYTES + 20_000)];

  it('a peer that has its share takes no more memory, and ended they all arrive', async () => {
    const perPeer = 4;
    // Over it as the last of these begins, and each peer over its share.
    const heldBytes = PEERS * perPeer * MIB - 1000;
    const { world, node, socket, lanes } = await victim(heldBytes);
    for (const connections of lanes) {
      for (const connection of connections.slice(0, perPeer)) connection.write(beginning);
      await run(world, 1000);
    }
    const before = node.heldBytes;
    assert.ok(before > heldBytes && before <= heldBytes + MIB, `${before} bytes held`);
    for (const connections of lanes) {
      for (const connection of connections.slice(perPeer)) connection.write(beginning);
      await run(world, 1000);
    }
    assert.equal(node.heldBytes, before);
    for (const connections of lanes) for (const connection of connections) connection.write(rest);
    let arrived = 0;
    for (let i = 0; i < 100 && arrived < PEERS * LANES; i++) {
      await run(world, 200);
      assert.ok(node.heldBytes <= heldBytes + (PEERS + 1) * MIB, `${node.heldBytes} bytes held`);
      arrived += readAll(socket).length;
    }
    assert.equal(arrived, PEERS * LANES);
    await run(world, 1000);
    assert.equal(node.heldBytes, 0);
  });

  it('one peer fills it, the others still have their shares, and twice the bound is never passed', async () => {
    const heldBytes = PEERS * MIB;
    const { world, node, lanes } = await victim(heldBytes);
    const [greedy = [], ...others] = lanes;
    for (const connection of greedy) connection.write(beginning);
    await run(world, 1000);
    const greedyBytes = node.heldBytes;
    assert.ok(greedyBytes > heldBytes && greedyBytes <= heldBytes + MIB, `${greedyBytes} bytes held`);
    for (const connections of others) for (const connection of connections) connection.write(beginning);
    await run(world, 2000);
    const [first, ...rest] = node.peers.map((peer) => peer.heldBytes);
    assert.equal(first, greedyBytes);
    // Each takes what brings it over its share of 1 MiB, and nothing behind that.
    for (const bytes of rest) assert.ok(bytes > 0 && bytes <= 2 * MIB, `${bytes} bytes held`);
    const most = 2 * heldBytes + PEERS * MIB;
    assert.ok(node.heldBytes <= most, `${node.heldBytes} bytes held`);
  });
});

it('small messages that wait to be read on many lanes: no more than the bound, and all are read in the end', async () => {
  const heldBytes = 4 * MIB;
  const { world, node, socket, lanes } = await victim(heldBytes);
  const COUNT = 40;
  const part = Buffer.concat(
    Array.from({ length: COUNT }, (_, i) => message(1000 + i, 9, PORT, Buffer.alloc(15_000))),
  );
  for (const connections of lanes) for (const connection of connections) connection.write(part);
  let most = 0;
  for (let i = 0; i < 400; i++) {
    await run(world, 5);
    most = Math.max(most, node.heldBytes);
  }
  assert.ok(node.counters.recv_held_back >= PEERS, 'no more is taken of any');
  // What a lane has read already is kept: a chunk or two of it.
  assert.ok(most <= 2 * heldBytes + PEERS * LANES * 2 * CHUNK_BYTES, `${most} bytes held`);
  assert.ok(most < (PEERS * LANES * COUNT * 15_000) / 2, 'less than half of what was sent');
  let got = 0;
  for (let i = 0; i < 400 && got < PEERS * LANES * COUNT; i++) {
    await run(world, 50);
    got += readMessages(socket).length;
  }
  assert.equal(got, PEERS * LANES * COUNT);
  assert.equal(node.heldBytes, 0);
});
