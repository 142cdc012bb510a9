/** Sockets and their memory when programs forget them, and when processes and workers end, in the middle of a transfer. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { acceptOne, listen } from '../support/channels.ts';
import { runChild } from '../support/children.ts';
import { scaled } from '../support/counts.ts';
import { closeDoor, HOST, MIB, RawPeer } from '../support/door.ts';

const CHILD = new URL('./children/socket-lifetime.js', import.meta.url);
const CLEAN = { code: 0, signal: null, stdout: '', stderr: '' };

async function ends(...args: string[]): Promise<void> {
  assert.deepEqual(await runChild(CHILD, args, { execArgv: ['--expose-gc'], deadlineMs: 60_000 }), CLEAN);
}

describe('a peer that reads late gets what was written, though the program has forgotten', {
  timeout: 120_000,
}, () => {
  const senders: readonly [sender: string, what: string][] = [
    ['buffer', 'the Buffers and the socket'],
    ['buffer-with-callback', 'Buffers that were written with a callback'],
    ['send', 'the promises of send()'],
    ['shared', 'shared memory'],
    ['lease', 'leases and their pools'],
    ['released-lease', 'leases that it released at once'],
  ];
  for (const [sender, what] of senders) it(what, () => ends('collected', sender, 'open'));
  it('a socket that it has ended', () => ends('collected', 'buffer', 'ended'));
});

describe('a process with much under way', { timeout: 120_000 }, () => {
  it('ends by itself when its sockets are reset', () => ends('natural-exit'));
  it('ends at process.exit()', () => ends('process-exit'));
  it('ends at process.exit() in the callback of a write', () => ends('exit-in-callback'));
  it('ends at process.exit() while a worker has much under way, too', () => ends('exit-with-worker'));

  it('that exits leaves its peer with a part of what it wrote, and nothing else', async () => {
    const { fd, port } = listen(HOST, { receiveBytes: 64 * 1024 });
    const child = runChild(CHILD, ['exits', String(port)]);
    const peer = new RawPeer(await acceptOne(fd));
    assert.deepEqual(await child, CLEAN);
    await peer.read();
    assert.ok(peer.total <= 16 * MIB);
    assert.ok(peer.end !== undefined && peer.end <= 0);
    peer.close();
    closeDoor();
  });
});

describe('a worker with a server, a client and much under way', { timeout: 240_000 }, () => {
  const count = scaled(20, 50);
  it(`can be terminated, ${count} times`, () => ends('terminated', String(count)));
});
