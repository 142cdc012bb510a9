/**
 * Control sockets that somebody listens at, wherever they lie: a program puts its own below its XDG_RUNTIME_DIR, which may be any folder
 * (a service's, a test's), and root looks for the sockets of everybody. The kernel lists what is bound in this network namespace
 * (unix_seq_show in net/unix/af_unix.c).
 *
 * A path in that list is what its owner wants it to be: it says where to look, and no more.
 */
import { readFileSync } from 'node:fs';
import { dirname } from 'node:path';

const TABLE = '/proc/net/unix';
/** As Linux writes the type SOCK_STREAM, the state SS_UNCONNECTED, and the flag of sockets that listen (SO_ACCEPTCON). */
const LINE = /^[0-9a-f]+: [0-9A-F]{8} [0-9A-F]{8} 00010000 0001 01 +\d+ (\/.*)$/gm;
const NAME = /\/zerotx(?:-\d+)?\/[1-9]\d{0,9}(?:\.[1-9]\d{0,9})?\.sock$/;
const FOLDERS_MAX = 1024;

/** Folders of such sockets; none where the table cannot be read. */
export function listeningFolders(): string[] {
  try {
    return foldersIn(readFileSync(TABLE, 'utf8'));
  } catch {
    return [];
  }
}

/** The same out of the text of /proc/net/unix. */
export function foldersIn(table: string): string[] {
  const folders = new Set<string>();
  for (const [, path = ''] of table.matchAll(LINE)) {
    if (NAME.test(path)) folders.add(dirname(path));
    if (folders.size === FOLDERS_MAX) break;
  }
  return [...folders];
}
