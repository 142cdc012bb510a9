/** Takes a descriptor of a file whose file system does not answer any more: fds-fuse.js FILE. Says `done` when all is well. */
import assert from 'node:assert/strict';
import { openSync, writeSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { errnoOf } from '../../../src/core/errors.ts';
import { native } from '../../../src/sys/binding.ts';
import * as fds from '../../../src/sys/fds.ts';
import { receiveWithFds, sendWithFds, socketPair } from '../../support/descriptors.ts';

const file = fds.adopt(openSync(process.argv[2] as string, 'r'));
const [left, right] = socketPair();
const many = Array.from({ length: 40 }, () => file);
assert.equal(sendWithFds(left, Buffer.from('x'), many), 1);
const received = receiveWithFds(right, Buffer.alloc(8))?.fds ?? [];
assert.equal(received.length, 40);
for (const fd of received) {
  assert.equal(fds.fileKind(fd), fds.S_IFREG);
  assert.ok(!fds.isSafeToWatch(fd));
  assert.equal(native().eventfdSignal(fd), -errnoOf('EINVAL'));
  fds.closeReceived(fd);
}
for (const fd of [left, right]) native().close(fd);
// Those who wait for the file system are threads of their own: Node's pool has its work.
await stat('/');
writeSync(1, 'done\n');
// They wait until the file system is gone, which goes when it reads this.
