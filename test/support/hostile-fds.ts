/** Descriptors of everything that is no eventfd and no file in memory, for those who send them where these belong. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, openSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as calls from '../../src/sys/calls.ts';
import { AF_INET, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_STREAM } from '../../src/sys/constants.ts';
import { adopt } from '../../src/sys/fds.ts';
import { receiveWithFds, socketPair } from './descriptors.ts';

export interface Oddities {
  /** What it is, and a descriptor of it. */
  readonly all: ReadonlyMap<string, number>;
  close(): void;
}

/** A descriptor of this process whose /proc link is `link`. */
function linked(link: string): number {
  const found = readdirSync('/proc/self/fd').find((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`) === link;
    } catch {
      return false;
    }
  });
  assert.ok(found !== undefined, link);
  return Number(found);
}

/** A copy of a descriptor that belongs to libuv: by way of another process, as only ours can be sent. */
function copyOf(link: string): number {
  const [here, there] = socketPair();
  const child = fileURLToPath(new URL('../vhost/children/odd-fd.js', import.meta.url));
  const { status, stderr } = spawnSync(process.execPath, [child], {
    stdio: ['ignore', 'ignore', 'pipe', there, linked(link)],
    encoding: 'utf8',
  });
  assert.equal(status, 0, stderr);
  const [fd] = receiveWithFds(here, new Uint8Array(1))?.fds ?? [];
  for (const end of [here, there]) calls.close(end);
  assert.ok(fd !== undefined);
  return fd;
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
  const packets = socketPair(SOCK_SEQPACKET);
  all.set('a socket of packets', packets[0]);
  all.set('a TCP socket', calls.socket(AF_INET, SOCK_STREAM));
  all.set('a UDP socket', calls.socket(AF_INET, SOCK_DGRAM));
  all.set('an epoll descriptor', copyOf('anon_inode:[eventpoll]'));
  for (const [, other] of [pair, packets]) calls.close(other);
  return {
    all,
    close: () => {
      for (const fd of all.values()) calls.close(fd);
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
