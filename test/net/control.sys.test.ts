/** The control socket of a program: what it shows, to whom, how it comes and goes, and clients that mean no good. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer as createUnixServer, connect as dialUnix, type Socket } from 'node:net';
import { join } from 'node:path';
import { after, afterEach, before, describe, it } from 'node:test';
import { makeFolder } from '../../src/net/control-folder.ts';
import {
  askSockets,
  askStats,
  type ControlFolder,
  controlFolders,
  controlSockets,
  openControl,
  socketStats,
  stats,
  type TcpSocket,
} from '../../src/net/index.ts';
import { connectedSockets } from '../support/net-pair.ts';
import { runtimeFolder, startProgram } from '../support/programs.ts';

const child = new URL('./children/control.js', import.meta.url);
const uid = process.geteuid?.() as number;
const runtime = runtimeFolder();
process.env.XDG_RUNTIME_DIR = runtime.path;
const folder = join(runtime.path, 'zerotx');
after(() => runtime.remove());

/** Not once(): a connection may end with an error first. */
function closing(socket: Socket): Promise<void> {
  socket.on('error', () => {});
  return new Promise((resolve) => socket.once('close', () => resolve()));
}

/** All that a connection gets, until it is closed. */
async function exchange(path: string, ...writes: readonly (string | Buffer)[]): Promise<string> {
  const socket = dialUnix(path);
  let text = '';
  socket.setEncoding('utf8').on('data', (part: string) => {
    text += part;
  });
  const closed = closing(socket);
  for (const bytes of writes) socket.write(bytes);
  await closed;
  return text;
}

