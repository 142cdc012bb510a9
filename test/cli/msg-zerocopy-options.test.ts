/** The command line of `zerotx msg-zerocopy` as settings, what is refused, and the arithmetic of its report. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { quantile, receiveLine, sendLines, sendReport } from '../../src/cli/msg-zerocopy/report.ts';
import type { Counts, Sender } from '../../src/cli/msg-zerocopy/sender.ts';
import {
  addressOf,
  type GivenOptions,
  place,
  type Settings,
  settingsOf,
  type Test,
} from '../../src/cli/msg-zerocopy/settings.ts';
import { LatencyHistogram } from '../../src/core/histogram.ts';
import { zerocopyCounters } from '../../src/net/counters.ts';

const KIB = 1024;

function given(options: Partial<GivenOptions>): GivenOptions {
  return { l: 32, ...options };
}

const accepted: readonly [Test, Partial<GivenOptions>, Partial<Settings>][] = [
  [
    'tcp',
    {},
    { role: 'loopback', family: 0, payloadBytes: 64 * KIB, datagrams: 1, zerocopy: false, limit: 32 },
  ],
  ['tcp', { D: 'a', z: true, t: 2 }, { role: 'send', destination: 'a', zerocopy: true, seconds: 2 }],
  ['tcp', { r: true, p: 0 }, { role: 'receive', port: 0, destination: undefined }],
  ['tcp', { r: true, D: 'a', S: 'b' }, { role: 'receive', destination: 'a', source: 'b' }],
  ['tcp', { 6: true, D: '::1' }, { family: 6 }],
  ['tcp', { 4: true, D: 'name', s: 100, l: 1, p: 9 }, { family: 4, payloadBytes: 100, limit: 1, port: 9 }],
  ['udp', {}, { payloadBytes: 1400, datagrams: 46 }],
  ['udp', { s: 100 }, { payloadBytes: 100, datagrams: 64 }],
  ['udp', { s: 40_000 }, { datagrams: 1 }],
  ['udp', { s: 65_507 }, { datagrams: 1 }],
  ['udp', { s: 1000, c: 3 }, { datagrams: 3 }],
  ['rds', {}, { role: 'loopback', payloadBytes: 64 * KIB, datagrams: 1 }],
  ['rds', { r: true, D: '10.0.0.1' }, { role: 'receive' }],
  ['rds', { D: '10.0.0.1', S: '10.0.0.2', s: KIB * KIB }, { role: 'send', payloadBytes: KIB * KIB }],
  ['rds', { 6: true, D: 'fd00::1', S: 'fd00::2' }, { family: 6 }],
];

const refused: readonly [Test, Partial<GivenOptions>, RegExp][] = [
  ['tcp', { 4: true, 6: true }, /exclude each other/],
  ['tcp', { 4: true, D: '::1' }, /-D ::1 is not an IPv4 address/],
  ['tcp', { 6: true, D: '::1', S: '127.0.0.1' }, /-S 127\.0\.0\.1 is not an IPv6 address/],
  ['tcp', { r: true, z: true }, /a receiver lends nothing/],
  ['tcp', { D: 'a', p: 0 }, /-p 0/],
  ['tcp', { c: 2 }, /-c is for udp/],
  ['tcp', { s: 2 ** 27 }, /at most 67108864 bytes/],
  ['udp', { s: 65_508 }, /at most 65507 bytes/],
  ['udp', { 6: true, s: 65_507 }, /at most 65487 bytes/],
  ['udp', { D: '::1', s: 65_507 }, /at most 65487 bytes/],
  ['udp', { s: 1000, c: 66 }, /at most 64 datagrams/],
  ['udp', { s: 40_000, c: 2 }, /more than the 65507 bytes of one send/],
  ['rds', { s: KIB * KIB + 1 }, /at most 1048576 bytes/],
  ['rds', { r: true }, /-D, the address to receive at/],
  ['rds', { D: '10.0.0.1' }, /-S, the address to send from/],
  ['rds', { 6: true }, /needs two addresses/],
];

test('settings of options', () => {
  for (const [kind, options, expected] of accepted) {
    const settings = settingsOf(kind, given(options));
    assert.ok(typeof settings !== 'string', `${kind} ${JSON.stringify(options)}: ${String(settings)}`);
    assert.deepEqual({ ...settings, ...expected, test: kind }, settings, JSON.stringify(options));
  }
});

test('options that cannot be', () => {
  for (const [kind, options, why] of refused) {
    const settings = settingsOf(kind, given(options));
    assert.equal(typeof settings, 'string', `${kind} ${JSON.stringify(options)}`);
    assert.match(settings as string, why);
  }
});

test('addresses', async () => {
  assert.equal(place('127.0.0.1', 1), '127.0.0.1:1');
  assert.equal(place('fe80::1%eth0', 1), '[fe80::1%eth0]:1');
  assert.deepEqual(await addressOf('::1', 0), { address: '::1', family: 6 });
  await assert.rejects(addressOf('name.invalid', 4), { code: 'EADDRNOTAVAIL' });
});

test('quantiles are upper bounds of buckets', () => {
  const latency = new LatencyHistogram();
  for (let i = 0; i < 98; i++) latency.record(100);
  for (let i = 0; i < 2; i++) latency.record(3000);
  const snapshot = latency.snapshot();
  assert.equal(quantile(snapshot, 0.5), 128);
  assert.equal(quantile(snapshot, 0.98), 128);
  assert.equal(quantile(snapshot, 0.99), 3000);
});

function reportOf(bytes: number, copiedBytes: number, kernelCopiedBytes: number, exact = true) {
  const counters = zerocopyCounters();
  counters.copied.memlock = copiedBytes - kernelCopiedBytes;
  counters.latency.record(50);
  const counts: Counts = { ...counters, kernelCopiedBytes, latency: counters.latency.snapshot() };
  const settings = settingsOf('tcp', given({ D: '10.0.0.1', z: true })) as Settings;
  const cpu = { cpuUserSeconds: 1, cpuSystemSeconds: 1 };
  const pumped = { sends: 4, completed: 3, bytes, copiedBytes, exact, seconds: 2, ...cpu, error: null };
  const sender = { from: '10.0.0.2:1', to: '10.0.0.1:2', family: 4 } as Sender;
  return sendReport(settings, sender, { ...pumped, endedBy: 'time' }, counts, null);
}

test('the last line is the one of the selftest, and nothing copied is all that makes zc', () => {
  const none = reportOf(5 * 2 ** 32, 0, 0);
  assert.equal(sendLines(none).at(-1), 'tx=4 (20480 MB) txc=3 zc=y');
  assert.equal(none.mbPerSecond, (5 * 2 ** 32) / 2e6);
  assert.equal(none.cpuSecondsPerGB, 2e9 / (5 * 2 ** 32));
  const some = reportOf(10_000_000, 2_000_000, 1_500_000, false);
  assert.deepEqual([some.zc, some.copied.share, some.copied.byCause], [false, 0.2, { memlock: 500_000 }]);
  const text = sendLines(some).join('\n');
  assert.match(
    text,
    /copied {4}20\.0 %: 1\.5 MB by the kernel, 0\.5 MB by zerotx \(memlock\) \(as far as merged/,
  );
  assert.match(text, /released {2}half within 50 us, /);
  assert.match(text, /zc=n$/);
  const nothing = reportOf(0, 0, 0);
  assert.deepEqual([nothing.zc, nothing.cpuSecondsPerGB, nothing.copied.share], [false, null, 0]);
  const got = {
    packets: 2,
    bytes: 3 * 2 ** 20,
    seconds: 1,
    cpuUserSeconds: 0,
    cpuSystemSeconds: 0,
    error: null,
  };
  assert.equal(receiveLine(got), 'rx=2 (3 MB)');
});
