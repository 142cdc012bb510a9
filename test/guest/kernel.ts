/**
 * The guest's kernel and its modules, from Debian's own package; and which programs a guest needs here.
 *
 * ZEROTX_GUEST_SUITE names the suite whose kernel is wanted (trixie, sid), instead of this machine's own.
 */
import { access, readdir, readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { debianPackages } from '../support/debian.ts';

/** Loaded in every guest, after what they depend on. */
const wanted = ['virtio_pci', 'virtio_net', 'vxlan', '8021q', 'rds', 'rds_tcp'];

export interface GuestKernel {
  /** As Debian names it: 6.1.0-57-amd64. */
  readonly version: string;
  readonly image: string;
  /** Paths of the modules, in loading order. */
  readonly modules: readonly string[];
}

/** The path of a program of this machine; null if it has none of that name. */
export async function onPath(program: string): Promise<string | null> {
  for (const folder of (process.env.PATH ?? '').split(':')) {
    const path = join(folder, program);
    const found = await access(path).then(
      () => true,
      () => false,
    );
    if (found) return path;
  }
  return null;
}

/** What has to be installed for a guest, and is not; null if all is there. */
export async function missingPrograms(): Promise<string | null> {
  const programs = { 'qemu-system-x86_64': 'qemu-system-x86', cpio: 'cpio', busybox: 'busybox-static' };
  const missing: string[] = [];
  for (const [program, debianPackage] of Object.entries({ ...programs, gcc: 'gcc', ip: 'iproute2' })) {
    if ((await onPath(program)) === null) missing.push(debianPackage);
  }
  return missing.length === 0 ? null : `needs the packages ${missing.join(', ')}`;
}

/** For a guest that is given a folder of this machine. */
export const SHARE_MODULES: readonly string[] = ['9p', '9pnet_virtio'];

/** With `more` modules than all guests have. Fetched at the first call of a machine; rejects with the reason if it cannot be had. */
export async function guestKernel(more: readonly string[] = []): Promise<GuestKernel> {
  const { folder, versions } = await debianPackages('kernel', process.env.ZEROTX_GUEST_SUITE);
  const debianPackage = Object.keys(versions).find((name) => name.startsWith('linux-image-'));
  if (debianPackage === undefined) throw new Error(`no kernel in ${folder}`);
  const version = debianPackage.slice('linux-image-'.length);
  const modules = await moduleOrder(folder, [...more, ...wanted]);
  return { version, image: await imagePath(folder, version), modules };
}

/** Later kernels lie with their modules. */
async function imagePath(folder: string, version: string): Promise<string> {
  const boot = join(folder, 'boot', `vmlinuz-${version}`);
  const isThere = await access(boot).then(
    () => true,
    () => false,
  );
  return isThere ? boot : join(folder, 'usr/lib/modules', version, 'vmlinuz');
}

/** Of the modules of these names and what they depend on: depth first along `depends=` in each module's .modinfo section. */
export async function moduleOrder(folder: string, names: readonly string[]): Promise<string[]> {
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
  const last = names.at(-1) ?? '';
  if (!paths.has(last)) throw new Error(`no ${last}.ko in ${folder}`);
  for (const name of names) await add(name);
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
