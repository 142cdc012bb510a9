/**
 * Lane 0 goes first, on virtual time: a peer of several lanes that is lost, and comes back with another lane before it. What that lane
 * says waits until lane 0 has agreed, or was waited for in vain; and what was begun on lane 0 goes on no other.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { RdsNode } from '../../src/rds/node.ts';
import type { Peer } from '../../src/rds/peer.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { Random } from '../support/random.ts';
import { newProcess, readMessages, run } from '../support/scene.ts';
import { World } from '../support/sim.ts';
import { type SimConnection, SimPeer } from '../support/sim-peer.ts';

const PORT = 5000;
const LANES = 8;
const PROBE = { npaths: LANES, genNum: 0x7007, sportIdx: true };
const RESTARTED = { ...PROBE, genNum: 0x7008 };
/** LANE_0_TIMEOUT_MS of stash.ts. */
const LANE_0_MS = 5000;
const MIB = 1 << 20;

interface Known {
  readonly world: World;
  readonly node: RdsNode;
  readonly peer: SimPeer;
  readonly lanes: readonly SimConnection[];
  readonly got: string[];
  readonly remote: Peer;
}

/** A node, and a peer that dials and has all its lanes up. Lane 0 of the peer reads until it has answered. */
async function known(): Promise<Known> {
  const world = new World(new Random(31));
  const node = new RdsNode('10.0.0.2', newProcess(world).environment);
  const socket = node.bind(PORT, { sendBufferBytes: 1 << 24 });
  const got: string[] = [];
  socket.on('readable', () => {
    for (const { data } of readMessages(socket)) got.push(data.toString());
  });
  const peer = new SimPeer(world, '10.0.0.1');
  const lanes: SimConnection[] = [];
  for (let lane = 0; lane < LANES; lane++) {
    const connection = peer.dial(node.address, lane);
    connection.speak(PROBE);
    lanes.push(connection);
    if (lane === 0) await run(world, 1000);
  }
  await run(world, 1000);
  const remote = node.peers[0] as Peer;
  assert.deepEqual(
    remote.lanes.map(({ connection }) => connection.settled),
    new Array(LANES).fill(true),
  );
  return { world, node, peer, lanes, got, remote };
}

/** All lanes are lost. */
async function lose({ world, lanes, remote }: Known): Promise<void> {
  for (const connection of lanes) connection.reset();
  await run(world, 100);
  assert.ok(remote.lanes.every(({ connection }) => connection.isAway));
}

/** A socket of the node whose messages go on lane 0. */
function onLane0({ node, remote }: Known): RdsSocket {
  for (let port = 6000; port < 6200; port++)
    if (remote.laneFor(port) === remote.lanes[0]) return node.bind(port, { sendBufferBytes: 1 << 24 });
  throw new Error('no port goes on lane 0');
}

async function lane3ComesFirst(): Promise<Known & { readonly early: SimConnection }> {
  const made = await known();
  await lose(made);
  const early = made.peer.dial(made.node.address, 3);
  early.speak(PROBE);
  early.say(PORT, 'on lane 3');
  return { ...made, early };
}

describe('a connection of another lane that comes before lane 0', () => {
  it('is not read before lane 0 is settled, and at once behind that', async () => {
    const { world, node, peer, got, remote, early } = await lane3ComesFirst();
    await run(world, 1000);
    const first = peer.dial(node.address, 0);
    first.say(PORT, 'on lane 0');
    await run(world, 500);
    const next = peer.dial(node.address, 5);
    next.speak(PROBE);
    next.say(PORT, 'on lane 5');
    await run(world, 300);
    // Lane 0 is there, and has not said yet which process this is.
    assert.deepEqual(got, ['on lane 0']);
    assert.deepEqual([early.messages.length, next.messages.length], [0, 0]);
    const states = (): unknown[] => [3, 5].map((lane) => remote.lanes[lane]?.connection.state);
    assert.deepEqual(states(), ['down', 'down']);
    first.speak(PROBE);
    await run(world, 20);
    assert.deepEqual(got.sort(), ['on lane 0', 'on lane 3', 'on lane 5']);
    assert.deepEqual(states(), ['up', 'up']);
  });

  it('is read when lane 0 was waited for in vain, not before', async () => {
    const { world, got, remote, early } = await lane3ComesFirst();
    await run(world, LANE_0_MS - 200);
    assert.deepEqual([got, early.messages.length], [[], 0]);
    await run(world, 500);
    assert.deepEqual(got, ['on lane 3']);
    assert.equal(remote.lanes[3]?.connection.state, 'up');
  });
});

describe('what was begun on lane 0', () => {
  const large = Buffer.alloc(MIB, 'L');

  /** A large message that the peer's window did not take, begun and not acknowledged, on lane 0. */
  async function begun(): Promise<Known> {
    const made = await known();
    const { world, peer, lanes, remote } = made;
    lanes[0]?.rest();
    onLane0(made).sendmsg(large, { address: peer.address, port: 7 });
    await run(world, 1000);
    const unacked = remote.lanes[0]?.connection.sender.runs().unacked ?? [];
    assert.ok(
      [...unacked].some(({ sent }) => sent > 0),
      'begun, and not acknowledged',
    );
    await lose(made);
    return made;
  }

  it('waits for lane 0 while another lane is there alone, and arrives once', async () => {
    const made = await begun();
    const { world, peer, node } = made;
    const early = peer.dial(node.address, 3);
    early.speak(PROBE);
    await run(world, LANE_0_MS + 20_000);
    assert.deepEqual([early.texts, early.partial.bytes], [[], 0]);
    const first = peer.dial(node.address, 0);
    first.speak(PROBE);
    await run(world, 2000);
    assert.deepEqual(first.texts, [large.toString()]);
    assert.deepEqual([early.texts, early.partial.bytes], [[], 0]);
    assert.equal(node.stats().queuedBytes, 0);
  });

  it('does not go on a connection that stands in for it', async () => {
    const made = await begun();
    const { world, peer, node, remote } = made;
    // The peer has started again, and says so on lane 3 alone: no number of lanes is agreed any more.
    const told = peer.dial(node.address, 3);
    told.speak(RESTARTED);
    await run(world, LANE_0_MS + 6000);
    assert.deepEqual([told.hasEnded, remote.npaths], [true, 0]);
    const standing = peer.dial(node.address, 3);
    await run(world, LANE_0_MS - 500);
    assert.equal(remote.lanes[0]?.connection.state, 'down', 'lane 0 is waited for');
    await run(world, LANE_0_MS + 500);
    assert.equal((remote.lanes[0]?.channel?.remotePort ?? 0) % LANES, 3);
    const mayCome = ['congestion', 'probe-ping', 'probe-pong'];
    const others = (): string[] => standing.kinds.filter((kind) => !mayCome.includes(kind));
    assert.deepEqual([others(), standing.partial.announced], [[], 0]);
    standing.ping(RESTARTED);
    await run(world, 60_000);
    assert.deepEqual([others(), standing.partial.announced], [[], 0]);
    standing.reset();
    const first = peer.dial(node.address, 0);
    first.speak(RESTARTED);
    await run(world, 20_000);
    assert.deepEqual(first.texts, [large.toString()]);
    assert.deepEqual([others(), standing.partial.announced], [[], 0]);
    assert.equal(node.stats().queuedBytes, 0);
  });
});
