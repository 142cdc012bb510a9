/** What must hold in a process of its own: a small limit on locked memory, and a collector that runs while bytes are lent. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Outcome } from '../../src/core/ubuf.ts';
import type { ZerocopyCounters } from '../../src/net/counters.ts';
import { runChild } from '../support/children.ts';
import { hasOwnAccount, memlockSkipReason, underMemlock } from '../support/under-memlock.ts';

const MIB = 1 << 20;
const PIECE = 32 * 1024;

interface Report extends ZerocopyCounters {
  outcome: Outcome;
}

const limits = fileURLToPath(new URL('./children/limits.js', import.meta.url));
const run = (kib: number, ...args: string[]): Promise<Report> => underMemlock<Report>(kib, limits, ...args);

describe('a limit on locked memory', { skip: memlockSkipReason(), timeout: 120_000 }, () => {
  it('of 64 KiB lets a first write of 1 MiB finish as a copy: no completion will ever come to wait for', async () => {
    const report = await run(64, '1');
    assert.equal(report.lentCalls, 0);
    assert.ok(report.refusedEnobufs > 0);
    assert.equal(report.fallbackBytes, MIB);
    assert.deepEqual(report.outcome, { bytes: MIB, copiedBytes: MIB, exact: true });
  });

  it('of 192 KiB lets pieces through that fit, and copies when they are too many', async () => {
    const report = await run(192, '8', String(PIECE));
    // 32 KiB are 10 pages of the 48, of which newer versions of Node have 21 themselves (io_uring).
    if (hasOwnAccount) assert.ok(report.lentCalls > 0);
    assert.equal(report.lentBytes + report.fallbackBytes, 8 * MIB);
    assert.ok(report.pinnedBytesMax <= 4 * PIECE, `${report.pinnedBytesMax} bytes pinned`);
    assert.equal(report.pinnedBytes, 0);
    assert.equal(report.unexpectedCompletions, 0);
  });

  it('of nothing at all only means copying', async () => {
    const report = await run(0, '4');
    assert.equal(report.lentCalls, 0);
    assert.equal(report.fallbackBytes, 4 * MIB);
  });
});

describe('lent memory that nobody else refers to', { timeout: 240_000 }, () => {
  const child = new URL('./children/collected.js', import.meta.url);
  for (const memory of ['slab', 'buffer', 'shared']) {
    for (const ending of ['open', 'closed']) {
      it(`survives the collector and the allocator (${memory}, ${ending} connection)`, async (t) => {
        const result = await runChild(child, [memory, ending], { execArgv: ['--expose-gc'] });
        assert.deepEqual({ ...result, stdout: '' }, { code: 0, signal: null, stdout: '', stderr: '' });
        assert.match(result.stdout, /^intact/);
        if (result.stdout !== 'intact') t.diagnostic('this runtime cannot hold such a buffer: it was copied');
      });
    }
  }
});
