/**
 * The guest's whole file system: busybox, the modules, our helper, and an /init that obeys commands on the second serial
 * port (guest.ts is the other end). A command line is `id seconds command`; each runs in the background, so several run at
 * the same time, and every line it prints comes back as `id line`, at last `id exit code`.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { copyFile, mkdir, mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { cacheFolder, type GuestKernel } from './kernel.ts';

const run = promisify(execFile);

/** The C source stays where it is; this runs from out/. */
const helperSource = fileURLToPath(new URL('../../../test/guest/rds-guest.c', import.meta.url));

/** Messages of 1 MiB need buffers above the default limits, or sendmsg fails with EMSGSIZE. */
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
ip address add $(sed 's/.*zerotx.address=\\([^ ]*\\).*/\\1/' /proc/cmdline) dev eth0
ip link set eth0 up
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
  const script = init(kernel.modules);
  const hash = createHash('sha256')
    .update(script + commands)
    .update(await readFile(helperSource))
    .update(kernel.modules.join('\n'))
    .digest('hex')
    .slice(0, 12);
  const archive = join(cacheFolder, `initramfs-${hash}.cpio`);
  const exists = await readFile(archive).then(
    () => true,
    () => false,
  );
  if (exists) return archive;
  const root = await mkdtemp(join(cacheFolder, 'initramfs-'));
  try {
    for (const folder of ['bin', 'dev', 'proc', 'sys', 'modules', 'tmp']) await mkdir(join(root, folder));
    const { stdout: busybox } = await run('sh', ['-c', 'command -v busybox']);
    await copyFile(busybox.trim(), join(root, 'bin/busybox'));
    for (const path of kernel.modules) await copyFile(path, join(root, 'modules', basename(path)));
    await run('gcc', ['-O2', '-Wall', '-Wextra', '-static', helperSource, '-o', join(root, 'bin/rds-guest')]);
    await writeFile(join(root, 'init'), script, { mode: 0o755 });
    await writeFile(join(root, 'commands'), commands);
    await run('sh', ['-c', 'find . | cpio --quiet -o -H newc >"$0"', `${archive}.${process.pid}`], {
      cwd: root,
    });
    await rename(`${archive}.${process.pid}`, archive);
    return archive;
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}
