/**
 * RDS over IPv6 between two network namespaces with kernels' link-local addresses: zones in every spelling, who dials, the same
 * address on two links, links that go away, and a host without IPv6.
 *
 *   us    vu: fe80::10, fd00::10     vw: fe80::10, fe80::11      lo: ::1
 *   them  vt: fe80::5, fe80::20, fd00::5, fd00::20               (vw has nobody at its other end)
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { after, afterEach, before, describe, it } from 'node:test';
import { RdsNode, type RdsSocket } from '../../src/rds/index.ts';
import { Netns, run } from '../support/netns.ts';
import { codeOf, receive, turnsUntil } from '../support/rds-nodes.ts';

const ECHO = new URL('./children/echo-node.js', import.meta.url);
const PORT = 4000;
const timeout = 60_000;

let them: Netns;
const open: RdsNode[] = [];

async function node(address: string, options: object = {}): Promise<RdsNode> {
  const made = await RdsNode.open({ address, ...options });
  open.push(made);
  return made;
}

/** What comes back, and from whom. */
async function echoed(
  socket: RdsSocket,
  address: string,
  text: string,
): Promise<{ address: string; text: string }> {
  socket.sendmsg(Buffer.from(text), { address, port: PORT });
  const [message] = await receive(socket, 1);
  return { address: message!.address, text: message!.data.toString() };
}

function addresses(device: string, ...list: readonly string[]): string[] {
  return list.map((address) => `ip addr add ${address} dev ${device} nodad`);
}

before(async () => {
  them = await Netns.make();
  run(
    'ip link set lo up',
    'ip link add vu type veth peer name vt',
    'ip link add vw type veth peer name vx',
    'ip link set vu addrgenmode none',
    'ip link set vw addrgenmode none',
    'ip link set vt addrgenmode none',
    `ip link set vt netns ${them.pid}`,
    'ip link set vu up',
    'ip link set vw up',
    'ip link set vx up',
    ...addresses('vu', 'fe80::10/64', 'fd00::10/64'),
    ...addresses('vw', 'fe80::10/64', 'fe80::11/64'),
  );
  const theirs = ['fe80::5/64', 'fe80::20/64', 'fe80::21/64', 'fd00::5/64', 'fd00::20/64', 'fd00::21/64'];
  them.run('ip link set vt up', ...addresses('vt', ...theirs));
  for (const address of ['fe80::5%vt', 'fe80::20%vt', 'fd00::5', 'fd00::20']) {
    await them.start(ECHO, JSON.stringify({ address }));
  }
});

afterEach(async () => {
  for (const one of open.splice(0)) await one.close();
});

after(() => them.end());

