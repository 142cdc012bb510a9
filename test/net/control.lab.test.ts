/** Whom a control socket answers, where the rights of files let everybody in; and whose programs root may ask. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { chmodSync, chownSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { after, describe, it } from 'node:test';
import { askStats, controlSockets } from '../../src/net/index.ts';
import { runtimeFolder, startProgram } from '../support/programs.ts';
import { ROOT } from '../support/sources.ts';

const child = new URL('./children/control.js', import.meta.url);
const skip = process.getuid?.() === 0 ? false : 'needs root, to be several users';
const USER = 65_534;
const OTHER = 65_533;

/** Asks for statistics as `uid`: what came back. */
function askAs(uid: number, path: string): string {
  const script = `
    const socket = require('node:net').connect(process.argv[1]);
    socket.on('error', (error) => console.log(error.code)).on('data', (data) => console.log(String(data)));
    socket.write('{"get":"stats"}\\n');`;
  const { status, stdout } = spawnSync(process.execPath, ['-e', script, path], {
    encoding: 'utf8',
    uid,
    gid: uid,
    timeout: 10_000,
  });
  assert.equal(status, 0);
  return stdout.trim();
}

describe('a control socket', { skip, timeout: 60_000 }, () => {
  const runtime = runtimeFolder();
  chownSync(runtime.path, USER, USER);
  after(() => runtime.remove());

  it('answers its user and root, and nobody else, whatever the rights of its file', async () => {
    const env = { XDG_RUNTIME_DIR: runtime.path, ZEROTX_CONTROL: '1' };
    const as = ['setpriv', `--reuid=${USER}`, `--regid=${USER}`, '--clear-groups'];
    const program = await startProgram(child, [], env, as);
    const path = join(runtime.path, 'zerotx', `${program.pid}.sock`);
    assert.equal((await askStats(path)).uid, USER);
    assert.match(askAs(0, path), /"stats"/);
    assert.match(askAs(USER, path), /"stats"/);
    assert.equal(askAs(OTHER, path), 'EACCES');
    for (const folder of [runtime.path, join(runtime.path, 'zerotx')]) chmodSync(folder, 0o755);
    chmodSync(path, 0o777);
    assert.match(askAs(OTHER, path), /^(?:|EPIPE|ECONNRESET)$/);
    assert.match(askAs(USER, path), /"stats"/);
    assert.equal(await program.end(), 0);
  });

  it('of any user is found by root in /tmp', async () => {
    const env = { XDG_RUNTIME_DIR: '', ZEROTX_CONTROL: '1' };
    const as = ['setpriv', `--reuid=${OTHER}`, `--regid=${OTHER}`, '--clear-groups'];
    const program = await startProgram(child, [], env, as);
    const [found] = controlSockets().filter(({ pid }) => pid === program.pid);
    assert.deepEqual(found, {
      pid: program.pid,
      threadId: 0,
      path: `/tmp/zerotx-${OTHER}/${program.pid}.sock`,
      uid: OTHER,
    });
    assert.equal((await askStats(found.path)).uid, OTHER);
    assert.equal(await program.end(), 0);
    rmSync(`/tmp/zerotx-${OTHER}`, { recursive: true });
  });

  it('of any user is found by root wherever it is listened at, and by the tools of root', async () => {
    const place = runtimeFolder();
    chownSync(place.path, OTHER, OTHER);
    const env = { XDG_RUNTIME_DIR: place.path, ZEROTX_CONTROL: '1' };
    const as = ['setpriv', `--reuid=${OTHER}`, `--regid=${OTHER}`, '--clear-groups'];
    const program = await startProgram(child, [], env, as);
    try {
      // As sudo and cron leave it.
      const { XDG_RUNTIME_DIR: _, ...bare } = process.env;
      const tool = join(ROOT, 'dist/cli/zerotx.js');
      const args = [tool, 'explain', '--json', `${program.pid}`];
      const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8', env: bare });
      assert.deepEqual({ status, stderr }, { status: 0, stderr: '' });
      assert.equal(JSON.parse(stdout).programs[0].pid, program.pid);
      const [found] = controlSockets().filter(({ pid }) => pid === program.pid);
      assert.deepEqual([found?.uid, found?.path], [OTHER, join(place.path, 'zerotx', `${program.pid}.sock`)]);
    } finally {
      assert.equal(await program.end(), 0);
      place.remove();
    }
  });
});
