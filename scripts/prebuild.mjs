/**
 * Puts the compiled addon, without its symbol table, where node-gyp-build looks for it in an installed package:
 * prebuilds/linux-<arch>/zerotx.node. The published tarball carries it, so installing needs no compiler; git does not.
 * And binding.gyp where the tarball has it: native/build.mjs says why.
 */
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, renameSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const folder = join(root, 'prebuilds', `linux-${process.arch}`);
const target = join(folder, 'zerotx.node');
const unfinished = `${target}.new`;

mkdirSync(folder, { recursive: true });
copyFileSync(join(root, 'build/Release/zerotx.node'), unfinished);
const strip = spawnSync('strip', ['--strip-unneeded', unfinished], {
  stdio: ['ignore', 'inherit', 'inherit'],
});
if (strip.error !== undefined) console.log(`not stripped: ${strip.error.message}`);
else if (strip.status !== 0) process.exit(strip.status ?? 1);
// By rename: a process that has the old one loaded keeps it.
renameSync(unfinished, target);
console.log(`${target}: ${statSync(target).size} bytes`);
copyFileSync(join(root, 'binding.gyp'), join(root, 'native/binding.gyp'));
