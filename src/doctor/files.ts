/**
 * Reading what the kernel shows as files, where missing and forbidden are answers and not errors; and who has a socket
 * open, which only the links below /proc/<pid>/fd tell.
 */
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { socketInode } from './proc.ts';

/** The text of a file, or undefined when it is not there or not for us. */
export function readText(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return undefined;
  }
}

/** The file as one number. */
export function readNumber(path: string): number | undefined {
  const text = readText(path)?.trim();
  return text === undefined || !/^-?\d+$/.test(text) ? undefined : Number(text);
}

export interface Owner {
  readonly pid: number;
  readonly command: string;
}

/**
 * Processes with one of the sockets open, by inode. Descriptors of other users are root's to see; a socket without an
 * owner here belongs to one of those, to another process namespace, or to the kernel.
 */
export function socketOwners(inodes: readonly number[]): Map<number, Owner> {
  const owners = new Map<number, Owner>();
  if (inodes.length === 0) return owners;
  for (const pid of list('/proc').filter((name) => /^\d+$/.test(name))) {
    for (const fd of list(`/proc/${pid}/fd`)) {
      const inode = inodeOf(`/proc/${pid}/fd/${fd}`);
      if (inode === undefined || !inodes.includes(inode) || owners.has(inode)) continue;
      owners.set(inode, { pid: Number(pid), command: readText(`/proc/${pid}/comm`)?.trim() ?? '?' });
    }
  }
  return owners;
}

function list(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}

function inodeOf(link: string): number | undefined {
  try {
    return socketInode(readlinkSync(link));
  } catch {
    return undefined;
  }
}
