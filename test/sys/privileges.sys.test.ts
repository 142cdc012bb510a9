/** What an ordinary user's process gives up: nothing but what a set-user-id program would give it. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { threadPrivileges } from '../../src/sys/privileges.ts';
import { runChild } from '../support/children.ts';

const child = new URL('./children/privileges.js', import.meta.url);
const skip = process.getuid?.() === 0 ? 'needs an ordinary user' : false;

describe('dropping privileges', { timeout: 60_000 }, () => {
  it('sets no_new_privs for an ordinary user, and for what it starts', { skip }, async () => {
    const { code, stdout, stderr } = await runChild(child, ['{}', 'spawned']);
    assert.deepEqual([code, stderr], [0, '']);
    assert.match(stdout, /^NoNewPrivs:\t1$/m);
  });

  it('cannot make anybody of an ordinary user', { skip }, async () => {
    for (const identity of ['{"uid":1,"gid":1}', '{"uid":65533,"gid":65533}']) {
      const { code, stderr } = await runChild(child, [identity]);
      assert.equal(code, 1);
      assert.match(stderr, /EPERM/);
    }
  });

  it('needs both a user and a group, and never root', async () => {
    for (const identity of [
      '{"uid":65534}',
      '{"gid":65534}',
      '{"uid":0,"gid":0}',
      '{"uid":"root","gid":65534}',
    ]) {
      const { code, stderr } = await runChild(child, [identity]);
      assert.equal(code, 1);
      assert.match(stderr, /EINVAL/);
    }
  });

  it('is for the main thread', async () => {
    const worker = new Worker(fileURLToPath(child), { argv: ['{}'] });
    await assert.rejects(new Promise((resolve, reject) => worker.on('error', reject).on('exit', resolve)), {
      code: 'EPERM',
      message: /main thread/,
    });
  });
});

describe('what is known of threads', () => {
  it('is all that the kernel says of each', () => {
    const threads = threadPrivileges();
    const main = threads.find(({ thread }) => thread === process.pid);
    assert.ok(main !== undefined && threads.length > 1);
    assert.deepEqual(main.uids, Array(4).fill(process.getuid?.()));
    assert.deepEqual(main.gids, Array(4).fill(process.getgid?.()));
    assert.equal(main.capabilities !== 0n, process.getuid?.() === 0);
  });
});