describe('link-local addresses', { timeout }, () => {
  it('are the same node and the same peer in every spelling, and come back with the name of the interface', async () => {
    const own = await node(`FE80:0::10%${scopeOf('vu')}`);
    assert.equal(own.address, 'fe80::10%vu');
    await assert.rejects(RdsNode.open({ address: 'fe80::10%vu' }), { code: 'EADDRINUSE' });
    const socket = own.bind(0);
    for (const spelling of ['fe80::20', 'fe80::20%vu', `fe80::20%${scopeOf('vu')}`, 'fe80:0:0::20']) {
      assert.deepEqual(await echoed(socket, spelling, spelling), {
        address: 'fe80::20%vu',
        text: `fe80::10%vt ${spelling}`,
      });
    }
    assert.deepEqual(
      own.peers.map(({ address }) => address),
      ['fe80::20%vu'],
    );
  });

  it('decide who dials by their bytes alone', async () => {
    const own = await node('fe80::10%vu');
    const socket = own.bind(0);
    // The one below dials after a poke of ours, the one above is dialled.
    await echoed(socket, 'fe80::5', 'hello');
    await echoed(socket, 'fe80::20', 'hello');
    const ports = new Map(own.peers.map((peer) => [peer.address, peer.lanes[0]!.channel!.remotePort]));
    assert.notEqual(ports.get('fe80::5%vu'), 16385);
    assert.equal(ports.get('fe80::20%vu'), 16385);
  });

  it('reach global ones, and are reached from them, over their link', async () => {
    const local = (await node('fe80::10%vu')).bind(0);
    const global = (await node('fd00::10')).bind(0);
    assert.deepEqual(await echoed(local, 'fd00::20', 'a'), { address: 'fd00::20', text: 'fe80::10%vt a' });
    assert.deepEqual(await echoed(global, 'fe80::20%vu', 'b'), {
      address: 'fe80::20%vu',
      text: 'fd00::10 b',
    });
    assert.deepEqual(await echoed(global, 'fd00::5', 'c'), { address: 'fd00::5', text: 'fd00::10 c' });
    assert.deepEqual(await echoed(global, 'fd00::20', 'd'), { address: 'fd00::20', text: 'fd00::10 d' });
  });

  it('of another link, of none, and of an unknown one are refused, as are zones where none belongs', async () => {
    const local = (await node('fe80::10%vu')).bind(0);
    const global = (await node('fd00::10')).bind(0);
    const wrong: [RdsSocket, string, string][] = [
      [local, 'fe80::20%vw', 'EINVAL'],
      [local, 'fe80::20%nosuch', 'EINVAL'],
      [local, 'fe80::20%', 'EINVAL'],
      [local, 'fd00::20%vu', 'EINVAL'],
      [local, '10.0.0.1', 'EOPNOTSUPP'],
      [local, '::ffff:10.0.0.1', 'EOPNOTSUPP'],
      [local, 'ff02::1%vu', 'EINVAL'],
      [global, 'fe80::20', 'EINVAL'],
      [global, 'fe80::20%nosuch', 'EINVAL'],
    ];
    for (const [socket, address, code] of wrong) {
      assert.equal(
        codeOf(() => socket.sendmsg(Buffer.from('x'), { address, port: PORT })),
        code,
        `sendmsg to ${address}`,
      );
      assert.equal(
        codeOf(() => socket.connect({ address, port: PORT })),
        address.startsWith('ff') ? 'EPROTOTYPE' : code,
        `connect to ${address}`,
      );
    }
    for (const [address, code] of [
      ['fe80::10', 'EINVAL'],
      ['fe80::10%', 'EINVAL'],
      ['fd00::10%vu', 'EINVAL'],
      ['10.0.0.1%vu', 'EINVAL'],
      ['ff02::1%vu', 'EINVAL'],
      ['fe80::10%nosuch', 'EADDRNOTAVAIL'],
      ['fe80::10%2147483647', 'EADDRNOTAVAIL'],
      ['fe80::99%vu', 'EADDRNOTAVAIL'],
    ] as const) {
      await assert.rejects(RdsNode.open({ address }), { code }, address);
    }
  });
});

describe('several addresses in one process', { timeout }, () => {
  it('reach each other without TCP, the same one on two links among them', async () => {
    const names = ['fe80::10%vu', 'fe80::10%vw', 'fe80::11%vw', 'fd00::10', '::1'];
    const nodes = new Map<string, RdsNode>();
    for (const name of names) nodes.set(name, await node(name));
    const sockets = new Map([...nodes].map(([name, one]) => [name, one.bind(PORT)]));
    for (const from of names) {
      for (const to of names) {
        const send = (): void => {
          sockets.get(from)!.sendmsg(Buffer.from(from), { address: to, port: PORT });
        };
        const zones = [from, to].filter((name) => name.includes('%')).map((name) => name.split('%')[1]);
        if (new Set(zones).size > 1) {
          assert.equal(codeOf(send), 'EINVAL', `${from} to ${to}`);
          continue;
        }
        send();
        const [message] = await receive(sockets.get(to)!, 1);
        assert.deepEqual([message!.address, message!.data.toString()], [from, from]);
      }
    }
    for (const one of nodes.values()) assert.deepEqual(one.peers, []);
    // A neighbour of the same link is still reached, by each over its own.
    const answer = await echoed(nodes.get('fe80::10%vu')!.bind(0), 'fe80::20', 'x');
    assert.equal(answer.text, 'fe80::10%vt x');
  });

  it('allow: a link-local block admits, and refuses, as any other', async () => {
    const own = await node('fe80::10%vu', { allow: ['fe80::20'] });
    const socket = own.bind(0);
    assert.equal((await echoed(socket, 'fe80::20', 'x')).address, 'fe80::20%vu');
    const refused = codeOf(() => socket.sendmsg(Buffer.from('x'), { address: 'fe80::5', port: PORT }));
    assert.equal(refused, 'EACCES');
  });
});

