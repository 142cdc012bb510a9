/**
 * Whom a node lets in, over real TCP: blocks of addresses, limits, storms of connections from one address and from a thousand, and
 * connections that never speak. Whoever is refused leaves nothing behind, and those inside do not notice.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { after, before, describe, type TestContext, test } from 'node:test';
import { scaled } from '../support/counts.ts';
import { mapMessage, message, RawConnection, RawListener, until } from '../support/raw-peer.ts';
import { codeOf } from '../support/rds-nodes.ts';
import { PORT, TestNode, type TestNodeOptions } from '../support/tcp-nodes.ts';

const FRIEND = '127.74.5.4';
const options = { timeout: scaled(120_000, 3_600_000) };

let friend: TestNode;
let nextVictim = 10;

before(() => {
  friend = new TestNode(FRIEND);
});

after(() => friend.close());

function victimOf(context: TestContext, more: TestNodeOptions = {}): TestNode {
  // Its address is its own: the friend goes on looking for those it knew.
  const node = new TestNode(`127.74.5.${nextVictim++}`, { speed: 20, ...more });
  context.after(() => node.close());
  return node;
}

async function dial(context: TestContext, from: string, to: TestNode): Promise<RawConnection> {
  const connection = await RawConnection.dial(from, to.address);
  context.after(() => connection.reset());
  return connection;
}

function descriptors(): number {
  return readdirSync('/proc/self/fd').length;
}

/** Every other counter of refusals stays at 0. */
function assertRefused(node: TestNode, reason: string, count: number): void {
  const refused = Object.entries(node.node.counters).filter(
    ([name, n]) => name.startsWith('accept_refused') && n > 0,
  );
  assert.deepEqual(Object.fromEntries(refused), {
    accept_refused: count,
    [`accept_refused_${reason}`]: count,
  });
}

describe('allow', () => {
  test('others are reset before they are anybody, and are not sent to', options, async (t) => {
    const victim = victimOf(t, { allow: [FRIEND, '127.74.1.0/24'] });
    await friend.exchange(victim);
    // From below, where it would be accepted, and from above, where it would be a poke.
    for (const from of ['127.74.2.1', '127.74.9.1', '127.74.0.255']) {
      const connection = await dial(t, from, victim);
      connection.write(mapMessage(), message(1, 9, PORT, 'let me in'));
      assert.equal(await connection.gone(), 'reset');
      assert.equal(connection.receivedBytes, 0);
      assert.deepEqual(victim.warningsOf(from), ['connection refused']);
    }
    assertRefused(victim, 'allow', 3);
    assert.deepEqual(
      victim.node.peers.map(({ address }) => address),
      [FRIEND],
    );
    for (const address of ['127.74.2.1', '127.74.9.1', '192.0.2.1']) {
      const send = (): unknown => victim.socket.sendmsg(Buffer.from('x'), { address, port: PORT });
      assert.equal(codeOf(send), 'EACCES');
      assert.equal(
        codeOf(() => victim.socket.connect({ address, port: PORT })),
        'EACCES',
      );
      await assert.rejects(victim.socket.send(Buffer.from('x'), { address, port: PORT }), { code: 'EACCES' });
    }
    assert.deepEqual(victim.node.peers.length, 1);
    const inside = await dial(t, '127.74.1.7', victim);
    inside.speak();
    inside.write(message(5, 9, PORT, 'welcome'));
    await until('the message', () => victim.from('127.74.1.7').length === 1);
    await friend.exchange(victim);
  });

  test('an empty list is nobody; nodes of this process are not asked', options, async (t) => {
    const nodes = new Map();
    const victim = victimOf(t, { allow: [], nodes });
    const sibling = new TestNode('127.74.5.9', { nodes, allow: [] });
    t.after(() => sibling.close());
    await victim.exchange(sibling);
    assert.equal(await (await dial(t, '127.74.1.1', victim)).gone(), 'reset');
    assertRefused(victim, 'allow', 1);
  });

  test('pokes of others do not make this side dial', options, async (t) => {
    const victim = victimOf(t, { allow: [FRIEND] });
    const above = await RawListener.open('127.74.9.9');
    t.after(() => above.close());
    for (let i = 0; i < 5; i++) assert.equal(await (await dial(t, above.address, victim)).gone(), 'reset');
    await friend.exchange(victim);
    assert.equal(above.accepted.length, 0);
    assert.equal(victim.node.counters.accept_pokes, 0);
    assert.equal(victim.node.peers.length, 1);
  });
});