describe('a control socket', { timeout: 60_000 }, () => {
  let sockets: readonly TcpSocket[] = [];
  let path = '';
  let end: () => Promise<void>;
  before(async () => {
    ({ path } = openControl());
    ({ sockets, end } = await connectedSockets({ zerocopy: { mode: 'force' } }, 3));
    await sockets[1]?.send(Buffer.alloc(300_000));
  });
  after(async () => {
    await end();
    openControl().close();
    assert.equal(existsSync(path), false);
  });

  it('has its place, and is found there', () => {
    assert.equal(path, join(folder, `${process.pid}.sock`));
    assert.deepEqual(
      controlSockets().filter(({ path: its }) => its.startsWith(folder)),
      [{ pid: process.pid, threadId: 0, path, uid }],
    );
  });

  it('shows what the program sees itself', async () => {
    const answer = await askStats(path);
    assert.deepEqual(answer, { pid: process.pid, uid, threadId: 0, stats: stats() });
    const list = await askSockets(path);
    const own = socketStats().toSorted((a, b) => a.id - b.id);
    assert.deepEqual(
      list.sockets.toSorted((a, b) => a.id - b.id),
      own,
    );
    assert.equal(list.sockets[0]?.id, sockets[1]?.stats().id, 'what copied most comes first');
    assert.equal(list.leftOut, 0);
  });

  it('finds sockets by the address of either end', async () => {
    const { id, local, remote } = (sockets[2] as TcpSocket).stats();
    const byLocal = await askSockets(path, local);
    assert.deepEqual(byLocal.sockets.map((socket) => socket.id).includes(id), true);
    assert.equal(byLocal.sockets.length, 2, 'this socket, and the one at its other end');
    const byRemote = await askSockets(path, remote);
    assert.equal(byRemote.sockets.length, 6, 'the port of the server');
    assert.deepEqual((await askSockets(path, '192.0.2.1:1')).sockets, []);
  });

  it('answers requests that it does not understand, and nothing else', async () => {
    for (const request of [
      '',
      '{',
      'null',
      '7',
      '"stats"',
      '[]',
      '{"get":"constructor"}',
      '{"set":"stats"}',
    ]) {
      const text = await exchange(path, `${request}\n`);
      const { protocol, pid, error, ...rest } = JSON.parse(text);
      assert.deepEqual({ protocol, pid, rest }, { protocol: 1, pid: process.pid, rest: { threadId: 0 } });
      assert.equal(typeof error, 'string', request);
    }
  });

  it('takes a request in pieces, looks at the first line only, and answers who has said its last', async () => {
    const socket = dialUnix(path);
    const answered = once(socket, 'data');
    socket.write('{"get":');
    socket.end('"stats"}\n{"get":"sockets"}\nmore');
    const [bytes] = await answered;
    assert.equal(JSON.parse(String(bytes)).stats.sockets, stats().sockets);
    await once(socket, 'close');
  });

  it('cuts off what is too long, and does not wait for its end', async () => {
    assert.equal(await exchange(path, Buffer.alloc(1025, ' ')), '');
    assert.equal(await exchange(path, Buffer.alloc(1 << 20, 'x'), '\n'), '');
    const longest = `{"get":"stats"}${' '.repeat(1024 - 15)}`;
    assert.equal(JSON.parse(await exchange(path, `${longest}\n`)).pid, process.pid);
  });

  it('ends those that do not read, with a part of the answer', async () => {
    const many = await connectedSockets({}, 240);
    const lazy = dialUnix(path);
    lazy.pause();
    lazy.write('{"get":"sockets"}\n');
    const idle = dialUnix(path).resume();
    await closing(idle);
    const closed = closing(lazy);
    let text = '';
    lazy.setEncoding('utf8').on('data', (part: string) => {
      text += part;
    });
    lazy.resume();
    await closed;
    assert.ok(text.length > 0);
    assert.throws(() => JSON.parse(text));
    const { sockets: listed, leftOut } = await askSockets(path);
    assert.equal(listed.length + leftOut, 486);
    await many.end();
  });

  it('ends those that ask nothing, after two seconds; and turns away the ninth', async () => {
    const idle: Socket[] = [];
    for (let i = 0; i < 8; i++) {
      const socket = dialUnix(path);
      await once(socket, 'connect');
      idle.push(socket);
    }
    const closed = idle.map(closing);
    for (const socket of idle) socket.resume();
    assert.equal(await exchange(path, '{"get":"stats"}\n'), '');
    await Promise.all(closed);
    assert.equal(JSON.parse(await exchange(path, '{"get":"stats"}\n')).pid, process.pid);
  });

  it('survives clients that are gone before they are answered', async () => {
    for (let i = 0; i < 50; i++) {
      const socket = dialUnix(path);
      await once(socket, 'connect');
      if (i % 2 === 0) socket.write('{"get":"sockets"}\n');
      const closed = closing(socket);
      socket.destroy();
      await closed;
    }
    // It may take the last of them for busy ones for a moment.
    let text = '';
    for (let i = 0; i < 100 && text === ''; i++) text = await exchange(path, '{"get":"stats"}\n');
    assert.equal(JSON.parse(text).pid, process.pid);
  });

  it('has another place if the program wants one', async () => {
    const own = join(runtime.path, 'own.sock');
    const control = openControl({ path: own });
    assert.equal(openControl({ path: own }), control);
    assert.equal((await askStats(own)).pid, process.pid);
    control.close();
    control.close();
    assert.equal(existsSync(own), false);
    await assert.rejects(askStats(own), { code: 'ENOENT' });
    assert.throws(() => openControl({ path: 1 as never }), { code: 'ERR_INVALID_ARG_TYPE' });
  });

  it('takes the place of nobody else', async () => {
    const taken = join(runtime.path, 'taken.sock');
    const server = createUnixServer().listen(taken);
    await once(server, 'listening');
    assert.throws(() => openControl({ path: taken }), { code: 'EADDRINUSE' });
    server.close();
    const file = join(runtime.path, 'file');
    writeFileSync(file, 'precious');
    assert.throws(() => openControl({ path: file }), { code: 'EADDRINUSE' });
  });
});