describe('keys', { timeout }, () => {
  it('TCP-MD5 signs for IPv6, link-local and not', async (t) => {
    const md5 = 'of us all';
    for (const [theirs, ours, block] of [
      ['fe80::21%vt', 'fe80::10%vu', 'fe80::/64'],
      ['fd00::21', 'fd00::10', 'fd00::/64'],
    ] as const) {
      const said = await them.start(ECHO, JSON.stringify({ address: theirs, keys: [{ peer: block, md5 }] }));
      if (said.startsWith('ZTX_NO_TCP_KEYS')) {
        t.skip(said);
        return;
      }
      const to = theirs.split('%')[0] as string;
      const signed = await node(ours, { keys: [{ peer: block, md5 }] });
      assert.ok((await echoed(signed.bind(0), to, 'x')).text.endsWith(' x'));
      await signed.close();
      const before = unsigned();
      const bare = await node(ours);
      const warned = once(bare, 'warning');
      bare.bind(0).sendmsg(Buffer.from('x'), { address: to, port: PORT });
      // The other end drops it, and this one has nothing to say but that nobody answers.
      await Promise.race([warned, turnsUntil(() => unsigned() > before)]);
      assert.equal(bare.peers[0]!.lanes[0]!.connection.state, 'dialing');
      await bare.close();
    }
  });
});

describe('links and hosts without IPv6', { timeout }, () => {
  it('an interface that goes takes its peers along, and nothing else', async () => {
    run('ip link add vy type veth peer name vz', 'ip link set vy addrgenmode none', 'ip link set vy up');
    run('ip link set vz addrgenmode none', 'ip link set vz up');
    run(...addresses('vy', 'fe80::30/64'), ...addresses('vz', 'fe80::31/64'));
    const own = await node('fe80::30%vy');
    const other = await node('fe80::10%vu');
    const socket = own.bind(0);
    socket.sendmsg(Buffer.from('nobody is there'), { address: 'fe80::40', port: PORT });
    run('ip link del vy');
    // Its text stays what it was, and can still be read.
    assert.equal(own.address, 'fe80::30%vy');
    socket.sendmsg(Buffer.from('nor now'), { address: 'fe80::40%vy', port: PORT });
    assert.equal(own.peers.length, 1);
    assert.equal((await echoed(other.bind(0), 'fe80::20', 'x')).text, 'fe80::10%vt x');
    await own.close();
    await assert.rejects(RdsNode.open({ address: 'fe80::30%vy' }), { code: 'EADDRNOTAVAIL' });
  });

  it('where IPv6 is off an IPv6 address is not available, and says why; IPv4 works', async () => {
    const host = await Netns.make();
    try {
      host.run('sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1');
      for (const address of ['::1', 'fd00::1']) {
        assert.match(
          await host.start(ECHO, JSON.stringify({ address })),
          /^EADDRNOTAVAIL .*no interface of this host has an IPv6 address/,
          address,
        );
      }
      assert.match(
        await host.start(ECHO, JSON.stringify({ address: 'fe80::1%lo' })),
        /^EADDRNOTAVAIL .*no interface/,
      );
      assert.equal(await host.start(ECHO, JSON.stringify({ address: '127.0.0.1' })), '127.0.0.1');
    } finally {
      await host.end();
    }
  });
});

function scopeOf(name: string): number {
  const line = readFileSync('/proc/net/if_inet6', 'utf8')
    .split('\n')
    .find((text) => text.trimEnd().endsWith(` ${name}`));
  return Number.parseInt(line!.split(' ')[1]!, 16);
}

/** Unsigned segments that the other namespace has dropped. */
function unsigned(): number {
  const [names, numbers] = them
    .run('cat /proc/net/netstat')
    .split('\n')
    .filter((line) => line.startsWith('TcpExt:'))
    .map((line) => line.split(' '));
  return Number(numbers![names!.indexOf('TCPMD5NotFound')]);
}
