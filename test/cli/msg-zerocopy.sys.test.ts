/** `zerotx msg-zerocopy` on loopback: by itself, between two processes, and with receivers and senders of Node. */
import assert from 'node:assert/strict';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { test } from 'node:test';
import { COPY_CAUSES } from '../../src/net/counters.ts';
import { startTool } from '../support/tools.ts';

const zerotx = (...args: string[]) => startTool('dist/cli/zerotx.js', ['msg-zerocopy', ...args]);
/** What one reads at the end of a run, with and without -z. */
const LAST_LINE = /^tx=\d+ \(\d+ MB\) txc=\d+ zc=[yn]\n$/m;

async function jsonOf(...args: string[]) {
  const { code, out, errors } = await zerotx(...args, '--json').ended;
  assert.deepEqual({ code, errors }, { code: 0, errors: '' });
  return JSON.parse(out);
}

test('both ends here', { timeout: 120_000 }, async (t) => {
  for (const kind of ['tcp', 'udp', 'rds']) {
    await t.test(`${kind}: a document, of a run that lends`, async () => {
      const report = await jsonOf(kind, '-z', '-t', '0.3', '-l', '8');
      assert.deepEqual(Object.keys(report), [
        ...['zerotx', 'role', 'test', 'family', 'from', 'to', 'zerocopy', 'payloadBytes', 'datagramsPerSend'],
        ...['limit', 'endedBy', 'seconds', 'tx', 'txBytes', 'txc', 'zc', 'mbPerSecond', 'cpuUserSeconds'],
        ...['cpuSystemSeconds', 'cpuSecondsPerGB', 'copied', 'release', 'received'],
      ]);
      const { tx, txc, txBytes, payloadBytes, datagramsPerSend, copied, release, received } = report;
      assert.ok(tx > 0);
      assert.equal(txc, tx);
      assert.equal(txBytes, tx * payloadBytes * datagramsPerSend);
      // Loopback: the kernel, or zerotx where nearly nothing may be pinned.
      assert.equal(copied.bytes, txBytes);
      assert.equal(report.zc, false);
      for (const cause of Object.keys(copied.byCause)) assert.ok(COPY_CAUSES.includes(cause as 'off'));
      if (copied.kernelBytes > 0) assert.ok(release.count > 0 && release.p50Us <= release.p99Us);
      if (kind !== 'udp') assert.equal(received.bytes, txBytes);
      else assert.ok(received.bytes > 0 && received.packets === received.bytes / payloadBytes);
    });
  }

  await t.test('lines, of a run that copies', async () => {
    const { code, out, errors } = await zerotx('tcp', '-t', '0.2', '-6').ended;
    assert.deepEqual({ code, errors }, { code: 0, errors: '' });
    assert.match(out, /^tcp to \[::1\]:\d+: 65536 bytes a send, copied \(no -z\), at most 32 under way$/m);
    assert.match(out, /^ {2}copied {4}100\.0 %$/m);
    assert.match(out, / txc=0 zc=n\n$/);
    assert.ok(!out.includes('\u001b'));
  });

  await t.test('Ctrl-C ends the run with its summary', async () => {
    const tool = zerotx('tcp', '-z', '-t', '50');
    await tool.printed(/^tcp to /m);
    // As a terminal does it: both processes.
    process.kill(-(tool.child.pid as number), 'SIGINT');
    const { code, out, errors } = await tool.ended;
    assert.deepEqual({ code, errors }, { code: 0, errors: '' });
    assert.match(out, LAST_LINE);
  });
});

