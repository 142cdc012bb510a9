/**
 * A kernel that maps lanes by the order of arrival (6.x), and has heard of eight lanes from a former node at this address: it must be told
 * that there is one, or goes on with eight, and mixes them up.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { RdsNode } from '../../src/rds/node.ts';
import { classify, EXTHDR_OFFSET } from '../../src/wire/rds.ts';
import { parseExtensions } from '../../src/wire/rds-exthdr.ts';
import { Random } from '../support/random.ts';
import { mapMessage } from '../support/raw-peer.ts';
import { newProcess, readMessages, run } from '../support/scene.ts';
import { World } from '../support/sim.ts';
import { SimKernel } from '../support/sim-kernel.ts';
import { type SimConnection, SimPeer } from '../support/sim-peer.ts';

const PORTS = [30, 31, 32, 33, 34, 35, 36, 37];
/** Such that a kernel of eight lanes sends on lane 0. */
const FIRST_PORT = 32;
const COUNT = 20;

describe('a 6.x kernel that remembers eight lanes', () => {
  for (const role of ['dials', 'is dialled'] as const) {
    it(`is told of one, and keeps every message; the kernel ${role}`, () => {
      const world = new World(new Random(17));
      const [theirs, own] = role === 'dials' ? ['10.0.0.1', '10.0.0.2'] : ['10.0.0.2', '10.0.0.1'];
      const kernel = new SimKernel(newProcess(world), { version: 6, address: theirs, peer: own });
      kernel.npaths = 8;
      const node = new RdsNode(own, newProcess(world).environment);
      const sockets = PORTS.map((port) => node.bind(port));
      // One that knows of several lanes takes no notice of who wants it to dial.
      const first = role === 'dials' ? ['first'] : [];
      for (const text of first) kernel.send(FIRST_PORT, FIRST_PORT, Buffer.from(text));
      for (let i = 0; i < COUNT; i++) {
        for (const socket of sockets)
          socket.sendmsg(Buffer.from(`${i}`), { address: theirs, port: socket.port });
        world.run(world.now + 0.5);
      }
      world.run(world.now + 10_000);
      assert.deepEqual([kernel.npaths, node.peers[0]?.npaths], [1, 1]);
      assert.equal(kernel.lanesUp, 1);
      for (let i = 0; i < COUNT; i++) {
        for (const port of PORTS) kernel.send(port, port, Buffer.from(`${i}`));
        world.run(world.now + 0.5);
        if (i === COUNT / 2) for (const link of [...world.links]) link.cut();
      }
      world.run(world.now + 10_000);
      const expected = Array.from({ length: COUNT }, (_, i) => `${i}`);
      for (const [i, port] of PORTS.entries()) {
        const heard = kernel.received.filter((one) => one.port === port).map(({ payload }) => `${payload}`);
        assert.deepEqual(heard, expected, `from our port ${port}`);
        const got = readMessages(sockets[i] as (typeof sockets)[0]).map(({ data }) => `${data}`);
        assert.deepEqual(
          got,
          port === FIRST_PORT ? [...first, ...expected] : expected,
          `to our port ${port}`,
        );
      }
      assert.deepEqual([kernel.npaths, kernel.lanesUp], [1, 1]);
    });
  }

  for (const role of ['dials', 'is dialled'] as const) {
    it(`is told on the connection at hand, behind its answer; the kernel ${role}`, async () => {
      const world = new World(new Random(18));
      const [theirs, own] = role === 'dials' ? ['10.0.0.1', '10.0.0.2'] : ['10.0.0.2', '10.0.0.1'];
      const kernel = new SimPeer(world, theirs);
      const told: SimConnection[] = [];
      kernel.listen((connection) => told.push(connection));
      const node = new RdsNode(own, newProcess(world).environment);
      if (role === 'dials') told.push(kernel.dial(own, 3));
      else node.bind(FIRST_PORT).sendmsg(Buffer.from('x'), { address: theirs, port: 7 });
      await run(world, 100);
      const [connection] = told;
      assert.ok(connection !== undefined);
      connection.write(mapMessage());
      await run(world, 100);
      // It has answered nothing yet: what it would do with a number of lanes is not known.
      assert.deepEqual(lanesNamed(connection), [undefined]);
      connection.answer({ npaths: 8 });
      await run(world, 100);
      assert.deepEqual(lanesNamed(connection), [undefined, 1]);
      assert.equal(told.length, 1);
    });
  }
});

/** What the probes that came name as the number of lanes. */
function lanesNamed({ messages }: SimConnection): (number | undefined)[] {
  return messages
    .filter(({ bytes }) => classify(bytes, 0) === 'probe-ping')
    .map(({ bytes }) => parseExtensions(bytes, EXTHDR_OFFSET).npaths);
}