describe('asking', { timeout: 60_000 }, () => {
  it('trusts no answer', async () => {
    const good = JSON.parse(JSON.stringify({ stats: stats(), threadId: 0, protocol: 1 }));
    const answers: [string, string][] = [
      ['', 'ECONNRESET'],
      ['x\n', 'EPROTO'],
      ['null\n', 'EPROTO'],
      ['{"protocol":2}\n', 'EPROTO'],
      ['{"protocol":1,"error":"no"}\n', 'EPROTO'],
      ['{"protocol":1,"error":7}\n', 'EPROTO'],
      [`${JSON.stringify({ ...good, threadId: '1' })}\n`, 'EPROTO'],
      [`${JSON.stringify({ ...good, stats: 7 })}\n`, 'EPROTO'],
      [`${JSON.stringify({ ...good, stats: { ...good.stats, sockets: '1' } })}\n`, 'EPROTO'],
      [`${JSON.stringify({ ...good, stats: { ...good.stats, zerocopy: {} } })}\n`, 'EPROTO'],
      [' '.repeat(17 << 20), 'EMSGSIZE'],
    ];
    for (const [text, code] of answers) {
      await assert.rejects(withServer(text, askStats), { code }, text.slice(0, 60));
    }
    assert.deepEqual((await withServer(`${JSON.stringify(good)}\n`, askStats)).stats, stats());
    const socket = JSON.stringify({ ...good, sockets: [{ id: 1 }], leftOut: 0 });
    await assert.rejects(withServer(`${socket}\n`, askSockets), { code: 'EPROTO' });
  });

  it('does not wait for ever', async () => {
    await assert.rejects(withServer(null, askStats), { code: 'ETIMEDOUT' });
  });
});

/** Asks a server that answers with `text`, and then closes; null: with nothing, ever. */
async function withServer<T>(text: string | null, ask: (path: string) => Promise<T>): Promise<T> {
  const path = join(runtime.path, 'hostile.sock');
  const open = new Set<Socket>();
  const server = createUnixServer((socket) => {
    open.add(socket);
    socket.on('error', () => {});
    socket.resume();
    if (text !== null) socket.once('data', () => socket.end(text));
  }).listen(path);
  await once(server, 'listening');
  try {
    return await ask(path);
  } finally {
    for (const socket of open) socket.destroy();
    server.close();
  }
}

describe('programs', { timeout: 60_000 }, () => {
  const env = { XDG_RUNTIME_DIR: runtime.path, ZEROTX_CONTROL: '1' };
  const names = (): string[] => readdirSync(folder).sort();

  it('show nothing unless they are told to', async () => {
    const program = await startProgram(child, [], { XDG_RUNTIME_DIR: runtime.path, ZEROTX_CONTROL: '' });
    assert.deepEqual(
      controlSockets().filter(({ pid }) => pid === program.pid),
      [],
    );
    assert.equal(await program.end(), 0);
  });

  it('show their statistics by the environment or by a call, and leave nothing behind', async () => {
    for (const args of [[], ['open'], ['exit'], ['open', 'exit']]) {
      const wanted = args.includes('open') ? { ...env, ZEROTX_CONTROL: '' } : env;
      const program = await startProgram(child, args, wanted);
      const own = controlSockets().filter(({ pid }) => pid === program.pid);
      assert.equal(own.length, 1, `${args}`);
      const answer = await askSockets(own[0]?.path as string);
      assert.equal(answer.pid, program.pid);
      assert.equal(answer.sockets[0]?.zerocopy.copied.loopback, 100_000);
      assert.equal(await program.end(), 0);
      assert.ok(!names().includes(`${program.pid}.sock`), `${args}`);
      assert.equal(program.errors(), '');
    }
  });

  it('end as they would without it', async () => {
    const program = await startProgram(child, ['end'], env);
    const [code] = await once(program.child, 'close');
    assert.equal(code, 0);
    assert.ok(!names().includes(`${program.pid}.sock`));
  });

  it('have one for each thread with sockets', async () => {
    const program = await startProgram(child, ['worker'], env);
    const threads = controlSockets().filter(({ pid }) => pid === program.pid);
    assert.deepEqual(threads.map(({ threadId }) => threadId).sort(), [0, 1]);
    for (const { path, threadId } of threads) {
      const answer = await askSockets(path);
      assert.deepEqual([answer.pid, answer.threadId, answer.sockets.length], [program.pid, threadId, 2]);
    }
    assert.equal(await program.end(), 0);
  });

  it('clear away what killed ones have left', async () => {
    const killed = await startProgram(child, [], env);
    const gone = once(killed.child, 'close');
    killed.child.kill('SIGKILL');
    await gone;
    assert.ok(names().includes(`${killed.pid}.sock`));
    const [left] = controlSockets().filter(({ pid }) => pid === killed.pid);
    await assert.rejects(askStats(left?.path as string), { code: 'ECONNREFUSED' });
    writeFileSync(join(folder, '2.txt'), '');
    const next = await startProgram(child, [], env);
    assert.ok(!names().includes(`${killed.pid}.sock`));
    assert.ok(names().includes('2.txt'));
    assert.equal(await next.end(), 0);
  });

  it('run on, with a warning, when the folder is not to be trusted', async () => {
    const other = runtimeFolder();
    try {
      mkdirSync(join(other.path, 'zerotx'));
      chmodSync(join(other.path, 'zerotx'), 0o755);
      const program = await startProgram(child, [], { ...env, XDG_RUNTIME_DIR: other.path });
      assert.equal(await program.end(), 0);
      assert.match(program.errors(), /ZTX_NO_CONTROL.*its mode is 755 and not 700/);
    } finally {
      other.remove();
    }
  });
});

