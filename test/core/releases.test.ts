import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { ReleaseQueue } from '../../src/core/releases.ts';

/** A scheduler that keeps what it is asked to run. */
function manual(): { queue: ReleaseQueue; scheduled: (() => void)[] } {
  const scheduled: (() => void)[] = [];
  return { queue: new ReleaseQueue((flush) => scheduled.push(flush)), scheduled };
}

describe('ReleaseQueue', () => {
  it('asks for one flush for a whole batch, and releases it in order', () => {
    const { queue, scheduled } = manual();
    const released: number[] = [];
    for (let i = 0; i < 100; i++) queue.push({ release: () => released.push(i) });
    assert.equal(scheduled.length, 1);
    assert.deepEqual(released, []);
    scheduled[0]?.();
    assert.deepEqual(
      released,
      Array.from({ length: 100 }, (_, i) => i),
    );
    assert.equal(scheduled.length, 1);
  });

  it('leaves what a release queues in turn to the next flush, so that no batch is endless', () => {
    const { queue, scheduled } = manual();
    let rounds = 0;
    const again = {
      release: (): void => {
        rounds += 1;
        queue.push(again);
      },
    };
    queue.push(again);
    for (let turn = 0; turn < 5; turn++) {
      assert.equal(scheduled.length, turn + 1);
      scheduled[turn]?.();
      assert.equal(rounds, turn + 1);
    }
  });

  it('lets the error of one owner out, and the others still hear of their release', () => {
    const { queue, scheduled } = manual();
    const released: string[] = [];
    const good = (name: string) => ({ release: () => void released.push(name) });
    const bad = (name: string) => ({
      release: (): void => {
        released.push(name);
        throw new Error(name);
      },
    });
    for (const item of [good('a'), bad('b'), good('c'), bad('d'), good('e')]) queue.push(item);
    assert.throws(() => scheduled[0]?.(), /^Error: b$/);
    assert.deepEqual(released, ['a', 'b']);
    assert.throws(() => scheduled[1]?.(), /^Error: d$/);
    scheduled[2]?.();
    assert.deepEqual(released, ['a', 'b', 'c', 'd', 'e'], 'each once, none lost');
    assert.equal(scheduled.length, 3, 'nothing is scheduled for an empty queue');
  });

  it('schedules once when an owner queues something and then throws', () => {
    const { queue, scheduled } = manual();
    const released: string[] = [];
    queue.push({
      release: () => {
        queue.push({ release: () => void released.push('queued meanwhile') });
        throw new Error('owner');
      },
    });
    queue.push({ release: () => void released.push('next') });
    assert.throws(() => scheduled[0]?.(), /owner/);
    assert.equal(scheduled.length, 2);
    scheduled[1]?.();
    assert.deepEqual(released, ['next', 'queued meanwhile']);
  });

  it('can be flushed early; the scheduled flush then finds nothing', () => {
    const { queue, scheduled } = manual();
    let released = 0;
    queue.push({ release: () => void released++ });
    queue.flush();
    assert.equal(released, 1);
    scheduled[0]?.();
    assert.equal(released, 1);
    queue.push({ release: () => void released++ });
    assert.equal(scheduled.length, 2);
  });
});
