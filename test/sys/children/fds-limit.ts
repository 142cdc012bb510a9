/** Run under a small RLIMIT_NOFILE: messages with more descriptors than the process may still open. Silent when all is well. */
import assert from 'node:assert/strict';
import { closeSync, openSync, readdirSync } from 'node:fs';
import { native } from '../../../src/sys/binding.ts';
import * as fds from '../../../src/sys/fds.ts';
import { receiveWithFds, sendWithFds, socketPair } from '../../support/descriptors.ts';

const openFds = (): number => readdirSync('/proc/self/fd').length;
const [left, right] = socketPair();
const event = fds.eventfd();
native().eventfdSignal(event);
const baseline = openFds();

// Two free numbers; reading the folder /proc/self/fd takes one.
const held: number[] = [];
try {
  for (;;) held.push(openSync('/dev/null', 'r'));
} catch (error) {
  assert.equal((error as NodeJS.ErrnoException).code, 'EMFILE');
}
for (const fd of held.splice(-2)) closeSync(fd);

for (const [sent, taken] of [
  [2, 2],
  [3, -1],
  [100, -1],
  [1, 1],
  [2, 2],
] as const) {
  assert.equal(sendWithFds(left, Buffer.from('x'), Array(sent).fill(event)), 1);
  const got = receiveWithFds(right, Buffer.alloc(8));
  assert.equal(got?.bytes, 1);
  assert.equal(got.fdsLost ? -1 : got.fds.length, taken, `${sent} sent`);
  for (const fd of got.fds) fds.closeReceived(fd);
  assert.equal(openFds(), baseline + held.length);
}
for (const fd of held) closeSync(fd);

assert.equal(native().eventfdSignal(event), 0, 'signals need no descriptor');
assert.equal(openFds(), baseline);
