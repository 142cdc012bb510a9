/** Sends that are given up, and connections that never come about: nothing is torn, nothing is kept, nothing is told twice. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer as createNodeServer } from 'node:net';
import { afterEach, describe, it } from 'node:test';
import { connect, Pool, StillLentError, type ZerotxError } from '../../src/net/index.ts';
import {
  closeDoor,
  closing,
  FORCE,
  fillNumbers,
  HOST,
  KIB,
  listening,
  MIB,
  numbers,
  own,
  rawPair,
  turn,
} from '../support/door.ts';

const PIECE = 64 * KIB;
const PLENTY = 12 * MIB;
const stalled = { zerocopy: FORCE, receiveBytes: 16 * KIB };

afterEach(closeDoor);

describe('a send that is given up', { timeout: 30_000 }, () => {
  it('before its first byte is not sent: its lease is back, and the next one follows without a gap', async () => {
    const { client, peer } = await rawPair(stalled);
    const lease = await new Pool().acquire(PIECE);
    lease.buffer.fill(1);
    const abort = new AbortController();
    client.write(numbers(PLENTY));
    const sends = [client.send(lease, abort), client.send([Buffer.alloc(PIECE), Buffer.alloc(9)], abort)];
    const after = client.send(numbers(PIECE, PLENTY));
    for (let i = 0; i < 3; i++) await turn();
    abort.abort();
    for (const send of sends) await assert.rejects(send, { name: 'AbortError', code: 'ABORT_ERR' });
    assert.equal(lease.state, 'held');
    client.end();
    await peer.read();
    assert.deepEqual([peer.total, peer.end], [PLENTY + PIECE, 0]);
    assert.equal((await after).bytes, PIECE);
    const { lentBytes, fallbackBytes } = client.stats().zerocopy;
    assert.equal(
      client.bytesWritten,
      lentBytes + fallbackBytes,
      'what was given up is not counted as written',
    );
  });

  it('after its first byte goes on, and the error says when the memory is free', async () => {
    const { client, peer } = await rawPair(stalled);
    const lease = await new Pool({ maxBytes: 64 * MIB }).acquire(PLENTY);
    fillNumbers(lease.buffer);
    const abort = new AbortController();
    const sent = client.send(lease, abort);
    await turn();
    abort.abort(new Error('enough'));
    const error = await sent.then(
      () => assert.fail('not rejected'),
      (reason: unknown) => reason,
    );
    assert.ok(error instanceof StillLentError);
    assert.equal(error.code, 'ZTX_STILL_LENT');
    assert.throws(() => lease.buffer, { code: 'ZTX_LENT' });
    await peer.read(PLENTY);
    assert.equal((await error.released).bytes, PLENTY);
    assert.equal(lease.state, 'held');
    abort.abort();
    await Promise.all([client.send(numbers(PIECE, PLENTY)), peer.read(PLENTY + PIECE)]);
  });

  it('in the middle of its parts sends those that were begun, and none behind them', async () => {
    const { client, peer } = await rawPair(stalled);
    const abort = new AbortController();
    client.write(numbers(PLENTY));
    await turn();
    // The first waits in the stream with the others: one batch, which is not begun before the next.
    const sent = client.send([numbers(PIECE, PLENTY), numbers(PIECE, PLENTY + PIECE)], abort);
    const error = sent.catch((reason: ZerotxError) => reason.code);
    await peer.read(PLENTY);
    abort.abort();
    const code = await error;
    client.end();
    await peer.read();
    assert.ok(code === 'ABORT_ERR' || code === 'ZTX_STILL_LENT');
    assert.equal(peer.total, code === 'ABORT_ERR' ? PLENTY : PLENTY + 2 * PIECE);
  });
});

describe('a connection that never comes about', { timeout: 30_000 }, () => {
  it('settles each write once, and gives leases back: refused', async () => {
    const server = createNodeServer().listen(0, HOST);
    await once(server, 'listening');
    const { port } = server.address() as { port: number };
    server.close();
    await once(server, 'close');
    const client = own(connect({ port, host: HOST, zerocopy: FORCE }));
    const closed = closing(client);
    const pool = new Pool();
    const lease = await pool.acquire(PIECE);
    const codes: (string | undefined)[] = [];
    const note = (error?: Error | null): number => codes.push((error as ZerotxError | null)?.code);
    client.write(lease, note);
    client.write(numbers(PIECE), note);
    client.send(lease).then(() => note(), note);
    client.write('text', note);
    assert.deepEqual(await closed, { hadError: true, codes: ['ECONNREFUSED'] });
    assert.equal(codes.length, 4);
    assert.ok(
      codes.every((code) => code !== undefined),
      String(codes),
    );
    assert.equal(lease.state, 'held');
    assert.equal(pool.stats().lent, 0);
  });

  it('or is destroyed meanwhile', async () => {
    const { port } = await listening();
    const lease = await new Pool().acquire(PIECE);
    const codes: (string | undefined)[] = [];
    const note = (error?: Error | null): number => codes.push((error as ZerotxError | null)?.code);
    const client = own(connect({ port, host: HOST, zerocopy: FORCE }));
    const closed = closing(client);
    client.write(lease, note);
    client.send(numbers(PIECE)).then(() => note(), note);
    await Promise.resolve();
    client.destroy();
    assert.deepEqual(await closed, { hadError: false, codes: [] });
    for (let i = 0; i < 3; i++) await turn();
    assert.equal(codes.length, 2);
    assert.ok(
      codes.every((code) => code !== undefined),
      String(codes),
    );
    assert.equal(lease.state, 'held');
  });
});
