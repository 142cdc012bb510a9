/**
 * Descriptors of a file system that never answers, and such as are under a lock that their owner keeps: whoever receives them goes on.
 * Needs root, for a mount namespace and for faults of the kernel's.
 */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { native } from '../../src/sys/binding.ts';
import * as calls from '../../src/sys/calls.ts';
import { AF_UNIX, EPOLLIN, SOCK_STREAM } from '../../src/sys/constants.ts';
import * as fds from '../../src/sys/fds.ts';
import { encodeSockaddrUn } from '../../src/wire/sockaddr.ts';
import { type ReceivedMessage, receiveWithFds } from '../support/descriptors.ts';
import { until } from '../support/raw-peer.ts';
import { waitFor } from '../support/sockets.ts';

const skip =
  process.getuid?.() !== 0
    ? 'needs root, for a mount namespace'
    : !existsSync('/dev/fuse')
      ? 'needs /dev/fuse'
      : spawnSync('python3', ['-c', 'import ctypes']).status !== 0 && 'needs python3';

it('a file of a silent file system stops nobody who is sent it', { skip, timeout: 60_000 }, (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'zerotx-fuse-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'file');
  writeFileSync(file, '');
  const server = fileURLToPath(new URL('../../../test/sys/children/silent-fuse.py', import.meta.url));
  const child = fileURLToPath(new URL('./children/fds-fuse.js', import.meta.url));
  const args = ['--mount', 'python3', server, file, process.execPath, child, file];
  const { stdout, stderr } = spawnSync('unshare', args, { encoding: 'utf8', timeout: 30_000 });
  assert.deepEqual({ stdout, stderr }, { stdout: 'done\n', stderr: '' });
});

describe('a lock that the peer keeps', { timeout: 60_000 }, () => {
  /** What a peer sends that keeps the lock of an epoll descriptor; until `end` is called. */
  async function held(what: 'eventfd' | 'epoll'): Promise<{ fd: number; end(): Promise<void> }> {
    const folder = mkdtempSync(join(tmpdir(), 'zerotx-held-'));
    const path = join(folder, 'socket');
    const listener = calls.socket(AF_UNIX, SOCK_STREAM);
    assert.equal(native().bind(listener, encodeSockaddrUn(path)), 0);
    calls.listen(listener, 1);
    const script = fileURLToPath(new URL('../../../test/sys/children/held-epoll.py', import.meta.url));
    const child = spawn('python3', [script, path, what], { stdio: ['pipe', 'pipe', 'inherit'] });
    const exit = once(child, 'exit');
    await Promise.race([once(child.stdout, 'data'), exit]);
    assert.equal(child.exitCode, null, 'it could not keep the lock');
    const accepted = native().accept(listener, new Uint8Array(110));
    let got: ReceivedMessage | undefined;
    await waitFor(accepted, EPOLLIN, () => {
      got ??= receiveWithFds(accepted, new Uint8Array(8));
      return got !== undefined;
    });
    for (const fd of [listener, accepted]) calls.close(fd);
    rmSync(folder, { recursive: true });
    const [fd = -1] = got?.fds ?? [];
    return {
      fd,
      end: async () => {
        child.stdin.end();
        await exit;
      },
    };
  }

  it('an epoll descriptor is not watched, as that would be to poll what it watches', { skip }, async () => {
    const { fd, end } = await held('epoll');
    const start = performance.now();
    assert.equal(fds.isSafeToWatch(fd), false);
    fds.closeReceived(fd);
    assert.ok(performance.now() - start < 1000);
    await end();
  });

  it('the last descriptor of an eventfd that he watches is closed by somebody else', { skip }, async () => {
    const { fd, end } = await held('eventfd');
    const start = performance.now();
    fds.closeReceived(fd);
    assert.ok(performance.now() - start < 1000);
    // Meanwhile others are closed as ever, though nobody waits for it.
    for (let i = 0; i < 100; i++) {
      const other = fds.eventfd();
      fds.closeReceived(other);
      await until('it is closed', () => !existsSync(`/proc/self/fd/${other}`));
    }
    await end();
  });
});
