import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { markAsUntransferable } from 'node:worker_threads';
import type { ZerotxError } from '../../src/core/errors.ts';
import { type Lease, leaseOf, lendLease, returnLease } from '../../src/net/lease.ts';
import { borrow } from '../../src/net/lending.ts';
import { Pool } from '../../src/net/pool.ts';
import { canLend, lend } from '../../src/sys/lend.ts';
import { isSlabMemory } from '../../src/sys/slab.ts';

const KIB = 1024;
const [major = 0] = process.versions.node.split('.').map(Number);

/** ArrayBuffer as newer runtimes have it. */
interface ModernArrayBuffer extends ArrayBuffer {
  transfer?(bytes?: number): ArrayBuffer;
  resize?(bytes: number): void;
}

function lease(bytes = 100 * KIB, pool = new Pool({ maxBytes: 1024 * KIB })): Lease {
  return pool.tryAcquire(bytes) as Lease;
}

function coded(code: string): (error: unknown) => boolean {
  return (error) => (error as ZerotxError).code === code;
}

function sendOnce(held: Lease): void {
  held.buffer.fill(1);
  lendLease(held);
  returnLease(held);
}

/** Ends all use of the lease, and says whether its memory can be had again. */
function reused(held: Lease): boolean {
  const bytes = lendLease(held);
  returnLease(held);
  held.release();
  const next = held.pool.tryAcquire(held.capacity) as Lease;
  const again = lendLease(next);
  returnLease(next);
  next.release();
  return again.buffer === bytes.buffer && again.byteOffset === bytes.byteOffset;
}

describe('a lease', () => {
  it('has a buffer of the size asked for, the same until it is lent', () => {
    const held = lease(1000);
    assert.equal(held.buffer.length, 1000);
    assert.ok(Buffer.isBuffer(held.buffer));
    assert.equal(held.buffer, held.buffer);
    assert.equal(held.buffer.byteOffset, 0);
    assert.deepEqual([held.capacity, held.length, held.state], [1000, 1000, 'held']);
    assert.equal(isSlabMemory(held.buffer.buffer), false, 'never the slab itself');
    assert.equal(leaseOf(held.buffer.buffer), held);
  });

  it('moves: all views of its buffer are empty from lending on, and the bytes are there again afterwards', () => {
    const held = lease(1000);
    const { buffer } = held;
    const views = [buffer, buffer.subarray(10, 20), new Uint32Array(buffer.buffer, 8, 8), buffer.buffer];
    const view = new DataView(buffer.buffer, 8, 8);
    buffer.fill(7);
    const bytes = lendLease(held);
    assert.deepEqual(bytes, Buffer.alloc(1000, 7));
    for (const view of views) assert.equal(view.byteLength, 0);
    buffer[0] = 1;
    assert.throws(() => buffer.fill(2), TypeError);
    assert.throws(() => buffer.writeUInt32LE(1), { code: 'ERR_BUFFER_OUT_OF_BOUNDS' });
    assert.throws(() => view.setInt8(0, 1), TypeError);
    assert.equal(held.state, 'lent');
    assert.throws(() => held.buffer, coded('ZTX_LENT'));
    assert.deepEqual(bytes, Buffer.alloc(1000, 7));
    returnLease(held);
    assert.equal(held.state, 'held');
    assert.notEqual(held.buffer, buffer);
    assert.deepEqual(held.buffer, Buffer.alloc(1000, 7));
    held.buffer[0] = 1;
    assert.equal(bytes[0], 1, 'the same memory');
  });

  it('sends as many bytes as its length says', () => {
    const held = lease(1000);
    held.buffer.fill(1);
    held.length = 10;
    assert.equal(lendLease(held).length, 10);
    assert.throws(() => {
      held.length = 20;
    }, coded('ZTX_LENT'));
    returnLease(held);
    assert.equal(held.buffer.length, 1000);
    held.length = 0;
    assert.equal(lendLease(held).length, 0);
    returnLease(held);
    for (const bytes of [-1, 1001, 1.5, Number.NaN]) {
      assert.throws(() => {
        held.length = bytes;
      }, coded('ERR_OUT_OF_RANGE'));
    }
    assert.throws(() => {
      held.length = '1' as unknown as number;
    }, coded('ERR_INVALID_ARG_TYPE'));
    assert.equal(held.length, 0);
  });

  it('can be lent several times at once, and is held again after the last', () => {
    const held = lease();
    const bytes = lendLease(held);
    assert.equal(lendLease(held), bytes);
    assert.equal(held.pool.stats().lent, 1);
    returnLease(held);
    assert.throws(() => held.buffer, coded('ZTX_LENT'));
    returnLease(held);
    assert.equal(held.state, 'held');
    assert.equal(held.pool.stats().lent, 0);
    assert.throws(() => returnLease(held), /not lent/);
  });

  it('makes no buffer that nobody reads', () => {
    const held = lease();
    const { buffer } = held;
    for (let i = 0; i < 3; i++) {
      lendLease(held);
      returnLease(held);
    }
    assert.equal(buffer.length, 0);
    assert.equal(held.buffer.length, held.capacity);
  });

  it('goes back to its pool on release, and cannot be used then', () => {
    const held = lease();
    const { buffer } = held;
    held.release();
    assert.equal(buffer.length, 0);
    assert.equal(held.state, 'released');
    assert.equal(held.pool.stats().leases, 0);
    assert.throws(() => held.buffer, coded('ZTX_RELEASED'));
    assert.throws(() => lendLease(held), coded('ZTX_RELEASED'));
    assert.throws(() => {
      held.length = 1;
    }, coded('ZTX_RELEASED'));
    held.release();
    held[Symbol.dispose]();
    const next = held.pool.tryAcquire(held.capacity) as Lease;
    assert.equal(next.pool.stats().leases, 1, 'the second release changed nothing');
    assert.equal(next.state, 'held', 'a new lease has nothing of the old one');
    assert.equal(next.length, next.capacity);
  });

  it('goes back when the last send is done if it was released before', () => {
    const held = lease();
    const bytes = lendLease(held).fill(7);
    lendLease(held);
    held.release();
    assert.equal(held.state, 'released');
    assert.deepEqual(
      { ...held.pool.stats(), hits: 0 },
      { ...held.pool.stats(), hits: 0, leases: 1, lent: 1 },
    );
    returnLease(held);
    assert.equal(held.pool.stats().leases, 1);
    assert.ok(bytes.every((byte) => byte === 7));
    returnLease(held);
    assert.deepEqual([held.pool.stats().leases, held.pool.stats().lent], [0, 0]);
  });

  it('comes from a pool alone', () => {
    const forged = Object.create(Object.getPrototypeOf(lease())) as Lease;
    for (const use of [() => forged.buffer, () => lendLease(forged), () => forged.release()]) {
      assert.throws(use, TypeError);
    }
  });
});

