/** RDS over the IPv6 addresses that this machine happens to have: ::1, and link-local ones. More in ipv6.lab.test.ts. */
import assert from 'node:assert/strict';
import { networkInterfaces } from 'node:os';
import { describe, it, type TestContext } from 'node:test';
import { scopeIdOf } from '../../src/net/zones.ts';
import { RdsNode } from '../../src/rds/index.ts';
import { RawConnection } from '../support/raw-peer.ts';
import { codeOf, eventually, receive } from '../support/rds-nodes.ts';

const entries = Object.entries(networkInterfaces()).flatMap(([name, list]) =>
  (list ?? []).map((entry) => ({ name, address: entry.address })),
);
const hasLoopback = entries.some(({ address }) => address === '::1');
const linkLocal = entries.find(({ address }) => address.startsWith('fe80:'));
const timeout = 20_000;

async function open(context: TestContext, address: string): Promise<RdsNode> {
  const node = await RdsNode.open({ address });
  context.after(() => node.close());
  return node;
}

describe('::1', { timeout, skip: !hasLoopback && 'this machine has no ::1' }, () => {
  it('is one node in every spelling, sends to itself, and does not mix with IPv4', async (t) => {
    const node = await open(t, '0:0::0:1');
    assert.equal(node.address, '::1');
    await assert.rejects(RdsNode.open({ address: '::1' }), { code: 'EADDRINUSE' });
    const [a, b] = [node.bind(0), node.bind(0)];
    a.sendmsg(Buffer.from('hello'), { address: '::0001', port: b.port });
    const [message] = await receive(b, 1);
    assert.deepEqual([message!.address, message!.port, `${message!.data}`], ['::1', a.port, 'hello']);
    for (const address of ['127.0.0.1', '::ffff:127.0.0.1']) {
      assert.equal(
        codeOf(() => a.sendmsg(Buffer.from('x'), { address, port: 1 })),
        'EOPNOTSUPP',
      );
    }
    const ipv4 = (await open(t, '127.78.0.1')).bind(0);
    assert.equal(
      codeOf(() => ipv4.sendmsg(Buffer.from('x'), { address: '::1', port: b.port })),
      'EOPNOTSUPP',
    );
  });

  it('refuses a connection that claims to be itself', async (t) => {
    const node = await open(t, '::1');
    const warned = eventually(node, ['warning'], () => node.stats().counters.accept_refused_local === 1);
    assert.equal(await (await RawConnection.dial('::1', '::1')).gone(), 'reset');
    await warned;
    assert.deepEqual(node.stats().lanes, []);
  });
});

describe('a link-local address of this machine', {
  timeout,
  skip: linkLocal === undefined && 'it has none',
}, () => {
  it('is opened by the name and by the number of its interface, which are one', async (t) => {
    const { name, address } = linkLocal!;
    const node = await open(t, `${address}%${scopeIdOf(name)}`);
    assert.equal(node.address, `${address}%${name}`);
    await assert.rejects(RdsNode.open({ address: `${address}%${name}` }), { code: 'EADDRINUSE' });
    await assert.rejects(RdsNode.open({ address }), { code: 'EINVAL', message: /say on which link/ });
    const socket = node.bind(0);
    socket.sendmsg(Buffer.from('to myself'), { address, port: socket.port });
    const [message] = await receive(socket, 1);
    assert.deepEqual([message!.address, `${message!.data}`], [node.address, 'to myself']);
  });
});
