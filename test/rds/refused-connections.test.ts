/** Connections that a node refuses, as both ends see it, over simulated links: nothing is lost, and who is refused comes in when there is room. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { RdsNode } from '../../src/rds/node.ts';
import type { NodeLimits } from '../../src/rds/options.ts';
import { parseCidr } from '../../src/wire/cidr.ts';
import { Random } from '../support/random.ts';
import { newProcess } from '../support/scene.ts';
import { type Process, World } from '../support/sim.ts';

const TO = { address: '10.0.0.9', port: 5000 } as const;

interface Sender {
  readonly process: Process;
  readonly node: RdsNode;
}

function scene(limits: Partial<NodeLimits>, allow: string[] | null = null) {
  const world = new World(new Random(5));
  const host = newProcess(world);
  const node = new RdsNode(TO.address, host.environment, limits, allow?.map(parseCidr) ?? null, 1);
  const socket = node.bind(TO.port);
  return {
    ...{ world, host, node },
    /** A smaller address, which dials; it sends one message. */
    sender(address: string): Sender {
      const process = newProcess(world);
      const sender = new RdsNode(address, process.environment, {}, null, 1);
      sender.bind(4000).sendmsg(Buffer.from(address), TO);
      return { process, node: sender };
    },
    /** Who has been heard since the last call. */
    heard(): string[] {
      const from: string[] = [];
      for (let got = socket.recvmsg(); got !== null; got = socket.recvmsg())
        if (got.kind === 'data') from.push(got.address);
      return from;
    },
  };
}

describe('connections that are refused', () => {
  it('by `allow` stay out, whatever they try, and what they have to say waits with them', () => {
    const { world, host, node, sender, heard } = scene({}, ['10.0.0.1']);
    sender('10.0.0.1');
    const stranger = sender('10.0.0.2');
    world.run(20_000);
    assert.deepEqual(heard(), ['10.0.0.1']);
    assert.ok(node.counters.accept_refused_allow > 1, 'it tried again');
    assert.equal(node.counters.accept_refused, node.counters.accept_refused_allow);
    assert.equal(node.peer('10.0.0.2'), undefined);
    assert.equal(host.connections, 1);
    assert.equal(stranger.node.stats().queuedBytes, 8);
  });

  it('because there are too many come in when one has gone', () => {
    const { world, host, node, sender, heard } = scene({ connections: 2 });
    const first = sender('10.0.0.1');
    sender('10.0.0.2');
    world.run(1000);
    assert.equal(host.connections, 2);
    sender('10.0.0.3');
    world.run(10_000);
    assert.deepEqual(heard().sort(), ['10.0.0.1', '10.0.0.2']);
    assert.ok(node.counters.accept_refused_connections > 0);
    assert.equal(node.peer('10.0.0.3'), undefined);
    first.process.die('reset');
    // Its place as a peer is free a minute later.
    world.run(120_000);
    assert.deepEqual(heard(), ['10.0.0.3']);
    assert.equal(host.connections, 2);
  });
});
