/** What the examples say to somebody who starts them in a wrong way. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

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
