/**
 * Errors of the socket API, in the order of rds_sendmsg's checks, and what is said about wrong arguments.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { FixedBudget } from '../../src/core/budget.ts';
import { ZerotxError } from '../../src/core/errors.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsAddress, SendOptions } from '../../src/rds/options.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { runChild } from '../support/children.ts';
import { codeOf, eventually, lendableBuffer, testNode, turnsUntil } from '../support/rds-nodes.ts';
import { type RawConnection, RawPeer } from '../support/rds-raw-peer.ts';

const ABSENT: RdsAddress = { address: '127.22.0.200', port: 4000 };
const MIB = 1024 * 1024;

function errorOf(call: () => unknown): ZerotxError {
  try {
    call();
  } catch (error) {
    assert.ok(error instanceof ZerotxError, String(error));
    return error;
  }
  return assert.fail('it did not fail');
}

describe('sendmsg, in the order of its checks', { timeout: 60_000 }, () => {
  const CONGESTED = 5000;
  const budget = new FixedBudget(40);
  const peer = new RawPeer('127.22.0.9');
  const node = testNode('127.22.0.1', { budget });
  let socket: RdsSocket;
  let connection: RawConnection;

  before(async () => {
    socket = node.bind(4000, { zerocopy: true, sendBufferBytes: 64 * 1024 });
    assert.equal(socket.sendmsg(Buffer.from('x'), { address: peer.address, port: 4000 }), 1);
    connection = await peer.accept();
    connection.sendMap(CONGESTED);
    await connection.until(() => connection.data.length === 1);
    await turnsUntil(() => socket.queuedBytes === 0);
    const map = { address: peer.address, port: CONGESTED };
    await eventually(node, ['peerUp'], () => node.peers[0]?.lanes[0]?.connection.confirmed === true);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.from('x'), map)),
      'ENOBUFS',
    );
    // Fills the send buffer for good: nobody is there.
    assert.equal(socket.sendmsg(Buffer.alloc(60 * 1024), ABSENT), 60 * 1024);
    assert.equal(socket.sendmsg(Buffer.alloc(60 * 1024), ABSENT), 60 * 1024, 'the last one may overshoot');
    assert.equal(socket.writable, false);
  });

  after(async () => {
    peer.close();
    await node.close({ timeoutMs: 0 });
  });

  // One call breaks all rules; each step repairs the first that is left, so the next one shows.
  const congested = { address: '127.22.0.9', port: CONGESTED };
  const free = { address: '127.22.0.9', port: 4001 };
  const tooLong = Buffer.alloc(MIB + 1);
  const overBuffer = Buffer.alloc(64 * 1024 + 1);
  const overBudget = lendableBuffer(64 * 1024);
  const zerocopy = { zerocopy: true, cookie: 7 };
  const steps: [string, string | null, Uint8Array, RdsAddress | undefined, SendOptions][] = [
    ['a port that is none', 'EINVAL', tooLong, { address: '::2', port: 70_000 }, { zerocopy: true }],
    ['a name that is no address', 'EINVAL', tooLong, { address: 'host', port: 1 }, { zerocopy: true }],
    ['the unspecified address', 'EINVAL', tooLong, { address: '0.0.0.0', port: 1 }, { zerocopy: true }],
    ['a multicast address', 'EINVAL', tooLong, { address: '224.0.0.1', port: 1 }, { zerocopy: true }],
    ['the broadcast address', 'EINVAL', tooLong, { address: '255.255.255.255', port: 1 }, { zerocopy: true }],
    ['no destination', 'ENOTCONN', tooLong, undefined, { zerocopy: true }],
    ['IPv6 from an IPv4 socket', 'EOPNOTSUPP', tooLong, { address: '::2', port: 1 }, { zerocopy: true }],
    ['over 1 MiB', 'EMSGSIZE', tooLong, congested, { zerocopy: true }],
    ['over the send buffer', 'EMSGSIZE', overBuffer, congested, { zerocopy: true }],
    ['zero-copy without a cookie', 'EINVAL', overBudget, congested, { zerocopy: true }],
    ['over the memlock budget', 'ENOMEM', overBudget, congested, zerocopy],
    ['a congested port', 'ENOBUFS', Buffer.alloc(100), congested, zerocopy],
    ['a full send buffer', 'EAGAIN', Buffer.alloc(100), free, zerocopy],
    ['the same, copied', 'EAGAIN', Buffer.alloc(100), free, {}],
  ];
  before(() => budget.charge(30));
  for (const [name, code, data, to, options] of steps) {
    it(`${name}: ${code}`, () => {
      assert.equal(
        codeOf(() => socket.sendmsg(data, to, options)),
        code,
      );
      assert.equal(budget.used(), 30, 'nothing stays charged');
      assert.equal(socket.lentBytes, 0);
      assert.equal(socket.queuedBytes, 120 * 1024);
    });
  }

  it('says what to do next, and where it happened', () => {
    const error = errorOf(() => socket.sendmsg(Buffer.alloc(100), congested));
    assert.deepEqual(
      [error.syscall, error.next, error.address, error.port, error.errno],
      ['sendmsg', 'retry', '127.22.0.9', CONGESTED, -105],
    );
    assert.equal(errorOf(() => socket.sendmsg(overBuffer, free)).next, 'fatal');
  });

  it('nothing of a refused message goes out', async () => {
    socket.cancelSentTo(ABSENT.address);
    assert.equal(socket.queuedBytes, 0);
    assert.equal(socket.sendmsg(Buffer.from('last'), free, zerocopy), 4);
    await connection.until(() => connection.data.length > 1);
    assert.deepEqual(
      connection.data.map(({ payload }) => String(payload)),
      ['x', 'last'],
    );
    await eventually(socket, ['readable'], () => socket.readable);
    assert.deepEqual(socket.recvmsg(), { kind: 'completion', cookies: [7] });
    assert.equal(socket.recvmsg(), null, 'one completion for one accepted message');
  });

  it('a closed socket: ENOTCONN before all else', async () => {
    const other = node.bind(0);
    await other.close();
    assert.equal(
      codeOf(() => other.sendmsg(tooLong, { address: 'host', port: 70_000 })),
      'ENOTCONN',
    );
    assert.equal(
      codeOf(() => other.connect(free)),
      'ENOTCONN',
    );
    assert.equal(
      codeOf(() => other.cancelSentTo(free.address)),
      'ENOTCONN',
    );
    await assert.rejects(other.send(Buffer.alloc(1), free), { code: 'ENOTCONN' });
    assert.equal(other.recvmsg(), null);
  });
});

describe('IPv6', () => {
  it('an IPv6 socket cannot reach IPv4: EOPNOTSUPP', async (t) => {
    let node: RdsNode;
    try {
      node = testNode('::1');
    } catch (error) {
      if ((error as ZerotxError).code !== 'EADDRNOTAVAIL' && (error as ZerotxError).code !== 'EAFNOSUPPORT')
        throw error;
      t.skip('no IPv6 on this host');
      return;
    }
    const socket = node.bind(4000);
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1), ABSENT)),
      'EOPNOTSUPP',
    );
    assert.equal(
      codeOf(() => socket.connect(ABSENT)),
      'EOPNOTSUPP',
    );
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1), { address: 'ff02::1', port: 1 })),
      'EINVAL',
    );
    assert.equal(
      codeOf(() => socket.sendmsg(Buffer.alloc(1), { address: '::', port: 1 })),
      'EINVAL',
    );
    await node.close();
  });
});

describe('zero-copy flag and cookie', { timeout: 60_000 }, () => {
  const node = testNode('127.22.1.1');
  const lending = node.bind(4000, { zerocopy: true });
  const copying = node.bind(4001);
  after(() => node.close({ timeoutMs: 0 }));
  const one = Buffer.alloc(1);
  const empty = Buffer.alloc(0);
  const cases: [string, RdsSocket, Buffer, SendOptions, string | null][] = [
    ['neither', lending, one, {}, null],
    ['neither, SO_ZEROCOPY off', copying, one, {}, null],
    ['both', lending, one, { zerocopy: true, cookie: 1 }, null],
    ['both, cookie 0', lending, one, { zerocopy: true, cookie: 0 }, null],
    ['both, largest cookie', lending, one, { zerocopy: true, cookie: 0xffffffff }, null],
    ['both, SO_ZEROCOPY off', copying, one, { zerocopy: true, cookie: 1 }, 'EINVAL'],
    ['both, no payload', lending, empty, { zerocopy: true, cookie: 1 }, 'EINVAL'],
    ['flag alone', lending, one, { zerocopy: true }, 'EINVAL'],
    ['flag alone, SO_ZEROCOPY off', copying, one, { zerocopy: true }, 'EINVAL'],
    ['cookie alone', lending, one, { cookie: 1 }, 'EINVAL'],
    ['cookie alone, SO_ZEROCOPY off', copying, one, { cookie: 1 }, 'EINVAL'],
    ['cookie and flag off', lending, one, { zerocopy: false, cookie: 1 }, 'EINVAL'],
    ['negative cookie', lending, one, { zerocopy: true, cookie: -1 }, 'EINVAL'],
    ['33-bit cookie', lending, one, { zerocopy: true, cookie: 2 ** 32 }, 'EINVAL'],
    ['broken cookie', lending, one, { zerocopy: true, cookie: 1.5 }, 'EINVAL'],
    ['cookie that is no number', lending, one, { zerocopy: true, cookie: Number.NaN }, 'EINVAL'],
  ];
  for (const [name, socket, data, options, code] of cases) {
    it(`${name}: ${code ?? 'accepted'}`, () => {
      const before = socket.queuedBytes;
      assert.equal(
        codeOf(() => socket.sendmsg(data, ABSENT, options)),
        code,
      );
      assert.equal(socket.queuedBytes - before, code === null ? data.length : 0);
    });
  }
});

describe('what is no error', { timeout: 60_000 }, () => {
  it('a peer that is away: the length is returned, and the message waits', async () => {
    const node = testNode('127.22.2.1');
    const socket = node.bind(4000, { zerocopy: true });
    const to = { address: '127.22.2.9', port: 4000 };
    assert.equal(socket.sendmsg(Buffer.alloc(5), to), 5);
    await once(node, 'warning');
    assert.equal(socket.sendmsg(Buffer.alloc(0), to), 0, 'while it is dialled again');
    assert.equal(socket.sendmsg(Buffer.alloc(MIB), to, { zerocopy: true, cookie: 1 }), MIB);
    const peer = new RawPeer(to.address);
    const connection = await peer.accept();
    await connection.until(() => connection.data.length === 3);
    assert.deepEqual(
      connection.data.map(({ payload }) => payload.length),
      [5, 0, MIB],
    );
    connection.reset();
    await once(node, 'peerDown');
    assert.equal(socket.sendmsg([Buffer.alloc(2), Buffer.alloc(3)], to), 5, 'after a lost connection');
    peer.close();
    await node.close({ timeoutMs: 0 });
  });

  it('a connection that takes no more: the length is returned', async () => {
    const node = testNode('127.22.2.2', { mode: 'force' });
    const socket = node.bind(4000, { zerocopy: true, sendBufferBytes: 16 * MIB });
    const peer = new RawPeer('127.22.2.10', { receiveBytes: 4096, readBytes: 0 });
    const to = { address: peer.address, port: 4000 };
    const data = Buffer.alloc(MIB);
    for (let i = 0; i < 16; i++) {
      assert.equal(socket.sendmsg(data, to, { zerocopy: true, cookie: i }), MIB);
      await new Promise((resolve) => setImmediate(resolve));
    }
    assert.equal(
      codeOf(() => socket.sendmsg(data, to, { zerocopy: true, cookie: 16 })),
      'EAGAIN',
    );
    peer.close();
    await node.close({ timeoutMs: 0 }).catch(() => {});
  });

  it('objects of the caller are left as they are, and may change afterwards', async () => {
    const node = testNode('127.22.2.3');
    const peer = new RawPeer('127.22.2.11');
    const socket = node.bind(4000, { zerocopy: true });
    const to = Object.freeze({ address: peer.address, port: 4000 });
    const options = Object.freeze({ zerocopy: true, cookie: 1 });
    const iovec = [Buffer.from('first '), Buffer.alloc(0), Buffer.from('second')];
    const reused: { address: string; port: number } = { ...to };
    socket.sendmsg(iovec, to, options);
    iovec[0] = Buffer.from('other!');
    iovec.push(Buffer.from('more'));
    socket.connect(reused);
    reused.port = 9;
    reused.address = '127.22.2.99';
    socket.sendmsg(Buffer.from('third'));
    const connection = await peer.accept();
    await connection.until(() => connection.data.length === 2);
    assert.deepEqual(
      connection.data.map(({ payload, header }) => [String(payload), header.dport]),
      [
        ['first second', 4000],
        ['third', 4000],
      ],
    );
    peer.close();
    await node.close();
  });
});

describe('wrong arguments', { timeout: 60_000 }, () => {
  const node = testNode('127.22.3.1');
  const socket = node.bind(4000, { zerocopy: true });
  after(() => node.close({ timeoutMs: 0 }));
  const data = Buffer.alloc(1);
  // Arguments as a program without types would give them.
  const any = <T>(value: unknown): T => value as T;

  const thrown: [string, RegExp, () => unknown][] = [
    ['sendmsg data', /"data" argument/, () => socket.sendmsg(any('text'), ABSENT)],
    [
      'sendmsg data, an ArrayBuffer',
      /"data" argument/,
      () => socket.sendmsg(any(new ArrayBuffer(1)), ABSENT),
    ],
    ['sendmsg data entry', /"data\[1\]" argument/, () => socket.sendmsg([data, any<Buffer>('text')], ABSENT)],
    ['sendmsg data hole', /"data\[0\]" argument/, () => socket.sendmsg(any(new Array(1)), ABSENT)],
    ['sendmsg to', /"to" argument/, () => socket.sendmsg(data, any(7))],
    ['sendmsg to null', /"to" argument/, () => socket.sendmsg(data, any(null))],
    ['sendmsg to.address', /"to.address" argument/, () => socket.sendmsg(data, any({ port: 1 }))],
    [
      'sendmsg to.port',
      /"to.port" argument/,
      () => socket.sendmsg(data, any({ address: '127.0.0.1', port: '1' })),
    ],
    ['sendmsg to.port range', /to\.port/, () => socket.sendmsg(data, { address: '127.0.0.1', port: 65536 })],
    ['sendmsg to.port fraction', /to\.port/, () => socket.sendmsg(data, { address: '127.0.0.1', port: 1.5 })],
    ['sendmsg to.address text', /to\.address/, () => socket.sendmsg(data, { address: '127.0.0', port: 1 })],
    ['sendmsg options', /"options" argument/, () => socket.sendmsg(data, ABSENT, any(null))],
    [
      'sendmsg options.zerocopy',
      /"options.zerocopy"/,
      () => socket.sendmsg(data, ABSENT, any({ zerocopy: 1 })),
    ],
    [
      'sendmsg options.cookie',
      /options\.cookie/,
      () => socket.sendmsg(data, ABSENT, any({ zerocopy: true, cookie: '1' })),
    ],
    ['recvmsg options', /"options" argument/, () => socket.recvmsg(any(5))],
    ['connect to', /"to" argument/, () => socket.connect(any(undefined))],
    ['connect to.port', /to\.port/, () => socket.connect({ address: '127.0.0.1', port: -1 })],
    ['cancelSentTo', /"to" argument/, () => socket.cancelSentTo(any(5))],
    [
      'cancelSentTo port',
      /to\.port/,
      () => socket.cancelSentTo({ address: '127.0.0.1', port: 65536 + 4000 }),
    ],
    ['bind port', /"port" argument/, () => node.bind(any('4000'))],
    ['bind port range', /"port"/, () => node.bind(65536)],
    ['bind options', /"options" argument/, () => node.bind(0, any(null))],
    ['bind options.zerocopy', /"options.zerocopy"/, () => node.bind(0, any({ zerocopy: 1 }))],
    [
      'bind options.congestionMonitor',
      /"options.congestionMonitor"/,
      () => node.bind(0, any({ congestionMonitor: 1 })),
    ],
    [
      'bind options.sendBufferBytes',
      /"options.sendBufferBytes"/,
      () => node.bind(0, { sendBufferBytes: 2303 }),
    ],
    [
      'bind options.receiveBufferBytes',
      /"options.receiveBufferBytes"/,
      () => node.bind(0, { receiveBufferBytes: 1.5 }),
    ],
  ];
  for (const [name, message, call] of thrown) it(name, () => assert.throws(call, { message }));

  const rejected: [string, RegExp, () => Promise<unknown>][] = [
    ['send data', /"data" argument/, () => socket.send(any('text'), ABSENT)],
    ['send to', /"to" argument/, () => socket.send(data, any(5))],
    ['send options', /"options" argument/, () => socket.send(data, ABSENT, any(null))],
    ['send options.signal', /"options.signal"/, () => socket.send(data, ABSENT, { signal: any({}) })],
    ['send options.timeoutMs', /"options.timeoutMs"/, () => socket.send(data, ABSENT, { timeoutMs: -1 })],
    ['close options', /"options" argument/, () => socket.close(any(null))],
    ['close options.drain', /"options.drain"/, () => socket.close(any({ drain: 1 }))],
    ['close options.timeoutMs', /"options.timeoutMs"/, () => socket.close({ timeoutMs: Number.NaN })],
    ['node.close options', /"options" argument/, () => node.close(any(null))],
    ['node.close options.timeoutMs', /"options.timeoutMs"/, () => node.close({ timeoutMs: -1 })],
    ['open options', /"options" argument/, () => RdsNode.open(any(undefined))],
    ['open options.address', /"options.address"/, () => RdsNode.open(any({}))],
    ['open options.address text', /options\.address/, () => RdsNode.open({ address: 'localhost' })],
    ['open the unspecified address', /options\.address/, () => RdsNode.open({ address: '0.0.0.0' })],
    ['open a multicast address', /options\.address/, () => RdsNode.open({ address: 'ff02::1' })],
    ['open options.mode', /"options.mode"/, () => RdsNode.open({ address: '127.22.3.2', mode: any('on') })],
    [
      'open options.thresholdBytes',
      /"options.thresholdBytes"/,
      () => RdsNode.open({ address: '127.22.3.2', thresholdBytes: 0 }),
    ],
    [
      'open options.budget',
      /"options.budget"/,
      () => RdsNode.open({ address: '127.22.3.2', budget: any(5) }),
    ],
    [
      'open options.limits',
      /"options.limits"/,
      () => RdsNode.open({ address: '127.22.3.2', limits: any(5) }),
    ],
    [
      'open options.limits.peers',
      /"options.limits.peers"/,
      () => RdsNode.open({ address: '127.22.3.2', limits: { peers: 0 } }),
    ],
  ];
  for (const [name, message, call] of rejected) it(name, () => assert.rejects(call, { message }));

  it('leaves everything as it was', () => {
    assert.equal(node.closed, false);
    assert.equal(socket.closed, false);
    assert.equal(socket.queuedBytes, 0);
    assert.equal(node.stats().sockets, 1);
  });
});

describe('opening and binding', { timeout: 60_000 }, () => {
  it('port 16385 is taken: says by whom it may be, and what helps', async () => {
    const server = createServer().listen(16385, '127.22.4.1');
    await once(server, 'listening');
    await assert.rejects(RdsNode.open({ address: '127.22.4.1' }), {
      code: 'EADDRINUSE',
      next: 'fatal',
      message:
        /^TCP port 16385 is taken on 127\.22\.4\.1: another RDS node has it, or .*rds_tcp.*use another address/,
    });
    server.close();
  });

  it('the address is open in this process already: says to share it', async () => {
    const node = await RdsNode.open({ address: '127.22.4.2' });
    await assert.rejects(RdsNode.open({ address: '127.22.4.2' }), {
      code: 'EADDRINUSE',
      message: /^127\.22\.4\.2 is open in this process already: share that RdsNode/,
    });
    await assert.rejects(RdsNode.open({ address: '::ffff:127.22.4.2' }), { code: 'EADDRINUSE' });
    await node.close();
    await (await RdsNode.open({ address: '127.22.4.2' })).close();
  });

  it('the address is not one of this host: says where to look', async () => {
    await assert.rejects(RdsNode.open({ address: '203.0.113.7' }), {
      code: 'EADDRNOTAVAIL',
      message: /^203\.0\.113\.7 is not an address of this host: .*ip address/,
    });
  });

  it('RDS ports: one socket each, 1 is reserved, 0 takes a free one', async () => {
    const node = testNode('127.22.4.3');
    const socket = node.bind(4000);
    assert.throws(() => node.bind(4000), { code: 'EADDRINUSE', message: /port 4000.*0 takes a free one/ });
    assert.throws(() => node.bind(1), { code: 'EINVAL', message: /port 1 is reserved/ });
    const ports = new Set(Array.from({ length: 100 }, () => node.bind(0).port));
    assert.equal(ports.size, 100);
    assert.ok([...ports].every((port) => port >= 2 && port <= 65535 && port !== 4000));
    await socket.close();
    node.bind(4000);
    await node.close();
    assert.throws(() => node.bind(4001), { code: 'ENOTCONN' });
  });

  it('the addon is not built: importing works, opening says how to build it', async () => {
    const root = projectRoot();
    const folder = mkdtempSync(join(tmpdir(), 'zerotx-'));
    try {
      cpSync(join(root, 'package.json'), join(folder, 'package.json'));
      cpSync(join(root, 'out', 'src'), join(folder, 'dist'), { recursive: true });
      symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'));
      const program = join(folder, 'program.mjs');
      writeFileSync(
        program,
        `import { RdsNode } from './dist/rds/index.js';
        RdsNode.open({ address: '127.22.4.4' }).catch((error) => console.log(error.code, error.message));`,
      );
      const { code, stdout, stderr } = await runChild(pathToFileURL(program), []);
      assert.equal(stderr, '');
      assert.equal(code, 0);
      assert.match(
        stdout,
        /^ZTX_NO_ADDON the native addon for linux-\S+ is missing in \S+; build it with "npm run build:native"/,
      );
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});

function projectRoot(): string {
  // out/test/rds/<this file>
  return dirname(dirname(dirname(dirname(fileURLToPath(import.meta.url)))));
}