test('a sender and a receiver', { timeout: 60_000 }, async (t) => {
  await t.test('tcp: the receiver ends with the connection', async () => {
    const receiver = zerotx('tcp', '-r', '-D', '127.0.0.1', '-p', '0');
    const [, port = ''] = await receiver.printed(/^receiving tcp at 127\.0\.0\.1:(\d+)\n/);
    const report = await jsonOf(
      'tcp',
      '-D',
      'localhost',
      '-4',
      '-p',
      port,
      '-S',
      '127.0.0.9',
      '-t',
      '0.2',
      '-z',
    );
    assert.match(report.from, /^127\.0\.0\.9:/);
    assert.equal(report.received, null);
    const { code, out } = await receiver.ended;
    assert.equal(code, 0);
    assert.match(out, new RegExp(`\nrx=\\d+ \\(${Math.floor(report.txBytes / 2 ** 20)} MB\\)\n$`));
  });

  await t.test('udp and rds: the receiver ends after its time', async () => {
    const all = ['udp', 'rds'].map(async (kind) => {
      const receiver = zerotx(
        kind,
        '-r',
        '-D',
        '127.0.61.1',
        '-p',
        kind === 'udp' ? '0' : '7',
        '-t',
        '2',
        '--json',
      );
      const [, port = ''] = await receiver.printed(/^receiving \w+ at 127\.0\.61\.1:(\d+)\n/);
      const sent = await jsonOf(kind, '-D', '127.0.61.1', '-S', '127.0.61.2', '-p', port, '-t', '0.2');
      const { code, out } = await receiver.ended;
      assert.equal(code, 0);
      const { role, packets, bytes } = JSON.parse(out);
      assert.equal(role, 'receive');
      assert.ok(packets > 0 && bytes <= sent.txBytes && bytes % sent.payloadBytes === 0);
    });
    await Promise.all(all);
  });

  await t.test('Ctrl-C ends a receiver with its line', async () => {
    const receiver = zerotx('udp', '-r', '-p', '0', '-6', '-D', '::1');
    await receiver.printed(/^receiving udp at \[::1\]:\d+\n/);
    receiver.child.kill('SIGINT');
    const { code, out } = await receiver.ended;
    assert.equal(code, 0);
    assert.match(out, /\nrx=0 \(0 MB\)\n$/);
  });
});

/** The first position where `bytes` are not the letters in order, from `letter` on; -1: there is none. */
function mismatch(bytes: Buffer, letter: number): number {
  return bytes.findIndex((byte, i) => byte !== 97 + ((letter + i) % 26));
}

test('Node at the other end', { timeout: 60_000 }, async (t) => {
  await t.test('net: a plain stream of the letters of the selftest', async () => {
    const server = createServer();
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const { port } = server.address() as AddressInfo;
    const tool = zerotx('tcp', '-D', '127.0.0.1', '-p', `${port}`, '-s', '26K', '-t', '0.2', '-z', '--json');
    const [socket] = await once(server, 'connection');
    let bytes = 0;
    let wrong = -1;
    socket.on('data', (chunk: Buffer) => {
      if (wrong < 0) wrong = mismatch(chunk, bytes);
      bytes += chunk.length;
    });
    await once(socket, 'end');
    socket.end();
    server.close();
    assert.equal(wrong, -1);
    assert.equal(JSON.parse((await tool.ended).out).txBytes, bytes);
  });

  await t.test('net: a receiver that closes early, or resets', async () => {
    for (const [how, why] of [
      ['end', /the receiver closed the connection|EPIPE|ECONNRESET/],
      ['resetAndDestroy', /ECONNRESET/],
    ] as const) {
      const server = createServer((socket) => {
        socket.once('data', () => socket[how]());
        socket.on('error', () => {});
      });
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
      const { port } = server.address() as AddressInfo;
      const { code, out, errors } = await zerotx('tcp', '-D', '127.0.0.1', '-p', `${port}`, '-z').ended;
      server.close();
      assert.equal(code, 1, out);
      assert.match(errors, why);
      assert.match(out, LAST_LINE);
    }
  });

  await t.test('net: a sender, and one that breaks off', async () => {
    for (const how of ['end', 'resetAndDestroy'] as const) {
      const receiver = zerotx('tcp', '-r', '-p', '0', '-D', '127.0.0.1');
      const [, port] = await receiver.printed(/^receiving tcp at 127\.0\.0\.1:(\d+)\n/);
      const socket = connect(Number(port), '127.0.0.1');
      await once(socket, 'connect');
      await new Promise<void>((resolve) => socket.write(Buffer.alloc(1 << 20), () => resolve()));
      socket[how]();
      const { code, out } = await receiver.ended;
      assert.equal(code, how === 'end' ? 0 : 1);
      assert.match(out, /\nrx=\d+ \(\d+ MB\)\n$/);
    }
  });

  await t.test('dgram: datagrams of the size that was asked for, each with the letters from a', async () => {
    const socket = createSocket('udp4');
    socket.bind(0, '127.0.0.1');
    await once(socket, 'listening');
    const sizes = new Set<number>();
    let wrong = -1;
    socket.on('message', (message: Buffer) => {
      sizes.add(message.length);
      if (wrong < 0) wrong = mismatch(message, 0);
    });
    const { port } = socket.address();
    const { code } = await zerotx('udp', '-D', '127.0.0.1', '-p', `${port}`, '-s', '1000', '-t', '0.2', '-z')
      .ended;
    socket.close();
    assert.equal(code, 0);
    assert.deepEqual([...sizes], [1000]);
    assert.equal(wrong, -1);
  });
});

