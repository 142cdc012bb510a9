/** `zerotx switch` as somebody starts it: files that are right and wrong, guests on it, what it tells, and how it ends. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { VhostUserFrontend } from '../../src/vhost/index.ts';
import { assertFrames } from '../support/frames.ts';
import { readPackets } from '../support/pcap.ts';
import { type RunningTool, startTool } from '../support/tools.ts';

const folder = mkdtempSync(join(tmpdir(), 'zerotx-cli-'));
after(() => rmSync(folder, { recursive: true }));

const zerotx = (...args: readonly string[]): RunningTool =>
  startTool('dist/cli/zerotx.js', ['switch', ...args]);

function labFile(name: string, text: string): string {
  const file = join(folder, name);
  writeFileSync(file, text);
  return file;
}

/** From and to guests of these numbers; 0xff: to nobody. */
function frameBetween(from: number, to: number, bytes = 100): Uint8Array {
  const frame = Uint8Array.from({ length: bytes }, (_, i) => i);
  frame.set([0x52, 0x54, 0, 0, 0, to, 0x52, 0x54, 0, 0, 0, from, 0x88, 0xb5]);
  return frame;
}

const GUESTS = `
switch: { macAge: 1min }
ports:
  a: { vhost: a.sock, vlan: 5, macs: 52:54:00:00:00:01, capture: a.pcap }
  b: { vhost: { socket: b.sock, socketMode: 0660 }, vlan: 5, macs: 52:54:00:00:00:02 }
  c: { vhost: c.sock, vlan: 6, faults: { rx: { loss: 100% } } }
  seen: { pcap: seen.pcap, vlan: { trunk: [5, 6] } }
`;

test('guests on it', { timeout: 60_000 }, async () => {
  const file = labFile('lab.yaml', GUESTS);
  const tool = zerotx(file, '--json');
  await tool.printed(/"port":"c","socket":/);
  assert.equal(statSync(join(folder, 'b.sock')).mode & 0o777, 0o660);
  const [a, b, c] = await Promise.all(
    ['a', 'b', 'c'].map((name) => VhostUserFrontend.connect({ path: join(folder, `${name}.sock`) })),
  );
  assert.ok(a !== undefined && b !== undefined && c !== undefined);
  const there = frameBetween(1, 2, 1000);
  const arrival = once(b, 'frame');
  await a.sendFrame(there);
  const [got] = await arrival;
  assertFrames([got], [there]);
  // In another's name; to nobody, which goes to all of the VLAN; and into a line that loses everything.
  await a.sendFrame(frameBetween(2, 1));
  await a.sendFrame(frameBetween(1, 0xff));
  await c.sendFrame(frameBetween(3, 0xff));
  tool.child.kill('SIGUSR1');
  const [line] = await tool.printed(/^.*"event":"counters".*$/m);
  const { ports } = JSON.parse(line);
  assert.deepEqual(Object.keys(ports), ['a', 'b', 'c', 'seen']);
  const { a: ofA, b: ofB, c: ofC, seen } = ports;
  assert.deepEqual([ofA.kind, ofA.up, ofA.rxFrames, ofA.rxLost.spoofed], ['vhost', true, 3, 1]);
  assert.deepEqual([ofB.txFrames, ofB.switch.egress.frames], [2, 2]);
  assert.deepEqual([ofC.rxFrames, ofC.rxLost['by the faults'], ofC.faults.rx.lost], [1, 1, 1]);
  assert.deepEqual([seen.kind, seen.txFrames], ['pcap', 1]);
  await Promise.all([a.close(), b.close(), c.close()]);
  tool.child.kill('SIGTERM');
  const { code, out, errors } = await tool.ended;
  assert.deepEqual({ code, errors }, { code: 0, errors: '' });
  for (const name of ['a', 'b', 'c']) assert.equal(existsSync(join(folder, `${name}.sock`)), false);
  const packets = (name: string): Uint8Array[] =>
    readPackets(readFileSync(join(folder, name))).map(({ frame }) => frame);
  assertFrames(packets('a.pcap'), [there, frameBetween(2, 1), frameBetween(1, 0xff)]);
  // Tagged, as it came to a trunk.
  assert.deepEqual(
    packets('seen.pcap').map((frame) => Buffer.from(frame.subarray(12, 18)).toString('hex')),
    ['8100000588b5'],
  );
  const documents = out
    .trimEnd()
    .split('\n')
    .map((text) => JSON.parse(text));
  const guests = documents.filter(({ event }) => event === 'guest');
  assert.deepEqual(
    guests.map(({ port, socket }) => [port, socket]),
    ['a', 'b', 'c'].map((name) => [name, join(folder, `${name}.sock`)]),
  );
  assert.deepEqual(guests.map(({ mac }) => mac).slice(0, 2), ['52:54:00:00:00:01', '52:54:00:00:00:02']);
  assert.match(guests[0].command, /^qemu-system-x86_64 .*mac=52:54:00:00:00:01/s);
  assert.equal(documents.at(-1).event, 'counters');
});

