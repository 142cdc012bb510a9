/**
 * DPDK, the yardstick of vhost-user: dpdk-testpmd, and programs of this folder that are compiled against its libraries.
 *
 * The machine's own DPDK is used if it has one (dpdk-testpmd, pkg-config libdpdk); otherwise Debian's packages are fetched
 * into a folder (scripts/debian-packages.mjs), from where the programs run with that folder's libraries. No huge pages are
 * needed.
 */
import { execFile } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { access, mkdir, readdir, readFile, rename } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Compiled files run from `out/bench/baselines/`; the C sources stay in `bench/baselines/`. */
const packageFolder = join(dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
/** As Debian names the folders of an architecture. */
const TRIPLETS: Partial<Record<string, string>> = { x64: 'x86_64-linux-gnu', arm64: 'aarch64-linux-gnu' };

export interface Dpdk {
  readonly version: string;
  readonly testpmd: string;
  /** What its programs need beside the environment of this process. */
  readonly env: Readonly<Record<string, string>>;
  /** EAL arguments that load the vhost-user drivers, where they are not found by themselves. */
  readonly drivers: readonly string[];
  readonly compilerFlags: readonly string[];
}

/** Rejects with the reason if there is none to be had. */
export async function dpdk(): Promise<Dpdk> {
  return (await ofThisMachine()) ?? (await fetched());
}

/** Where one of its programs may keep its files; each makes a folder there, and leaves it behind. */
export interface RuntimeFolder {
  readonly env: Readonly<Record<string, string>>;
  remove(): void;
}

export function runtimeFolder(): RuntimeFolder {
  const path = mkdtempSync(join(tmpdir(), 'zerotx-dpdk-'));
  return {
    env: { RUNTIME_DIRECTORY: path },
    remove: () => rmSync(path, { recursive: true, force: true }),
  };
}

async function ofThisMachine(): Promise<Dpdk | null> {
  try {
    const [{ stdout: path }, { stdout: version }, { stdout: flags }] = await Promise.all([
      run('sh', ['-c', 'command -v dpdk-testpmd']),
      run('pkg-config', ['--modversion', 'libdpdk']),
      run('pkg-config', ['--cflags', '--libs', 'libdpdk']),
    ]);
    const compilerFlags = flags.trim().split(/\s+/);
    return { version: version.trim(), testpmd: path.trim(), env: {}, drivers: [], compilerFlags };
  } catch {
    return null;
  }
}

async function fetched(): Promise<Dpdk> {
  const triplet = TRIPLETS[process.arch];
  if (triplet === undefined) throw new Error(`no DPDK for ${process.arch}`);
  const { folder, versions } = await debianPackages();
  const libraries = join(folder, 'usr/lib', triplet);
  const plugins = join(libraries, 'dpdk', (await readdir(join(libraries, 'dpdk')))[0] ?? '');
  const headers = [`${triplet}/dpdk`, 'dpdk', ''].map((path) => join(folder, 'usr/include', path));
  const search = [libraries, join(folder, 'lib', triplet)];
  return {
    version: versions['dpdk-dev'] ?? '?',
    testpmd: join(folder, 'usr/bin/dpdk-testpmd'),
    env: { LD_LIBRARY_PATH: [...search, plugins].join(':') },
    // By name: a path is refused when one of its folders may be written by everybody, such as /tmp.
    drivers: ['net_vhost', 'net_virtio', 'mempool_ring'].flatMap((name) => ['-d', `librte_${name}.so`]),
    compilerFlags: [
      ...headers.map((path) => `-I${path}`),
      ...['-include', 'rte_config.h', `-L${libraries}`, `-Wl,-rpath-link,${search.join(':')}`],
      ...['vhost', 'mbuf', 'mempool', 'ring', 'eal'].map((name) => `-lrte_${name}`),
    ],
  };
}

async function debianPackages(): Promise<{ folder: string; versions: Record<string, string> }> {
  const script = join(packageFolder, 'scripts/debian-packages.mjs');
  try {
    return JSON.parse((await run(process.execPath, [script, 'dpdk'])).stdout);
  } catch (error) {
    const { stderr = '', message } = error as { stderr?: string; message: string };
    throw new Error(stderr.trim().split('\n').at(-1) || message);
  }
}

/** Path of the program made from `bench/baselines/<name>.c`. Rejects with the compiler's words when that fails. */
export async function compiledWithDpdk({ compilerFlags, version }: Dpdk, name: string): Promise<string> {
  const source = join(packageFolder, 'bench/baselines', `${name}.c`);
  const hash = createHash('sha256')
    .update(await readFile(source))
    .update(version)
    .update(compilerFlags.join(' '));
  const folder = join(packageFolder, 'build/bench');
  const program = join(folder, `${name}-${hash.digest('hex').slice(0, 12)}`);
  const exists = await access(program).then(
    () => true,
    () => false,
  );
  if (exists) return program;
  await mkdir(folder, { recursive: true });
  const partial = `${program}.${randomUUID()}`;
  const flags = ['-std=gnu11', '-O3', '-march=native', '-Wall', '-Wextra', '-Werror'];
  await run(process.env.CC ?? 'gcc', [...flags, '-o', partial, source, ...compilerFlags]);
  await rename(partial, program);
  return program;
}
