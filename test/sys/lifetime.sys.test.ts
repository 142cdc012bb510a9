import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type ChildResult, runChild } from '../support/children.ts';

const CHILD = new URL('./children/lifetime.js', import.meta.url);
const CLEAN: Partial<ChildResult> = { code: 0, signal: null, stdout: '', stderr: '' };

async function ends(mode: string, count = 1): Promise<void> {
  assert.deepEqual(await runChild(CHILD, [mode, `${count}`], { deadlineMs: 60_000 }), CLEAN);
}

describe('a process with sends in flight', { timeout: 120_000 }, () => {
  it('ends by itself when only unrefed work is left', () => ends('natural-exit'));
  it('ends at process.exit()', () => ends('process-exit'));
  it('ends at process.exit() inside a handler', () => ends('exit-in-handler'));
  it('ends at process.exit() while workers have some, too', () => ends('exit-with-workers'));
  it('ends when the last registration is unrefed', () => ends('unref-ends'));
});

describe('a worker with sends in flight', { timeout: 240_000 }, () => {
  it('can be terminated, fifty times, and gives its budget back', () => ends('terminated', 50));
  it('can be terminated in the middle of events', () => ends('terminated-busy', 20));
  it('can call process.exit()', () => ends('exit', 5));
  it('can run to its end', () => ends('return', 5));
  it('can die of an exception', () => ends('throw', 5));
  it('leaves its peer with what was sent, and a reset', () => ends('peer-of-terminated'));
});

describe('an exception in a handler', { timeout: 60_000 }, () => {
  it('is an uncaughtException, and other handlers go on', () => ends('uncaught-handler'));
  it('is one below the reactor, too, and microtasks run', () => ends('uncaught-callback'));

  it('ends the process with its message when nobody catches it', async () => {
    const result = await runChild(CHILD, ['fatal-handler']);
    assert.equal(result.code, 1);
    assert.equal(result.signal, null);
    assert.match(result.stderr, /Error: fatal in a handler\n\s+at /);
  });
});
