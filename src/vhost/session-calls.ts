/** The system calls of a session. Descriptors that a front-end sent may be of anything: nothing here waits for what is behind one. */
import { readFileSync } from 'node:fs';
import { ZerotxError } from '../core/errors.ts';
import { native } from '../sys/binding.ts';
import { closeReceived, fileKind, S_IFREG } from '../sys/fds.ts';
import { GuestSpace } from '../sys/space.ts';
import type { Space } from './memory.ts';
import type { SessionCalls } from './session-state.ts';

export const sessionCalls: SessionCalls = {
  createSpace(): Space | number {
    try {
      return new GuestSpace();
    } catch (error) {
      if (error instanceof ZerotxError && error.errno < 0) return error.errno;
      throw error;
    }
  },
  fileOf,
  close: closeReceived,
  notify(fd: number, bytes: Uint8Array): void {
    // A channel that is full or no socket is the front-end's own loss.
    native().sendv(fd, [bytes], 1, 0);
  },
};

/**
 * Mount and inode from /proc, which asks no file system, as fstat(2) would: one in user space may never answer. `ino` is there
 * since Linux 5.14; without it no two files are taken for the same.
 */
function fileOf(fd: number): string | null {
  let text: string;
  // What is no file may have more to tell there, and locks that its other holder keeps (epoll).
  if (fileKind(fd) !== S_IFREG) return null;
  try {
    text = readFileSync(`/proc/self/fdinfo/${fd}`, 'latin1');
  } catch {
    return null;
  }
  const mount = /^mnt_id:\s*(\d+)$/m.exec(text)?.[1];
  const inode = /^ino:\s*(\d+)$/m.exec(text)?.[1];
  return mount === undefined || inode === undefined ? null : `${mount}:${inode}`;
}
