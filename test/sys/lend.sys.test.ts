import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { markAsUntransferable } from 'node:worker_threads';
import { native } from '../../src/sys/binding.ts';
import { canLend, lend, markProtects } from '../../src/sys/lend.ts';
import { SlabPool, type Unit } from '../../src/sys/slab.ts';
import { wasmMemory } from '../support/wasm.ts';

const [major = 0] = process.versions.node.split('.').map(Number);

/** Node 20 knows resizable buffers, its type declarations do not. */
const ResizableArrayBuffer = ArrayBuffer as unknown as new (
  bytes: number,
  options: { maxByteLength: number },
) => ArrayBuffer;

describe('lending', () => {
  it('takes slabs and shared memory always', () => {
    const slab = (new SlabPool({ slabBytes: 65536 }).take(100) as Unit).bytes;
    const shared = new Uint8Array(new SharedArrayBuffer(100));
    for (const view of [slab, shared]) {
      assert.equal(canLend(view), true);
      assert.equal(lend(view), true);
    }
  });

  it('refuses resizable, detached and empty memory, whatever is promised', () => {
    const resizable = new Uint8Array(new ResizableArrayBuffer(100, { maxByteLength: 200 }));
    const detached = new Uint8Array(100);
    structuredClone(detached.buffer, { transfer: [detached.buffer] });
    for (const view of [resizable, detached, new Uint8Array(0)]) {
      for (const pin of [false, true]) {
        assert.equal(canLend(view, { pin }), false);
        assert.equal(lend(view, { pin }), false);
      }
    }
  });

  it('takes other memory where the mark protects it, and by promise elsewhere', () => {
    // Measured: Node 22 alone lets ArrayBuffer.transfer() take a marked buffer.
    if (major === 20 || major >= 24) assert.equal(markProtects(), true);
    if (major === 22) assert.equal(markProtects(), false);
    assert.equal(canLend(new Uint8Array(100)), markProtects());
    assert.equal(lend(new Uint8Array(100)), markProtects());
    assert.equal(canLend(new Uint8Array(100), { pin: true }), true);
    assert.equal(lend(new Uint8Array(100), { pin: true }), true);
  });

  it('leaves memory of WebAssembly unmarked, which grows by force: with a mark that would be the end of the process', () => {
    const memory = wasmMemory(1, 8);
    for (const pin of [false, true]) {
      const view = new Uint8Array(memory.buffer);
      assert.equal(canLend(view, { pin }), pin);
      assert.equal(lend(view, { pin }), pin);
      memory.grow(1);
      assert.equal(view.byteLength, 0);
      assert.equal(canLend(view, { pin }), false);
    }
    assert.equal(lend(new Uint8Array(memory.buffer.byteLength)), markProtects(), 'its size alone is nothing');
  });

  it('keeps lent memory in place against transfers', { skip: !markProtects() }, () => {
    const view = new Uint8Array(100).fill(7);
    assert.equal(lend(view), true);
    assert.equal(lend(view.subarray(50)), true, 'again, and a part of it');
    const memory = view.buffer as ArrayBuffer & { transfer?(): ArrayBuffer };
    const ways = [() => structuredClone(memory, { transfer: [memory] }), () => memory.transfer?.()];
    for (const way of ways) {
      try {
        way();
      } catch (error) {
        assert.ok(['DataCloneError', 'TypeError'].includes((error as Error).name));
      }
      assert.equal(view.byteLength, 100);
      assert.ok(view.every((byte) => byte === 7));
    }
  });

  it('does not mark what others marked, such as memory of another addon: the end of this process would abort', () => {
    const marked = new ArrayBuffer(100);
    markAsUntransferable(marked);
    const slab = native().slabCreate(1, false) as ArrayBuffer;
    const external = native().slabWindow(slab, 0, 100) as ArrayBuffer;
    for (const memory of [marked, external]) {
      assert.equal(canLend(new Uint8Array(memory)), major === 20);
      assert.equal(lend(new Uint8Array(memory)), major === 20);
      assert.equal(lend(new Uint8Array(memory), { pin: true }), true);
      assert.equal(canLend(new Uint8Array(memory)), major === 20, 'unchanged by the promise');
    }
    process.once('exit', () => assert.equal(external.byteLength, 100, 'kept until then'));
  });

  it('leaves memory alone that was only asked about', () => {
    const view = new Uint8Array(100);
    canLend(view);
    structuredClone(view.buffer, { transfer: [view.buffer] });
    assert.equal(view.byteLength, 0);
  });
});
