import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { runChild } from '../support/children.ts';

const child = new URL('./children/udp-lifetime.js', import.meta.url);

describe('a process with UDP sockets', { timeout: 120_000 }, () => {
  for (const [mode, what] of [
    ['natural-exit', 'ends with sends in flight'],
    ['process-exit', 'is ended with sends in flight'],
    ['exit-in-listener', 'is ended by a listener'],
    ['unref-ends', 'is not kept alive by an unref()ed socket'],
    ['close-ends', 'is not kept alive by a closed socket'],
    ['terminated', 'terminates workers with sends in flight'],
    ['throwing', 'delivers all messages though each listener throws'],
  ] as const) {
    it(what, async () => {
      const result = await runChild(child, [mode]);
      assert.deepEqual(result, { code: 0, signal: null, stdout: '', stderr: '' });
    });
  }
});
