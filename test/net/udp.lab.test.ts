/**
 * UDP sockets on devices, in network namespaces: true zero-copy into an ifb, completions that a neighbour holds, a packet
 * tap, a small optmem_max, and a segment that does not fit.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Outcome } from '../../src/core/ubuf.ts';
import type { UdpStats } from '../../src/net/udp-endpoint.ts';

const child = fileURLToPath(new URL('./children/udp-lab.js', import.meta.url));
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
  'ip link set z1 up',
];

/** The neighbour's queue holds more than the send buffer. */
const ROOMY = 'echo 10000000 > /proc/sys/net/ipv4/neigh/z0/unres_qlen_bytes';

function run<T>(mode: string, ...setup: string[]): T {
  const script = [...SETUP, ...setup, 'exec "$0" "$@"'].join(' && ');
  const command = ['--net', 'sh', '-c', script, process.execPath, '--no-warnings', child, mode];
  const result = spawnSync('unshare', command, { encoding: 'utf8', timeout: 30_000 });
  const { status, signal, stdout, stderr } = result;
  assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
  return JSON.parse(stdout);
}

const KIB64 = 64_000;

describe('UDP on a device', { skip, timeout: 240_000 }, () => {
  it('sends from the pages of the program, and copies to this host meanwhile', () => {
    const { outcomes, stats } = run<{ outcomes: Outcome[]; stats: UdpStats }>('sink');
    outcomes.forEach((outcome, i) => {
      assert.equal(outcome.copiedBytes, i % 2 === 0 ? 0 : KIB64, `outcome ${i}`);
    });
    const { zerocopy } = stats;
    assert.equal(stats.lending, true);
    assert.equal(zerocopy.lentBytes, 400 * KIB64);
    assert.equal(zerocopy.kernelCopiedBytes, 0);
    assert.equal(zerocopy.copied.loopback, 20 * KIB64);
    assert.equal(zerocopy.pinnedBytes, 0);
    assert.equal(zerocopy.unexpectedCompletions, 0);
  });

  it('stops lending while somebody taps the device', () => {
    const { last, stats } = run<{ last: Outcome; stats: UdpStats }>('tap');
    assert.equal(last.copiedBytes, KIB64);
    assert.equal(stats.lending, false);
    assert.equal(stats.zerocopy.kernelCopiedBytes, stats.zerocopy.lentBytes);
    assert.ok(stats.zerocopy.copied.kernel >= 20 * KIB64);
  });

  it('releases in whatever order the kernel lets go', () => {
    const { order, pinnedBytes, stats } = run<{ order: string[]; pinnedBytes: number; stats: UdpStats }>(
      'held',
    );
    assert.deepEqual(order, [
      ...Array.from({ length: 10 }, (_, i) => (i % 2 === 0 ? 'here' : 'sink')),
      'nobody',
    ]);
    assert.equal(pinnedBytes, KIB64);
    assert.equal(stats.zerocopy.pinnedBytes, 0);
    assert.equal(stats.zerocopy.unexpectedCompletions, 0);
  });

  it('goes on while the one notification that there is room for is held: it copies, and waits for none', () => {
    const { order, pinnedBytes, stats } = run<{ order: string[]; pinnedBytes: number; stats: UdpStats }>(
      'held',
      'echo 1400 > /proc/sys/net/core/optmem_max',
    );
    assert.equal(order.length, 11);
    assert.equal(order.at(-1), 'nobody');
    assert.equal(pinnedBytes, KIB64);
    const { zerocopy } = stats;
    assert.equal(zerocopy.lentBytes + zerocopy.fallbackBytes, 11 * KIB64);
    assert.ok(zerocopy.fallbackBytes > 0 && zerocopy.refusedEnobufs > 0);
    assert.deepEqual([zerocopy.pinnedBytes, zerocopy.unexpectedCompletions], [0, 0]);
  });

  it('waits for room in the send buffer, in order', () => {
    const { order, queuedSends, stats } = run<{ order: number[]; queuedSends: number; stats: UdpStats }>(
      'full',
      ROOMY,
    );
    assert.deepEqual(
      order,
      order.map((_, i) => i),
    );
    assert.equal(order.length, 8);
    assert.ok(queuedSends > 0 && queuedSends < 8, `${queuedSends} waited`);
    assert.equal(stats.datagramsWritten, 8 * 64);
  });

  it('copies when there is no room for notifications', () => {
    const { stats } = run<{ stats: UdpStats }>('optmem', 'echo 10240 > /proc/sys/net/core/optmem_max');
    const { zerocopy } = stats;
    assert.ok(zerocopy.refusedEnobufs > 0);
    assert.ok(zerocopy.copied.optmem > 0);
    assert.ok(zerocopy.lentCalls > 0);
    assert.equal(zerocopy.lentBytes + zerocopy.fallbackBytes, 2000);
    assert.equal(zerocopy.pinnedBytes, 0);
  });

  it('refuses segments that do not fit, and keeps count of what it lends', () => {
    const { errors, pinnedBytes, stats } = run<{
      errors: { code: string; message: string }[];
      pinnedBytes: number;
      stats: UdpStats;
    }>('tooLong');
    assert.equal(errors.length, 3);
    for (const { code, message } of errors) {
      assert.match(code, /^(?:EMSGSIZE|EINVAL)$/);
      assert.match(message, /datagrams of 9000 bytes may exceed the MTU/);
    }
    assert.equal(
      pinnedBytes,
      KIB64,
      'what waits for the neighbour is not released by the completion of a refused call',
    );
    assert.equal(stats.zerocopy.pinnedBytes, 0);
    assert.equal(stats.zerocopy.unexpectedCompletions, 0);
  });

  it('keeps memory lent after close(), past the deadline, until the kernel lets go', () => {
    const result = run<Record<string, unknown>>('quarantine');
    const none = { lingering: 0, quarantinedSockets: 0, quarantinedBytes: 0 };
    assert.deepEqual(result, {
      code: 'ZTX_STILL_LENT',
      lingering: { ...none, lingering: 1 },
      atDeadline: { lingering: 1, quarantinedSockets: 1, quarantinedBytes: KIB64 },
      outcome: { bytes: KIB64, copiedBytes: 0, exact: true },
      after: none,
    });
  });
});
