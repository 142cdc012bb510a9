/**
 * Runs a test in namespaces of its own: a network in which it may make taps and addresses, and processes that end with it.
 *
 * A module that wants this runs itself again below `unshare`, and hands its output through, so that node's runner sees
 * the tests of the inner process as those of the file. The inner process is number 1 of its namespace: when it ends, in
 * whatever way, the kernel ends the guest, too; and setpriv makes `unshare`, and so all of it, end with the outer one.
 */
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const MARK = 'ZEROTX_TEST_NAMESPACE';

/** This process is the inner one. */
export const inNamespace: boolean = process.env[MARK] === '1';

/** Why there can be no namespaces with a tap here; null if there can. */
export function namespaceObstacle(): string | null {
  if (process.getuid?.() !== 0) return 'needs root: namespaces and a tap';
  if (!existsSync('/dev/net/tun')) return 'needs /dev/net/tun';
  return null;
}

/** Runs the module `url` again, in namespaces; resolves with its exit code. */
export function runInNamespace(url: string): Promise<number> {
  const command = ['--pdeathsig', 'KILL', 'unshare', '--net', '--pid', '--mount-proc', '--fork'];
  command.push('--kill-child', process.execPath, ...process.execArgv, fileURLToPath(url));
  const child = spawn('setpriv', command, { stdio: 'inherit', env: { ...process.env, [MARK]: '1' } });
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', (code) => resolve(code ?? 1));
  });
}

/** Makes a tap with our addresses, each with its prefix length; a guest will be at its other end. */
export function makeTap(name: string, addresses: readonly string[]): void {
  makeLink(name, ['tuntap', 'add', 'dev', name, 'mode', 'tap'], addresses);
}

/** Makes a bridge, for taps and other interfaces. */
export function makeBridge(name: string, addresses: readonly string[] = []): void {
  makeLink(name, ['link', 'add', name, 'type', 'bridge'], addresses);
}

export function joinBridge(bridge: string, name: string): void {
  ip('link', 'set', name, 'master', bridge);
}

/** A new namespace has one, which is down. */
export function loopbackUp(): void {
  if (!inNamespace) throw new Error('only in a namespace of our own');
  ip('link', 'set', 'lo', 'up');
}

function makeLink(name: string, command: readonly string[], addresses: readonly string[]): void {
  loopbackUp();
  ip(...command);
  for (const address of addresses) {
    // An IPv6 address can be used at once if nobody is asked whether it is taken.
    ip('address', 'add', address, 'dev', name, ...(address.includes(':') ? ['nodad'] : []));
  }
  ip('link', 'set', name, 'up');
}

/** Names for Unix sockets, in a folder that ends with this process: every inner process has the same number. */
export function socketPaths(): (name: string) => string {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-vm-'));
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  return (name) => join(folder, name);
}

export function setLink(name: string, state: 'up' | 'down'): void {
  ip('link', 'set', name, state);
}

function ip(...args: string[]): void {
  execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'inherit'] });
}
