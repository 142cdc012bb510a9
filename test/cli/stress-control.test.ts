/**
 * The control connection over loopback TCP, each side against a scripted other: bytes as rds-tools sends and expects
 * them, strangers on the control port, and how either side ends a run.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { test } from 'node:test';
import { runActive } from '../../src/cli/stress/active.ts';
import { Ending } from '../../src/cli/stress/ending.ts';
import { runPassive } from '../../src/cli/stress/passive.ts';
import type { Context } from '../../src/cli/stress/run.ts';
import type { StressNode } from '../../src/cli/stress/socket.ts';
import type { Summary } from '../../src/cli/stress/summary.ts';
import { ZerotxError } from '../../src/index.ts';
import {
  decodeOptions,
  defaultOptions,
  encodeOptions,
  type StressOptions,
} from '../../src/wire/rds-stress-options.ts';
import { FakeNetwork } from '../support/fake-rds.ts';

interface Rig {
  context: Context;
  lines: string[];
  errors: string[];
  summaries: Summary[];
  opened: string[];
  /** Resolves when a line that matches has been printed. */
  printed(pattern: RegExp): Promise<string>;
}

function rig(run: Partial<StressOptions>, own: Partial<Context['settings']> = {}): Rig {
  const lines: string[] = [];
  const errors: string[] = [];
  const summaries: Summary[] = [];
  const opened: string[] = [];
  const waiting = new Set<() => void>();
  const network = new FakeNetwork(() => 0.99);
  let open = '';
  const add = (to: string[], text: string): void => {
    to.push(text);
    for (const wake of [...waiting]) wake();
  };
  const context: Context = {
    settings: {
      run: { ...defaultOptions, ...run },
      sendAddress: undefined,
      receiveAddress: undefined,
      zerocopy: false,
      reportCpu: false,
      json: true,
      showHistogram: true,
      outlierUs: undefined,
      ...own,
    },
    output: {
      line: (text) => {
        add(lines, open + text);
        open = '';
      },
      part: (text) => {
        open += text;
      },
      error: (text) => add(errors, text),
    },
    ending: new Ending(),
    openNode: (address) => {
      opened.push(address);
      return Promise.resolve(network.node(address));
    },
    loadAddon: () => Promise.resolve(),
    json: (summary) => summaries.push(summary),
  };
  const printed = (pattern: RegExp): Promise<string> =>
    new Promise((resolve) => {
      const look = (): void => {
        const found = [...lines, ...errors].find((text) => pattern.test(text));
        if (found === undefined) return;
        waiting.delete(look);
        resolve(found);
      };
      waiting.add(look);
      look();
    });
  return { context, lines, errors, summaries, opened, printed };
}

/** Starts a passive side on a free port of 127.0.0.1. */
async function passive(
  own: Partial<Context['settings']> = {},
): Promise<Rig & { done: Promise<void>; port: number }> {
  const all = rig({ startingPort: 0 }, own);
  const done = runPassive(all.context);
  const line = await all.printed(/waiting for incoming connection/);
  return { ...all, done, port: Number(line.split(':')[1]) };
}

async function dial(port: number): Promise<Socket> {
  const socket = connect({ host: '127.0.0.1', port, localAddress: '127.0.0.9' });
  await once(socket, 'connect');
  return socket;
}

/** Sends `bytes` in pieces of `size`, each in a segment of its own. */
async function sendPieces(socket: Socket, bytes: Uint8Array, size: number): Promise<void> {
  socket.setNoDelay(true);
  for (let at = 0; at < bytes.length; at += size) {
    await new Promise((resolve) => socket.write(bytes.subarray(at, at + size), resolve));
    // A turn of the loop lets the segment leave, and the reader read it, before the next.
    await new Promise((resolve) => setImmediate(resolve));
  }
}

const wanted: StressOptions = { ...defaultOptions, nrTasks: 2, reqSize: 200, receiveAddr: 0x7f000009 };

for (const [form, pieces] of [
  ['plain', 59],
  ['plain', 1],
  ['plain', 16],
  ['versioned', 77],
  ['versioned', 7],
  ['versioned', 1],
] as const)
  test(`passive: options in the ${form} form, ${pieces} bytes at a time`, { timeout: 10_000 }, async () => {
    const side = await passive();
    const peer = await dial(side.port);
    await sendPieces(peer, encodeOptions({ ...wanted, tos: form === 'plain' ? 0 : 4 }, form), pieces);
    await side.printed(/accepted connection from 127\.0\.0\.9:\d+ on 127\.0\.0\.1/);
    const answered = once(peer, 'data');
    peer.write(Buffer.from([0x55]));
    const [answer] = (await answered) as [Buffer];
    assert.equal(answer.length, 1);
    peer.end();
    await side.done;
    assert.deepEqual(side.opened, ['127.0.0.1'], 'the address it was contacted on');
    assert.match(side.lines.join('\n'), /2 {6}0 {6}0 .*\(average\)\n\nRTT histogram/);
    const summary = side.summaries[0]!;
    assert.equal(summary.peer, '127.0.0.9');
    assert.equal(summary.endedBy, 'peer');
    assert.equal(summary.tasks, 2);
    assert.equal(summary.requestBytes, 200);
    peer.destroy();
  });