describe('folders that are looked in', () => {
  const place = runtimeFolder();
  afterEach(() => {
    process.env.XDG_RUNTIME_DIR = runtime.path;
  });
  after(() => place.remove());
  const found = (path: string): ControlFolder | undefined =>
    controlFolders().find((looked) => looked.path === path);

  it('are those of this user, whatever the environment says', () => {
    process.env.XDG_RUNTIME_DIR = place.path;
    const inRuntime = join(place.path, 'zerotx');
    assert.deepEqual(found(inRuntime)?.refused, 'it is not there');
    mkdirSync(inRuntime, { mode: 0o700 });
    assert.deepEqual(found(inRuntime), { path: inRuntime, uid });
    chmodSync(inRuntime, 0o755);
    assert.match(found(inRuntime)?.refused ?? '', /mode is 755/);
    for (const runtime of [place.path, '', 'relative']) {
      process.env.XDG_RUNTIME_DIR = runtime;
      const paths = controlFolders().map(({ path }) => path);
      assert.ok(paths.includes(`/run/user/${uid}/zerotx`));
      assert.ok(paths.includes(`/tmp/zerotx-${uid}`));
      assert.equal(paths.includes(inRuntime), runtime === place.path);
    }
  });

  it("are not another user's, which is said", { skip: uid === 0 }, () => {
    process.env.XDG_RUNTIME_DIR = '/proc/1';
    assert.equal(found('/proc/1/zerotx')?.refused, 'XDG_RUNTIME_DIR belongs to uid 0');
  });
});

describe('the folder', () => {
  const place = runtimeFolder();
  after(() => place.remove());

  it('is made for its owner alone', () => {
    const made = join(place.path, 'made');
    makeFolder(made, uid);
    makeFolder(made, uid);
    for (const mode of [0o755, 0o770, 0o707, 0o500, 0o600]) {
      chmodSync(made, mode);
      assert.throws(() => makeFolder(made, uid), { code: 'EPERM' }, mode.toString(8));
    }
  });

  it('is no link, and no file', () => {
    mkdirSync(join(place.path, 'real'), { mode: 0o700 });
    symlinkSync(join(place.path, 'real'), join(place.path, 'link'));
    symlinkSync(join(place.path, 'nothing'), join(place.path, 'dangling'));
    writeFileSync(join(place.path, 'file'), '');
    for (const name of ['link', 'dangling', 'file']) {
      assert.throws(() => makeFolder(join(place.path, name), uid), { code: 'EPERM' }, name);
    }
    assert.equal(existsSync(join(place.path, 'nothing')), false);
  });

  it('belongs to nobody else', () => {
    // In /tmp, where others may make what they like; its name stands for one that another user made.
    assert.throws(() => makeFolder(place.path, uid + 1), { code: 'EPERM', message: /belongs to uid/ });
    assert.throws(() => makeFolder(join(place.path, 'real'), uid + 1), { code: 'EPERM' });
  });

  it('is not below one that others can change', () => {
    const open = join(place.path, 'open');
    mkdirSync(open);
    chmodSync(open, 0o777);
    assert.throws(() => makeFolder(join(open, 'x'), uid), { code: 'EPERM', message: /others may change/ });
    chmodSync(open, 0o1777);
    makeFolder(join(open, 'x'), uid);
  });
});