describe('a view of a lease', () => {
  it('is lent without a move, from memory of ours, and keeps the lease from its pool', () => {
    const held = lease(1000);
    const { buffer } = held;
    buffer.fill(1).fill(2, 10, 20);
    const borrowed = borrow(buffer.subarray(10, 20), false);
    assert.ok(borrowed !== null);
    assert.deepEqual(borrowed.view, Buffer.alloc(10, 2));
    assert.ok(isSlabMemory(borrowed.view.buffer));
    assert.deepEqual([held.state, held.pool.stats().lent], ['held', 1]);
    buffer[10] = 3;
    assert.equal(borrowed.view[0], 3, 'shared');
    held.release();
    assert.equal(buffer.length, 0);
    assert.equal(held.pool.stats().leases, 1);
    assert.equal(borrowed.view[1], 2);
    borrowed.giveBack();
    assert.deepEqual([held.pool.stats().leases, held.pool.stats().lent], [0, 0]);
    assert.throws(() => borrowed.giveBack(), /twice/);
  });

  it('is not lent when its lease moved or was released', () => {
    const held = lease();
    const { buffer } = held;
    lendLease(held);
    assert.equal(borrow(buffer, true), null);
    returnLease(held);
    const second = held.buffer;
    held.release();
    assert.equal(borrow(second, true), null);
  });

  it('may be lent beside moves, in any order of return', () => {
    const held = lease();
    const borrowed = borrow(held.buffer, false);
    lendLease(held);
    held.release();
    borrowed?.giveBack();
    assert.equal(held.pool.stats().leases, 1);
    returnLease(held);
    assert.equal(held.pool.stats().leases, 0);
  });

  it('is never marked, and is nothing that may be lent without its lease', () => {
    const { buffer } = lease();
    assert.equal(canLend(buffer, { pin: true }), false);
    assert.equal(lend(buffer, { pin: true }), false);
  });

  it('other memory is lent as it is, or not at all', () => {
    const shared = new Uint8Array(new SharedArrayBuffer(10));
    assert.equal(borrow(shared, false)?.view, shared);
    borrow(shared, false)?.giveBack();
    assert.equal(borrow(new Uint8Array(0), true), null);
    const plain = new Uint8Array(10);
    assert.equal(borrow(plain, true)?.view, plain);
  });
});

