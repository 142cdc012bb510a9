/**
 * Who connects, when, and how often, over real TCP: duelling connects, connections too many, replaced in the middle of
 * anything, from addresses that cannot be, and a node that closes amid all that.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, describe, type TestContext, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { RdsNode, ZerotxError } from '../../src/rds/index.ts';
import { runChild } from '../support/children.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { mapMessage, message, RawConnection, RawListener, until } from '../support/raw-peer.ts';
import { PORT, TestNode, type TestNodeOptions } from '../support/tcp-nodes.ts';

const VICTIM = '127.73.5.5';
const seed = Number(process.env.FC_SEED ?? Date.now() % 1_000_000);
const options = { timeout: scaled(60_000, 3_600_000) };

let good: TestNode;
let nextHost = 1;

before(() => {
  good = new TestNode('127.73.5.4');
});

after(() => good.close());

function victimOf(context: TestContext, nodeOptions: TestNodeOptions = {}): TestNode {
  const node = new TestNode(VICTIM, { speed: 20, ...nodeOptions });
  context.after(() => node.close());
  return node;
}

async function dial(context: TestContext, from: string): Promise<RawConnection> {
  const connection = await RawConnection.dial(from, VICTIM);
  context.after(() => connection.reset());
  return connection;
}

function smaller(): string {
  return `127.73.1.${nextHost++}`;
}

function larger(): string {
  return `127.73.9.${nextHost++}`;
}

/** Established connections that `client` dialled to port 16385 of `server`, from the kernel's table. */
function established(client: string, server: string): number {
  const hex = (address: string): string =>
    Buffer.from(address.split('.').map(Number).reverse()).toString('hex').toUpperCase();
  const pattern = new RegExp(`: ${hex(client)}:[0-9A-F]{4} ${hex(server)}:4001 01 `, 'g');
  return readFileSync('/proc/net/tcp', 'utf8').match(pattern)?.length ?? 0;
}

test('duelling connects end in one connection a lane, dialled by the smaller address', options, async (t) => {
  const random = new Random(seed);
  t.diagnostic(`seed ${seed}`);
  const [low, high] = ['127.73.2.1', '127.73.2.2'];
  for (let round = 0; round < scaled(30, 1000); round++) {
    const lanes = random.pick([1, 8]);
    const nodes = [new TestNode(low, { lanes }), new TestNode(high)] as const;
    const sends = nodes.map(async (node, i) => {
      for (let delay = random.below(4); delay > 0; delay--) await turn();
      const other = nodes[1 - i]!;
      node.socket.sendmsg(Buffer.from(`${round}`), { address: other.address, port: PORT });
    });
    await Promise.all(sends);
    await until(`round ${round}`, () => nodes.every(({ received }) => received.length === 1));
    await until('its connections', () => established(low, high) === lanes && established(high, low) === 0);
    for (let i = 0; i < 3; i++) await nodes[0].exchange(nodes[1]);
    assert.equal(established(low, high), lanes);
    assert.deepEqual(
      nodes.map(({ node }) => node.counters.conn_reset),
      [0, 0],
    );
    await Promise.all(nodes.map((node) => node.close()));
  }
});

