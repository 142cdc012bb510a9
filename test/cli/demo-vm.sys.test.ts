/** `npm run demo:vm` as somebody starts it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { startTool } from '../support/tools.ts';

test('the demo compares every frame, and says what it shows', { timeout: 60_000 }, async () => {
  const { code, out, errors } = await startTool('out/examples/demo-vm.js', []).ended;
  assert.deepEqual({ code, errors }, { code: 0, errors: '' });
  const rows = out.split('\n').filter((line) => / B .* %/.test(line));
  const columns = rows.map((line) => /^ {2}(\S.*?) {2,}(\d+) B/.exec(line)?.slice(1));
  assert.deepEqual(columns, [
    ...['64', '1500', '62000'].map((bytes) => ['guest to guest', bytes]),
    ...['64', '1500', '62000'].map((bytes) => ['over TCP, copying', bytes]),
    ['over TCP, zerocopy: force', '62000'],
  ]);
  // Over loopback everything is copied, lent or not; and all of it was compared.
  for (const line of rows) assert.match(line, / 100 % +[1-9]\d*$/, line);
  assert.match(out, /But this is loopback/);
});
