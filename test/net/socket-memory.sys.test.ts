/** Memory that a program takes away, changes or shares while it is being sent, and writes that come too late. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import type { ZerotxError } from '../../src/net/index.ts';
import { Pool } from '../../src/net/index.ts';
import { closeDoor, closing, FORCE, fillNumbers, KIB, MIB, numbers, rawPair, turn } from '../support/door.ts';
import { wasmMemory } from '../support/wasm.ts';

const PIECE = 64 * KIB;
const stalled = { zerocopy: { mode: 'force' }, receiveBytes: 16 * KIB } as const;
/** More than the kernel takes from a sender whose peer does not read. */
const PLENTY = 12 * MIB;

/** ArrayBuffer as newer runtimes have it. */
interface ModernArrayBuffer extends ArrayBuffer {
  transfer?(): ArrayBuffer;
  resize?(bytes: number): void;
}

function memoryOf(view: Uint8Array): ModernArrayBuffer {
  return view.buffer as ModernArrayBuffer;
}

type Taker = (memory: ModernArrayBuffer) => unknown;
const takers: readonly [name: string, take: Taker][] = [
  ['structuredClone()', (memory) => structuredClone(memory, { transfer: [memory] })],
  ['postMessage()', (memory) => new MessageChannel().port1.postMessage(memory, [memory])],
  ...('transfer' in ArrayBuffer.prototype
    ? ([['ArrayBuffer.transfer()', (memory) => memory.transfer?.()]] as [string, Taker][])
    : []),
];

/** Takes the memory if the runtime lets it. */
function tryTake(take: Taker, view: Uint8Array): boolean {
  try {
    take(memoryOf(view));
  } catch {
    return false;
  }
  return view.byteLength === 0;
}

afterEach(closeDoor);

describe('memory that is taken away', { timeout: 30_000 }, () => {
  for (const [name, take] of takers) {
    it(`by ${name} while the kernel has it is sent as it was, or not sent further`, async () => {
      const { client, peer } = await rawPair(stalled);
      const buffer = numbers(PLENTY);
      const sent = client.send(buffer).then(
        () => null,
        (error: ZerotxError) => error.code,
      );
      client.write('and no byte of this');
      for (let i = 0; i < 3; i++) await turn();
      assert.ok(client.writableLength > 0, 'some of it waits');
      const gone = tryTake(take, buffer);
      if (!gone) fillNumbers(buffer);
      // New memory where the old one was, if it was given back.
      const noise = Array.from({ length: 32 }, () => Buffer.alloc(MIB, 0x5a));
      const reading = peer.read(gone ? undefined : PLENTY);
      const code = await sent;
      await reading;
      assert.equal(noise.length, 32);
      if (gone) {
        assert.equal(code, 'ZTX_MEMORY_TAKEN');
        assert.ok(peer.total < PLENTY && peer.end === 0, `${peer.total} bytes, then ${peer.end}`);
      } else assert.deepEqual([code, peer.total], [null, PLENTY]);
    });

    for (const bytes of [PIECE, 1000]) {
      it(`by ${name} while it waits in the stream (${bytes} bytes) ends the connection in front of it`, async () => {
        const { client, peer } = await rawPair(stalled);
        const closed = closing(client);
        client.write(numbers(PLENTY));
        const victim = numbers(bytes, PLENTY);
        const heard: (string | undefined)[] = [];
        const note = (error?: Error | null): number => heard.push((error as ZerotxError | null)?.code);
        client.write(victim, note);
        client.write(numbers(PIECE, PLENTY + bytes), note);
        assert.ok(tryTake(take, victim), 'nothing protects what waits');
        await peer.read();
        assert.deepEqual([peer.total, peer.end], [PLENTY, 0]);
        assert.deepEqual(await closed, { hadError: true, codes: ['ZTX_MEMORY_TAKEN'] });
        assert.deepEqual(heard, ['ZTX_MEMORY_TAKEN', 'ZTX_MEMORY_TAKEN']);
      });
    }

    it(`by ${name} while the socket connects, too`, async () => {
      let closed: ReturnType<typeof closing> | undefined;
      const { peer } = await rawPair(stalled, (client) => {
        closed = closing(client);
        const victim = numbers(PIECE);
        client.write(victim);
        client.write(numbers(PIECE, PIECE));
        assert.ok(tryTake(take, victim));
      });
      await peer.read();
      assert.deepEqual([peer.total, peer.end], [0, 0]);
      assert.deepEqual(await closed, { hadError: true, codes: ['ZTX_MEMORY_TAKEN'] });
    });
  }

  it('by resize() while it waits, likewise', {
    skip: !('resize' in ArrayBuffer.prototype) && 'no resizable memory here',
  }, async () => {
    const { client, peer } = await rawPair(stalled);
    const closed = closing(client);
    client.write(numbers(PLENTY));
    const memory = new (ArrayBuffer as unknown as new (bytes: number, options: object) => ModernArrayBuffer)(
      PIECE,
      {
        maxByteLength: PIECE,
      },
    );
    const victim = new Uint8Array(memory, 0, PIECE);
    fillNumbers(victim, PLENTY);
    client.write(victim);
    memory.resize?.(PIECE / 2);
    await peer.read();
    assert.deepEqual([peer.total, peer.end], [PLENTY, 0]);
    assert.deepEqual((await closed).codes, ['ZTX_MEMORY_TAKEN']);
  });

  it('by WebAssembly, whose memory grows, ends the connection, too; what was sent of it before was copied', async () => {
    const { client, peer } = await rawPair(stalled);
    const closed = closing(client);
    const memory = wasmMemory(1, 1000);
    const early = new Uint8Array(memory.buffer);
    fillNumbers(early);
    const [outcome] = await Promise.all([client.send(early), peer.read(early.length)]);
    assert.deepEqual(outcome, { bytes: PIECE, copiedBytes: PIECE, exact: true });
    memory.grow(PLENTY / PIECE - 1);
    const view = new Uint8Array(memory.buffer);
    fillNumbers(view, PIECE);
    client.write(view);
    memory.grow(1);
    await peer.read();
    const { lentBytes, copied } = client.stats().zerocopy;
    assert.deepEqual([peer.total, peer.end], [copied.foreign + copied.threshold, 0]);
    assert.equal(lentBytes, 0);
    assert.deepEqual((await closed).codes, ['ZTX_MEMORY_TAKEN']);
  });

  it('is none that can be resized, as long as it is not: it is copied', async () => {
    const { client, peer } = await rawPair(stalled);
    const Resizable = ArrayBuffer as unknown as new (bytes: number, options: object) => ModernArrayBuffer;
    const memory = new Resizable(PIECE, { maxByteLength: 2 * PIECE });
    const view = new Uint8Array(memory, 0, PIECE);
    fillNumbers(view);
    const sent = client.send(view);
    if ('resize' in memory) memory.resize?.(2 * PIECE);
    await peer.read(PIECE);
    const { copiedBytes } = await sent;
    if ('resizable' in memory) {
      assert.equal(copiedBytes, PIECE);
      assert.equal(client.stats().zerocopy.copied.foreign, PIECE);
    }
  });
});