describe('more connections than one', () => {
  test('a peer with two connections keeps nobody else waiting', options, async (t) => {
    const victim = victimOf(t, { speed: 5 });
    const address = smaller();
    const first = await dial(t, address);
    first.write(message(1, 9, PORT, 'on the first'));
    await until('the first', () => victim.from(address).length === 1);
    await dial(t, address);
    const lane = victim.node.peer(address)!.lanes[0]!;
    await until('the drain', () => lane.connection.state === 'draining');
    const other = smaller();
    const served = await dial(t, other);
    served.speak();
    served.write(message(5, 9, PORT, 'served'));
    await until('the other peer', () => victim.from(other).length === 1);
    await good.exchange(victim);
    assert.equal(lane.connection.state, 'draining');
    first.fin();
    await until('the second is used', () => lane.connection.state === 'up');
  });

  test(
    'eight wait, older ones that brought nothing are reset; each is read, the last stays',
    options,
    async (t) => {
      const victim = victimOf(t, { speed: 1, lanes: 1 });
      const address = smaller();
      const all: RawConnection[] = [];
      for (let i = 0; i < 12; i++) {
        all.push(await dial(t, address));
        await until('it is seen', () => victim.node.counters.accept_replaced >= i);
      }
      // The first is being ended.
      const gone = all.slice(1, 4);
      assert.deepEqual(
        await Promise.all(gone.map((connection) => connection.gone())),
        Array(3).fill('reset'),
      );
      const kept = all.filter((connection) => !gone.includes(connection));
      for (const [i, connection] of kept.entries()) {
        connection.write(message(i + 1, 9, PORT, `${i}`));
        if (i < kept.length - 1) connection.fin();
      }
      await until('all of them', () => victim.from(address).length === kept.length);
      assert.deepEqual(
        victim.from(address),
        kept.map((_, i) => `${i}`),
      );
      const last = kept.at(-1) as RawConnection;
      last.speak();
      victim.socket.sendmsg(Buffer.from('back'), { address, port: 7 });
      await until('the way back', () => last.kinds.includes('data'));
      for (const connection of kept.slice(0, -1)) assert.ok(!connection.kinds.includes('data'));
      await good.exchange(victim);
    },
  );

  test('those that brought something wait, up to 64; then the next is refused', options, async (t) => {
    const victim = victimOf(t, { speed: 1, lanes: 1 });
    const address = smaller();
    const all: RawConnection[] = [];
    const { counters } = victim.node;
    for (let i = 0; i < 66; i++) {
      const connection = await dial(t, address);
      all.push(connection);
      connection.write(message(i + 1, 9, PORT, `${i}`));
      await until('it is seen', () => counters.accept_replaced + counters.accept_refused >= i);
    }
    assert.equal(await (all[65] as RawConnection).gone(), 'reset');
    assert.equal(counters.accept_refused_waiting, 1);
    assert.deepEqual(victim.warningsOf(address), ['connection refused']);
    for (const connection of all.slice(0, 65)) connection.fin();
    await until('all the others', () => victim.from(address).length === 65);
    await good.exchange(victim);
  });

  test('connections over limits.peers are refused, the others go on', options, async (t) => {
    const victim = victimOf(t, { limits: { peers: 8 } });
    await good.exchange(victim);
    const flood: RawConnection[] = [];
    const addresses = Array.from({ length: 30 }, () => smaller());
    for (const address of addresses) flood.push(await dial(t, address));
    await until('the rest is refused', () => victim.node.counters.accept_refused === 23);
    assert.equal(victim.node.peers.length, 8);
    for (const [i, connection] of flood.entries()) {
      if (i < 7) connection.write(message(1, 9, PORT, 'in'));
      else assert.equal(await connection.gone(), 'reset');
    }
    for (const address of addresses.slice(0, 7)) {
      await until('those inside', () => victim.from(address).length === 1);
    }
    const last = addresses.at(-1)!;
    for (let i = 0; i < 3; i++) assert.equal(await (await dial(t, last)).gone(), 'reset');
    assert.deepEqual(victim.warningsOf(last), ['connection refused']);
    await good.exchange(victim);
  });

  test('from the own address, and from one of this process: refused', options, async (t) => {
    const nodes = new Map();
    const victim = victimOf(t, { nodes });
    const sibling = new TestNode('127.73.5.6', { nodes });
    t.after(() => sibling.close());
    for (const address of [VICTIM, sibling.address]) {
      for (let i = 0; i < 3; i++) {
        const connection = await dial(t, address);
        connection.write(message(1, 9, PORT, 'forged'));
        assert.equal(await connection.gone(), 'reset');
      }
      assert.deepEqual(victim.warningsOf(address), ['connection refused']);
      assert.deepEqual(victim.from(address), []);
    }
    assert.equal(victim.node.counters.accept_refused, 6);
    await victim.exchange(sibling);
    await good.exchange(victim);
  });
});

