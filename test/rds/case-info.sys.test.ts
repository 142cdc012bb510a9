/**
 * Looking at a node while everything about it changes: its state is there at any moment of any connection, and a control socket that is
 * flooded with nonsense answers who asks something, and keeps no message waiting.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, type TestContext, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { answer, openControl } from '../../src/net/control.ts';
import { askRds } from '../../src/rds/control.ts';
import { RdsNode } from '../../src/rds/index.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { message, RawConnection, until } from '../support/raw-peer.ts';
import { PORT, TestNode } from '../support/tcp-nodes.ts';

const options = { timeout: scaled(120_000, 3_600_000) };
const seed = Number(process.env.ZEROTX_SEED ?? Date.now() % 1_000_000);

function nodesOf(context: TestContext, net: string): [TestNode, TestNode] {
  const nodes: [TestNode, TestNode] = [
    new TestNode(`127.79.${net}.5`, { speed: 20 }),
    new TestNode(`127.79.${net}.4`, { speed: 20 }),
  ];
  context.after(() => Promise.all(nodes.map((node) => node.close())));
  return nodes;
}

test('tables are whole in every turn of a storm of connections', options, async (t) => {
  const [victim, good] = nodesOf(t, '1');
  let looks = 0;
  let isOver = false;
  const states = new Set<string>();
  const look = async (): Promise<void> => {
    while (!isOver) {
      const { connections, tcpSockets, sockets, counters } = victim.node.info();
      for (const { lane, remoteAddress } of connections)
        assert.ok(lane >= 0 && lane < 8 && remoteAddress !== '');
      for (const { state } of victim.node.stats().lanes) states.add(state);
      assert.equal(sockets.length, 1);
      assert.ok(tcpSockets.length <= connections.length);
      assert.ok((counters.conn_reset as number) >= 0);
      looks += 1;
      await turn();
    }
  };
  const looking = look();
  const random = new Random(seed);
  for (let i = 0; i < scaled(150, 5000); i++) {
    const from = `127.79.1.${random.pick([1, 2, 3, 9, 10])}`;
    const connection = await RawConnection.dial(from, victim.address);
    if (random.chance(0.5)) connection.speak();
    if (random.chance(0.5)) connection.write(message(i + 1, 9, PORT, 'x'.repeat(random.below(30_000))));
    if (i % 20 === 0) victim.socket.sendmsg(Buffer.from('y'), { address: from, port: 7 });
    connection.reset();
  }
  await good.exchange(victim);
  isOver = true;
  await looking;
  assert.ok(looks > 100, `${looks} looks`);
  for (const state of ['down', 'dialing', 'up']) assert.ok(states.has(state), `${state} was never seen`);
});

/** Control sockets show the nodes that the process opens, not those that tests make. */
async function shownNode(context: TestContext): Promise<RdsNode> {
  const node = await RdsNode.open({ address: '127.79.4.1' });
  context.after(() => node.close());
  return node;
}

describe('a control socket with RDS behind it', () => {
  test('answers any request with records or with an error', options, async (t) => {
    const [victim, good] = nodesOf(t, '2');
    (await shownNode(t)).bind(7).sendmsg(Buffer.from('waits'), { address: '127.79.4.2', port: 7 });
    await good.exchange(victim);
    const random = new Random(seed);
    const lists = [
      undefined,
      null,
      1,
      '',
      'connections',
      'counters',
      '__proto__',
      'sendQueue',
      {},
      ['sockets'],
    ];
    for (let i = 0; i < scaled(2000, 100_000); i++) {
      const request = random.chance(0.3)
        ? String.fromCharCode(...Array.from({ length: random.below(60) }, () => random.below(256)))
        : JSON.stringify({ get: random.pick(['rds', 'RDS', 'constructor', null]), list: random.pick(lists) });
      const said = JSON.parse(answer(request)) as Record<string, unknown>;
      assert.equal(said.protocol, 1);
      const kinds = ['error', 'records', 'nodes'].filter((key) => key in said);
      assert.equal(kinds.length, 1, `${request}: ${kinds}`);
    }
    await good.exchange(victim);
  });

  test('is flooded, and answers between; messages go on', options, async (t) => {
    const [victim, good] = nodesOf(t, '3');
    const node = await shownNode(t);
    const folder = mkdtempSync(join(tmpdir(), 'zerotx-flood-'));
    const control = openControl({ path: join(folder, 'control') });
    t.after(() => {
      control.close();
      rmSync(folder, { recursive: true });
    });
    const random = new Random(seed);
    for (let wave = 0; wave < scaled(10, 500); wave++) {
      const flood = Array.from({ length: 20 }, () => {
        const socket = connect(control.path);
        socket.on('error', () => {});
        socket.write(Buffer.alloc(1 + random.below(5000), random.below(256)));
        if (random.chance(0.3)) socket.write('\n');
        return socket;
      });
      await good.exchange(victim);
      for (const socket of flood) socket.destroy();
      await until('they are gone', () => flood.every(({ closed }) => closed));
    }
    const said = await askRds(control.path);
    assert.deepEqual(said.nodes, [node.address]);
    assert.ok('recv_delivered' in said.counters);
    await good.exchange(victim);
  });
});