test('for people', { timeout: 60_000 }, async () => {
  const file = labFile(
    'people.yaml',
    'ports: { p: { vhost: p.sock }, u: { vhost: { socket: u.sock, frontEnd: uml } } }',
  );
  const tool = zerotx(file, '--stats', '0.1');
  await tool.printed(/^port +link .*\np +down +0 +0 B +0 +0 +0 B +0 +0 B +-\nu +down/m);
  const nic = await VhostUserFrontend.connect({ path: join(folder, 'p.sock') });
  await nic.sendFrame(frameBetween(1, 2));
  await tool.printed(/^lost from p: 1 alone$/m);
  await nic.close();
  tool.child.kill('SIGINT');
  const { code, out, errors } = await tool.ended;
  assert.equal(code, 0);
  assert.match(
    out,
    /^# p\nqemu-system-x86_64 .*\n\n# u\nlinux mem=512M virtio_uml\.device=\S+\/u\.sock:1\n\n# Append/s,
  );
  assert.match(errors, /^(?:.*root.*\n)?p: waits for a front-end at .*\nu: waits for/);
});

test('a file is checked, and nothing else', { timeout: 60_000 }, async () => {
  const good = labFile('good.yaml', 'ports: { a: { vhost: q.sock }, t: { tap: tap0, vlan: 1 } }');
  assert.deepEqual(await zerotx(good, '--check').ended, {
    code: 0,
    out: `${good}: 2 ports, nothing is wrong\n`,
    errors: '',
  });
  assert.deepEqual(await zerotx(good, '--check', '--json').ended, {
    code: 0,
    out: '{"event":"checked","ports":2,"problems":0,"warnings":0}\n',
    errors: '',
  });
  assert.equal(existsSync(join(folder, 'q.sock')), false);
  const longer = labFile(
    'longer.yaml',
    'ports: { a: { vhost: { socket: q, mtu: 9000 } }, t: { tap: tap0 } }',
  );
  const { code, out, errors } = await zerotx(longer, '--check').ended;
  assert.deepEqual([code, out], [0, `${longer}: 2 ports, 1 warning\n`]);
  assert.match(errors, /:1:50: warning: t takes packets of 1500 bytes, and a sends up to 9000: .*\n$/);
});

test('a file that is wrong', { timeout: 60_000 }, async () => {
  const file = labFile('wrong.yaml', 'ports:\n  a: { vhots: a.sock }\n  b: { tap: tap0, vlan: 4095 }\n');
  const problems = [
    { line: 2, column: 3, text: 'ports.a needs a kind: vhost, tap, macvtap, stream, dgram, vxlan or pcap' },
    { line: 2, column: 8, text: 'ports.a has no "vhots": did you mean vhost?' },
    { line: 3, column: 25, text: 'ports.b.vlan is 4095: it must be an integer from 1 to 4094' },
  ];
  const told = problems.map(({ line, column, text }) => `${file}:${line}:${column}: ${text}\n`).join('');
  for (const check of [[], ['--check']]) {
    assert.deepEqual(await zerotx(file, ...check).ended, { code: 2, out: '', errors: told });
    const { code, out } = await zerotx(file, '--json', ...check).ended;
    assert.equal(code, 2);
    const checked = { event: 'checked', ports: 1, problems: 3, warnings: 0 };
    assert.deepEqual(
      out
        .trimEnd()
        .split('\n')
        .map((text) => JSON.parse(text)),
      [
        ...problems.map((problem) => ({ event: 'problem', file, ...problem })),
        ...(check.length === 0 ? [] : [checked]),
      ],
    );
  }
});

test('a wrong command line', { timeout: 60_000 }, async () => {
  for (const [args, why] of [
    [[], /missing required argument 'file'/],
    [[join(folder, 'none.yaml')], /none\.yaml: no such file$/m],
    [[folder], /: a folder, and a lab is a file$/m],
    [['a', 'b'], /too many arguments/],
    [['a', '--workers', '2'], /in one thread\. Several switches are several processes/],
    [['a', '--bogus'], /unknown option/],
  ] as const) {
    const { code, out, errors } = await zerotx(...args).ended;
    assert.deepEqual({ code, out }, { code: 2, out: '' }, errors);
    assert.match(errors, why);
  }
});

test('a port that cannot be opened ends it, and closes the others', { timeout: 60_000 }, async () => {
  const file = labFile('taken.yaml', 'ports: { a: { vhost: r.sock }, b: { pcap: no/such/folder.pcap } }');
  const { code, out, errors } = await zerotx(file).ended;
  assert.deepEqual({ code, out }, { code: 1, out: '' });
  assert.match(errors, /^zerotx: b: ENOENT: .*\n$/m);
  assert.equal(existsSync(join(folder, 'r.sock')), false);
});

test('its help needs no addon, nor does a check', { timeout: 60_000 }, async () => {
  const env = { ZEROTX_ADDON: '/nonexistent.node' };
  const run = (...args: readonly string[]) => startTool('dist/cli/zerotx.js', ['switch', ...args], env).ended;
  const { code, out } = await run('--help');
  assert.equal(code, 0);
  for (const part of ['docs/vm-lab.md', 'SIGUSR1', 'Examples:', 'Exit code'])
    assert.ok(out.includes(part), part);
  assert.ok(!out.includes('--workers'));
  const file = labFile('plain.yaml', 'ports: { a: { vhost: s } }');
  assert.equal((await run(file, '--check')).code, 0);
  const started = await run(file);
  assert.equal(started.code, 1);
  assert.match(started.errors, /^zerotx: .*addon.*\n$/m);
});
