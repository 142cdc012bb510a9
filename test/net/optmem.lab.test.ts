/**
 * A small net.core.optmem_max, which bounds the records of a socket, in a network namespace of its own (the setting is one
 * per namespace since Linux 6.8): calls are refused with ENOBUFS, and nobody may notice but the counters.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Outcome } from '../../src/core/ubuf.ts';
import type { ZerocopyCounters } from '../../src/net/counters.ts';
import { optmemSkipReason, underOptmem } from '../support/under-optmem.ts';

const MIB = 1 << 20;
const child = fileURLToPath(new URL('./children/limits.js', import.meta.url));

function run(optmemBytes: number, mib: number, pieceBytes: number): ZerocopyCounters & { outcome: Outcome } {
  const { status, signal, stdout, stderr } = underOptmem(
    optmemBytes,
    process.execPath,
    child,
    `${mib}`,
    `${pieceBytes}`,
  );
  assert.deepEqual({ status, signal, stderr }, { status: 0, signal: null, stderr: '' });
  return JSON.parse(stdout);
}

describe('option memory', { skip: optmemSkipReason(), timeout: 120_000 }, () => {
  it('for no record at all: everything is copied, in order, and nothing waits', () => {
    const report = run(512, 4, MIB);
    assert.equal(report.lentCalls, 0);
    assert.ok(report.refusedEnobufs > 0);
    assert.equal(report.fallbackBytes, 4 * MIB);
    assert.equal(report.outcome.copiedBytes, 4 * MIB);
  });

  it('for two or three records: some calls are lent, some copied, all are accounted for', () => {
    const report = run(2560, 32, 512 * 1024);
    assert.ok(report.lentCalls > 0);
    assert.equal(report.lentBytes + report.fallbackBytes, 32 * MIB);
    assert.equal(report.pinnedBytes, 0);
    assert.equal(report.unexpectedCompletions, 0);
  });
});