test('passive: strangers do not crash it nor keep the peer out', { timeout: 10_000 }, async () => {
  const side = await passive();
  const silent = await dial(side.port);
  silent.on('error', () => {});
  const web = await dial(side.port);
  web.write('GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: a scanner of some kind\r\n\r\n');
  await side.printed(/ignored connection .*options refused: /);
  const short = await dial(side.port);
  short.end(Buffer.alloc(20));
  await side.printed(/ignored connection .*the peer closed it/);
  const rude = await dial(side.port);
  await new Promise((resolve) => rude.write(Buffer.alloc(3), resolve));
  rude.resetAndDestroy();
  const greedy = await dial(side.port);
  greedy.write(encodeOptions({ ...wanted, nrTasks: 65_535, reqDepth: 65_535 }));
  await side.printed(/options refused: number of tasks/);
  const rdma = await dial(side.port);
  rdma.write(encodeOptions({ ...wanted, rdmaSize: 4096 }));
  await side.printed(/options refused: RDMA/);

  const peer = await dial(side.port);
  peer.write(encodeOptions(wanted));
  await side.printed(/accepted connection/);
  peer.write(Buffer.alloc(1));
  await once(peer, 'data');
  peer.end();
  await side.done;
  assert.equal(side.summaries.length, 1);
  for (const socket of [silent, web, short, greedy, rdma, peer]) socket.destroy();
});

test('passive: the peer leaving before it is ready is an error, not a crash', {
  timeout: 10_000,
}, async () => {
  const side = await passive();
  const peer = await dial(side.port);
  peer.end(encodeOptions(wanted));
  await assert.rejects(side.done, { code: 'ECONNRESET' });
  peer.destroy();
});

test('passive: interrupted while it waits', { timeout: 10_000 }, async () => {
  const side = await passive();
  side.context.ending.end('interrupt');
  await assert.rejects(side.done, { code: 'ABORT_ERR' });
});

test('passive: interrupted during a run, it tells the peer and prints the summary', {
  timeout: 10_000,
}, async () => {
  const side = await passive({ zerocopy: true });
  const peer = await dial(side.port);
  peer.write(encodeOptions(wanted));
  peer.write(Buffer.alloc(1));
  await side.printed(/negotiated options/);
  const told = once(peer, 'end');
  peer.resume();
  side.context.ending.end('interrupt');
  await told;
  peer.end();
  await side.done;
  assert.match(side.lines.join('\n'), /\(average\)\nzerocopy: 0 sends, 0 completions/);
  assert.equal(side.summaries[0]!.endedBy, 'interrupt');
});

test('passive and active refuse to share one address', { timeout: 10_000 }, async () => {
  const side = await passive();
  const peer = await dial(side.port);
  peer.write(encodeOptions({ ...wanted, receiveAddr: 0x7f000001 }));
  await assert.rejects(side.done, { code: 'EINVAL', message: /both sides have the address 127\.0\.0\.1/ });
  peer.destroy();
});

/** A passive side by script: what it was sent, and its end of the connection. */
async function scripted(
  host = '127.0.0.1',
): Promise<{ port: number; connection: Promise<Socket>; close(): void }> {
  const server = createServer({ allowHalfOpen: true });
  server.listen(0, host);
  await once(server, 'listening');
  const connection = once(server, 'connection').then(([socket]) => socket as Socket);
  return { port: (server.address() as AddressInfo).port, connection, close: () => server.close() };
}

test('active: 59 bytes in one write, its own address filled in, then the exchange', {
  timeout: 10_000,
}, async () => {
  const server = await scripted();
  const side = rig({ startingPort: server.port, nrTasks: 3, verify: 1 }, { receiveAddress: '127.0.0.7' });
  const done = runActive(side.context, '127.0.0.1');
  const peer = await server.connection;
  assert.equal(peer.remoteAddress, '127.0.0.7');
  const [first] = (await once(peer, 'data')) as [Buffer];
  const options = decodeOptions(first.subarray(0, 59), 'plain');
  assert.deepEqual(options, {
    ...defaultOptions,
    startingPort: server.port,
    nrTasks: 3,
    verify: 1,
    sendAddr: 0x7f000001,
    receiveAddr: 0x7f000007,
  });
  // The byte that says it is ready may come in the same segment or in the next.
  if (first.length === 59) await once(peer, 'data');
  peer.write(Buffer.alloc(1));
  await side.printed(/negotiated options/);
  peer.end();
  await done;
  assert.deepEqual(side.opened, ['127.0.0.7']);
  assert.ok(side.errors.includes('the peer ended the run'));
  assert.equal(side.summaries[0]!.endedBy, 'peer');
  peer.destroy();
  server.close();
});

