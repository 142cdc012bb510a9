/**
 * A process that starts again, and whose first connection is lost before the peer has read it: what it repeats on the next one has lower
 * numbers than the process before, comes before its probe, and is new.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { Random } from '../support/random.ts';
import { cut, readMessages, run, stall } from '../support/scene.ts';
import { Process, World } from '../support/sim.ts';

const PORT = 5000;
/** Steps of a tenth of a millisecond. */
const CONFIRMED_WITHIN = 10_000;

function start(world: World, address: string, bootMs: number): { process: Process; socket: RdsSocket } {
  const process = new Process(world, { lendable: true, budgetPages: -1, bootMs });
  return { process, socket: new RdsNode(address, process.environment, {}, null, 1).bind(PORT) };
}

test('what it repeats is delivered, and once', async () => {
  // It is dialled: whoever dials sends nothing before the peer has spoken, and so, most likely, read.
  const [own, theirs] = ['10.0.0.2', '10.0.0.1'];
  const world = new World(new Random(5));
  const peer = start(world, theirs, 1_000_000);
  const before = start(world, own, 1_000_000);
  const texts = (): string[] => readMessages(peer.socket).map(({ data }) => String(data));
  const to = { address: theirs, port: PORT };
  for (let i = 0; i < 10; i++) before.socket.sendmsg(Buffer.from(`before ${i}`), to);
  await run(world, 1000);
  assert.equal(texts().length, 10);

  before.process.die('reset');
  // Its clock went back, and with it where its numbers begin.
  const again = start(world, own, 500_000);
  for (let i = 0; i < 3; i++) again.socket.sendmsg(Buffer.from(`again ${i}`), to);
  const lane = again.socket.node.peers[0]?.lanes[0];
  for (let i = 0; i < CONFIRMED_WITHIN && lane?.connection.confirmed !== true; i++) await run(world, 0.1);
  assert.equal(lane?.connection.confirmed, true);
  // Nobody answers its probe, so it sends.
  stall(world);
  await run(world, 3000);
  assert.deepEqual([lane.connection.settled, lane.connection.sender.hasUnacked], [true, true]);
  assert.deepEqual(texts(), []);
  cut(world);
  await run(world, 10_000);
  assert.deepEqual(texts(), ['again 0', 'again 1', 'again 2']);
  assert.equal(peer.socket.node.counters.peer_restarts, 1);
  assert.ok(peer.socket.node.counters.recv_held_unclear >= 3);
  assert.equal(peer.socket.node.heldBytes, 0);
});