/** What programs do to a buffer that is lent, and what becomes of it (measured on each release line). */
describe('the memory of a lease, when the program', () => {
  const pattern = (held: Lease): Buffer => Buffer.alloc(held.capacity, 7);

  it('clones its buffer with a transfer where that copies, is sent as it was', {
    skip: major > 20 && 'Node 21 and later move it',
  }, () => {
    const held = lease();
    held.buffer.fill(7);
    const memory = held.buffer.buffer as ArrayBuffer;
    assert.equal(structuredClone(memory, { transfer: [memory] }).byteLength, 128 * KIB);
    assert.equal(held.buffer.length, held.capacity);
    assert.deepEqual(lendLease(held), pattern(held));
    returnLease(held);
    assert.deepEqual(held.buffer, pattern(held));
    assert.equal(reused(held), true);
  });

  const takers: Record<string, (memory: ModernArrayBuffer) => ArrayBuffer | undefined> = {
    'transfer()': (memory) => memory.transfer?.(),
    'transfer() to more': (memory) => memory.transfer?.(300 * KIB),
    'transfer() to less': (memory) => memory.transfer?.(4 * KIB),
    'a clone': (memory) => structuredClone(memory, { transfer: [memory] }),
  };
  for (const [name, take] of Object.entries(takers)) {
    it(`takes it with ${name}, is sent as it is, and is never used for another lease`, {
      skip: major < 21 && 'Node 20 has no transfer(), and its clones copy',
    }, () => {
      for (const sendsBefore of [0, 1]) {
        const held = lease();
        if (sendsBefore > 0) sendOnce(held);
        held.buffer.fill(7);
        const taken = new Uint8Array(take(held.buffer.buffer as ArrayBuffer) as ArrayBuffer);
        assert.equal(held.buffer.length, 0);
        assert.deepEqual(lendLease(held), pattern(held));
        const filled = taken.fill(8).length;
        returnLease(held);
        assert.equal(held.buffer.length, held.capacity, 'a new one');
        assert.equal(reused(held), false);
        assert.equal(taken.length, filled);
        assert.ok(taken.every((byte) => byte === 8));
      }
    });
  }

  it('marks it as untransferable, is sent all the same, and the process lives', () => {
    for (const sendsBefore of [0, 1]) {
      const held = lease();
      if (sendsBefore > 0) sendOnce(held);
      const { buffer } = held;
      buffer.fill(7);
      markAsUntransferable(buffer.buffer);
      assert.deepEqual(lendLease(held), pattern(held));
      // From Node 24 on a mark keeps everybody from taking it, us as well: the move turns into sharing.
      const fixed = major >= 24;
      assert.equal(buffer.length, fixed ? held.capacity : 0);
      assert.throws(() => held.buffer, coded('ZTX_LENT'));
      returnLease(held);
      assert.notEqual(held.buffer, buffer);
      assert.deepEqual(held.buffer, pattern(held));
      assert.equal(reused(held), !fixed);
      assert.equal(borrow(buffer, true), null, 'a view of a released lease');
    }
  });

  it('resizes it, is not changed', () => {
    const held = lease();
    held.buffer.fill(7);
    const memory = held.buffer.buffer as ModernArrayBuffer;
    assert.throws(() => memory.resize?.(10) ?? assert.fail(), TypeError);
    assert.deepEqual(lendLease(held), pattern(held));
    returnLease(held);
    assert.equal(reused(held), true);
  });

  it('replaces ArrayBuffer.prototype.transfer, is moved by the real one', {
    skip: major < 21 && 'no ArrayBuffer.transfer()',
  }, (context) => {
    const memory = ArrayBuffer.prototype as ModernArrayBuffer;
    context.mock.method(memory as Required<ModernArrayBuffer>, 'transfer', () => assert.fail());
    const held = lease();
    const { buffer } = held;
    lendLease(held);
    assert.equal(buffer.length, 0);
    returnLease(held);
    assert.equal(reused(held), true);
  });
});
