/**
 * Giving up root, once the taps and sockets that need it are open.
 *
 * On Linux user, groups, capabilities and no_new_privs belong to each thread (credentials(7)), and a Node process has a dozen
 * before it runs a line of a program: V8's, and libuv's pool from the first asynchronous file operation on. What holds:
 *
 *   setgroups, setgid, setuid   All threads: the C library has each make the call. A thread that leaves user 0 loses its
 *                               permitted, effective and ambient capabilities (cap_emulate_setxuid), unless its
 *                               securebits say otherwise.
 *   capset                      The calling thread, and those it starts later. So a program that is not root but has
 *                               capabilities (of its file, or ambient ones from systemd) cannot give them up: the
 *                               threads that were there before keep them.
 *   PR_SET_NO_NEW_PRIVS         The calling thread, and those it starts later. It takes effect in execve(2), so it covers
 *                               child processes of the main thread and of workers started afterwards. Workers that run
 *                               already are not covered.
 *
 * (seccomp(2) can set no_new_privs in all threads along with a filter; but a filter, even one that allows everything, costs each
 * system call 40 ns from then on.) Threads of the kernel's that work for an io_uring keep their user for good.
 *
 * So dropPrivileges() does what it can and then asks the kernel about every thread. Whoever keeps something makes it throw.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { getgid, getuid, setgid, setgroups, setuid } from 'node:process';
import { isMainThread } from 'node:worker_threads';
import { errnoError, ZerotxError } from '../core/errors.ts';
import { native } from './binding.ts';

export interface Identity {
  /** Number or name; not root. Required when the process is root. */
  readonly uid?: number | string;
  /** Required with `uid`. */
  readonly gid?: number | string;
}

/** What the kernel says of one thread (proc_pid_status(5)). */
export interface ThreadPrivileges {
  readonly thread: number;
  readonly name: string;
  /** Real, effective, saved and file-system user, and group. */
  readonly uids: readonly number[];
  readonly gids: readonly number[];
  readonly groups: readonly number[];
  /** Capabilities it has, or could have without anybody's help: permitted, effective and ambient. */
  readonly capabilities: bigint;
  readonly noNewPrivs: boolean;
}

/**
 * Becomes `uid` and `gid` without supplementary groups, without capabilities, and with no_new_privs, for good; and makes sure
 * of it. An ordinary user's process leaves out both. Call it on the main thread, before workers are started.
 *
 * Throws EINVAL when root would stay root, EPERM when something is left to a thread: the process should then end, as it may have
 * given up half. Throws what setuid(2) and the like say, and ERR_UNKNOWN_CREDENTIAL for a name that does not exist.
 */
export function dropPrivileges({ uid, gid }: Identity = {}): void {
  // Node's own functions throw in workers; so that nothing is done by halves.
  if (!isMainThread) throw new ZerotxError('EPERM', 'privileges can be dropped on the main thread alone');
  const wasRoot = threadPrivileges().some(({ uids }) => uids.includes(0));
  if ((uid === undefined) !== (gid === undefined)) {
    throw new ZerotxError('EINVAL', 'a user needs a group and a group a user');
  }
  if (uid === undefined && wasRoot) {
    throw new ZerotxError('EINVAL', 'a process of root needs another user and group to become');
  }
  if (uid !== undefined && gid !== undefined) become(uid, gid);
  const capset = native().dropCapabilities();
  if (capset < 0) throw errnoError(capset, 'capset');
  forbidNewPrivileges();
  verify(uid !== undefined);
}

/**
 * Sets no_new_privs in this thread, and so in those it starts from now on, workers among them: nothing that they execute has more
 * rights than we. dropPrivileges() does it too, but when workers are to open what needs root, it comes after they were started.
 */
export function forbidNewPrivileges(): void {
  const prctl = native().noNewPrivs();
  if (prctl < 0) throw errnoError(prctl, 'PR_SET_NO_NEW_PRIVS');
}

/** The threads of this process. One that ends meanwhile is left out. */
export function threadPrivileges(): ThreadPrivileges[] {
  return readdirSync('/proc/self/task').flatMap((thread) => {
    try {
      return [parseThread(Number(thread), readFileSync(`/proc/self/task/${thread}/status`, 'utf8'))];
    } catch (error) {
      if (['ENOENT', 'ESRCH'].includes((error as NodeJS.ErrnoException).code ?? '')) return [];
      throw error;
    }
  });
}

/** Groups first: without user 0 they could not be changed any more. */
function become(uid: number | string, gid: number | string): void {
  if (uid === 0 || gid === 0 || uid === 'root' || gid === 'root') {
    throw new ZerotxError('EINVAL', 'root is no user or group to drop privileges to');
  }
  setgroups?.([]);
  setgid?.(gid);
  setuid?.(uid);
}

function verify(changed: boolean): void {
  const [uid, gid] = [getuid?.(), getgid?.()];
  const kept = threadPrivileges().flatMap((one) => {
    const what: string[] = [];
    if (one.uids.some((id) => id !== uid || id === 0)) what.push(`users ${one.uids.join(' ')}`);
    if (one.gids.some((id) => id !== gid || (changed && id === 0))) what.push(`groups ${one.gids.join(' ')}`);
    if (changed && one.groups.length > 0) what.push(`supplementary groups ${one.groups.join(' ')}`);
    if (one.capabilities !== 0n) what.push(`capabilities 0x${one.capabilities.toString(16)}`);
    return what.length === 0 ? [] : [`thread ${one.thread} (${one.name}) keeps ${what.join(', ')}`];
  });
  if (kept.length === 0) return;
  throw new ZerotxError(
    'EPERM',
    `privileges cannot be dropped: ${kept.slice(0, 3).join('; ')}` +
      `${kept.length > 3 ? ` and ${kept.length - 3} more threads` : ''}; ` +
      'start as root, without io_uring and securebits, and give a user to become',
  );
}

function parseThread(thread: number, status: string): ThreadPrivileges {
  const field = (name: string): string => new RegExp(`^${name}:[ \\t]*(.*)$`, 'm').exec(status)?.[1] ?? '';
  const numbers = (name: string): number[] => field(name).split(/\s+/).filter(Boolean).map(Number);
  const capabilities = (name: string): bigint => BigInt(`0x${field(name) || '0'}`);
  return {
    thread,
    name: field('Name'),
    uids: numbers('Uid'),
    gids: numbers('Gid'),
    groups: numbers('Groups'),
    capabilities: capabilities('CapPrm') | capabilities('CapEff') | capabilities('CapAmb'),
    noNewPrivs: field('NoNewPrivs') === '1',
  };
}