describe('floods', () => {
  test(
    'a thousand connections from a thousand addresses: no peer, no descriptor, few warnings',
    options,
    async (t) => {
      const victim = victimOf(t, { allow: [FRIEND], speed: 1 });
      await friend.exchange(victim);
      await until('a quiet start', () => victim.node.peers[0]!.map !== undefined);
      const before = descriptors();
      const count = scaled(1000, 10_000);
      const endings = new Map<string, number>();
      for (let next = 0; next < count; ) {
        const batch: Promise<void>[] = [];
        for (; batch.length < 50 && next < count; next++) {
          const from = `127.75.${(next >> 8) & 255}.${next & 255}`;
          const one = RawConnection.dial(from, victim.address).then(async (connection) => {
            const how = await connection.gone();
            endings.set(how, (endings.get(how) ?? 0) + 1);
            await until('it is closed', () => connection.closed);
          });
          batch.push(one);
        }
        await Promise.all(batch);
      }
      assert.deepEqual(Object.fromEntries(endings), { reset: count });
      assertRefused(victim, 'allow', count);
      assert.equal(victim.node.peers.length, 1);
      assert.ok(victim.warnings.length <= 200, `${victim.warnings.length} warnings`);
      assert.ok(descriptors() <= before, `${before} descriptors before, ${descriptors()} after`);
      await friend.exchange(victim);
      assert.equal(victim.node.counters.conn_reset, 0);
    },
  );

  test('a storm of one address keeps to its lane and to those that wait', options, async (t) => {
    const victim = victimOf(t);
    await friend.exchange(victim);
    const before = descriptors();
    const address = '127.74.1.1';
    const storm: RawConnection[] = [];
    for (let i = 0; i < 200; i++) storm.push(await dial(t, address, victim));
    const open = (): number => storm.filter(({ ended }) => ended === null).length;
    // Eight for each source port modulo the lanes, and one that is lane 0.
    await until('most are refused', () => victim.node.counters.accept_refused_waiting >= 200 - 8 * 8 - 1);
    await until('they are reset', () => open() <= 8 * 8 + 1);
    assert.equal(victim.node.peers.length, 2);
    // One in ten seconds, which are half a second here.
    assert.ok(victim.warningsOf(address).length < 20, `${victim.warnings.length} warnings`);
    await friend.exchange(victim);
    for (const connection of storm) connection.reset();
    await until('all are gone', () => storm.every(({ closed }) => closed));
    await until('and their descriptors', () => descriptors() <= before);
    await friend.exchange(victim);
  });

  test('limits.connections: a storm takes no more, and no lane of another peer', options, async (t) => {
    const victim = victimOf(t, { limits: { connections: 16 } });
    const storm: RawConnection[] = [];
    for (let i = 0; i < 60; i++) storm.push(await dial(t, '127.74.1.1', victim));
    const open = (): number => storm.filter(({ ended }) => ended === null).length;
    await until('most are refused', () => victim.node.counters.accept_refused >= 40);
    await until('no more are open than may be', () => open() <= 16);
    // There is room for the lanes of two peers, and these they are.
    for (const connection of storm) connection.reset();
    await friend.exchange(victim);
    for (let i = 0; i < 5; i++) {
      assert.equal(await (await dial(t, `127.74.1.${100 + i}`, victim)).gone(), 'reset');
    }
    assert.equal(victim.node.counters.accept_refused_peers, 5);
    assert.equal(victim.node.peers.length, 2);
    const late = await dial(t, '127.74.1.1', victim);
    late.speak();
    late.write(message(5, 9, PORT, 'at last'));
    await until('it is in', () => victim.from('127.74.1.1').length === 1);
    await friend.exchange(victim);
  });

  test('limits.peers: who is refused makes nobody else go', options, async (t) => {
    const victim = victimOf(t, { limits: { peers: 4 } });
    await friend.exchange(victim);
    for (let i = 0; i < 3; i++) (await dial(t, `127.74.1.${10 + i}`, victim)).speak();
    await until('they are peers', () => victim.node.peers.length === 4);
    const peers = victim.node.peers.map(({ address }) => address);
    for (let i = 0; i < 20; i++)
      assert.equal(await (await dial(t, `127.74.2.${i + 1}`, victim)).gone(), 'reset');
    assertRefused(victim, 'peers', 20);
    assert.equal(victim.node.counters.peers_forgotten, 0);
    assert.deepEqual(
      victim.node.peers.map(({ address }) => address),
      peers,
    );
    await friend.exchange(victim);
  });
});

