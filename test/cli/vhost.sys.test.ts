/** `zerotx vhost` as somebody starts it, with driver sides at its sockets: what comes out of the uplink, and how it ends. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  accessSync,
  constants,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { VhostUserFrontend } from '../../src/vhost/index.ts';
import { assertFrames, frame } from '../support/frames.ts';
import { readPackets } from '../support/pcap.ts';
import { type RunningTool, startTool } from '../support/tools.ts';

const folder = mkdtempSync(join(tmpdir(), 'zerotx-cli-'));
after(() => rmSync(folder, { recursive: true }));
let files = 0;
/** A path that nothing has yet. */
const fresh = (ending: string): string => join(folder, `${files++}${ending}`);

const zerotx = (...args: readonly string[]): RunningTool =>
  startTool('dist/cli/zerotx.js', ['vhost', ...args]);

const hasKvm = ((): boolean => {
  try {
    accessSync('/dev/kvm', constants.R_OK | constants.W_OK);
    return true;
  } catch {
    return false;
  }
})();

function framesOf(file: string): Uint8Array[] {
  return readPackets(readFileSync(file)).map((packet) => packet.frame);
}

async function received(nic: VhostUserFrontend): Promise<Uint8Array> {
  const [got] = await once(nic, 'frame');
  return got as Uint8Array;
}

/** A frame that is sent until it arrives: links come up when they do. */
async function sentUntil(
  from: VhostUserFrontend,
  to: VhostUserFrontend,
  bytes: Uint8Array,
): Promise<Uint8Array> {
  const arrival = received(to);
  let isThere = false;
  void arrival.then(() => {
    isThere = true;
  });
  while (!isThere) await from.sendFrame(bytes);
  return arrival;
}