describe('dropped again and again', () => {
  test('while connecting: reset, refused, closed; and then it works', options, async (t) => {
    const victim = victimOf(t);
    const address = larger();
    victim.socket.sendmsg(Buffer.from('at last'), { address, port: 7 });
    await until('refused, twice', () => victim.node.counters.dial_failed >= 2);
    const listener = await RawListener.open(address);
    t.after(() => listener.close());
    for (const how of ['reset', 'reset', 'fin', 'fin', 'reset', 'fin'] as const) {
      const connection = await listener.next();
      if (how === 'reset') connection.reset();
      else connection.fin();
    }
    const rule = (await listener.next()).speak();
    await until('the message', () => rule.delivered.length === 1);
    assert.equal(victim.node.peer(address)!.lanes[0]!.connection.state, 'up');
    assert.deepEqual(victim.warningsOf(address), ['dial failed']);
    await good.exchange(victim);
  });

  test('while being accepted', options, async (t) => {
    const victim = victimOf(t);
    const address = smaller();
    victim.socket.sendmsg(Buffer.from('at last'), { address, port: 7 });
    for (let i = 0; i < 20; i++) {
      const connection = await dial(t, address);
      if (i % 3 === 0) await turn();
      if (i % 2 === 0) connection.reset();
      else connection.fin();
    }
    const rule = (await dial(t, address)).speak();
    await until('the message', () => rule.delivered.length === 1);
    await good.exchange(victim);
  });

  test('FIN of the old connection and the new one in every order', options, async (t) => {
    const victim = victimOf(t);
    const address = smaller();
    const all: RawConnection[] = [await dial(t, address)];
    all[0]!.speak();
    let seq = 100;
    for (const order of ['fin first', 'new first', 'reset first', 'new, reset'] as const) {
      for (let turns = 0; turns < 6; turns++) {
        const old = all.at(-1)!;
        const end = (): void => (order.includes('reset') ? old.reset() : old.fin());
        if (order.endsWith('first') && !order.startsWith('new')) end();
        for (let i = 0; i < turns; i++) await turn();
        const connecting = dial(t, address);
        for (let i = 0; i < turns; i++) await turn();
        if (order.startsWith('new')) end();
        const connection = await connecting;
        connection.speak();
        all.push(connection);
        const text = `${order} ${turns}`;
        connection.write(message(seq++, 9, PORT, text));
        await until(text, () => victim.from(address).includes(text));
      }
    }
    // No orphan: all but the last are closed, and the last works in both directions.
    await until('the old ones are closed', () =>
      all.slice(0, -1).every((old) => old.ended !== null || old.closed),
    );
    assert.equal(established(address, VICTIM), 1);
    assert.equal(victim.node.peer(address)!.lanes[0]!.connection.state, 'up');
    victim.socket.sendmsg(Buffer.from('back'), { address, port: 7 });
    await until('the way back', () => all.at(-1)!.kinds.includes('data'));
    assert.equal(new Set(victim.from(address)).size, victim.from(address).length);
    await good.exchange(victim);
  });

  test('replaced while data streams in', options, async (t) => {
    const victim = victimOf(t);
    const address = smaller();
    let seq = 1;
    const sent: string[] = [];
    let connection = await dial(t, address);
    const old: RawConnection[] = [];
    for (let round = 0; round < 10; round++) {
      // It answers our FIN with its own, as a kernel does.
      connection.speak();
      for (let i = 0; i < 40; i++) {
        const text = `${round}.${i} `.padEnd(i % 8 === 0 ? 100_000 : 500, 'x');
        sent.push(text.split(' ')[0]!);
        connection.write(message(seq++, 9, PORT, text));
      }
      old.push(connection);
      // No more than four can wait.
      await until('earlier ones end', () => old.slice(0, -3).every(({ ended }) => ended !== null));
      connection = await dial(t, address);
    }
    connection.write(mapMessage(), message(seq, 9, PORT, 'end '));
    sent.push('end');
    await until('the last', () => victim.from(address).at(-1) === 'end ');
    assert.deepEqual(
      victim.from(address).map((text) => text.split(' ')[0]),
      sent,
    );
    assert.equal(victim.node.counters.accept_replaced, 10);
    await good.exchange(victim);
  });
});

test(
  'a node closes with half-open, connecting, unadopted and busy lanes: nothing is left',
  options,
  async () => {
    const child = await runChild(new URL('./children/busy-close.js', import.meta.url), []);
    assert.deepEqual([child.code, child.signal, child.stderr], [0, null, '']);
    const { states, left, lanes } = JSON.parse(child.stdout);
    assert.ok(states.includes('up') && states.includes('dialing'), child.stdout);
    assert.deepEqual([left, lanes], [[], 0]);
  },
);

test('IPv6: it works, or says that there is no such address', options, async () => {
  let node: RdsNode;
  try {
    node = await RdsNode.open({ address: '::1' });
  } catch (error) {
    assert.ok(error instanceof ZerotxError);
    assert.equal(error.code, 'EADDRNOTAVAIL');
    return;
  }
  assert.equal(node.address, '::1');
  await node.close();
});
