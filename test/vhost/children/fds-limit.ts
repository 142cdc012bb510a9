/** Run under a small RLIMIT_NOFILE: servers that cannot open what they need, and try again. Silent when all is well. */
import assert from 'node:assert/strict';
import { closeSync, mkdtempSync, openSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { native } from '../../../src/sys/binding.ts';
import * as calls from '../../../src/sys/calls.ts';
import { AF_UNIX, SOCK_STREAM } from '../../../src/sys/constants.ts';
import { VhostServer } from '../../../src/vhost/server.ts';
import { encodeSockaddrUn } from '../../../src/wire/sockaddr.ts';
import { FakeCalls, RecordingHost } from '../../support/vhost-host.ts';

const folder = mkdtempSync(join(tmpdir(), 'zerotx-limit-'));
const path = join(folder, 'socket');
const timers: (() => void)[] = [];

function server(role: 'listen' | 'connect', at: string): VhostServer {
  return new VhostServer({
    offer: { frontend: 'qemu', pairs: 1, offloads: 0 },
    path: at,
    role,
    connected: () => new RecordingHost(new FakeCalls()),
    after: (_ms, fn) => {
      timers.push(fn);
      return () => timers.splice(0);
    },
  });
}

const listening = server('listen', path);
const connecting = server('connect', join(folder, 'nobody'));
listening.open();
connecting.open();
assert.match(String(connecting.lastError), /ENOENT/);
const front = calls.socket(AF_UNIX, SOCK_STREAM);
const held: number[] = [];
try {
  for (;;) held.push(openSync('/dev/null', 'r'));
} catch (error) {
  assert.equal((error as NodeJS.ErrnoException).code, 'EMFILE');
}

timers.shift()?.();
assert.match(String(connecting.lastError), /EMFILE/, 'no socket to connect with');
connecting.close();
assert.equal(timers.length, 0);

assert.equal(native().connect(front, encodeSockaddrUn(path)), 0);
while (listening.counters.refusals === 0) await new Promise(setImmediate);
assert.match(String(listening.lastError), /EMFILE/, 'no descriptor to accept with');
for (const fd of held) closeSync(fd);
assert.equal(listening.state, 'listening');
timers.shift()?.();
assert.equal(listening.state, 'connected');
listening.close();
calls.close(front);
rmSync(folder, { recursive: true });
