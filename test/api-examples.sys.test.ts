/** The programs in docs/api-vhost.md, run as they stand: they end by themselves, and print what their comments say. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { ApiPage } from './support/api-page.ts';
import { ROOT } from './support/sources.ts';

const DEADLINE_MS = 20_000;
const { programs } = new ApiPage('api-vhost.md');
// The others need root, or a guest.
const runnable = programs.filter(({ text }) => !text.includes('createTap'));

test('there are some', () => {
  assert.ok(runnable.length >= 3, `${runnable.length} of ${programs.length}`);
});

for (const { text, prints } of runnable) {
  const [, title = ''] = /^import .*from '(zerotx\/\w+)';$/m.exec(text) ?? [];
  test(`${title}: ${text.length} characters that print ${prints.length} known lines`, () => {
    const folder = mkdtempSync(join(tmpdir(), 'zerotx-page-'));
    try {
      // Imports are those of this package, found from its folder; sockets are made in another.
      const program = `process.chdir(${JSON.stringify(folder)});\n${text}`;
      const args = ['--input-type=module', '-e', program];
      const options = { cwd: ROOT, encoding: 'utf8', timeout: DEADLINE_MS } as const;
      const { status, stdout, stderr } = spawnSync(process.execPath, args, options);
      assert.deepEqual({ status, stderr }, { status: 0, stderr: '' });
      const lines = stdout.split('\n');
      assert.ok(prints.length > 0);
      assert.deepEqual(
        prints.filter((line) => !lines.includes(line)),
        [],
        stdout,
      );
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
}
