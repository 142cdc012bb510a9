/**
 * Runs the fast tests on every other supported release line of Node.
 *
 *   node scripts/test-matrix.mjs [22 24 26]
 *
 * The binaries come as npm packages, node-linux-<arch>, one folder per line under node_modules/.cache, and are kept there.
 * The addon is not built again: that one binary serves all of them is part of what is tested.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const asked = process.argv.slice(2);
const lines = asked.length > 0 ? asked : ['22', '24', '26'];

const failed = [];
run('npm', ['run', '--silent', 'build:test'], root) || process.exit(1);
for (const line of lines) {
  console.log(`--- node ${line}`);
  const node = install(line);
  const passed = node !== undefined && run(node, ['scripts/run-tests.mjs', 'fast', '--no-build'], root);
  if (!passed) failed.push(line);
}
console.log(
  failed.length === 0 ? `passed on node ${lines.join(', ')}` : `FAILED on node ${failed.join(', ')}`,
);
process.exitCode = failed.length === 0 ? 0 : 1;

/** Path of the binary, or undefined with npm's own message on the terminal. */
function install(line) {
  const name = `node-linux-${process.arch}`;
  const folder = join(root, 'node_modules/.cache/zerotx-matrix', line);
  const node = join(folder, 'node_modules', name, 'bin/node');
  if (existsSync(node)) return node;
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'package.json'), '{ "private": true }\n');
  const args = ['install', '--no-audit', '--no-fund', '--no-save', '--no-package-lock', `${name}@${line}`];
  return run('npm', args, folder) && existsSync(node) ? node : undefined;
}

function run(command, args, cwd) {
  return spawnSync(command, args, { cwd, stdio: ['ignore', 'inherit', 'inherit'] }).status === 0;
}
