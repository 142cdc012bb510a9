/** examples/driver-side.js as somebody starts it: as it shows itself, in its roles, and in a wrong way. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { VhostUserDevice } from '../../src/vhost/device.ts';
import { startTool } from '../support/tools.ts';
import { socketPath } from '../support/vhost-backend.ts';

const EXAMPLE = 'examples/driver-side.js';

test('driver-side.js: a command line that it does not have', { timeout: 20_000 }, async () => {
  const { code, out, errors } = await startTool(EXAMPLE, ['--help']).ended;
  assert.deepEqual({ code, out }, { code: 2, out: '' });
  assert.match(errors, /^usage: node driver-side\.js \[.*\n$/);
});

test('driver-side.js shows itself', { timeout: 30_000 }, async () => {
  const { code, out, errors } = await startTool(EXAMPLE, []).ended;
  assert.deepEqual({ code, errors }, { code: 0, errors: '' });
  assert.match(
    out,
    /^1000 pings of 192\.0\.2\.2 answered: median \d+ us, .*\n1001 frames out, 1001 in; the other side answered 1000\n$/,
  );
});

test('driver-side.js: one answers, one asks', { timeout: 30_000 }, async () => {
  const paths = [socketPath(), socketPath()];
  const [a, b] = paths.map(({ path }) => new VhostUserDevice({ path })) as [VhostUserDevice, VhostUserDevice];
  const all = Uint32Array.from({ length: 1024 }, (_, i) => i);
  a.receiver = (table) => b.send(table, all, 0, table.count);
  b.receiver = (table) => a.send(table, all, 0, table.count);
  await Promise.all([a.open(), b.open()]);
  try {
    const answering = startTool(EXAMPLE, [a.path, '192.0.2.1']);
    await answering.printed(/^answering at 192\.0\.2\.1, /);
    const asking = await startTool(EXAMPLE, [b.path, '192.0.2.2', '192.0.2.1']).ended;
    assert.equal(asking.code, 0, asking.errors);
    assert.match(asking.out, /^1000 pings of 192\.0\.2\.1 answered/);
    answering.child.kill('SIGINT');
    const { code, out } = await answering.ended;
    assert.equal(code, 0);
    assert.match(out, /\n1000 pings answered\n$/);
  } finally {
    await Promise.all([a.close(), b.close()]);
    for (const { end } of paths) end();
  }
});
