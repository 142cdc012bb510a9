/**
 * The release test: packs, installs the tarball into an empty project on a machine without a compiler, once afresh and
 * once from the lock file, and uses it there: every door, the tools, and the examples of the README. Then the addon is
 * compiled in the installed package, as on an architecture that nothing was built for.
 *
 * "Without a compiler" is a PATH with nothing but node on it, so that anything that wanted to build would fail. Examples
 * are the fenced js blocks of README.md that import zerotx, and the programs in examples/ that it links to; each must end
 * by itself with exit code 0. A peer at 127.0.0.2, port 4000, reads what they send.
 */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const { bin, exports: doors, name } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const stage = mkdtempSync(join(tmpdir(), 'zerotx-package-'));
const project = join(stage, 'project');
const installed = join(project, 'node_modules', name);
const path = join(stage, 'bin');
const EXAMPLE_TIMEOUT_MS = 60_000;
/** Whom the blocks of the README send to. */
const PEER = `
import { RdsNode } from 'zerotx/rds';
const node = await RdsNode.open({ address: '127.0.0.2' });
const socket = node.bind(4000);
console.log('ready');
for await (const { data, address, port } of socket) await socket.send(data, { address, port });
`;

try {
  const tarball = pack();
  install(tarball);
  useDoors();
  installFromLock();
  useDoors();
  useTools();
  await runExamples();
  compile();
  console.log('the package installs without a compiler and works');
} finally {
  rmSync(stage, { recursive: true, force: true });
}

