/** Giving up root, seen from outside and by what still works. Needs root, and touches nothing but a folder of its own. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';

const skip = process.getuid?.() === 0 ? false : 'needs root';
const child = fileURLToPath(new URL('./children/privileges.js', import.meta.url));
const NOBODY = '{"uid":65534,"gid":65534}';
/** A thread with nothing left, as the child lists it: users, groups, supplementary groups, capabilities. */
const ALL_NOBODY = `${Array(8).fill(65534).join(' ')} |  | 0`;

interface Result {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

function run(prefix: readonly string[], args: readonly string[], env: NodeJS.ProcessEnv = {}): Result {
  const [command, ...rest] = [...prefix, process.execPath, child, ...args] as [string, ...string[]];
  return spawnSync(command, rest, { encoding: 'utf8', timeout: 30_000, env: { ...process.env, ...env } });
}

describe('a process of root', { skip, timeout: 120_000 }, () => {
  let folder: string;
  let secret: string;
  let id: string;

  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'zerotx-privileges-'));
    chmodSync(folder, 0o755);
    secret = join(folder, 'secret');
    writeFileSync(secret, 'of root', { mode: 0o600 });
    id = join(folder, 'id');
    copyFileSync('/usr/bin/id', id);
    chownSync(id, 0, 0);
    chmodSync(id, 0o4755);
  });
  after(() => rmSync(folder, { recursive: true }));

  it('is another user’s afterwards in every thread, and cannot go back', () => {
    const { status, stdout, stderr } = run([], [NOBODY, 'list', 'read', secret, 'root']);
    assert.deepEqual([status, stderr], [0, '']);
    const lines = stdout.trim().split('\n');
    assert.ok(lines.length > 8, 'the main thread, V8, the pool, a worker');
    assert.deepEqual(lines.splice(-2), ['EACCES', 'EPERM']);
    assert.deepEqual([...new Set(lines)], [ALL_NOBODY]);
  });

  it('takes names for user and group', () => {
    const group = spawnSync('id', ['-gn', 'nobody'], { encoding: 'utf8' }).stdout.trim();
    const { status, stdout, stderr } = run([], [JSON.stringify({ uid: 'nobody', gid: group }), 'root']);
    assert.deepEqual([status, stdout, stderr], [0, 'EPERM\n', '']);
    const unknown = run([], ['{"uid":"no such user","gid":65534}']);
    assert.match(unknown.stderr, /ERR_UNKNOWN_CREDENTIAL/);
    assert.equal(unknown.status, 1);
  });

  it('gains nothing by a program that runs as root', (t) => {
    const control = run([], [NOBODY, 'half', 'run', id]);
    if (control.stdout !== '0\n')
      return t.skip('set-user-id programs do not work in the folder for temporary files');
    const { status, stdout, stderr } = run([], [NOBODY, 'run', id]);
    assert.deepEqual([status, stdout, stderr], [0, '65534\n', '']);
  });

  it('is told so where threads of an io_uring stay root’s', () => {
    const { status, stdout, stderr } = run([], [NOBODY, 'list'], { UV_USE_IO_URING: '1' });
    // Some versions of Node refuse it themselves; some of libuv's have no such threads.
    if (status === 0) assert.deepEqual([...new Set(stdout.trim().split('\n'))], [ALL_NOBODY]);
    else assert.match(stderr, /ERR_INVALID_STATE|privileges cannot be dropped/);
  });

  it('must become somebody', () => {
    const { status, stderr } = run([], ['{}']);
    assert.equal(status, 1);
    assert.match(stderr, /EINVAL/);
  });
});

describe('threads that keep something', { skip, timeout: 120_000 }, () => {
  const refused = (result: Result, pattern: RegExp): void => {
    assert.equal(result.status, 1);
    assert.match(result.stderr, /privileges cannot be dropped/);
    assert.match(result.stderr, pattern);
  };

  it('are told about: ambient capabilities of an ordinary user', () => {
    const ambient = ['setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups'];
    ambient.push('--inh-caps', '+net_admin', '--ambient-caps', '+net_admin');
    refused(run(ambient, ['{}']), /thread \d+ \(\S+\) keeps capabilities 0x1000/);
  });

  it('are told about: securebits that keep capabilities of who leaves root', () => {
    refused(run(['setpriv', '--securebits', '+no_setuid_fixup'], [NOBODY]), /keeps capabilities 0x/);
  });
});
