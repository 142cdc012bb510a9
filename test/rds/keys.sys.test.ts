/**
 * Keys for TCP's signatures between nodes on loopback addresses: with the same one on both sides they talk, with different ones, or
 * one alone, the kernel drops what comes. Where the kernel has no such keys, opening a node says so.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { describe, type TestContext, test } from 'node:test';
import { type NodeKey, RdsNode } from '../../src/rds/index.ts';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import {
  AF_INET,
  IPPROTO_TCP,
  SOCK_STREAM,
  TCP_AO_ADD_KEY,
  TCP_MD5SIG_EXT,
} from '../../src/sys/constants.ts';
import { parseCidr } from '../../src/wire/cidr.ts';
import { RDS_TCP_PORT } from '../../src/wire/rds.ts';
import { encodeAoKey, encodeMd5Key } from '../../src/wire/tcp-keys.ts';
import { RawConnection, until } from '../support/raw-peer.ts';
import { PORT, TestNode, type TestNodeOptions } from '../support/tcp-nodes.ts';

const options = { timeout: 60_000 };
const peer = parseCidr('127.82.0.1');
const key = Uint8Array.of(1);

/** 0 or -errno. */
function tried(name: number, bytes: Uint8Array): number {
  const fd = calls.socket(AF_INET, SOCK_STREAM);
  const result = native().setsockopt(fd, IPPROTO_TCP, name, bytes);
  calls.close(fd);
  return result;
}

const md5Result = tried(TCP_MD5SIG_EXT, encodeMd5Key({ kind: 'md5', peer, key }));
const aoResult = tried(
  TCP_AO_ADD_KEY,
  encodeAoKey({ kind: 'ao', peer, key, algorithm: 'hmac(sha1)', sendId: 1, receiveId: 1 }),
);

/** A counter of /proc/net/netstat: one line has the names, the next the numbers. */
function netstat(name: string): number {
  const lines = readFileSync('/proc/net/netstat', 'latin1').split('\n');
  const at = lines.findIndex((line) => line.startsWith('TcpExt:'));
  const index = lines[at]!.split(' ').indexOf(name);
  assert.ok(index > 0, `no ${name} in /proc/net/netstat`);
  return Number(lines[at + 1]!.split(' ')[index]);
}

let nextHost = 1;

function nodeOf(context: TestContext, keys: readonly NodeKey[], more: TestNodeOptions = {}): TestNode {
  const node = new TestNode(`127.82.0.${nextHost++}`, { speed: 20, keys, ...more });
  context.after(() => node.close());
  return node;
}

/** What holds of either kind of keys. */
function behaves(same: NodeKey, other: NodeKey): void {
  test('the same key on both sides: whoever begins, they talk', options, async (t) => {
    for (const first of [0, 1]) {
      const nodes = [nodeOf(t, [same]), nodeOf(t, [same])] as const;
      await nodes[first as 0 | 1].exchange(nodes[(1 - first) as 0 | 1]);
    }
  });

  test(
    'different keys, or one side without: nothing comes through, in either direction',
    options,
    async (t) => {
      for (const [mine, theirs] of [
        [[same], [other]],
        [[same], []],
        [[], [same]],
      ] as const) {
        const [low, high] = [nodeOf(t, mine, { speed: 100 }), nodeOf(t, theirs, { speed: 100 })];
        for (const [from, to] of [
          [low, high],
          [high, low],
        ] as const) {
          from.socket.sendmsg(Buffer.from('x'), { address: to.address, port: PORT });
          const { counters } = from.node;
          await until('attempts fail', () => counters.dial_failed >= 2);
          const told = from.warnings.filter(
            ({ address, detail }) => address === to.address && /keys/.test(detail),
          );
          assert.ok(told.length > 0, 'the program is told');
        }
        assert.deepEqual([low.received, high.received], [[], []]);
      }
    },
  );

  test('who has no key is not let in by the way of having none', options, async (t) => {
    const victim = nodeOf(t, [same]);
    // No key is for this address: to TCP it is like any other, and so it is refused.
    const stranger = await RawConnection.dial('127.83.0.1', victim.address);
    assert.equal(await stranger.gone(), 'reset');
    assert.equal(victim.node.counters.accept_refused_allow, 1);
    // Unless the program says that it is welcome all the same.
    const open = nodeOf(t, [same], { allow: ['127.0.0.0/8'] });
    const guest = await RawConnection.dial('127.81.0.2', open.address);
    guest.speak();
    guest.say(9, PORT, 'unsigned');
    await until('the message', () => open.from('127.81.0.2').length === 1);
    guest.reset();
  });
}

describe('TCP-MD5', { skip: md5Result < 0 && `this kernel has none (${md5Result})` }, () => {
  const same: NodeKey = { peer: '127.82.0.0/16', md5: 'of us all' };
  behaves(same, { peer: '127.82.0.0/16', md5: 'of others' });

  test('the key of the longest prefix counts', options, async (t) => {
    const special: NodeKey = { peer: '127.82.0.128/25', md5: 'special' };
    nextHost = 100;
    const low = nodeOf(t, [same, special]);
    nextHost = 200;
    // To both the other is in the block of its own.
    const high = nodeOf(t, [same, { peer: low.address, md5: 'special' }]);
    await low.exchange(high);
    nextHost = 101;
    await low.exchange(nodeOf(t, [same]));
  });

  test(
    'an unsigned connection is dropped by the kernel, and nothing here hears of it',
    options,
    async (t) => {
      nextHost = 50;
      const victim = nodeOf(t, [same]);
      const before = netstat('TCPMD5NotFound');
      const socket = connect({ host: victim.address, port: RDS_TCP_PORT, localAddress: '127.82.0.60' });
      t.after(() => socket.destroy());
      let isConnected = false;
      socket.on('connect', () => {
        isConnected = true;
      });
      socket.on('error', () => {});
      await until('it is dropped', () => netstat('TCPMD5NotFound') > before);
      assert.equal(isConnected, false);
      assert.equal(victim.node.counters.accept_refused, 0);
      assert.equal(victim.node.peers.length, 0);
    },
  );

  test('open() takes them', options, async () => {
    for (const peers of ['127.82.0.1', '127.0.0.0/8', '0.0.0.0/0']) {
      const keys = [{ peer: peers, md5: Buffer.alloc(80, 'x') }];
      await (await RdsNode.open({ address: '127.82.0.250', keys })).close();
    }
  });
});

describe('TCP-AO', () => {
  const ao = { algorithm: 'hmac(sha1)', key: 'of us all', sendId: 7, receiveId: 7 };
  const same: NodeKey = { peer: '127.82.0.0/16', ao };

  describe('where the kernel has it', { skip: aoResult < 0 && `this kernel has none (${aoResult})` }, () => {
    nextHost = 150;
    behaves(same, { peer: '127.82.0.0/16', ao: { ...ao, key: 'of others' } });
  });

  test('where it has none, open() says what is missing', {
    skip: aoResult === 0 && 'this kernel has it',
  }, async () => {
    await assert.rejects(RdsNode.open({ address: '127.82.0.251', keys: [same] }), {
      code: 'ZTX_NO_TCP_KEYS',
      message: /CONFIG_TCP_AO, Linux 6\.7/,
    });
    // The address is free again.
    await (await RdsNode.open({ address: '127.82.0.251' })).close();
  });
});
