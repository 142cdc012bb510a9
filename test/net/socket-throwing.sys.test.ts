/** A program whose listeners throw, and that goes on after it, as servers with an 'uncaughtException' listener do. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { runChild } from '../support/children.ts';

const CHILD = new URL('./children/socket-throwing.js', import.meta.url);

describe('a listener that throws', { timeout: 120_000 }, () => {
  const modes: readonly [mode: string, what: string][] = [
    ['data', "of 'data' still gets the rest, and 'end'"],
    ['connection', "of 'connection' still gets the connections that came with the first"],
    ['drain', "of 'drain' does not stop what came in the same event from being read"],
    ['callbacks', 'as the callback of a write does not keep the others from being called'],
    ['connected', "of 'connect' does not stop the socket"],
  ];
  for (const [mode, what] of modes) {
    it(what, async () => {
      const result = await runChild(CHILD, [mode], { deadlineMs: 10_000 });
      assert.deepEqual(result, { code: 0, signal: null, stdout: '', stderr: '' });
    });
  }
});
