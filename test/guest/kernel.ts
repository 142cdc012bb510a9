/**
 * The guest's kernel and its modules: Debian's own package, fetched with apt, unpacked into a folder outside the sources.
 *
 * Only what the guest uses is unpacked: the kernel image, and the modules that `modules` names with all they need, in an
 * order in which they can be loaded.
 */
import { execFile } from 'node:child_process';
import { access, mkdir, mkdtemp, readdir, readFile, rename, rm } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);

export const cacheFolder: string = fileURLToPath(
  new URL('../../../node_modules/.cache/zerotx-guest', import.meta.url),
);

const wanted = ['virtio_pci', 'virtio_net', 'rds', 'rds_tcp'];
/** Where in the package these, and what they depend on, are found. */
const moduleFolders = ['drivers/virtio', 'drivers/net/virtio_net.ko', 'drivers/net/net_failover.ko'];
const moduleFoldersOfNet = ['net/core', 'net/rds'];

export interface GuestKernel {
  /** As Debian names it: 6.1.0-57-amd64. */
  readonly version: string;
  readonly image: string;
  /** Paths of the modules, in loading order. */
  readonly modules: readonly string[];
}

/** What has to be installed for a guest, and is not; null if all is there. */
export async function missingPrograms(): Promise<string | null> {
  const programs = { 'qemu-system-x86_64': 'qemu-system-x86', cpio: 'cpio', busybox: 'busybox-static' };
  const missing: string[] = [];
  for (const [program, debianPackage] of Object.entries({ ...programs, gcc: 'gcc', ip: 'iproute2' })) {
    const found = await Promise.any(
      (process.env.PATH ?? '').split(':').map((folder) => access(join(folder, program))),
    ).then(
      () => true,
      () => false,
    );
    if (!found) missing.push(debianPackage);
  }
  return missing.length === 0 ? null : `needs the packages ${missing.join(', ')}`;
}

/**
 * The kernel that Debian's linux-image-amd64 stands for now, or the package that ZEROTX_GUEST_KERNEL names: from the cache
 * or from apt.
 */
export async function guestKernel(): Promise<GuestKernel> {
  const debianPackage = process.env.ZEROTX_GUEST_KERNEL ?? (await currentPackage());
  const folder = join(cacheFolder, debianPackage);
  const cached = await access(folder).then(
    () => true,
    () => false,
  );
  if (!cached) await unpack(debianPackage, folder);
  const version = debianPackage.slice('linux-image-'.length);
  return { version, image: join(folder, 'boot', `vmlinuz-${version}`), modules: await moduleOrder(folder) };
}

async function currentPackage(): Promise<string> {
  const { stdout } = await run('apt-cache', ['depends', 'linux-image-amd64']);
  const name = /Depends: (linux-image-\S+)/.exec(stdout)?.[1];
  if (name === undefined) throw new Error('apt knows no linux-image-amd64: run apt-get update');
  return name;
}

/** Into a folder of a passing name first, so that what has its name is complete. */
async function unpack(debianPackage: string, folder: string): Promise<void> {
  await mkdir(cacheFolder, { recursive: true });
  const partial = await mkdtemp(join(cacheFolder, 'unpack-'));
  try {
    await run('apt-get', ['download', debianPackage], { cwd: partial });
    const [file] = await readdir(partial);
    if (file === undefined) throw new Error(`apt-get download ${debianPackage} brought nothing`);
    const kernel = `./lib/modules/${debianPackage.slice('linux-image-'.length)}/kernel`;
    const members = [
      './boot',
      ...[...moduleFolders, ...moduleFoldersOfNet].map((path) => `${kernel}/${path}`),
    ];
    const tar = `dpkg-deb --fsys-tarfile "$0" | tar -x "$@"`;
    await run('sh', ['-c', tar, file, ...members], { cwd: partial });
    await rm(join(partial, file));
    await rename(partial, folder);
  } finally {
    await rm(partial, { recursive: true, force: true });
  }
}

/** Depth first along `depends=` in each module's .modinfo section. */
async function moduleOrder(folder: string): Promise<string[]> {
  const paths = new Map<string, string>();
  for (const entry of await readdir(folder, { recursive: true })) {
    if (entry.endsWith('.ko')) paths.set(moduleName(entry), join(folder, entry));
  }
  const order: string[] = [];
  const add = async (name: string): Promise<void> => {
    const path = paths.get(name);
    // Without a file it is built in, as virtio_pci is in later kernels.
    if (path === undefined || order.includes(path)) return;
    for (const needed of dependencies(await readFile(path))) await add(needed);
    order.push(path);
  };
  if (!paths.has('rds_tcp')) throw new Error(`no rds_tcp.ko in ${folder}`);
  for (const name of wanted) await add(name);
  return order;
}

function moduleName(path: string): string {
  return basename(path, '.ko').replaceAll('-', '_');
}

function dependencies(module: Buffer): string[] {
  const at = module.indexOf('\0depends=');
  if (at < 0) return [];
  const start = at + '\0depends='.length;
  const names = module.toString('latin1', start, module.indexOf(0, start));
  return names === '' ? [] : names.split(',').map((name) => name.replaceAll('-', '_'));
}
