/** A descriptor of a file system that never answers: whoever receives it goes on. Needs root, for a mount namespace. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';

const skip =
  process.getuid?.() !== 0
    ? 'needs root, for a mount namespace'
    : !existsSync('/dev/fuse')
      ? 'needs /dev/fuse'
      : spawnSync('python3', ['-c', 'import ctypes']).status !== 0 && 'needs python3';

it('a file of a silent file system stops nobody who is sent it', { skip, timeout: 60_000 }, (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-fuse-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'file');
  writeFileSync(file, '');
  const server = fileURLToPath(new URL('../../../test/sys/children/silent-fuse.py', import.meta.url));
  const child = fileURLToPath(new URL('./children/fds-fuse.js', import.meta.url));
  const args = ['--mount', 'python3', server, file, process.execPath, child, file];
  const { stdout, stderr } = spawnSync('unshare', args, { encoding: 'utf8', timeout: 30_000 });
  assert.deepEqual({ stdout, stderr }, { stdout: 'done\n', stderr: '' });
});
