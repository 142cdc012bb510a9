/** `zerotx explain` about sends that leave by a device: with nothing in the way, with a tap, and to a namespace next door. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runtimeFolder } from '../support/programs.ts';
import { ROOT } from '../support/sources.ts';

const child = fileURLToPath(new URL('./children/explain-lab.js', import.meta.url));
const tool = join(ROOT, 'dist/cli/zerotx.js');
const skip = process.getuid?.() === 0 ? false : 'needs root, for a network namespace';

const SETUP = [
  'ip link set lo up',
  'ip link add i0 type ifb',
  'ip addr add 10.98.0.1/24 dev i0',
  'ip link set i0 up',
  'ip neigh add 10.98.0.2 lladdr 02:00:00:00:00:02 dev i0',
  'ip link add z0 type veth peer name z1',
  'ip addr add 10.99.0.1/24 dev z0',
  'ip link set z0 up',
];

interface Reason {
  readonly id: string;
  readonly by: string;
  readonly bytes: number;
  readonly why: string;
  readonly remedy?: string;
  readonly saves?: { readonly leastMs: number; readonly mostMs: number };
}

interface Explained {
  readonly stats: { readonly remote: string; readonly zerocopy: { readonly lentBytes: number } };
  readonly reasons: readonly Reason[];
}

describe('zerotx explain on a device', { skip, timeout: 120_000 }, () => {
  const runtime = runtimeFolder();
  after(() => runtime.remove());

  function explain(mode: string): { socket: Explained; text: string } {
    const script = [...SETUP, 'exec "$0" "$@"'].join(' && ');
    const command = ['--net', 'sh', '-c', script, process.execPath, child, mode, tool];
    const result = spawnSync('unshare', command, {
      encoding: 'utf8',
      timeout: 60_000,
      env: { ...process.env, XDG_RUNTIME_DIR: runtime.path },
    });
    const { status, signal, stdout, stderr } = result;
    assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
    const { report, text } = JSON.parse(stdout);
    return { socket: report.programs[0].sockets[0], text };
  }

  it('has nothing to tell where nothing was copied', () => {
    const { socket, text } = explain('sink');
    assert.equal(socket.stats.zerocopy.lentBytes, 40 * 64_000);
    assert.deepEqual(socket.reasons, []);
    assert.match(text, /nothing was copied: there is nothing to explain/);
  });

  it('tells of a tap, whose it is, and what ending it would save', () => {
    const { socket, text } = explain('tap');
    assert.equal(socket.stats.remote, '10.98.0.2:9');
    assert.deepEqual(
      socket.reasons.map(({ id, by }) => `${id} ${by}`).sort(),
      ['tap kernel', 'tap zerotx'],
      'what was copied, and what was not lent any more for that',
    );
    for (const { why, remedy, saves } of socket.reasons) {
      assert.match(why, /packet socket on i0: \S+ \(pid \d+\)/);
      assert.match(remedy ?? '', /end the capture/);
      assert.ok(saves !== undefined && saves.mostMs >= saves.leastMs);
    }
    assert.match(text, /would have saved .* of CPU time/);
    assert.match(text, /^Savings are for the bytes so far, from costs measured here/m);
  });

  it('tells of a device that may end on this host, and claims no savings', () => {
    const { socket } = explain('veth');
    // What is left of a write that the send buffer has cut may be below the threshold.
    const reasons = socket.reasons.filter(({ id }) => id !== 'threshold');
    assert.ok(reasons.length > 0);
    for (const { id, why, saves } of reasons) {
      assert.equal(id, 'virtual');
      assert.match(why, /z0 is a virtual device \(veth\)/);
      assert.equal(saves, undefined);
    }
  });
});
