/**
 * Builds, and runs the compiled tests of one kind with node's own runner, under whichever node runs this script.
 *
 *   node scripts/run-tests.mjs [fast|lab|guest] [--no-build] [text ...]
 *
 * fast: pure, property and loopback tests, which must pass for an ordinary user; lab: *.lab.test.ts, for root; guest:
 * *.guest.test.ts. With texts only files whose path has one of them, as in `npm test -- core/`. Node's runner wants the
 * files by name, and they are found by their sources, so that what a deleted test left in out/ does not run.
 *
 * The fast tests of root run as an unprivileged user: what they prove must not depend on capabilities. If that user
 * cannot reach this folder or this node, both are copied to where it can.
 *
 * The output is the same with and without a terminal: node's `spec`, which ends with the counts and, below them, once
 * more every test that failed, with its file.
 */
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
/** `nobody` on every Linux, by number, as a container may not have the name. */
const NOBODY = 65_534;
/** A test that fails may leave something open, and its process for ever: then the file fails. */
const limit = process.env.ZEROTX_SOAK === '1' ? [] : [`--test-timeout=${15 * 60_000}`];
const kinds = {
  fast: (name) => name.endsWith('.test.ts') && !/\.(lab|guest)\.test\.ts$/.test(name),
  lab: (name) => name.endsWith('.lab.test.ts'),
  guest: (name) => name.endsWith('.guest.test.ts'),
};

const args = process.argv.slice(2);
const build = !args.includes('--no-build');
const [first = 'fast', ...rest] = args.filter((arg) => arg !== '--no-build');
const kind = first in kinds ? first : 'fast';
const texts = first in kinds ? rest : [first, ...rest];

if (build) runOrExit(['run', '--silent', 'build:test']);
if (!hasAddon()) runOrExit(['run', '--silent', 'build:native']);
const files = testFiles(join(root, 'test')).filter(
  (file) => kinds[kind](file) && (texts.length === 0 || texts.some((text) => file.includes(text))),
);
if (files.length === 0) {
  console.log(`no ${kind} tests${texts.length === 0 ? '' : ` that match ${texts.join(', ')}`}`);
  process.exit(texts.length === 0 ? 0 : 1);
}
const drops = kind === 'fast' && process.getuid() === 0;
console.log(
  `${files.length} files of ${kind} tests on node ${process.version}${drops ? `, as uid ${NOBODY}` : ''}`,
);
process.exitCode = drops ? runUnprivileged() : runTests(process.execPath, root, {});

/** Runs an npm script, and ends with its exit code if that is not 0. */
function runOrExit(npmArgs) {
  const { status } = spawnSync('npm', npmArgs, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  if (status !== 0) process.exit(status ?? 1);
}

function hasAddon() {
  return (
    existsSync(join(root, 'build/Release/zerotx.node')) ||
    existsSync(join(root, `prebuilds/linux-${process.arch}/zerotx.node`))
  );
}

function testFiles(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(root, join(entry.parentPath ?? entry.path, entry.name)))
    .sort();
}

/** One file after the other: the kernel counts pinned pages per user, so loopback tests would disturb each other. */
function runTests(node, cwd, options) {
  const compiled = files.map((file) => join(cwd, 'out', file.replace(/\.ts$/, '.js')));
  const counts = mkdtempSync(join(tmpdir(), 'zerotx-counts-'));
  const tap = join(counts, 'tap');
  writeFileSync(tap, '');
  for (const path of [counts, tap]) chmodSync(path, 0o777);
  const reporters = ['spec', 'tap'].flatMap((reporter) => [
    `--test-reporter=${reporter}`,
    `--test-reporter-destination=${reporter === 'tap' ? tap : 'stdout'}`,
  ]);
  try {
    const { status, error } = spawnSync(
      node,
      ['--test', ...reporters, '--test-concurrency=1', ...limit, ...compiled],
      {
        ...options,
        cwd,
        stdio: ['ignore', 'inherit', 'inherit'],
      },
    );
    if (error !== undefined) throw error;
    // The counts once more, last and in TAP's form, for whoever reads the end of a log.
    console.log(
      readFileSync(tap, 'utf8')
        .split('\n')
        .filter((line) => /^# (?:tests|pass|fail|cancelled|skipped) /.test(line))
        .join('\n'),
    );
    return status ?? 1;
  } finally {
    rmSync(counts, { recursive: true, force: true });
  }
}

function runUnprivileged() {
  const options = { uid: NOBODY, gid: NOBODY, env: { ...process.env, HOME: tmpdir() } };
  const reaches = spawnSync(process.execPath, ['-e', 'require("./package.json")'], { ...options, cwd: root });
  if (reaches.status === 0) return runTests(process.execPath, root, options);
  const stage = mkdtempSync(join(tmpdir(), 'zerotx-test-'));
  try {
    console.log(`uid ${NOBODY} cannot reach ${root} or ${process.execPath}: running a copy in ${stage}`);
    chmodSync(stage, 0o755);
    copyFileSync(process.execPath, join(stage, 'node'));
    const unwanted = new Set([join(root, '.git'), join(root, 'node_modules/.cache')]);
    const tree = join(stage, 'tree');
    cpSync(root, tree, { recursive: true, verbatimSymlinks: true, filter: (path) => !unwanted.has(path) });
    chmodSync(tree, 0o755);
    return runTests(join(stage, 'node'), tree, options);
  } finally {
    rmSync(stage, { recursive: true, force: true });
  }
}