test('active: without -r it takes the address it reached the peer from', { timeout: 10_000 }, async () => {
  const server = await scripted('127.0.0.2');
  const side = rig({ startingPort: server.port });
  const done = runActive(side.context, '127.0.0.2');
  const failed = assert.rejects(done, { code: 'ECONNRESET' });
  const peer = await server.connection;
  const [first] = (await once(peer, 'data')) as [Buffer];
  assert.equal(decodeOptions(first, 'plain').receiveAddr, 0x7f000001);
  peer.destroy();
  await failed;
  server.close();
});

test('active: with the peer on its own address it says so and sends nothing', {
  timeout: 10_000,
}, async () => {
  const server = await scripted();
  const side = rig({ startingPort: server.port });
  await assert.rejects(runActive(side.context, '127.0.0.1'), { message: /both sides have the address/ });
  const peer = await server.connection;
  peer.on('data', () => assert.fail('nothing is sent'));
  await once(peer, 'end');
  peer.destroy();
  server.close();
});

test('active: nobody there', { timeout: 10_000 }, async () => {
  const server = await scripted();
  server.close();
  const side = rig({ startingPort: server.port });
  await assert.rejects(runActive(side.context, '127.0.0.1'), { code: 'ECONNREFUSED' });
  assert.deepEqual(side.lines, [`connecting to 127.0.0.1:${server.port}: ECONNREFUSED`]);
});

test('active: interrupted while it tries again', { timeout: 10_000 }, async () => {
  const server = await scripted();
  server.close();
  const side = rig({ startingPort: server.port, connectRetries: 1000 });
  const done = runActive(side.context, '127.0.0.1');
  side.context.ending.end('interrupt');
  await assert.rejects(done, { code: 'ABORT_ERR' });
});

for (const address of ['::1', 'fe80::1%lo'])
  test(`neither side takes ${address} for an address`, { timeout: 10_000 }, async () => {
    const error = { code: 'EINVAL', message: `'${address}' is not an IPv4 address` };
    await assert.rejects(runActive(rig({}).context, address), error);
    await assert.rejects(runActive(rig({}, { receiveAddress: address }).context, '127.0.0.1'), error);
    await assert.rejects(runPassive(rig({}, { receiveAddress: address }).context), error);
  });

test('passive: what keeps it from running is said before it waits', { timeout: 10_000 }, async () => {
  const missing = new ZerotxError('ZTX_NO_ADDON', 'no addon');
  const refuse = (): Promise<never> => Promise.reject(missing);
  const anywhere = rig({ startingPort: 0 });
  await assert.rejects(runPassive({ ...anywhere.context, loadAddon: refuse }), missing);
  const here = rig({ startingPort: 0 }, { receiveAddress: '127.0.0.1' });
  await assert.rejects(runPassive({ ...here.context, openNode: refuse }), missing);
  assert.deepEqual([...anywhere.lines, ...here.lines], []);
});

test('passive: the node that it opened before it waited serves the run, and is closed', {
  timeout: 10_000,
}, async () => {
  const side = rig({ startingPort: 0 }, { receiveAddress: '127.0.0.1' });
  let closed = 0;
  const openNode = async (address: string): Promise<StressNode> => {
    const node = await side.context.openNode(address);
    return { ...node, close: () => Promise.resolve(++closed) };
  };
  const done = runPassive({ ...side.context, openNode });
  const line = await side.printed(/waiting for incoming connection/);
  assert.deepEqual(side.opened, ['127.0.0.1']);
  const peer = await dial(Number(line.split(':')[1]));
  peer.end(encodeOptions(wanted));
  await assert.rejects(done, { code: 'ECONNRESET' });
  peer.destroy();
  assert.deepEqual([side.opened, closed], [['127.0.0.1'], 1]);

  const interrupted = rig({ startingPort: 0 }, { receiveAddress: '127.0.0.1' });
  const waiting = runPassive({ ...interrupted.context, openNode });
  await interrupted.printed(/waiting for incoming connection/);
  interrupted.context.ending.end('interrupt');
  await assert.rejects(waiting, { code: 'ABORT_ERR' });
  assert.equal(closed, 2);
});

test('active: an unknown name', { timeout: 10_000 }, async () => {
  await assert.rejects(runActive(rig({}).context, 'no such host'), { code: 'EADDRNOTAVAIL' });
});