test('nobody there', { timeout: 60_000 }, async () => {
  const nobody: readonly (readonly string[])[] = [
    ['tcp', '-D', '127.0.0.1', '-p', '1'],
    ['udp', '-D', '127.0.0.1', '-p', '1'],
    ['rds', '-D', '127.0.61.3', '-S', '127.0.61.4', '-p', '1'],
  ];
  await Promise.all(
    nobody.map(async (args) => {
      const { code, errors } = await zerotx(...args).ended;
      assert.equal(code, 1);
      assert.match(
        errors,
        /^zerotx: nobody receives at .*zerotx msg-zerocopy \w+ -r -D 127\.0\.\d+\.\d -p 1\n$/,
      );
    }),
  );
});

test('addresses that are not ours, or not at all', { timeout: 60_000 }, async () => {
  for (const [args, why] of [
    [['tcp', '-r', '-D', '203.0.113.7'], /EADDRNOTAVAIL/],
    [['udp', '-r', '-D', '203.0.113.7'], /EADDRNOTAVAIL/],
    [['rds', '-r', '-D', '203.0.113.7'], /203\.0\.113\.7 is not an address of this host/],
    [['tcp', '-D', 'name.invalid'], /name\.invalid has no address/],
  ] as const) {
    const { code, out, errors } = await zerotx(...args).ended;
    assert.deepEqual({ code, out }, { code: 1, out: '' });
    assert.match(errors, why);
  }
});

test('without the addon, at either end', { timeout: 60_000 }, async () => {
  for (const args of [[], ['-r'], ['-D', '127.0.0.1']]) {
    const env = { ZEROTX_ADDON: '/nonexistent.node' };
    const tool = startTool('dist/cli/zerotx.js', ['msg-zerocopy', 'tcp', ...args], env);
    const { code, errors } = await tool.ended;
    assert.equal(code, 1);
    assert.match(errors, /^zerotx: .*addon.*\n$/);
  }
});

test('a port that is taken, with both ends here', { timeout: 60_000 }, async () => {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const { code, errors } = await zerotx('tcp', '-p', `${port}`).ended;
  server.close();
  assert.equal(code, 1);
  assert.match(errors, /^zerotx: listen EADDRINUSE.*\n$/);
});

test('a wrong command line', { timeout: 60_000 }, async () => {
  for (const args of [
    [],
    ['packet'],
    ['tcp', 'udp'],
    ['tcp', '-p', '65536'],
    ['tcp', '-s', '0'],
    ['tcp', '-s', 'x'],
    ['tcp', '-l', '0'],
    ['tcp', '-t', '0'],
    ['tcp', '-t', '-1'],
    ['tcp', '-C', '2'],
    ['tcp', '-4', '-6'],
  ]) {
    const { code, out, errors } = await zerotx(...args).ended;
    assert.deepEqual({ code, out }, { code: 2, out: '' }, args.join(' '));
    assert.match(errors, /^error: /);
  }
});
