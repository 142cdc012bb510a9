/** A stream port to a host that is not this one, as far as the kernel can tell: frames go out from the guest's pages. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { wirePeerOrReason } from '../../bench/wirepeer/index.ts';

const FIRST_BYTES = 8240;
const PORT = 16_395;
const program = fileURLToPath(new URL('./children/stream-sender.js', import.meta.url));
const skip = process.getuid?.() === 0 ? false : 'needs root, for network namespaces';

it('large frames are lent to a remote host, and none is copied after all', {
  skip,
  timeout: 60_000,
}, async (t) => {
  const peer = await wirePeerOrReason({ greeting: Buffer.alloc(0), expectBytes: FIRST_BYTES, port: PORT });
  if (typeof peer === 'string') {
    t.skip(peer);
    return;
  }
  t.after(() => peer.stop());
  const [command = '', ...rest] = [...peer.senderPrefix, process.execPath, program];
  const args = [...rest, peer.peerAddress, String(PORT), String(FIRST_BYTES)];
  const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
  t.after(() => child.kill('SIGKILL'));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  assert.equal((await lines.next()).value, 'ready');
  await peer.armed;
  child.stdin.write('go\n');
  const { value } = await lines.next();
  assert.ok(typeof value === 'string', 'the child ended');
  await once(child, 'close');
  const { loans, 62_000: large, ...others } = JSON.parse(value) as Record<string, number>;
  assert.deepEqual(others, {
    200: 0,
    txErrors: 0,
    txDropped: 0,
    txKernelCopiedBytes: 0,
    pinnedBytes: 0,
    unexpectedCompletions: 0,
    copied: 0,
  });
  // All of them until the first trial, and half of what that takes; what it finds on a busy machine is open.
  assert.ok((large as number) > 0.2, `${large} of the large frames' bytes were lent`);
  assert.ok((loans as number) > 0);
});
