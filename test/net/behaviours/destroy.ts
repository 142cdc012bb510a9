/** Ends that are not orderly: destroy(), destroySoon(), resetAndDestroy(), and errors of the connection. */
import assert from 'node:assert/strict';
import { constants } from 'node:os';
import { join } from 'node:path';
import { finished } from 'node:stream/promises';
import { called, closed, event, everything, failure, LOOPBACK, record, turns } from './scene.ts';
import type { Table } from './table.ts';

export const DESTROY: Table = [
  {
    name: 'destroy() closes without error; the peer sees an end',
    areas: ['destroy'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const seen = record(client, 'end', 'finish', 'error', 'close');
      const ended = event(peer.resume(), 'end');
      assert.equal(client.destroy(), client);
      assert.equal(client.destroyed, true);
      await closed(client);
      await ended;
      assert.deepEqual(seen, ['close(false)']);
    },
  },
  {
    name: 'destroy() twice closes once',
    areas: ['destroy'],
    async run(_net, t) {
      const { client } = await t.pair();
      const seen = record(client, 'error', 'close');
      client.destroy();
      client.destroy(new Error('too late'));
      await closed(client);
      await turns();
      assert.deepEqual(seen, ['close(false)']);
    },
  },
  {
    name: 'destroy(error) emits that error, then close with true',
    areas: ['destroy', 'errors'],
    async run(_net, t) {
      const { client } = await t.pair();
      const seen = record(client, 'error', 'close');
      const reason = new Error('enough');
      const outcome = failure(client);
      client.destroy(reason);
      assert.deepEqual(seen, []);
      assert.equal(await outcome, reason);
      assert.deepEqual(seen, ['error', 'close(true)']);
      assert.equal(client.errored, reason);
    },
  },
  {
    name: 'destroy() of a socket that never connected closes it',
    areas: ['destroy'],
    async run(net) {
      const socket = new net.Socket();
      socket.destroy();
      assert.equal((await closed(socket)).hadError, false);
    },
  },
  {
    name: 'what was written before destroy() and fits the kernel arrives',
    areas: ['destroy', 'write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      client.write('last words');
      client.destroy();
      assert.equal((await got).toString(), 'last words');
    },
  },
  {
    name: 'destroySoon() sends what is queued first',
    areas: ['destroy', 'write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const sent = Buffer.alloc(4 << 20, 'y');
      const got = everything(peer);
      const outcome = closed(client);
      client.write(sent);
      client.destroySoon();
      assert.equal(client.writable, false);
      assert.equal((await outcome).hadError, false);
      assert.ok(sent.equals(await got));
    },
  },
  {
    name: 'destroySoon() with nothing queued closes',
    areas: ['destroy'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const both = Promise.all([closed(client), closed(peer.resume())]);
      client.destroySoon();
      await both;
    },
  },
  {
    name: 'resetAndDestroy(): the peer gets ECONNRESET of read',
    areas: ['destroy', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const outcome = failure(peer.resume());
      const own = closed(client);
      assert.equal(client.resetAndDestroy(), client);
      assert.equal(client.destroyed, true);
      assert.equal((await own).hadError, false);
      const error = await outcome;
      assert.deepEqual([error.code, error.syscall], ['ECONNRESET', 'read']);
      assert.equal(error.errno, -constants.errno.ECONNRESET);
      assert.equal(error.message, 'read ECONNRESET');
    },
  },
  {
    name: 'resetAndDestroy() of the server side resets the client',
    areas: ['destroy', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const outcome = failure(client.resume());
      peer.resetAndDestroy();
      assert.equal((await outcome).code, 'ECONNRESET');
    },
  },
  {
    name: 'resetAndDestroy() while connecting resets once connected',
    areas: ['destroy', 'connect'],
    async run(net, t) {
      const { server, port } = await t.listening();
      const accepted = event(server, 'connection');
      const client = t.own(net.connect(port, LOOPBACK));
      const own = closed(client);
      client.resetAndDestroy();
      const [peer] = await accepted;
      assert.equal((await failure((peer as typeof client).resume())).code, 'ECONNRESET');
      await own;
    },
  },
  {
    name: 'resetAndDestroy() without a connection fails with ERR_SOCKET_CLOSED',
    areas: ['destroy', 'errors'],
    async run(net) {
      const socket = new net.Socket();
      const outcome = failure(socket);
      socket.resetAndDestroy();
      assert.equal((await outcome).code, 'ERR_SOCKET_CLOSED');
    },
  },
  {
    name: 'resetAndDestroy() of a Unix socket throws ERR_INVALID_HANDLE_TYPE',
    areas: ['destroy', 'unix', 'errors'],
    async run(net, t) {
      const path = join(t.folder(), 'socket');
      const server = t.server();
      server.listen(path);
      await event(server, 'listening');
      const client = t.own(net.connect(path));
      await event(client, 'connect');
      assert.throws(() => client.resetAndDestroy(), { code: 'ERR_INVALID_HANDLE_TYPE' });
      assert.equal(client.destroyed, false);
    },
  },
  {
    name: 'destroy() with data unread resets the peer',
    areas: ['destroy', 'errors'],
    async run(net, t) {
      const { client, peer, port } = await t.pair({ server: { pauseOnConnect: true } });
      await called((done) => client.write('nobody reads this', done));
      await event(t.own(net.connect(port, LOOPBACK)), 'connect');
      const outcome = failure(client.resume());
      peer.destroy();
      assert.equal((await outcome).code, 'ECONNRESET');
    },
  },
  {
    name: 'the callback of a write that destroy() cuts off gets an error',
    areas: ['destroy', 'write', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.pause();
      const chunk = Buffer.alloc(1 << 20);
      for (let i = 0; i < 32; i++) client.write(chunk);
      const outcome = called((done) => client.write(chunk, done));
      client.destroy();
      const [last] = (await outcome) as [NodeJS.ErrnoException];
      assert.ok(last instanceof Error);
      assert.ok(['ERR_STREAM_DESTROYED', 'ECANCELED'].includes(last.code ?? ''), last.code);
    },
  },
  {
    name: 'a write after destroy(): ERR_STREAM_DESTROYED in the callback, and no error event',
    areas: ['destroy', 'write', 'errors'],
    async run(_net, t) {
      const { client } = await t.pair();
      const seen = record(client, 'error', 'close');
      client.destroy();
      const [error] = await called((done) => client.write('x', done));
      assert.equal((error as NodeJS.ErrnoException).code, 'ERR_STREAM_DESTROYED');
      await turns();
      assert.deepEqual(seen, ['close(false)']);
    },
  },
  {
    name: 'a connection that its peer has closed: writes fail with EPIPE or ECONNRESET of write',
    areas: ['destroy', 'write', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair({ client: { allowHalfOpen: true } });
      client.resume();
      peer.destroy();
      await event(client, 'end');
      const outcome = failure(client);
      const again = (error?: Error | null): void => {
        if (error === undefined || error === null) setImmediate(() => client.write('x', again));
      };
      client.write('x', again);
      const error = await outcome;
      assert.ok(['EPIPE', 'ECONNRESET'].includes(error.code ?? ''), error.code);
      assert.equal(error.syscall, 'write');
    },
  },
  {
    name: 'finished() of a destroyed socket rejects with ERR_STREAM_PREMATURE_CLOSE',
    areas: ['destroy', 'streams'],
    async run(_net, t) {
      const { client } = await t.pair();
      const done = finished(client);
      client.destroy();
      await assert.rejects(done, { code: 'ERR_STREAM_PREMATURE_CLOSE' });
    },
  },
  {
    name: 'an error thrown by a write of the wrong type leaves the socket usable',
    areas: ['destroy', 'write', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      assert.throws(() => client.write(5 as unknown as string), { code: 'ERR_INVALID_ARG_TYPE' });
      const got = everything(peer);
      client.end('fine');
      assert.equal((await got).toString(), 'fine');
    },
  },
  {
    name: 'a reset while paused closes the socket with ECONNRESET',
    areas: ['destroy', 'errors', 'read'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const outcome = failure(client);
      client.on('data', () => {});
      client.pause();
      peer.resetAndDestroy();
      client.resume();
      assert.equal((await outcome).code, 'ECONNRESET');
    },
  },
  {
    name: 'await using destroys a socket with an AbortError, which it takes itself',
    areas: ['destroy', 'dispose'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      const seen = record(client, 'error');
      client.write('fits the kernel');
      await client[Symbol.asyncDispose]();
      assert.equal(client.destroyed, true);
      assert.deepEqual(seen, ['error']);
      assert.equal((await got).toString(), 'fits the kernel');
    },
    differs: {
      why: '`await using` of a socket sends what is queued, as `destroySoon()` does, and closes without an error.',
      async run(_net, t) {
        const { client, peer } = await t.pair();
        const got = everything(peer);
        const seen = record(client, 'error', 'close');
        const sent = Buffer.alloc(4 << 20, 'z');
        client.write(sent);
        await client[Symbol.asyncDispose]();
        assert.equal(client.destroyed, true);
        assert.deepEqual(seen, ['close(false)']);
        assert.ok(sent.equals(await got));
      },
    },
  },
  {
    name: 'finished() of a socket whose both sides ended resolves',
    areas: ['destroy', 'streams'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      client.resume();
      const done = finished(client);
      peer.end();
      await done;
    },
  },
  {
    name: "destroy() in a listener of 'connect': 'ready' and 'close' still come",
    areas: ['destroy', 'connect', 'events'],
    async run(net, t) {
      const { port } = await t.listening();
      const client = t.own(net.connect(port, LOOPBACK));
      const seen = record(client, 'connect', 'ready', 'error', 'close');
      client.on('connect', () => client.destroy());
      await closed(client);
      assert.deepEqual(seen, ['connect', 'ready', 'close(false)']);
    },
  },
];