describe('connections that never speak', () => {
  test('give their lane back, again and again; one that speaks keeps it', options, async (t) => {
    const victim = victimOf(t, { speed: 400 });
    const address = '127.74.1.1';
    for (let i = 1; i <= 3; i++) {
      const silent = await dial(t, address, victim);
      await until('it is up', () => victim.node.peers[0]?.lanes[0]?.connection.state === 'up');
      await until('it was long enough', () => victim.node.counters.conn_silent === i);
      await until('it is told', () => silent.ended !== null);
      await until('the lane is free', () => victim.node.peers[0]!.lanes[0]!.connection.state !== 'up');
      silent.reset();
    }
    const speaking = await dial(t, address, victim);
    speaking.speak();
    speaking.write(message(5, 9, PORT, 'here I am'));
    await until('it is heard', () => victim.from(address).length === 1);
    const end = performance.now() + 300;
    // Four times as long as the others had.
    await until('time passes', () => performance.now() > end);
    assert.equal(victim.node.counters.conn_silent, 3);
    assert.equal(speaking.ended, null);
  });
});

test(
  'who pokes and cannot be dialled is tried less and less, until there is a reason',
  options,
  async (t) => {
    const speed = 1000;
    const victim = victimOf(t, { speed });
    const strangers = ['127.74.9.1', '127.74.9.2', '127.74.9.3'];
    for (const from of strangers) await (await dial(t, from, victim)).gone();
    const minutes = 10;
    const end = performance.now() + (minutes * 60_000) / speed;
    await until('minutes pass', () => performance.now() > end);
    // About fifteen attempts until the pause is half a minute, then four in a minute; each second would be 600.
    const { counters } = victim.node;
    const most = strangers.length * (20 + 8 * minutes);
    assert.ok(counters.dial_failed >= strangers.length * 10, `${counters.dial_failed} attempts`);
    assert.ok(counters.dial_failed <= most, `${counters.dial_failed} attempts`);
    const listener = await RawListener.open(strangers[0]!);
    t.after(() => listener.close());
    await (await dial(t, strangers[0]!, victim)).gone();
    const rule = (await listener.next()).speak();
    victim.socket.sendmsg(Buffer.from('so there you are'), { address: strangers[0]!, port: PORT });
    await until('it is reached', () => rule.delivered.length === 1);
  },
);

test('a node that drains takes its peers back, and nobody new', options, async (t) => {
  const victim = victimOf(t, { speed: 1 });
  const peer = '127.74.1.1';
  victim.socket.sendmsg(Buffer.from('before I go'), { address: peer, port: PORT });
  const closing = victim.node.close({ drain: true, timeoutMs: 20_000 });
  assert.equal(await (await dial(t, '127.74.1.2', victim)).gone(), 'reset');
  assertRefused(victim, 'closing', 1);
  const rule = (await dial(t, peer, victim)).speak();
  await closing;
  assert.deepEqual(
    rule.delivered.map(({ payload }) => payload.toString()),
    ['before I go'],
  );
});
