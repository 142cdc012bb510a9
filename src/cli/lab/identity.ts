/**
 * Who a tool goes on as when everything that needs root is open: the user after --user, or who called sudo.
 *
 * Sockets that are made afterwards belong to that user, so that the user's own QEMU may connect to them.
 */
import { spawnSync } from 'node:child_process';
import { dropPrivileges } from '../../ports/index.ts';

export interface User {
  readonly uid: number;
  readonly gid: number;
}

/**
 * The user to become, or null: as we are; or what is wrong with `user`: a name or a number, `root` to stay root, undefined to do as sudo
 * says.
 */
export function userToBecome(
  user: string | undefined,
  env: NodeJS.ProcessEnv = process.env,
): User | string | null {
  const isRoot = process.geteuid?.() === 0;
  if (user === 'root' || user === '0') return null;
  if (user !== undefined) {
    if (!isRoot) return '--user needs root: nobody else can become another user';
    const [uid, gid] = [idOf('-u', user), idOf('-g', user)];
    return uid > 0 && gid > 0 ? { uid, gid } : `--user ${user}: no such user, or one of root's`;
  }
  const { SUDO_UID, SUDO_GID } = env;
  const [uid, gid] = [Number(SUDO_UID ?? 0), Number(SUDO_GID ?? 0)];
  return isRoot && uid > 0 && gid > 0 ? { uid, gid } : null;
}

/** By id(1), which asks whatever knows the users of this host; 0 for one that nobody knows. */
function idOf(option: '-u' | '-g', user: string): number {
  const { status, stdout } = spawnSync('id', [option, '--', user], { encoding: 'utf8' });
  return status === 0 && /^\d+\n$/.test(stdout) ? Number(stdout) : 0;
}

/**
 * Becomes `user` for good, without capabilities; null: gives up capabilities where that is possible. Returns what somebody should
 * know about who we are now, or null.
 */
export function settleIdentity(user: User | null): string | null {
  if (user !== null) {
    dropPrivileges(user);
    return `goes on as user ${user.uid}, group ${user.gid}`;
  }
  if (process.geteuid?.() === 0) return 'warning: stays root; give --user NAME to drop it';
  try {
    dropPrivileges();
    return null;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EPERM') throw error;
    return `keeps its capabilities: ${(error as Error).message}`;
  }
}
