/**
 * Compiles the addon, in the repository and in an installed package: `npm run build:native`.
 *
 * The package has binding.gyp in this folder only. At its root npm would take it for an install script, and `npm ci` would
 * compile, because a lock file does not keep `gypfile: false`. So it lies at the root while node-gyp runs, and no longer.
 */
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const native = dirname(fileURLToPath(import.meta.url));
const root = dirname(native);
const recipe = join(root, 'binding.gyp');
const installed = !existsSync(recipe);

if (installed) copyFileSync(join(native, 'binding.gyp'), recipe);
try {
  // npm brings its own, which is on PATH inside npm scripts only.
  const { error, status } = spawnSync('node-gyp', ['rebuild'], { cwd: root, stdio: 'inherit' });
  if (error !== undefined) console.error(`node-gyp: ${error.message}; start this with npm run build:native`);
  process.exitCode = status ?? 1;
} finally {
  if (installed) rmSync(recipe);
}
