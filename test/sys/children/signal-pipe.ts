/** Signals its own standard output, a pipe without a name, as shells and monitors make them. Says `done` when all is well. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { closeSync, constants, fstatSync, openSync, readFileSync, readSync, writeSync } from 'node:fs';
import { errnoOf } from '../../../src/core/errors.ts';
import { native } from '../../../src/sys/binding.ts';
import { adopt } from '../../../src/sys/fds.ts';

assert.ok(fstatSync(1).isFIFO());
process.on('SIGPIPE', () => assert.fail('SIGPIPE'));
const signal = (): number => native().eventfdSignal(1);

// Another end to read from: whoever has the first one does not matter any more.
const reader = openSync('/proc/self/fd/1', constants.O_RDONLY | constants.O_NONBLOCK);
adopt(1);
const into = Buffer.alloc(64);
assert.equal(signal(), 0);
assert.equal(readSync(reader, into), 8);
assert.equal(into.readBigUInt64LE(), 1n);

assert.throws(
  () => {
    for (;;) writeSync(1, Buffer.alloc(4096));
  },
  { code: 'EAGAIN' },
);
// As the other holder could at any time: libuv does it for a child's standard input.
assert.equal(spawnSync('true', { stdio: [1, 'ignore', 'ignore'] }).status, 0);
assert.match(readFileSync('/proc/self/fdinfo/1', 'utf8'), /flags:\t0*2000001\n/, 'O_WRONLY, O_CLOEXEC');
for (let i = 0; i < 1000; i++) assert.equal(signal(), 0);

closeSync(reader);
const EPIPE = -errnoOf('EPIPE');
// Until the first end is gone, too.
while (signal() !== EPIPE);
for (let i = 0; i < 3; i++) assert.equal(signal(), EPIPE);
// A signal would be handled in the next turn.
setImmediate(() => {
  assert.equal(native().close(1), 0);
  writeSync(2, 'done\n');
  process.exit();
});
