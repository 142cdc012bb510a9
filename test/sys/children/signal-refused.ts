/** Run where io_setup(2) gives the error named. Silent when all is well. */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { errnoOf } from '../../../src/core/errors.ts';
import { native } from '../../../src/sys/binding.ts';
import * as fds from '../../../src/sys/fds.ts';
import { socketPair } from '../../support/descriptors.ts';

const code = process.argv[2] as string;
const fd = fds.eventfd();
const openFds = (): number => readdirSync('/proc/self/fd').length;
const baseline = openFds();
for (let i = 0; i < 3; i++) assert.equal(native().eventfdSignal(fd), -errnoOf(code));
assert.equal(native().signalsReady(), -errnoOf(code));
assert.throws(() => fds.requireSignals(), {
  code,
  syscall: 'io_setup',
  message: code === 'EAGAIN' ? /fs\.aio-max-nr/ : /CONFIG_AIO.*seccomp/,
});
assert.equal(openFds(), baseline);

const [one, other] = socketPair();
assert.equal(native().eventfdSignal(one), 0, 'sockets need no such thing');
assert.equal(native().readv(other, [Buffer.alloc(8)], 1), 8);