describe('memory that the program goes on writing to', { timeout: 30_000 }, () => {
  it('is sent as it is when its turn comes: what waits in the stream is not copied', async () => {
    const { client, peer } = await rawPair(stalled);
    const late = Buffer.alloc(PIECE);
    client.write(numbers(PLENTY));
    const sent = client.send(late);
    fillNumbers(late, PLENTY);
    await peer.read(PLENTY + PIECE);
    await sent;
  });

  it('is the same memory for both, if it is shared', async () => {
    const { client, peer } = await rawPair(stalled);
    const shared = new Uint8Array(new SharedArrayBuffer(PLENTY));
    fillNumbers(shared);
    const sent = client.send(shared);
    await peer.read(PLENTY);
    assert.equal((await sent).bytes, PLENTY);
    assert.ok(client.stats().zerocopy.lentBytes > 0, 'shared memory may be lent on every runtime');
    assert.equal(client.stats().zerocopy.copied.foreign, 0);
  });

  it('is another one for the program, if it is leased', async () => {
    const { client, peer } = await rawPair(stalled);
    const pool = new Pool({ maxBytes: 64 * MIB, debug: true });
    const lease = await pool.acquire(PLENTY);
    const { buffer } = lease;
    fillNumbers(buffer);
    const sent = client.send(lease);
    assert.equal(buffer.length, 0);
    assert.throws(() => lease.buffer, { code: 'ZTX_LENT' });
    await peer.read(PLENTY);
    await sent;
    assert.equal(lease.buffer.length, PLENTY);
    assert.deepEqual([pool.stats().mutated, pool.stats().lent], [0, 0]);
  });
});

describe('what comes too late', { timeout: 30_000 }, () => {
  const late = { code: 'ERR_STREAM_WRITE_AFTER_END' };

  it('after end() is refused: write(), send() and a lease, which is back at once', async () => {
    for (const how of ['write', 'send', 'writeLease', 'sendLease'] as const) {
      const { client, peer } = await rawPair({ zerocopy: FORCE });
      const lease = await new Pool().acquire(PIECE);
      const closed = closing(client);
      client.write(numbers(PIECE));
      client.end();
      const data = how.endsWith('Lease') ? lease : numbers(PIECE);
      if (how.startsWith('send')) await assert.rejects(client.send(data), late);
      else {
        const heard = new Promise((resolve) => client.write(data, resolve));
        assert.equal(((await heard) as ZerotxError).code, late.code);
      }
      assert.equal(lease.state, 'held');
      // write() ends the socket with the error, as in Node; send() has told whoever sent.
      if (how.startsWith('write')) assert.deepEqual((await closed).codes, [late.code]);
      else assert.equal(client.destroyed, false);
      await peer.read();
      assert.deepEqual([peer.total, peer.end], [PIECE, 0], how);
    }
  });

  it('after destroy() is refused, too', async () => {
    const { client, peer } = await rawPair({ zerocopy: FORCE });
    client.write(numbers(PIECE));
    client.destroy();
    const lease = await new Pool().acquire(PIECE);
    const code = 'ERR_STREAM_DESTROYED';
    await assert.rejects(client.send(numbers(PIECE)), { code });
    await assert.rejects(client.send(lease), { code });
    assert.equal(lease.state, 'held');
    await peer.read();
    assert.deepEqual([peer.total, peer.end], [PIECE, 0]);
  });

  it('is not there for a lease that was released: write() and send() throw or reject with ZTX_RELEASED', async () => {
    const { client, peer } = await rawPair({ zerocopy: FORCE });
    const lease = await new Pool().acquire(PIECE);
    lease.release();
    assert.throws(() => client.write(lease), { code: 'ZTX_RELEASED' });
    await assert.rejects(async () => client.send(lease), { code: 'ZTX_RELEASED' });
    const sent = client.send(numbers(PIECE));
    client.end();
    await Promise.all([once(client, 'finish'), sent, peer.read()]);
    assert.equal(peer.total, PIECE);
  });
});