test('a front-end, and a capture for an uplink', { timeout: 60_000 }, async () => {
  const [socket, file, capture] = [fresh('.sock'), fresh('.pcap'), fresh('.pcap')];
  const tool = zerotx(
    ...['--socket', socket, '--uplink', `pcap:${file}`, '--pcap', capture, '--mac', '52:54:00:00:00:07'],
    ...['--queues', '2', '--mtu', '9000'],
  );
  await tool.printed(/^# Append your disk/m);
  assert.equal(statSync(socket).mode & 0o777, 0o600);
  const nic = await VhostUserFrontend.connect({ path: socket, queuePairs: 2 });
  await tool.printed(/a front-end is connected/);
  const sent = [frame(64, 1), frame(1500, 2), frame(8000, 3)];
  for (const one of sent) await nic.sendFrame(one);
  tool.child.kill('SIGUSR1');
  await tool.printed(/^\d+ +up +3 +9564 B +0 {4}/m);
  await nic.close();
  await tool.printed(
    /front-end is connected\n\d+: up\n(?:.*\n)*?\d+: down\n(?:.*\n)*?\d+: its front-end has left\n\d+: waits/,
  );
  tool.child.kill('SIGTERM');
  const { code, out, errors } = await tool.ended;
  assert.equal(code, 0, errors);
  assert.equal(existsSync(socket), false);
  assertFrames(framesOf(file), sent);
  assertFrames(framesOf(capture), sent);
  const id = `n${socket.replace(/^.*\/|\.sock$/g, '')}`;
  assert.equal(
    out,
    `# ${id.slice(1)}
qemu-system-x86_64 -accel ${hasKvm ? 'kvm' : 'tcg'} -m 1G -smp 2 \\
  -object memory-backend-memfd,id=mem,size=1G,share=on -numa node,memdev=mem \\
  -chardev socket,id=${id},path=${socket},reconnect=1 \\
  -netdev vhost-user,id=${id}-net,chardev=${id},queues=2 \\
  -device virtio-net-pci,netdev=${id}-net,mac=52:54:00:00:00:07,mq=on,host_mtu=9000,${hasKvm ? '' : 'vectors=0,'}rx_queue_size=1024,tx_queue_size=1024

# Append your disk, such as -drive file=disk.qcow2,if=virtio -nographic. -m and size= are the same memory.
# QEMU 9.2 and later call reconnect=1 reconnect-ms=1000.
${hasKvm ? '' : '# This user may not use /dev/kvm: so -accel tcg, which is slow, and vectors=0, or QEMU 7.2 crashes.\n'}`,
  );
  // The last counters.
  assert.match(errors, new RegExp(`\npcap:${file} +up +0 +0 B +0 +3 +9564 B +0 +0 B +-\n$`));
});

test('two of them, joined by a stream, as documents', { timeout: 60_000 }, async () => {
  const [a, b, link] = [fresh('.sock'), fresh('.sock'), fresh('.link')];
  const first = zerotx('--socket', a, '--uplink', `stream:listen=unix:${link},vnet`, '--json');
  await first.printed(/"event":"guest"/);
  const second = zerotx('--socket', b, '--uplink', `stream:unix:${link},vnet`, '--json');
  await second.printed(/"event":"guest"/);
  const [nicA, nicB] = await Promise.all([a, b].map((path) => VhostUserFrontend.connect({ path })));
  assert.ok(nicA !== undefined && nicB !== undefined);
  const there = frame(1400, 5);
  assert.deepEqual(Uint8Array.from(await sentUntil(nicA, nicB, there)), there);
  const back = frame(60, 6);
  assert.deepEqual(Uint8Array.from(await sentUntil(nicB, nicA, back)), back);
  await Promise.all([nicA.close(), nicB.close()]);
  for (const tool of [first, second]) tool.child.kill('SIGINT');
  for (const { ended } of [first, second]) {
    const { code, out, errors } = await ended;
    assert.deepEqual({ code, errors: errors.replace(/^.*stays root.*\n/m, '') }, { code: 0, errors: '' });
    const documents = out
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
    for (const { time } of documents) assert.match(time, /^\d{4}-\d\d-\d\dT/);
    const events = documents.map(({ event, state, up }) => [event, state ?? up].join(' ').trim());
    for (const expected of ['socket listening', 'socket connected', 'link true', 'link false', 'guest'])
      assert.ok(events.includes(expected), `${expected} in ${events}`);
    const { event, ports, cpuUserUs } = documents.at(-1);
    assert.equal(event, 'counters');
    assert.ok(cpuUserUs > 0);
    const counters = Object.values(ports) as { kind: string; rxFrames: number; txFrames: number }[];
    assert.deepEqual(
      counters.map(({ kind, rxFrames, txFrames }) => [kind, rxFrames > 0, txFrames > 0]),
      [
        ['vhost', true, true],
        ['stream', true, true],
      ],
    );
  }
});

test('a stream that finds nobody says so once, and one that waits says where', {
  timeout: 60_000,
}, async () => {
  const [socket, link] = [fresh('.sock'), fresh('.link')];
  const tool = zerotx('--socket', socket, '--uplink', `stream:unix:${link},name=up`, '--workers', '3');
  await tool.printed(/^--workers 3: 1 pair needs no more than 1$/m);
  await tool.printed(/^up: not connected: ENOENT, tries again$/m);
  const peer = zerotx(
    '--socket',
    fresh('.sock'),
    '--uplink',
    `stream:listen=unix:${link},name=far`,
    '--json',
  );
  const [line] = await peer.printed(/^.*"waitsAt".*$/m);
  const { time: _, ...event } = JSON.parse(line);
  assert.deepEqual(event, { event: 'link', port: 'far', up: false, waitsAt: `unix:${link}` });
  await tool.printed(/^up: up$/m);
  peer.child.kill('SIGTERM');
  await peer.ended;
  await tool.printed(/^up: down\nup: not connected: ENOENT, tries again$/m);
  tool.child.kill('SIGTERM');
  const { code, errors } = await tool.ended;
  assert.equal(code, 0, errors);
  assert.equal(errors.match(/not connected/g)?.length, 2, errors);
});

test('nobody reads what it prints any more', { timeout: 60_000 }, async () => {
  const socket = fresh('.sock');
  const tool = zerotx('--socket', socket, '--uplink', 'pcap:/dev/null', '--json', '--stats', '0.05');
  await tool.printed(/"event":"guest"/);
  tool.child.stdout?.destroy();
  const { code } = await tool.ended;
  assert.deepEqual([code, existsSync(socket)], [141, false]);
});

test('two pairs in two workers', { timeout: 60_000 }, async () => {
  const [a, b, link, capture] = [fresh('.sock'), fresh('.sock'), fresh('.link'), fresh('.pcap')];
  const tool = zerotx(
    ...['--workers', '2', '--socket', a, '--uplink', `stream:listen=unix:${link}`, '--pcap', capture],
    ...['--socket', b, '--uplink', `stream:unix:${link}`, '--pcap', fresh('.pcap')],
  );
  await tool.printed(/^# Append your disk/m);
  const [nicA, nicB] = await Promise.all([a, b].map((path) => VhostUserFrontend.connect({ path })));
  assert.ok(nicA !== undefined && nicB !== undefined);
  const there = frame(1000, 8);
  assert.deepEqual(Uint8Array.from(await sentUntil(nicA, nicB, there)), there);
  tool.child.kill('SIGUSR1');
  await tool.printed(/^stream:unix:.+ up +\d+ /m);
  await Promise.all([nicA.close(), nicB.close()]);
  tool.child.kill('SIGTERM');
  const { code, errors } = await tool.ended;
  assert.equal(code, 0, errors);
  for (const path of [a, b, link]) assert.equal(existsSync(path), false, path);
  assertFrames(framesOf(capture).slice(0, 1), [there]);
});

/** Starts a tool that has lent what nobody reads, so that it cannot end soon. */
async function stuck(): Promise<{ tool: RunningTool; end(): void }> {
  const peers: Socket[] = [];
  const server = createServer({ pauseOnConnect: true }, (peer) => peers.push(peer));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const socket = fresh('.sock');
  const uplink = `stream:127.0.0.1:${port},zerocopy=force`;
  const tool = zerotx('--socket', socket, '--uplink', uplink, '--mtu', '65535', '--stats', '0.1');
  await tool.printed(/^stream:127\.0\.0\.1:\d+: up$/m);
  const nic = await VhostUserFrontend.connect({ path: socket, memoryBytes: 1 << 20 });
  const bytes = frame(60_000, 1);
  // More than the peer has room for, at once: after the first completion nothing would be lent on loopback.
  nic.tx.sendBatch(nic.prepare({ frameBytes: bytes.length, count: 8, fill: (one) => one.set(bytes) }), 8);
  await tool.printed(/^stream:\S+ +up +0 +0 B +0 +[1-9]/m);
  nic.destroy();
  return {
    tool,
    end() {
      for (const peer of peers) peer.destroy();
      server.close();
    },
  };
}

test('the second signal ends it at once', { timeout: 60_000 }, async () => {
  for (const [signal, expected] of [
    ['SIGTERM', 143],
    ['SIGINT', 130],
  ] as const) {
    const { tool, end } = await stuck();
    tool.child.kill('SIGINT');
    await tool.printed(/^closing$/m);
    tool.child.kill(signal);
    const { code, errors } = await tool.ended;
    end();
    assert.equal(code, expected, errors);
  }
});

test('what cannot be opened', { timeout: 60_000 }, async () => {
  const taken = fresh('.sock');
  const server = createServer().unref();
  server.listen(taken);
  await once(server, 'listening');
  const noSocket = fresh('.sock');
  writeFileSync(noSocket, '');
  for (const [args, why] of [
    [
      ['--socket', taken, '--uplink', 'pcap:/dev/null'],
      /: bind EADDRINUSE .*: the file has somebody listening$/,
    ],
    [['--socket', noSocket, '--uplink', 'pcap:/dev/null'], /: bind EADDRINUSE .*: the file is no socket$/],
    [['--socket', `${folder}/no/a.sock`, '--uplink', 'pcap:/dev/null'], /^zerotx: a: bind ENOENT /],
    [['--socket', fresh('.sock'), '--uplink', `pcap:${folder}/no/a`], /^zerotx: pcap:.*: ENOENT/],
    [
      ['--socket', fresh('.sock'), '--uplink', 'pcap:/dev/null', '--pcap', `${folder}/no/a`],
      /^zerotx: ENOENT/,
    ],
  ] as const) {
    for (const workers of [[], ['--workers', '2']]) {
      const { code, out, errors } = await zerotx(...args, ...workers).ended;
      assert.deepEqual({ code, out }, { code: 1, out: '' }, errors);
      assert.match(errors.trimEnd().split('\n').at(-1) ?? '', why);
    }
  }
  server.close();
});

test('a disk that is full', { timeout: 60_000 }, async () => {
  const socket = fresh('.sock');
  const file = fresh('.pcap');
  const captured = zerotx('--socket', socket, '--uplink', `pcap:${file}`, '--pcap', '/dev/full');
  await captured.printed(/: its capture ends: ENOSPC/);
  const nic = await VhostUserFrontend.connect({ path: socket });
  await nic.sendFrame(frame(100, 1));
  await nic.close();
  captured.child.kill('SIGTERM');
  assert.equal((await captured.ended).code, 0);
  assert.equal(framesOf(file).length, 1);

  const lost = zerotx('--socket', fresh('.sock'), '--uplink', 'pcap:/dev/full');
  const { code, errors } = await lost.ended;
  assert.equal(code, 1);
  assert.match(errors, /^pcap:\/dev\/full: lost: ENOSPC.*\nzerotx: nothing is left that could work\n$/m);
});

test('a wrong command line', { timeout: 120_000 }, async () => {
  const good = ['--socket', 'a.sock', '--uplink', 'pcap:a.pcap'];
  for (const [args, why] of [
    [[], /--socket and --uplink are needed/],
    [['--socket', 'a.sock'], /each --socket has its --uplink: there are 1 and 0/],
    [['--socket', 'a.sock', '--uplink', 'lan'], /port "lan": it begins with one of tap: /],
    [['--socket', 'a.sock', '--uplink', 'tap0'], /did you mean tap:tap0\?/],
    [['--socket', 'a.sock', '--uplink', 'tap:'], /port "tap:": /],
    [['--socket', 'a.sock', '--uplink', 'tap:t,queue=2'], /no setting queue here: did you mean queues\?/],
    [['--socket', 'a.sock', '--uplink', 'stream:h:1,vnet=on'], /vnet takes no value: write ,vnet$/m],
    [[...good, '--mac', '01:00:00:00:00:01'], /not the address of one card/],
    [[...good, ...good], /--socket .*a\.sock is there twice/],
    [
      [...good, '--socket', 'b.sock', '--uplink', 'pcap:b', '--pcap', 'c'],
      /--pcap is given once for each --socket/,
    ],
    [['--socket', 'x'.repeat(120), '--uplink', 'pcap:a'], /a path of a socket has 107 bytes at most/],
    [[...good, '--queues', '17'], /not a number of queues from 1 to 16/],
    [[...good, '--mtu', '67'], /not a MTU from 68 to 65535/],
    [[...good, '--mode', 'both'], /Allowed choices are listen, connect/],
    [[...good, '--zerocopy', 'force'], /Allowed choices are auto, off/],
    [[...good, '--workers', '0'], /not a number of workers/],
    [[...good, '--stats', '0'], /not a number of seconds/],
    [[...good, '--user', 'no such user'], /--user/],
    [[...good, 'excess'], /too many arguments/],
  ] as const) {
    const { code, out, errors } = await zerotx(...args).ended;
    assert.deepEqual({ code, out }, { code: 2, out: '' }, errors);
    assert.match(errors, why);
  }
});

test('without the addon', { timeout: 60_000 }, async () => {
  const env = { ZEROTX_ADDON: '/nonexistent.node' };
  const help = await startTool('dist/cli/zerotx.js', ['vhost', '--help'], env).ended;
  assert.equal(help.code, 0);
  for (const part of ['Uplinks:', '--workers', 'Examples:', 'Exit code'])
    assert.ok(help.out.includes(part), part);
  const args = ['vhost', '--socket', fresh('.sock'), '--uplink', 'pcap:/dev/null'];
  const { code, errors } = await startTool('dist/cli/zerotx.js', args, env).ended;
  assert.equal(code, 1);
  assert.match(errors, /^zerotx: .*addon.*\n$/);
});
