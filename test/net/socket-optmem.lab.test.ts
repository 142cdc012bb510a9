/**
 * Sockets of the public door under a small net.core.optmem_max, which bounds the notifications of a socket, in a network
 * namespace of its own (the setting is one per namespace since Linux 6.8).
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { ZerocopyStats } from '../../src/net/index.ts';
import { optmemSkipReason, underOptmem } from '../support/under-optmem.ts';

const KIB = 1024;
const MIB = 1 << 20;
const program = fileURLToPath(new URL('./children/socket-limits.js', import.meta.url));

function send(
  optmemBytes: number,
  mib: number,
  pieceBytes: number,
): { copiedBytes: number; zerocopy: ZerocopyStats } {
  const args = ['send', String(mib), String(pieceBytes)];
  const { status, signal, stdout, stderr } = underOptmem(optmemBytes, process.execPath, program, ...args);
  assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
  return JSON.parse(stdout);
}

describe('sockets with room for few notifications', { skip: optmemSkipReason(), timeout: 120_000 }, () => {
  it('or none copy everything: nothing waits for a completion that cannot come', () => {
    const { copiedBytes, zerocopy } = send(512, 4, MIB);
    assert.equal(copiedBytes, 4 * MIB);
    assert.equal(zerocopy.lentCalls, 0);
    assert.ok(zerocopy.refusedEnobufs > 0);
    assert.equal(zerocopy.copied.optmem, 4 * MIB, 'root has no other limit');
  });

  for (const pieceBytes of [512 * KIB, 40 * KIB]) {
    it(`lend some and copy some of pieces of ${pieceBytes} bytes, in order, and never show an error`, () => {
      const { zerocopy } = send(2560, 32, pieceBytes);
      assert.equal(zerocopy.lentBytes + zerocopy.fallbackBytes, 32 * MIB);
      assert.deepEqual([zerocopy.pinnedBytes, zerocopy.unexpectedCompletions], [0, 0]);
      assert.ok(zerocopy.lentCalls > 0);
      assert.ok(zerocopy.copied.optmem > 0);
      assert.ok(zerocopy.refusedEnobufs > 0);
    });
  }
});
