/** `zerotx explain` against a live program with sockets of each kind: what it says of each, and its exit codes. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { parseTarget } from '../../src/cli/explain/target.ts';
import { measureSendCosts } from '../../src/index.ts';
import { type Running, runtimeFolder, startProgram } from '../support/programs.ts';
import { ROOT } from '../support/sources.ts';

const tool = join(ROOT, 'dist/cli/zerotx.js');
const child = new URL('./children/copying.js', import.meta.url);
const runtime = runtimeFolder();
const env = { XDG_RUNTIME_DIR: runtime.path };

interface Reason {
  readonly id: string;
  readonly bytes: number;
  readonly why: string;
}

interface Explained {
  readonly stats: { readonly kind: string; readonly mode: string; readonly remote: string };
  readonly reasons: readonly Reason[];
}

interface Report {
  readonly programs: readonly {
    readonly pid: number;
    readonly command: string;
    readonly sockets: readonly Explained[];
    readonly others: { readonly reasons: readonly Reason[] } | null;
  }[];
  readonly costs: Readonly<Record<string, number>>;
}

function run(...args: readonly string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [tool, 'explain', ...args], {
    encoding: 'utf8',
    timeout: 60_000,
    env: { ...process.env, ...env },
  });
  return { status, stdout, stderr };
}

function report(...args: readonly string[]): Report {
  const { status, stdout, stderr } = run('--json', ...args);
  assert.deepEqual({ status, stderr }, { status: 0, stderr: '' });
  return JSON.parse(stdout) as Report;
}

/** `id bytes` of each reason. */
function told(reasons: readonly Reason[]): string[] {
  return reasons.map(({ id, bytes }) => `${id} ${bytes}`);
}

describe('zerotx explain', { timeout: 120_000 }, () => {
  let program: Running;
  before(async () => {
    program = await startProgram(child, [], { ...env, ZEROTX_CONTROL: '1' });
  });
  after(async () => {
    assert.equal(await program.end(), 0);
    assert.deepEqual(readdirSync(join(runtime.path, 'zerotx')), []);
    runtime.remove();
  });

  it('tells of each socket why it copied', () => {
    const { programs, costs } = report(`${program.pid}`);
    assert.equal(programs.length, 1);
    const [{ pid, command, sockets, others }] = programs as [Report['programs'][number]];
    assert.equal(pid, program.pid);
    assert.equal(command, 'node copying.js');
    const of = (kind: string, mode: string): string[] =>
      told(
        sockets.find(({ stats, reasons }) => stats.kind === kind && stats.mode === mode && reasons.length > 0)
          ?.reasons ?? assert.fail(`no ${kind} socket in mode ${mode}`),
      );
    assert.deepEqual(of('tcp', 'auto'), ['loopback 300000', 'threshold 100']);
    assert.deepEqual(of('tcp', 'force'), ['local 300000', 'threshold 100']);
    assert.deepEqual(of('tcp', 'off'), ['off 300100']);
    assert.deepEqual(of('unix', 'off'), ['unix 300100']);
    assert.deepEqual(of('udp', 'auto'), ['loopback 40000']);
    assert.deepEqual(told(others?.reasons ?? []), ['off 300000']);
    assert.ok((costs.dearCopyMs ?? 0) > 0 && (costs.cheapCopyMs ?? 0) > 0);
  });

  it('finds a socket by the address of either end, and by a name', () => {
    const [port, udpPort] = program.words;
    for (const host of ['127.0.0.1', '[::ffff:127.0.0.1]']) {
      const { programs } = report(`${host}:${port}`);
      assert.equal(programs[0]?.sockets.length, 6, 'three connections, both ends of each');
      assert.equal(programs[0]?.others, null);
    }
    const [udp] = report(`127.0.0.1:${udpPort}`).programs;
    assert.deepEqual(
      udp?.sockets.map(({ stats }) => stats.kind),
      ['udp', 'udp'],
    );
  });

  it('takes the path of a control socket', () => {
    const path = join(runtime.path, 'zerotx', `${program.pid}.sock`);
    assert.equal(report(path).programs[0]?.pid, program.pid);
  });

  it('tells a person, too', () => {
    const { status, stdout, stderr } = run(`${program.pid}`);
    assert.deepEqual({ status, stderr }, { status: 0, stderr: '' });
    assert.match(
      stdout,
      new RegExp(`^node copying\\.js \\(pid ${program.pid}\\): \\d+ sockets, \\d+ gone$`, 'm'),
    );
    assert.match(stdout, /^ {2}293 KiB {5}loopback {3}the receiver is on this host/m);
    assert.match(stdout, /^ {2}293 KiB {5}unix {7}Unix sockets copy/m);
    assert.match(stdout, /^ {25}-> leave out mode 'force'/m);
    assert.match(stdout, /^sockets that are gone or not listed$/m);
    assert.ok(!stdout.includes('\u001b'));
    const quiet = stdout.match(/^tcp /gm)?.length ?? 0;
    assert.ok((run('--all', `${program.pid}`).stdout.match(/^tcp /gm)?.length ?? 0) > quiet);
  });

  it('exits with 1 and a remedy when there is nothing to be seen', () => {
    const nobody = spawnSync(process.execPath, ['-e', '0']).pid;
    for (const [target, wanted] of [
      [
        `${process.pid}`,
        /does not show its statistics: start it with ZEROTX_CONTROL=1.*looked in \/.*\/zerotx, .*\/tmp\/zerotx-\d+/,
      ],
      [`${nobody}`, /there is no process/],
      ['192.0.2.1:9', /no socket with 192\.0\.2\.1:9 at either end.*ZEROTX_CONTROL=1/],
      ['/nonexistent/x.sock', /ENOENT/],
    ] as const) {
      const { status, stdout, stderr } = run(target);
      assert.deepEqual({ status, stdout }, { status: 1, stdout: '' }, target);
      assert.match(stderr, wanted);
      assert.equal(stderr.trimEnd().split('\n').length, 1);
    }
  });

  it('says so when a program has a control socket, and does not answer', async () => {
    const stopped = await startProgram(child, [], { ...env, ZEROTX_CONTROL: '1' });
    stopped.child.kill('SIGSTOP');
    const { status, stderr } = run(`${stopped.pid}`);
    stopped.child.kill('SIGCONT');
    assert.equal(await stopped.end(), 0);
    assert.equal(status, 1);
    assert.match(stderr, /does not answer \(it is stopped, or busy\): .*\.sock: no line within/);
  });

  it('answers a wrong command line with 2', () => {
    for (const args of [
      [],
      ['x'],
      ['0'],
      ['1', '2'],
      ['--bogus', '1'],
      ['1.2.3.4:0'],
      ['1.2.3.4:65536'],
      ['::1'],
    ]) {
      const { status, stdout } = run(...args);
      assert.deepEqual({ status, stdout }, { status: 2, stdout: '' }, args.join(' '));
    }
  });
});

