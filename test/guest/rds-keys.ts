/** Runs test/rds/keys.sys.test.ts inside the guest, from this machine's tree, which it sees through 9p. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { loopbackUp } from './namespace.ts';
import { Vm } from './vm.ts';

const tests = fileURLToPath(new URL('../rds/keys.sys.test.js', import.meta.url));
const MEMORY_MIB = 768;
const SECONDS = 150;

it('sign and are asked for, of whichever kind it has', { timeout: 300_000 }, async (t) => {
  loopbackUp();
  const vm = await Vm.boot({ nics: [], memoryMiB: MEMORY_MIB, share: '/' });
  try {
    const mount = 'mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose share /host';
    const binds = ['proc', 'dev'].map((folder) => `mount --bind /${folder} /host/${folder}`);
    // The module listens on the port that the nodes of the tests want.
    await vm.run(['set -e', 'rmmod rds_tcp', 'mkdir /host', mount, ...binds].join('; '));
    const command = `chroot /host ${process.execPath} --test-reporter=tap ${tests}`;
    const output = await vm.run(command, SECONDS);
    assert.match(output, /^# fail 0$/m);
    for (const [, skipped] of output.matchAll(/^ *ok \d+ - (.*# SKIP.*)$/gm))
      t.diagnostic(`skipped: ${skipped}`);
    assert.match(output, /ok \d+ - TCP-MD5$/m);
  } finally {
    await vm.stop();
  }
});
