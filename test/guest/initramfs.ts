/**
 * The guest's whole file system: busybox, some programs of this machine and of this folder, the modules, and an /init that
 * obeys commands on the second serial port (vm-console.ts is the other end). A command line is `id seconds command`; each
 * runs in the background, so several run at the same time, and every line it prints comes back as `id line`, at last
 * `id exit code`.
 */
import { execFile } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { access, copyFile, mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { ROOT } from '../support/sources.ts';
import { type GuestKernel, onPath } from './kernel.ts';
import { guestPrograms } from './vm-programs.ts';

const run = promisify(execFile);
const cacheFolder = join(ROOT, 'node_modules/.cache/zerotx-guest');

/**
 * Programs of this machine that do more than busybox's; those it does not have are left out. They need their path, as in
 * /sbin/ip: busybox's shell prefers its own.
 */
const machinePrograms = ['ip', 'tc', 'ethtool'];

/** RDS messages of 1 MiB need buffers above the default limits, or sendmsg fails with EMSGSIZE. */
const BUFFER_BYTES_MAX = 8 * 1024 * 1024;

function init(modules: readonly string[]): string {
  return `#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec </dev/ttyS1 >/dev/ttyS1 2>/dev/console
stty raw -echo
for module in ${modules.map((path) => basename(path)).join(' ')}; do insmod /modules/$module; done
sysctl -q -w net.core.wmem_max=${BUFFER_BYTES_MAX} net.core.rmem_max=${BUFFER_BYTES_MAX}
ip link set lo up
sh /commands
`;
}

/**
 * Each command is started by a subshell that ends at once, so that it is a child of process 1 and not of this loop: a
 * child's end would interrupt busybox's `read`, which then forgets what it has read of the line.
 */
const commands = `echo "0 exit 0"
while read -r id limit command; do (
  { timeout -s KILL $limit sh -c "$command" 2>&1; echo "exit $?"; } | while IFS= read -r line; do echo "$id $line"; done &
) done
`;

/** Builds the archive, and returns its path: it is the same for the same parts. */
export async function initramfs(kernel: GuestKernel): Promise<string> {
  const files = new Map<string, string>();
  for (const program of await guestPrograms()) files.set(`bin/${program.name}`, program.path);
  for (const path of kernel.modules) files.set(`modules/${basename(path)}`, path);
  for (const name of machinePrograms) await addDynamic(files, name);
  files.set('bin/busybox', (await onPath('busybox')) ?? '');
  const script = init(kernel.modules);
  const hash = createHash('sha256').update(script + commands);
  for (const [name, path] of files) hash.update(name).update(await readFile(path));
  const archive = join(cacheFolder, `initramfs-${hash.digest('hex').slice(0, 12)}.cpio`);
  const exists = await access(archive).then(
    () => true,
    () => false,
  );
  if (!exists) await build(archive, files, { init: script, commands });
  return archive;
}

async function build(
  archive: string,
  files: ReadonlyMap<string, string>,
  texts: Readonly<Record<string, string>>,
): Promise<void> {
  await mkdir(cacheFolder, { recursive: true });
  const root = await mkdtemp(join(cacheFolder, 'initramfs-'));
  try {
    for (const folder of ['dev', 'proc', 'sys', 'tmp']) await mkdir(join(root, folder));
    for (const [name, path] of files) {
      await mkdir(join(root, dirname(name)), { recursive: true });
      await copyFile(path, join(root, name));
    }
    for (const [name, text] of Object.entries(texts))
      await writeFile(join(root, name), text, { mode: 0o755 });
    const partial = `${archive}.${randomUUID()}`;
    await run('sh', ['-c', 'find . | cpio --quiet -o -H newc >"$0"', partial], { cwd: root });
    await rename(partial, archive);
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}

/** A program of this machine, with the libraries it needs, by the same names as here. */
async function addDynamic(files: Map<string, string>, name: string): Promise<void> {
  const program = await onPath(name);
  if (program === null) return;
  files.set(`sbin/${name}`, program);
  const { stdout } = await run('ldd', [program]);
  for (const [path] of stdout.matchAll(/\/\S+(?= \(0x)/g)) files.set(path.slice(1), path);
}
