/** AbortSignal: connections and servers that end when it does. */
import assert from 'node:assert/strict';
import { addAbortSignal } from 'node:stream';
import { closed, event, failure, LOOPBACK, record, turns } from './scene.ts';
import type { Table } from './table.ts';

export const ABORT: Table = [
  {
    name: 'a signal that aborts an open socket: AbortError, then close with true',
    areas: ['signal', 'destroy'],
    async run(net, t) {
      const { port } = await t.listening();
      const abort = new AbortController();
      const client = t.own(new net.Socket({ signal: abort.signal }));
      client.connect(port, LOOPBACK);
      await event(client, 'connect');
      const outcome = failure(client);
      abort.abort();
      const error = await outcome;
      assert.deepEqual([error.name, error.code], ['AbortError', 'ABORT_ERR']);
      assert.equal(error.cause, abort.signal.reason);
    },
  },
  {
    name: 'a signal of connect() that aborts while connecting',
    areas: ['signal', 'connect errors'],
    async run(net, t) {
      const abort = new AbortController();
      const options = { port: t.stalled(), host: LOOPBACK, signal: abort.signal };
      const client = t.own(net.connect(options));
      const seen = record(client, 'connect', 'error', 'close');
      const outcome = failure(client);
      await turns();
      assert.equal(client.connecting, true);
      abort.abort();
      assert.equal((await outcome).code, 'ABORT_ERR');
      assert.deepEqual(seen, ['error', 'close(true)']);
    },
  },
  {
    name: 'a signal that has aborted already: AbortError, later',
    areas: ['signal', 'connect errors'],
    async run(net, t) {
      const { port } = await t.listening();
      const options = { port, host: LOOPBACK, signal: AbortSignal.abort() };
      const client = t.own(net.connect(options));
      assert.equal((await failure(client)).code, 'ABORT_ERR');
    },
  },
  {
    name: 'a signal that is none throws ERR_INVALID_ARG_TYPE',
    areas: ['signal', 'arguments'],
    run(net, t) {
      const signal = 'abort' as unknown as AbortSignal;
      assert.throws(() => new net.Socket({ signal }), { code: 'ERR_INVALID_ARG_TYPE' });
      assert.throws(() => t.server().listen({ port: 0, signal }), { code: 'ERR_INVALID_ARG_TYPE' });
    },
  },
  {
    name: 'a signal that aborts after close does nothing',
    areas: ['signal', 'destroy'],
    async run(net, t) {
      const { port } = await t.listening();
      const abort = new AbortController();
      const client = t.own(new net.Socket({ signal: abort.signal }));
      client.connect(port, LOOPBACK);
      await event(client, 'connect');
      const seen = record(client, 'error', 'close');
      client.destroy();
      await closed(client);
      abort.abort();
      await turns();
      assert.deepEqual(seen, ['close(false)']);
    },
  },
  {
    name: 'addAbortSignal() of streams works',
    areas: ['signal', 'streams'],
    async run(_net, t) {
      const { client } = await t.pair();
      const abort = new AbortController();
      addAbortSignal(abort.signal, client);
      const outcome = failure(client);
      abort.abort();
      assert.equal((await outcome).name, 'AbortError');
    },
  },
  {
    name: 'a signal of listen() closes the server',
    areas: ['signal', 'listen', 'server close'],
    async run(_net, t) {
      const abort = new AbortController();
      const server = t.server();
      server.listen({ port: 0, host: LOOPBACK, signal: abort.signal });
      await event(server, 'listening');
      abort.abort();
      await event(server, 'close');
      assert.equal(server.listening, false);
    },
  },
  {
    name: 'a signal of listen() that has aborted already: the server closes',
    areas: ['signal', 'listen', 'server close'],
    async run(_net, t) {
      const server = t.server();
      const seen = record(server, 'error');
      server.listen({ port: 0, host: LOOPBACK, signal: AbortSignal.abort() });
      await event(server, 'close');
      await turns();
      assert.equal(server.listening, false);
      assert.deepEqual(seen, []);
    },
  },
];
