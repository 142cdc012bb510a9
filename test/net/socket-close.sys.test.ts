/**
 * Every way to close a socket that has much to send. The program uses its buffers for something else as soon as it may, and
 * the peer, which begins to read only then, must see what the kernel had accepted, in order, and nothing else.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import { errnoOf } from '../../src/core/errors.ts';
import { stats, type TcpSocket } from '../../src/net/index.ts';
import { closeDoor, closing, FORCE, KIB, MIB, numbers, rawPair, turn, turnsUntil } from '../support/door.ts';

const TOTAL = 64 * MIB;
const OVERWRITTEN = 0xee;
const options = { zerocopy: FORCE, receiveBytes: 128 * KIB };

/** Chunks of several sizes that make 64 MiB; each is overwritten when its callback says that it is the program's. */
class Writer {
  readonly socket: TcpSocket;
  /** Ends of the chunks that were told to be sent, and number of those that failed. */
  sent: number[] = [];
  failed = 0;
  chunks = 0;

  constructor(socket: TcpSocket) {
    this.socket = socket;
    const sizes = [MIB, 64 * KIB, 3 * MIB + 17, 1000, 32 * KIB - 1];
    for (let at = 0; at < TOTAL; ) {
      const size = Math.min(TOTAL - at, sizes[this.chunks % sizes.length] as number);
      this.chunks += 1;
      const chunk = numbers(size, at);
      const end = at + size;
      socket.write(chunk, (error) => {
        chunk.fill(OVERWRITTEN);
        if (error) this.failed += 1;
        else this.sent.push(end);
      });
      at = end;
    }
  }

  get settled(): number {
    return this.sent.length + this.failed;
  }

  /** What the kernel took. */
  get accepted(): number {
    const { lentBytes, fallbackBytes } = this.socket.stats().zerocopy;
    return lentBytes + fallbackBytes;
  }
}

afterEach(async () => {
  closeDoor();
  await turnsUntil('nothing lingers', () => stats().lingering === 0);
});

/** When to close: nothing was read yet, or the transfer is under way. */
const moments: readonly [name: string, readFirst: number][] = [
  ['at once', 0],
  ['in the middle', 21 * MIB + 4],
];

describe('64 MiB under way', { timeout: 60_000 }, () => {
  for (const [when, readFirst] of moments) {
    for (const how of ['end', 'destroySoon'] as const) {
      it(`are all delivered by ${how}() ${when}`, async () => {
        const { client, peer } = await rawPair(options);
        client.resume();
        const writer = new Writer(client);
        await peer.read(readFirst);
        client[how]();
        await peer.read();
        assert.deepEqual([peer.total, peer.end], [TOTAL, 0]);
        peer.close();
        await turnsUntil('all callbacks', () => writer.settled === writer.chunks);
        assert.equal(writer.failed, 0);
        if (!client.closed) await once(client, 'close');
      });
    }

    it(`are delivered as far as they were accepted by destroy() ${when}`, async () => {
      const { client, peer } = await rawPair(options);
      const writer = new Writer(client);
      await peer.read(readFirst);
      const closed = closing(client);
      client.destroy();
      const { accepted } = writer;
      assert.ok(accepted < TOTAL);
      assert.deepEqual(await closed, { hadError: false, codes: [] });
      await peer.read();
      assert.deepEqual([peer.total, peer.end], [accepted, 0]);
      await turnsUntil('all callbacks', () => writer.settled === writer.chunks);
      assert.ok(writer.failed > 0);
      assert.ok(writer.sent.every((end) => end <= accepted));
      assert.deepEqual(
        writer.sent,
        writer.sent.toSorted((a, b) => a - b),
      );
    });

    it(`are not sent further after resetAndDestroy() ${when}, and all memory is back`, async () => {
      const { client, peer } = await rawPair(options);
      const writer = new Writer(client);
      await peer.read(readFirst);
      const closed = closing(client);
      client.resetAndDestroy();
      assert.deepEqual(await closed, { hadError: false, codes: [] });
      await turnsUntil('all callbacks', () => writer.settled === writer.chunks);
      assert.deepEqual([stats().lingering, client.stats().zerocopy.pinnedBytes], [0, 0]);
      await peer.read();
      assert.equal(peer.end, -errnoOf('ECONNRESET'));
      assert.ok(peer.total <= writer.accepted);
    });
  }
});

describe('a write that is pending', { timeout: 30_000 }, () => {
  for (const peerEndsFirst of [false, true]) {
    it(`is delivered by end() and destroySoon() in one breath${peerEndsFirst ? ' to a peer that has ended' : ''}`, async () => {
      const { client, peer } = await rawPair({ ...options, allowHalfOpen: true });
      client.resume();
      if (peerEndsFirst) {
        peer.shutdownWrite();
        await once(client, 'end');
      }
      const heard: (Error | null | undefined)[] = [];
      client.write(numbers(8 * MIB), (error) => heard.push(error));
      client.end(numbers(KIB, 8 * MIB));
      client.destroySoon();
      const closed = closing(client);
      await turn();
      await peer.read();
      assert.deepEqual([peer.total, peer.end], [8 * MIB + KIB, 0]);
      assert.deepEqual(await closed, { hadError: false, codes: [] });
      await turnsUntil('the callback', () => heard.length > 0);
      assert.ok(!heard[0]);
    });
  }

  it('is settled once when destroy() follows end() in one breath', async () => {
    const { client, peer } = await rawPair(options);
    let heard = 0;
    client.write(numbers(MIB), () => heard++);
    client.end(numbers(8 * MIB, MIB));
    client.destroy();
    client.destroy();
    client.resetAndDestroy();
    await peer.read();
    assert.equal(peer.end, 0);
    await turnsUntil('the callback', () => heard > 0);
    assert.equal(heard, 1);
  });

  it('is settled when its callback destroys the socket, and the others once each, too', async () => {
    const { client, peer } = await rawPair(options);
    const heard: number[] = [];
    for (let i = 0; i < 20; i++) {
      client.write(numbers(MIB, i * MIB), () => {
        heard.push(i);
        client.destroy();
        client.write('nothing');
      });
    }
    await peer.read();
    await turnsUntil('all callbacks', () => heard.length >= 20);
    assert.deepEqual(
      heard.toSorted((a, b) => a - b),
      Array.from({ length: 20 }, (_, i) => i),
    );
  });

  it('is waited for by `await using` of the socket', async () => {
    const { client, peer } = await rawPair(options);
    const reading = peer.read();
    client.write(numbers(8 * MIB));
    await client[Symbol.asyncDispose]();
    await reading;
    assert.deepEqual([peer.total, peer.end, client.closed], [8 * MIB, 0, true]);
  });
});
