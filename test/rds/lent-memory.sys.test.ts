/** Memory over real TCP that is not lent after all: of a WebAssembly memory, and in very many pieces. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import {
  assertIdle,
  completions,
  lendableBuffer,
  receive,
  testNode,
  turnsUntil,
} from '../support/rds-nodes.ts';

/** Not in the type library of this project. */
declare const WebAssembly: {
  readonly Memory: new (pages: {
    initial: number;
    maximum: number;
  }) => {
    readonly buffer: ArrayBuffer;
    grow(pages: number): number;
  };
};

describe('a WebAssembly memory', { timeout: 60_000 }, () => {
  it('is copied, as it may grow at any time, and growing takes it away', async (t) => {
    const a = testNode('127.24.4.1');
    t.after(() => a.close());
    const from = a.bind(4000, { zerocopy: true });
    const to = { address: '127.24.4.2', port: 5000 };
    const memory = new WebAssembly.Memory({ initial: 4, maximum: 8 });
    const data = new Uint8Array(memory.buffer, 0, 200_000).fill(0xee);
    from.sendmsg(data, to, { zerocopy: true, cookie: 1 });
    for (let i = 0; i < 500; i++) from.sendmsg(Buffer.alloc(100 + i, i), to);
    memory.grow(1);
    assert.equal(data.byteLength, 0);
    const peer = testNode('127.24.4.2');
    t.after(() => peer.close());
    const [first, ...messages] = await receive(peer.bind(5000), 501);
    assert.ok(first?.data.equals(Buffer.alloc(200_000, 0xee)));
    for (const [i, message] of messages.entries())
      assert.ok(message.data.equals(Buffer.alloc(100 + i, i)), `message ${i}, ${message.length} bytes`);
    assert.deepEqual(await completions(from, 1), [1]);
    assert.equal(a.counters.send_memory_taken, 0);
    await turnsUntil(() => from.queuedBytes === 0);
    assertIdle(a);
  });
});

describe('a message of 1 MiB', { timeout: 60_000 }, () => {
  it('in pieces of 64 bytes is copied; in one piece it is lent', async (t) => {
    const [a, b] = [testNode('127.24.5.1', { mode: 'force' }), testNode('127.24.5.2')];
    t.after(() => Promise.all([a.close(), b.close()]));
    const from = a.bind(4000, { zerocopy: true });
    const to = b.bind(5000);
    const whole = lendableBuffer(1 << 20);
    const pieces = Array.from({ length: whole.length / 64 }, (_, i) => whole.subarray(i * 64, i * 64 + 64));
    const calls = (): number => a.stats().zerocopy.lentCalls;
    const before = calls();
    const [, many] = await Promise.all([receive(to, 1), from.send(pieces, to)]);
    assert.deepEqual([calls() - before, many.copiedBytes], [0, 1 << 20]);
    await Promise.all([receive(to, 1), from.send(whole, to)]);
    const once = calls() - before;
    assert.ok(once >= 2 && once < 64, `${once} flagged calls`);
  });
});
