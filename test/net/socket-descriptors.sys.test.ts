/** A process without free descriptors: what needs one fails by itself, servers go on when there are some again. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const program = fileURLToPath(new URL('./children/socket-descriptors.js', import.meta.url));

describe('without free descriptors', { timeout: 60_000 }, () => {
  it('connect(), bind() and listen() fail with EMFILE, and a server accepts later what came meanwhile', () => {
    const script = 'ulimit -n 128; exec "$0" "$@"';
    const { status, signal, stdout, stderr } = spawnSync('sh', ['-c', script, process.execPath, program], {
      encoding: 'utf8',
      timeout: 20_000,
    });
    assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
    const { connecting, several, binding, listenError, ...server } = JSON.parse(stdout);
    for (const error of [connecting, several, binding, listenError]) assert.equal(error.code, 'EMFILE');
    assert.deepEqual(server, { whileFull: 0, accepted: 4, serverErrors: 0, echoed: 'still here' });
  });
});
