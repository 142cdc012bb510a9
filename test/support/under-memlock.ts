/** Runs a compiled program under a small RLIMIT_MEMLOCK, as a user who pins nothing else: the kernel's account is one per user. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';

/** Root has no limit. Anybody else can only be themselves. */
const uid = process.getuid?.() === 0 ? 61_234 : undefined;
const bindingUrl = new URL('../../src/sys/binding.js', import.meta.url).href;

/** Whether the account is that of a user of whom nothing else runs. */
export const hasOwnAccount: boolean = uid !== undefined;

export function memlockSkipReason(): string | false {
  if (uid === undefined) return false;
  const command = ['--input-type=module', '-e', `await import('${bindingUrl}').then((it) => it.native())`];
  const { status } = spawnSync(process.execPath, command, { uid, gid: uid });
  return status === 0 ? false : `uid ${uid} cannot load the addon from here, and root has no limit`;
}

/** Prints JSON: the result. The shell sets the limit: nothing to install, and it binds the child alone. */
export async function underMemlock<T>(kib: number, program: string, ...args: string[]): Promise<T> {
  const command = ['-c', `ulimit -l ${kib}; exec "$0" "$@"`, process.execPath, program, ...args];
  const shell = spawn('sh', command, {
    stdio: ['ignore', 'pipe', 'inherit'],
    timeout: 20_000,
    killSignal: 'SIGKILL',
    ...(uid === undefined ? {} : { uid, gid: uid }),
  });
  let out = '';
  shell.stdout.setEncoding('utf8').on('data', (text: string) => {
    out += text;
  });
  const [code, signal] = await once(shell, 'close');
  assert.deepEqual({ code, signal }, { code: 0, signal: null });
  return JSON.parse(out) as T;
}