function pack() {
  run(process.execPath, ['scripts/prebuild.mjs'], { cwd: root });
  // Built just before; `prepare` would build everything once more.
  const args = ['pack', '--json', '--ignore-scripts', '--pack-destination', stage];
  const [result] = JSON.parse(run('npm', args, { cwd: root }));
  const files = new Set(result.files.map((file) => file.path));
  const wanted = [
    `prebuilds/linux-${process.arch}/zerotx.node`,
    'README.md',
    'LICENSE',
    'docs/api.md',
    'native/binding.gyp',
    'native/build.mjs',
    ...targets(),
  ];
  const missing = wanted.filter((file) => !files.has(file.replace(/^\.\//, '')));
  if (missing.length > 0) throw new Error(`not in the tarball: ${missing.join(', ')}`);
  const stray = [...files].filter((file) => /^(test|out|build|node_modules|binding\.gyp|\.)/.test(file));
  if (stray.length > 0) throw new Error(`should not be in the tarball: ${stray.join(', ')}`);
  console.log(
    `${result.filename}: ${files.size} files, ${result.size} bytes packed, ${result.unpackedSize} unpacked`,
  );
  return join(stage, result.filename);
}

/** Files that exports and bin point at. */
function targets() {
  return [...Object.values(doors), ...Object.values(bin)];
}

function install(tarball) {
  mkdirSync(project);
  mkdirSync(path);
  symlinkSync(process.execPath, join(path, 'node'));
  writeFileSync(join(project, 'package.json'), '{ "private": true, "type": "module" }\n');
  runNpm('install', tarball);
}

/** Of a package that is only in the lock file npm does not know all of its package.json. */
function installFromLock() {
  rmSync(join(project, 'node_modules'), { recursive: true });
  runNpm('ci');
}

function runNpm(...args) {
  const all = [realNpm(), ...args, '--no-audit', '--no-fund', '--omit=dev'];
  console.log(run(process.execPath, all, inProject()).trim());
  if (existsSync(join(installed, 'build'))) throw new Error(`npm ${args[0]} compiled the addon`);
}

/** With the compiler this time, and then loads what came of it. */
function compile() {
  rmSync(join(installed, 'prebuilds'), { recursive: true });
  const started = Date.now();
  run('npm', ['explore', name, '--', 'npm', 'run', 'build:native'], inProject(process.env.PATH));
  const seconds = Math.round((Date.now() - started) / 1000);
  if (existsSync(join(installed, 'binding.gyp'))) throw new Error('binding.gyp was left at the root');
  const doctor = [join(installed, bin.zerotx), 'doctor', '--only', 'addon'];
  const found = run(process.execPath, doctor, inProject());
  if (!found.includes(join(installed, 'build'))) throw new Error(`something else is loaded:\n${found}`);
  console.log(`compiled in the installed package in ${seconds} s, and loaded`);
}

/** npm's own script, so that it runs without `env` and a PATH: what npm says when it runs us, or the one on the PATH. */
function realNpm() {
  const told = process.env.npm_execpath;
  if (told !== undefined) return told;
  for (const folder of (process.env.PATH ?? '').split(delimiter)) {
    const file = join(folder, 'npm');
    if (existsSync(file)) return file;
  }
  throw new Error('no npm on the PATH');
}

function useDoors() {
  const imports = Object.keys(doors)
    .filter((door) => door !== './package.json')
    .map((door) => join(name, door));
  for (const door of imports) {
    run(process.execPath, ['--input-type=module', '-e', `await import('${door}')`], inProject());
    run(process.execPath, ['--input-type=commonjs', '-e', `require('${door}')`], inProject());
  }
  console.log(`imported and required: ${imports.join(', ')}`);
}

function useTools() {
  for (const [tool, file] of Object.entries(bin)) {
    const help = run(process.execPath, [join('node_modules', name, file), '--help'], inProject());
    if (!/usage/i.test(help)) throw new Error(`${tool} --help does not show its usage:\n${help}`);
    if (!existsSync(join(project, 'node_modules/.bin', tool))) throw new Error(`npm linked no ${tool}`);
  }
  console.log(`tools: ${Object.keys(bin).join(', ')}`);
}

async function runExamples() {
  const readme = readFileSync(join(root, 'README.md'), 'utf8');
  const blocks = [...readme.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => code);
  const examples = blocks
    .filter((code) => new RegExp(`from '${name}[/']`).test(code))
    .map((code, i) => [`block-${i + 1}.mjs`, code]);
  if (examples.length === 0) throw new Error(`README.md has no example that imports ${name}`);
  for (const [, file] of readme.matchAll(/\]\(examples\/([\w-]+\.js)\)/g)) {
    examples.push([file, readFileSync(join(root, 'examples', file), 'utf8')]);
  }
  for (const [file, code] of examples) {
    writeFileSync(join(project, file), code);
    // The linked programs are whole, and open both addresses themselves.
    const peer = file.startsWith('block-') ? await startPeer() : undefined;
    let output;
    try {
      output = run(process.execPath, [file], { ...inProject(), timeout: EXAMPLE_TIMEOUT_MS });
    } finally {
      peer?.kill();
    }
    console.log(`README, ${file}:\n${output.trimEnd().replace(/^/gm, '    ')}`);
  }
}

async function startPeer() {
  const args = ['--input-type=module', '-e', PEER];
  const peer = spawn(process.execPath, args, { ...inProject(), stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(peer, 'exit').then(([code]) => {
    throw new Error(`the peer of the examples ended with ${code}`);
  });
  await Promise.race([once(peer.stdout, 'data'), ended]);
  // From here on it is killed.
  ended.catch(() => {});
  return peer;
}

function inProject(searched = path) {
  const env = { ...process.env, PATH: searched };
  // Settings that npm gave to this script, such as the folder of the outer project, are not for the inner one.
  for (const key of Object.keys(env))
    if (/^npm_(config_local_prefix|package_|lifecycle_)/.test(key)) delete env[key];
  delete env.ZEROTX_ADDON;
  return { cwd: project, env };
}

/** Standard output; throws with everything the command wrote if it fails. */
function run(command, args, options) {
  const { status, signal, error, stdout, stderr } = spawnSync(command, args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    encoding: 'utf8',
    ...options,
  });
  if (error !== undefined) throw error;
  if (status !== 0)
    throw new Error(`${command} ${args.join(' ')}: ${status ?? signal}\n${stdout}\n${stderr}`);
  return stdout;
}
