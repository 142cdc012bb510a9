/** Processes and workers that end while RDS has memory lent, and memory that only RDS still refers to. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type ChildResult, runChild } from '../support/children.ts';
import { scaled } from '../support/counts.ts';

const CHILD = new URL('./children/lifetime.js', import.meta.url);
const CLEAN: ChildResult = { code: 0, signal: null, stdout: '', stderr: '' };

async function ends(mode: string, count = 1, execArgv: readonly string[] = []): Promise<void> {
  // Less than what a forgotten drain or linger timer would take.
  const deadlineMs = count > 1 ? 60_000 : 25_000;
  assert.deepEqual(await runChild(CHILD, [mode, `${count}`], { deadlineMs, execArgv }), CLEAN);
}

describe('a process', { timeout: scaled(120_000, 600_000) }, () => {
  it('that only imports RDS ends', () => ends('imported'));
  it('ends by itself when its nodes are closed', () => ends('closed'));
  it('ends at process.exit() with sends in flight', () => ends('process-exit'));
  it('ends by itself when the kernel lets go of the last send', () => ends('natural-exit'));

  it('ends of an exception with sends in flight', async () => {
    const { code, signal, stderr } = await runChild(CHILD, ['uncaught']);
    assert.deepEqual([code, signal], [1, null]);
    assert.match(stderr, /Error: thrown on purpose\n\s+at /);
  });
});

describe('a worker with sends in flight', { timeout: scaled(120_000, 600_000) }, () => {
  it('can be terminated, twenty times at one address, and gives its budget back', () =>
    ends('terminated', scaled(20, 50)));
  it('can call process.exit()', () => ends('exit', 3));
});

describe('the garbage collector', { timeout: 60_000 }, () => {
  it('leaves lent memory alone when nothing else refers to it', () => ends('collected', 1, ['--expose-gc']));
  it('leaves received data alone without its message', () => ends('kept', 1, ['--expose-gc']));
});
