import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';

/** A veth whose other end knows no addresses: who sends into it waits for a neighbour that never answers. */
const SETUP = [
  'ip link add z0 type veth peer name z1',
  'ip addr add 10.99.0.1/24 dev z0',
  'ip link set z0 up',
  'ip link set z1 up',
  'exec "$0" "$@"',
].join(' && ');

const skip = process.getuid?.() === 0 ? false : 'needs root, for a network namespace';

it('memory that the kernel still reads when a worker ends is never unmapped', {
  skip,
  timeout: 60_000,
}, () => {
  const child = fileURLToPath(new URL('./children/lifetime.js', import.meta.url));
  const command = ['--net', 'sh', '-c', SETUP, process.execPath, child, 'quarantine'];
  const result = spawnSync('unshare', command, { encoding: 'utf8', timeout: 50_000 });
  const { status, signal, stderr } = result;
  assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
});
