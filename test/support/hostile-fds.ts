/** Descriptors of everything that is no eventfd and no file in memory, for those who send them where these belong. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, openSync, readdirSync, readlinkSync, rmSync, watch, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as calls from '../../src/sys/calls.ts';
import { AF_INET, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM } from '../../src/sys/constants.ts';
import { adopt, receiveWithFds, socketPair } from '../../src/sys/fds.ts';

export interface Oddities {
  /** What it is, and a descriptor of it. */
  readonly all: ReadonlyMap<string, number>;
  close(): void;
}

/** Descriptors of this process whose /proc link is `link`. */
function linked(link: string): number[] {
  return readdirSync('/proc/self/fd')
    .map(Number)
    .filter((fd) => {
      try {
        return readlinkSync(`/proc/self/fd/${fd}`) === link;
      } catch {
        return false;
      }
    });
}

/** Copies of descriptors that belong to libuv: by way of another process, as only ours can be sent. */
function copies(links: readonly string[]): readonly number[] {
  const originals = links.map((link) => linked(link)[0]);
  const [here, there] = socketPair();
  const child = fileURLToPath(new URL('../vhost/children/odd-fds.js', import.meta.url));
  const { status, stderr } = spawnSync(process.execPath, [child, String(links.length)], {
    stdio: ['ignore', 'ignore', 'pipe', there, ...originals],
    encoding: 'utf8',
  });
  assert.equal(status, 0, stderr);
  const got = receiveWithFds(here, new Uint8Array(1));
  for (const fd of [here, there]) calls.close(fd);
  assert.equal(got?.fds.length, links.length);
  return got.fds;
}

/** Opens one of each. */
export function oddities(): Oddities {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-odd-'));
  const all = new Map<string, number>();
  const file = join(folder, 'file');
  writeFileSync(file, Buffer.alloc(4096));
  const open = (path: string, flags: string): number => adopt(openSync(path, flags));
  all.set('a directory', open(folder, 'r'));
  all.set('a file for reading', open(file, 'r'));
  all.set('/dev/zero', open('/dev/zero', 'r+'));
  all.set('/dev/null', open('/dev/null', 'r+'));
  all.set('a file of /proc', open('/proc/self/mem', 'r'));
  const pair = socketPair();
  all.set('a socket', pair[0]);
  all.set('a socket of packets', socketPair(SOCK_SEQPACKET)[0]);
  all.set('a TCP socket', calls.socket(AF_INET, SOCK_STREAM));
  all.set('a UDP socket', calls.socket(AF_INET, SOCK_DGRAM));
  const watcher = watch(folder);
  const [epoll, inotify] = copies(['anon_inode:[eventpoll]', 'anon_inode:inotify']);
  watcher.close();
  all.set('an epoll descriptor', epoll as number);
  all.set('an inotify descriptor', inotify as number);
  calls.close(pair[1]);
  return {
    all,
    close: () => {
      for (const fd of all.values()) calls.close(fd);
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
