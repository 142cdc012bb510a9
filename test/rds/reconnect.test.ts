/** How soon messages flow again when a peer is back. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { scaled } from '../support/counts.ts';
import { reconnectTimes } from '../support/reconnect.ts';

test('the first message is there within 1.2 times the ceiling of the back-off', (t) => {
  const { firstMessageMs, ceilingMs } = reconnectTimes(scaled(100, 2000));
  const slowest = Math.max(...firstMessageMs);
  const mean = firstMessageMs.reduce((sum, ms) => sum + ms, 0) / firstMessageMs.length;
  t.diagnostic(`first message after ${mean.toFixed(0)} ms on average, ${slowest.toFixed(0)} ms at most`);
  assert.ok(slowest <= 1.2 * ceilingMs, `${slowest} ms`);
  // It is drawn anew each time, not always the same.
  assert.ok(slowest > mean);
});
