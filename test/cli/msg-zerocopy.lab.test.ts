/**
 * `zerotx msg-zerocopy` over a veth pair in a network namespace of its own, whose other end drops what comes in before
 * the moment where the kernel would copy lent pages: what is left is what a device sees.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { ROOT } from '../support/sources.ts';

const skip = process.getuid?.() === 0 ? false : 'needs root, for a network namespace';
const SETUP = [
  'ip link set lo up',
  'ip link add z0 type veth peer name z1',
  'ip addr add 10.99.0.1/24 dev z0',
  'ip link set z0 up',
  'ip link set z1 up',
  'ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev z0',
  'tc qdisc add dev z1 clsact',
  // Classic BPF that says TC_ACT_SHOT: no module is needed for the action.
  "tc filter add dev z1 ingress protocol ip bpf direct-action bytecode '1,6 0 0 2'",
  'exec "$0" "$@"',
].join(' && ');

function run(...args: string[]) {
  const tool = [join(ROOT, 'dist/cli/zerotx.js'), 'msg-zerocopy', ...args];
  const command = ['--net', 'sh', '-c', SETUP, process.execPath, ...tool];
  const result = spawnSync('unshare', command, { encoding: 'utf8', timeout: 30_000 });
  const { status, stdout, stderr } = result;
  assert.deepEqual({ status, stderr }, { status: 0, stderr: '' });
  return stdout;
}

describe('zerotx msg-zerocopy into a drop', { skip, timeout: 120_000 }, () => {
  it('udp with -z: not a byte is copied', () => {
    const report = JSON.parse(run('udp', '-D', '10.99.0.2', '-z', '-t', '0.5', '--json'));
    const { tx, txc, zc, copied, release, cpuSecondsPerGB } = report;
    assert.ok(tx > 100, `${tx} sends`);
    assert.equal(txc, tx);
    assert.equal(zc, true);
    assert.deepEqual(
      { ...copied, exact: true },
      { bytes: 0, share: 0, exact: true, kernelBytes: 0, byCause: {} },
    );
    assert.ok(release.count > 0 && cpuSecondsPerGB > 0);
    assert.match(run('udp', '-D', '10.99.0.2', '-z', '-t', '0.2', '-c', '1'), / zc=y\n$/);
  });

  it('udp without: all of it', () => {
    const { tx, txc, zc, copied, release } = JSON.parse(run('udp', '-D', '10.99.0.2', '-t', '0.5', '--json'));
    assert.ok(tx > 100, `${tx} sends`);
    assert.deepEqual([txc, zc, copied.share, release], [0, false, 1, null]);
    assert.deepEqual(copied.byCause, { off: copied.bytes });
  });
});
