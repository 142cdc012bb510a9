/** A peer that resets the connection while a socket sends: everything is settled once, and all memory is back. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterEach, describe, it } from 'node:test';
import { type Lease, Pool, stats } from '../../src/net/index.ts';
import { closeDoor, closing, FORCE, KIB, numbers, rawPair, turnsUntil } from '../support/door.ts';

const PIECE = 128 * KIB;
const SENDS = 100;
const options = { zerocopy: FORCE, receiveBytes: 64 * KIB };

/** Settled how often, and how. */
interface Heard {
  readonly index: number;
  readonly code: string | null;
}

afterEach(closeDoor);

describe('a reset by the peer', { timeout: 30_000 }, () => {
  it('with more than 50 sends pending settles each once, with ECONNRESET, and returns all leases', async () => {
    const { client, peer } = await rawPair(options);
    const pool = new Pool({ maxBytes: 16 << 20 });
    const pinnedBefore = stats().pinnedBytes;
    const heard: Heard[] = [];
    const leases: Lease[] = [];
    const note = (index: number) => (error?: Error | null) => {
      heard.push({ index, code: error ? ((error as NodeJS.ErrnoException).code ?? error.message) : null });
    };
    for (let i = 0; i < SENDS; i++) {
      if (i % 2 === 0) client.send(numbers(PIECE, i * PIECE)).then(() => note(i)(), note(i));
      else {
        const lease = await pool.acquire(PIECE);
        lease.buffer.fill(i);
        leases.push(lease);
        client.write(lease, note(i));
      }
    }
    assert.ok(client.stats().zerocopy.pinnedBytes > 0);
    const before = heard.length;
    assert.ok(before < SENDS / 2, `${before} were settled by the peer's receive buffer alone`);
    const closed = closing(client);
    peer.reset();
    assert.deepEqual(await closed, { hadError: true, codes: ['ECONNRESET'] });
    await turnsUntil('all are settled', () => heard.length >= SENDS);
    await turnsUntil('nothing is pinned', () => stats().pinnedBytes === pinnedBefore);
    assert.deepEqual(
      heard.map(({ index }) => index).sort((a, b) => a - b),
      Array.from({ length: SENDS }, (_, i) => i),
    );
    const sends = heard.filter(({ index }) => index % 2 === 0);
    assert.ok(sends.every(({ code }, i) => (i >= before ? code === 'ECONNRESET' : code === null)));
    // A callback tells whether the chunk was accepted: the last ones were not.
    assert.equal(heard.find(({ index }) => index === SENDS - 1)?.code, 'ECONNRESET');
    assert.equal(pool.stats().lent, 0);
    assert.ok(leases.every((lease) => lease.state === 'held' && lease.buffer.length === PIECE));
    assert.equal(client.stats().zerocopy.unexpectedCompletions, 0);
  });

  it('that nobody has seen fails the next write and the next send, also behind an await', async () => {
    for (const how of ['write', 'send'] as const) {
      const { client, peer } = await rawPair(options);
      // A full read buffer: nothing more is read, and so nothing is seen.
      client.pause();
      peer.send(numbers(PIECE));
      await turnsUntil('data', () => client.readableLength > 0);
      await turnsUntil('the reader is satisfied', () => client.readableLength >= 16 * KIB);
      peer.reset();
      const closed = closing(client);
      await Promise.resolve();
      const code = await new Promise<unknown>((resolve) => {
        const settle = (error?: Error | null): void => resolve((error as NodeJS.ErrnoException | null)?.code);
        if (how === 'write') client.write(numbers(PIECE), settle);
        else client.send(numbers(PIECE)).then(() => settle(null), settle);
      });
      assert.match(String(code), /^(?:ECONNRESET|EPIPE)$/, how);
      assert.deepEqual((await closed).codes, [code]);
    }
  });

  it('leaves readable what came before it', async () => {
    const { client, peer } = await rawPair(options);
    const sent = client.send(numbers(PIECE * 8));
    const failed = assert.rejects(sent, { code: 'ECONNRESET' });
    peer.send(Buffer.from('last words'));
    let text = '';
    client.on('data', (chunk: Buffer) => {
      text += chunk;
    });
    await once(client, 'data');
    peer.reset();
    await failed;
    assert.equal(text, 'last words');
  });

  it('is no news to a socket that has sent all and been told of the end', async () => {
    const { client, peer } = await rawPair(options);
    client.resume();
    client.end(numbers(PIECE));
    await once(client, 'finish');
    await peer.read();
    peer.shutdownWrite();
    const { hadError, codes } = await closing(client);
    assert.deepEqual({ hadError, codes }, { hadError: false, codes: [] });
    peer.reset();
  });
});
