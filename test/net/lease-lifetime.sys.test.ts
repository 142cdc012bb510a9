import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { describe, it } from 'node:test';
import { type ChildResult, runChild } from '../support/children.ts';

const CHILD = new URL('./children/lease-lifetime.js', import.meta.url);
const CLEAN: Partial<ChildResult> = { code: 0, signal: null, stdout: '', stderr: '' };

async function ends(mode: string, count = 1): Promise<void> {
  const options = { execArgv: ['--expose-gc'], deadlineMs: 60_000 };
  assert.deepEqual(await runChild(CHILD, [mode, `${count}`], options), CLEAN);
}

const movesPosted = 'transfer' in ArrayBuffer.prototype;
const hasPrlimit = spawnSync('prlimit', ['--version']).error === undefined;

describe('what a peer reads late is what was lent, though everything else is gone:', {
  timeout: 240_000,
}, () => {
  it('leases lost in flight', () => ends('dropped-moved'));
  it('views of leases lost in flight', () => ends('dropped-shared'));
  it('leases released in flight', () => ends('released-moved'));
  it('views of leases released in flight', () => ends('released-shared'));
  it('leases and all that knew of their sends', () => ends('abandoned'));
  it('views of released leases and all that knew of their sends', () => ends('abandoned-released'));
});

describe('a process with leases in flight', { timeout: 120_000 }, () => {
  it('ends by itself', () => ends('natural-exit'));
  it('ends at process.exit()', () => ends('process-exit'));
  it('ends when the program marked their memory as untransferable', () => ends('marked'));
});

describe('a worker with leases in flight', { timeout: 120_000 }, () => {
  it('can be terminated, twenty times, and leaves no memory', () => ends('terminated', 20));
});

describe('memory of a pool', { timeout: 120_000 }, () => {
  it(
    'that the program posted to a worker stays when the pool is gone',
    {
      skip: !movesPosted && 'it cannot be posted',
    },
    () => ends('posted'),
  );
  it('is unmapped by trim()', () => ends('trimmed'));
  it('that the system does not have is not waited for', { skip: !hasPrlimit && 'no prlimit' }, () =>
    ends('no-memory'),
  );
});
