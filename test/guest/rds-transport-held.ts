/**
 * Memory that is lent when messages are withdrawn and sockets closed: it must stay lent for as long as the kernel, or TCP below
 * it, may send from it. TCP is made to hold on to it by pulling the cable.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { RdsNode } from '../../src/rds/node.ts';
import type { Flow } from './messages.ts';
import { ABSENT } from './rds-transport-checks.ts';
import { receiveAll } from './rds-transport-flows.ts';
import { GUEST, GuestError, OURS, type TransportGuest } from './rds-transport-guest.ts';

const MIB = 1024 * 1024;
/** TCP takes it whole, and keeps it until the cable is back. */
const small: Flow = { bytes: 8192, count: 4 };
/** More than TCP takes: one of them is half sent. */
const large: Flow = { bytes: MIB, count: 6 };

export function held(guest: TransportGuest, node: (address: string) => RdsNode): void {
  const nothing = { lentBytes: 0, settlingBytes: 0, quarantinedBytes: 0 };

  async function nothingLent(): Promise<void> {
    const { lentBytes, settlingBytes, quarantinedBytes, budget } = await guest.call('stats');
    assert.deepEqual({ lentBytes, settlingBytes, quarantinedBytes }, nothing);
    assert.equal(budget.usedPages, 0);
  }

  /** A socket of ours, and one of the guest's that has exchanged a message with it, so that there is a connection. */
  async function connected(address: string): Promise<{ ours: ReturnType<RdsNode['bind']>; theirs: number }> {
    const ours = node(address).bind(0);
    const theirs = await guest.call('bind', 0, { zerocopy: true });
    const one: Flow = { bytes: 100, count: 1 };
    await guest.call('send', theirs, one, { address, port: ours.port });
    await receiveAll(ours, one);
    return { ours, theirs };
  }

  describe('lent memory', () => {
    it('to a host that is away comes back when it is withdrawn', { timeout: 30_000 }, async () => {
      const theirs = await guest.call('bind', 0, { zerocopy: true });
      const to = { address: ABSENT, port: 4000 };
      assert.equal(await guest.call('lend', theirs, small, to), 4 * 8192);
      await guest.call('cancel', theirs, { ...to, port: 4001 });
      assert.equal(await guest.call('lentBytes', theirs), 4 * 8192);
      await guest.call('cancel', theirs, ABSENT);
      assert.deepEqual(await guest.call('outcomes', theirs), Array(4).fill('ECANCELED'));
      await nothingLent();
      await guest.call('close', theirs, {});
    });

    it('to a host that is away comes back when the socket is closed', { timeout: 30_000 }, async () => {
      const theirs = await guest.call('bind', 0, { zerocopy: true });
      await guest.call('lend', theirs, large, { address: ABSENT, port: 4000 });
      await guest.call('close', theirs, {});
      assert.deepEqual(await guest.call('outcomes', theirs), Array(large.count).fill('ECANCELED'));
      await nothingLent();
    });

    for (const [role, address] of Object.entries(OURS)) {
      it(`that TCP has is lent until TCP has sent it, with us as the ${role} address`, {
        timeout: 60_000,
      }, async () => {
        const { ours, theirs } = await connected(address);
        guest.link('down');
        try {
          await guest.call('lend', theirs, small, { address, port: ours.port });
          // All four are with TCP: the kernel's own queue is empty.
          await guest.call('check', 'sendQueueEmpty');
          await guest.call('cancel', theirs, address);
          await guest.call('check', 'settling');
          const { lentBytes, settlingBytes } = await guest.call('stats');
          assert.deepEqual({ lentBytes, settlingBytes }, { lentBytes: 4 * 8192, settlingBytes: 4 * 8192 });
        } finally {
          guest.link('up');
        }
        assert.deepEqual(await guest.call('outcomes', theirs), Array(4).fill('ECANCELED'));
        // They were sent all the same, and what was in them then.
        await receiveAll(ours, small);
        await nothingLent();
        await Promise.all([guest.call('close', theirs, {}), ours.close()]);
      });

      it(`of a half-sent message outlives close(), with us as the ${role} address`, {
        timeout: 60_000,
      }, async () => {
        const { ours, theirs } = await connected(address);
        guest.link('down');
        try {
          await guest.call('lend', theirs, large, { address, port: ours.port });
          await guest.call('check', 'tcpIsFull');
          await assert.rejects(
            guest.call('close', theirs, { timeoutMs: 300 }),
            (error) => error instanceof GuestError && error.code === 'ZTX_STILL_LENT',
          );
          assert.ok((await guest.call('stats')).lentBytes > 0);
        } finally {
          guest.link('up');
        }
        const outcomes = await guest.call('outcomes', theirs);
        assert.ok(outcomes.every((code) => code === 'ECANCELED' || code === 'ZTX_STILL_LENT'));
        assert.ok(outcomes.includes('ZTX_STILL_LENT'));
        await guest.call('check', 'nothingLent');
        await nothingLent();
        // The port is free now.
        const again = await guest.call('bind', theirs, {});
        assert.equal(again, theirs);
        await Promise.all([guest.call('close', again, {}), ours.close()]);
      });
    }

    it('close({ drain }) waits until all is acknowledged', { timeout: 60_000 }, async () => {
      const { ours, theirs } = await connected(OURS.smaller);
      const flow: Flow = { bytes: [10_000, 100_000], count: 20 };
      const receiving = receiveAll(ours, flow);
      await guest.call('lend', theirs, flow, { address: OURS.smaller, port: ours.port });
      await guest.call('close', theirs, { drain: true });
      assert.deepEqual(await guest.call('outcomes', theirs), Array(flow.count).fill(null));
      assert.deepEqual(await receiving, { address: GUEST, port: theirs });
      await nothingLent();
      await ours.close();
    });
  });
}