describe('limits', { timeout: 60_000 }, () => {
  const place = runtimeFolder();
  after(() => place.remove());

  it('of lent memory are told, with what raising them would save', async (t) => {
    if (spawnSync('sh', ['-c', 'test "$(id -u)" != 0']).status !== 0) {
      t.skip('no limit applies to root');
      return;
    }
    const wrap = ['sh', '-c', 'ulimit -l 16 && exec "$0" "$@"'];
    const program = await startProgram(child, [], { XDG_RUNTIME_DIR: place.path, ZEROTX_CONTROL: '1' }, wrap);
    const { stdout } = spawnSync(process.execPath, [tool, 'explain', '--json', `${program.pid}`], {
      encoding: 'utf8',
      env: { ...process.env, XDG_RUNTIME_DIR: place.path },
    });
    const forced = (JSON.parse(stdout) as Report).programs[0]?.sockets.find(
      ({ stats }) => stats.mode === 'force',
    );
    assert.deepEqual(told(forced?.reasons ?? []), ['memlock 300000', 'threshold 100']);
    assert.equal(await program.end(), 0);
  });
});

describe('targets', () => {
  it('are a pid, an address with a port, or a path', () => {
    assert.deepEqual(parseTarget('4711'), { kind: 'process', pid: 4711 });
    assert.deepEqual(parseTarget('host.example:80'), { kind: 'address', host: 'host.example', port: 80 });
    assert.deepEqual(parseTarget('[2001:db8::1]:80'), { kind: 'address', host: '2001:db8::1', port: 80 });
    assert.deepEqual(parseTarget('./x.sock'), { kind: 'path', path: './x.sock' });
    for (const text of [
      '',
      '0',
      '-1',
      '4194305',
      '1.5',
      'host',
      'host:',
      ':80',
      'a:b:1',
      '[::1]',
      'host:99999',
    ]) {
      assert.equal(parseTarget(text), undefined, text);
    }
  });
});

describe('costs', { timeout: 30_000 }, () => {
  it('are measured: a copy costs more when nothing is in a cache, and lending something', async () => {
    const { cheapCopyMs, dearCopyMs, lendMs, pieceBytes } = await measureSendCosts();
    for (const ms of [cheapCopyMs, dearCopyMs, lendMs ?? 1]) assert.ok(ms > 0 && ms < 100_000, `${ms}`);
    assert.ok(pieceBytes > 0);
  });
});
