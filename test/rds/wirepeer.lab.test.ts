/**
 * True zero-copy, without a network card: RDS sends to a peer in another network namespace that acknowledges and keeps
 * nothing (bench/wirepeer). On loopback the kernel always copies, so only here can it be shown that it does not.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { wirePeerOrReason } from '../../bench/wirepeer/index.ts';
import { CONGESTION_MESSAGE_BYTES, rdsGreeting } from '../../bench/wirepeer/rds-greeting.ts';

const run = promisify(execFile);
const sender = fileURLToPath(new URL('./children/wire-sender.js', import.meta.url));

test('lent messages leave without a copy, by us or by the kernel', { timeout: 60_000 }, async (t) => {
  const peer = await wirePeerOrReason({ greeting: rdsGreeting(), expectBytes: CONGESTION_MESSAGE_BYTES });
  if (typeof peer === 'string') {
    t.skip(peer);
    return;
  }
  try {
    const [command = '', ...prefix] = peer.senderPrefix;
    const args = [
      ...prefix,
      process.execPath,
      sender,
      peer.senderAddress,
      peer.peerAddress,
      '100',
      String(1 << 20),
    ];
    const { stdout } = await run(command, args, { timeout: 40_000 });
    const { outcomes, zerocopy, lentBytes } = JSON.parse(stdout);
    assert.equal(outcomes.bytes, 100 << 20);
    assert.equal(zerocopy.kernelCopiedCalls, 0, 'COPIED');
    assert.equal(
      outcomes.copiedBytes,
      zerocopy.fallbackBytes,
      'only what fell below the threshold was copied',
    );
    assert(
      zerocopy.lentBytes >= 0.99 * outcomes.bytes,
      `lent ${zerocopy.lentBytes} of ${outcomes.bytes} bytes`,
    );
    assert.equal(zerocopy.pinnedBytes, 0);
    assert.equal(lentBytes, 0);
    const { payloadBytes } = await peer.stats();
    assert(payloadBytes >= outcomes.bytes, 'the bytes were on the wire');
  } finally {
    await peer.stop();
  }
});
