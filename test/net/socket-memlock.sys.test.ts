/** Sockets of the public door when little memory may be pinned (RLIMIT_MEMLOCK): they copy, and the program notices nothing. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { NetStats, ZerocopyStats } from '../../src/net/index.ts';
import { hasOwnAccount, memlockSkipReason, underMemlock } from '../support/under-memlock.ts';

const KIB = 1024;
const MIB = 1 << 20;
const program = fileURLToPath(new URL('./children/socket-limits.js', import.meta.url));

interface Sent {
  readonly elapsedMs: number;
  readonly copiedBytes: number;
  readonly zerocopy: ZerocopyStats;
  readonly memlockUsedPages: number;
}

interface Neighbours {
  readonly meanwhile: ZerocopyStats;
  readonly afterwards: ZerocopyStats;
  readonly memlockUsedPages: number;
}

const skip = memlockSkipReason();

describe('sockets under a limit on pinned memory', { skip, timeout: 120_000 }, () => {
  it('finish a first write that is larger than the limit within a second: no completion could wake them', async () => {
    const { elapsedMs, copiedBytes, zerocopy, memlockUsedPages } = await underMemlock<Sent>(
      64,
      program,
      'send',
      '1',
      String(MIB),
    );
    assert.ok(elapsedMs < 1000, `${elapsedMs} ms`);
    assert.equal(copiedBytes, MIB);
    assert.ok(zerocopy.copied.memlock > 0);
    assert.equal(zerocopy.lentBytes + zerocopy.fallbackBytes, MIB);
    assert.equal(memlockUsedPages, 0);
  });

  it('lend what fits, copy the rest, and say why', async () => {
    const { zerocopy, memlockUsedPages } = await underMemlock<Sent>(
      256,
      program,
      'send',
      '16',
      String(128 * KIB),
    );
    if (hasOwnAccount) assert.ok(zerocopy.lentBytes > 0);
    // The kernel says the same of either limit; with something outstanding it may be taken for the other.
    assert.ok(zerocopy.copied.memlock + zerocopy.copied.optmem > 0);
    assert.equal(zerocopy.lentBytes + zerocopy.fallbackBytes, 16 * MIB);
    assert.ok(zerocopy.pinnedBytesMax <= 256 * KIB);
    assert.deepEqual([zerocopy.pinnedBytes, zerocopy.unexpectedCompletions, memlockUsedPages], [0, 0, 0]);
  });

  it('that find the budget used up by another one go on by copying, and lend again when it is given back', async () => {
    type Shared = Neighbours & { readonly held: NetStats };
    const { held, meanwhile, afterwards, memlockUsedPages } = await underMemlock<Shared>(
      512,
      program,
      'shared',
    );
    assert.equal(held.memlockLimitPages, 128 - 24, 'what else the kernel charges has some room, too');
    // Newer versions of Node have pages of the same account (io_uring), each process of the user 21.
    assert.ok(held.memlockUsedPages > (hasOwnAccount ? 60 : 0), `${held.memlockUsedPages} pages`);
    assert.equal(meanwhile.lentBytes, 0);
    assert.equal(meanwhile.fallbackBytes, 4 * MIB);
    assert.ok(meanwhile.copied.memlock > 3 * MIB);
    assert.ok(meanwhile.refusedEnobufs <= 8, 'the kernel is seldom asked in vain');
    assert.ok(afterwards.lentBytes > 0);
    assert.equal(memlockUsedPages, 0);
  });

  it('that the kernel refuses because of another process of the user copy, try again ever more rarely, and lend again', {
    skip: !hasOwnAccount && 'the account is shared with who knows whom',
  }, async () => {
    const { meanwhile, afterwards, memlockUsedPages } = await underMemlock<Neighbours>(
      512,
      program,
      'neighbour',
    );
    assert.equal(meanwhile.lentBytes, 0);
    assert.equal(meanwhile.fallbackBytes, 4 * MIB);
    assert.ok(meanwhile.copied.memlock > 3 * MIB);
    assert.ok(
      meanwhile.refusedEnobufs > 0 && meanwhile.refusedEnobufs <= 8,
      `${meanwhile.refusedEnobufs} refusals`,
    );
    assert.ok(afterwards.lentBytes > 64 * MIB, `${afterwards.lentBytes} bytes lent afterwards`);
    assert.equal(memlockUsedPages, 0);
  });
});
