import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';

/** A hugetlbfs of its own, on a folder that only this mount namespace sees that way. */
const SETUP = 'mount -t hugetlbfs none /mnt && chmod 777 /mnt && exec "$0" "$@"';

const skip = process.getuid?.() === 0 ? false : 'needs root, to mount a hugetlbfs';

it('guest memory of huge pages is mapped in whole ones, and guarded', { skip, timeout: 60_000 }, (t) => {
  const child = fileURLToPath(new URL('./children/guest-memory.js', import.meta.url));
  const command = ['--mount', 'sh', '-c', SETUP, process.execPath, child, 'huge'];
  const result = spawnSync('unshare', command, { encoding: 'utf8', timeout: 50_000 });
  if (/unknown filesystem type|No such device/.test(result.stderr)) {
    t.skip('this kernel has no hugetlbfs');
    return;
  }
  const { status, signal, stderr } = result;
  assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
});
