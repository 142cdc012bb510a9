/** The examples as somebody starts them: as they show themselves, in their roles, and in a wrong way. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { get, type IncomingMessage } from 'node:http';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { startTool } from '../support/tools.ts';

const root = fileURLToPath(new URL('../../../', import.meta.url));

function run(...args: string[]): { code: number | null; out: string; errors: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: root, encoding: 'utf8' });
  return { code: status, out: stdout, errors: stderr };
}

test('echo.js: a role that it does not have', { timeout: 20_000 }, () => {
  const { code, out, errors } = run('examples/echo.js', '--help');
  assert.equal(code, 2);
  assert.match(errors, /^usage: node echo\.js .*server.*client.*\n$/);
  assert.equal(out, '');
});

test('a command line that they do not have', { timeout: 20_000 }, () => {
  for (const [name, arg] of [
    ['file-server', '--help'],
    ['object-cache', '--help'],
    ['udp-sender', 'sende'],
  ]) {
    const { code, out, errors } = run(`examples/${name}.js`, arg as string);
    assert.deepEqual({ code, out }, { code: 2, out: '' }, name);
    assert.match(errors, new RegExp(`^usage: node ${name}\\.js \\[.*\n$`));
  }
});

/** What each prints without arguments. */
const shows: Readonly<Record<string, RegExp>> = {
  'file-server':
    /^(?:(?:cached|streamed): \d+ bytes, as on disk\n){4}\d+ bytes lent, of which the kernel copied \d+\n\d+ bytes copied by zerotx: .*\nOver loopback .*\n$/,
  'object-cache':
    /^96 objects sent, \d+ filled, [1-9]\d* evicted; 8388608 bytes of memory\n100663296 bytes sent without a copy of ours, of which 100663296 were copied after all:\nover loopback .*\n$/,
  'udp-sender':
    /^sent 71438 datagrams, 100013200 bytes\ncopied 100013200 of them: .*\nreceived \d+ datagrams in \d+ runs, 0 late, \d+ missing\nOver loopback .*\n$/,
};

for (const [name, shown] of Object.entries(shows)) {
  test(`${name}.js shows itself`, { timeout: 60_000 }, () => {
    const { code, out, errors } = run(`examples/${name}.js`);
    assert.deepEqual({ code, errors }, { code: 0, errors: '' });
    assert.match(out, shown);
  });
}

function statusOf(port: string, path: string): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    get({ host: '127.0.0.58', port, path, agent: false }, (response) => resolve(response.resume())).on(
      'error',
      reject,
    );
  });
}

test('file-server.js serves a folder, and nothing outside it', { timeout: 30_000 }, async () => {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-example-'));
  try {
    for (const [name, bytes] of [
      ['empty', 0],
      ['small', 100],
      ['large', 9 << 20],
    ] as const)
      writeFileSync(join(folder, name), Buffer.alloc(bytes));
    const port = '18059';
    const server = startTool('examples/file-server.js', [folder, port, '127.0.0.58']);
    await server.printed(/serves/);
    for (const [path, status, length] of [
      ['/small', 200, '100'],
      ['/empty', 200, '0'],
      ['/large', 200, `${9 << 20}`],
      ['/none', 404, undefined],
      ['/', 404, undefined],
      ['/%2e%2e/%2e%2e/etc/passwd', 404, undefined],
      ['/..%2f..%2fetc/passwd', 404, undefined],
      ['/%', 500, undefined],
    ] as const) {
      const response = await statusOf(port, path);
      assert.equal(response.statusCode, status, path);
      if (status === 200) assert.equal(response.headers['content-length'], length, path);
    }
    server.child.kill('SIGINT');
    const { code, out } = await server.ended;
    assert.equal(code, 0);
    assert.match(out, /\n\d+ bytes lent, of which the kernel copied \d+\n/);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('object-cache.js answers whoever asks', { timeout: 30_000 }, async () => {
  const server = startTool('examples/object-cache.js', ['18060', '127.0.0.58']);
  await server.printed(/^objects of 1048576 bytes/);
  const socket = connect({ port: 18_060, host: '127.0.0.58' });
  socket.end('x\ny\n');
  let bytes = 0;
  for await (const chunk of socket) bytes += chunk.length;
  assert.equal(bytes, 2 * ((1 << 20) + 4));
  server.child.kill();
  await server.ended;
});

test('udp-sender.js in two processes', { timeout: 30_000 }, async () => {
  const receiver = startTool('examples/udp-sender.js', ['receive', '0', '::1']);
  const [, port = ''] = await receiver.printed(/^receiving at ::1, port (\d+)\n/);
  const sender = await startTool('examples/udp-sender.js', ['send', port, '::1', '5']).ended;
  assert.equal(sender.code, 0, sender.errors);
  assert.match(sender.out, /^sent 3588 datagrams, 5023200 bytes\ncopied 5023200 of them: 0 by the kernel, /);
  receiver.child.kill('SIGINT');
  const { code, out } = await receiver.ended;
  assert.equal(code, 0);
  assert.match(out, /\nreceived \d+ datagrams in \d+ runs, 0 late, -?\d+ missing\n$/);
});

test('the demo: a port that is taken', { timeout: 20_000 }, async () => {
  const taken = createServer();
  taken.listen({ host: '127.0.0.57', port: 16_385 });
  await once(taken, 'listening');
  const { code, out, errors } = run('out/examples/demo.js', '127.0.0.56', '127.0.0.57');
  taken.close();
  assert.equal(code, 1);
  assert.match(errors, /^cannot listen on 127\.0\.0\.57:16385: EADDRINUSE/);
  assert.equal(out, '');
});
