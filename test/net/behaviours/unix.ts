/** Unix domain sockets. */
import assert from 'node:assert/strict';
import { existsSync, statSync } from 'node:fs';
import type { Server, Socket } from 'node:net';
import { join } from 'node:path';
import type { Scene } from './scene.ts';
import { called, closed, event, everything, pattern, received, record } from './scene.ts';
import type { ConnectError, Table } from './table.ts';

/** A server on a path of its own. */
async function onPath(
  t: Scene,
  listener?: (socket: Socket) => void,
): Promise<{ server: Server; path: string }> {
  const path = join(t.folder(), 'socket');
  const server = t.server({}, listener);
  server.listen(path);
  await event(server, 'listening');
  return { server, path };
}

export const UNIX: Table = [
  {
    name: 'listen(path) and connect(path, callback)',
    areas: ['unix', 'connect', 'listen'],
    async run(net, t) {
      const { server, path } = await onPath(t, (socket) => socket.pipe(socket));
      assert.equal(server.address(), path);
      let client: Socket | undefined;
      await called((done) => {
        client = t.own(net.connect(path, done));
      });
      client?.end('over a path');
      assert.equal((await everything(client as Socket)).toString(), 'over a path');
      await closed(client as Socket);
    },
  },
  {
    name: 'listen({ path }) and connect({ path }), createConnection(path)',
    areas: ['unix', 'connect', 'listen'],
    async run(net, t) {
      const path = join(t.folder(), 'socket');
      const server = t.server();
      await called((done) => server.listen({ path }, done));
      await event(t.own(net.connect({ path })), 'connect');
      await event(t.own(net.createConnection(path)), 'connect');
      await event(t.own(new net.Socket().connect(path)), 'connect');
    },
  },
  {
    name: 'a Unix connection has no addresses and no ports',
    areas: ['unix', 'address'],
    async run(net, t) {
      const { server, path } = await onPath(t);
      const accepted = event(server, 'connection');
      const client = t.own(net.connect(path));
      await event(client, 'connect');
      const [peer] = (await accepted) as [Socket];
      for (const socket of [client, peer]) {
        assert.equal(socket.remoteAddress, undefined);
        assert.equal(socket.remotePort, undefined);
        assert.equal(socket.localPort, undefined);
        assert.deepEqual(socket.address(), {});
      }
    },
  },
  {
    name: 'a Unix connection carries large data both ways, and counts it',
    areas: ['unix', 'write', 'counts'],
    async run(net, t) {
      const { server, path } = await onPath(t);
      const accepted = event(server, 'connection');
      const client = t.own(net.connect(path));
      const [peer] = (await accepted) as [Socket];
      const sent = pattern((2 << 20) + 3);
      const both = Promise.all([everything(client), everything(peer)]);
      client.end(sent);
      peer.end(sent);
      const [down, up] = await both;
      assert.ok(down.equals(sent) && up.equals(sent));
      assert.equal(client.bytesWritten, sent.length);
      assert.equal(client.bytesRead, sent.length);
    },
  },
  {
    name: 'setNoDelay() and setKeepAlive() of a Unix socket do nothing',
    areas: ['unix', 'options'],
    async run(net, t) {
      const { path } = await onPath(t, (socket) => socket.pipe(socket));
      const client = t.own(net.connect(path));
      await event(client, 'connect');
      assert.equal(client.setNoDelay(true), client);
      assert.equal(client.setKeepAlive(true, 1_000), client);
      client.write('ok');
      assert.equal((await received(client, 2)).toString(), 'ok');
    },
  },
  {
    name: 'half-open works over a path',
    areas: ['unix', 'half-open'],
    async run(net, t) {
      const path = join(t.folder(), 'socket');
      const server = t.server({ allowHalfOpen: true }, (socket) => {
        socket.resume();
        socket.on('end', () => socket.end('after the end'));
      });
      await called((done) => server.listen(path, done));
      const client = t.own(net.connect(path));
      client.end();
      assert.equal((await everything(client)).toString(), 'after the end');
    },
  },
  {
    name: 'close() takes the file away',
    areas: ['unix', 'server close'],
    async run(_net, t) {
      const { server, path } = await onPath(t);
      assert.ok(existsSync(path));
      server.close();
      await event(server, 'close');
      assert.equal(existsSync(path), false);
    },
  },
  {
    name: 'a path that is taken: EADDRINUSE of listen with the path',
    areas: ['unix', 'listen', 'errors'],
    async run(_net, t) {
      const { path } = await onPath(t);
      const second = t.server();
      second.listen(path);
      const [error] = (await event(second, 'error')) as [ConnectError];
      assert.deepEqual([error.code, error.syscall, error.address], ['EADDRINUSE', 'listen', path]);
      assert.equal(second.listening, false);
    },
  },
  {
    name: 'a path in a folder that is not there: EACCES of listen',
    areas: ['unix', 'listen', 'errors'],
    async run(_net, t) {
      const server = t.server();
      const path = join(t.folder(), 'none', 'socket');
      server.listen(path);
      const [error] = (await event(server, 'error')) as [ConnectError];
      assert.deepEqual([error.code, error.syscall, error.address], ['EACCES', 'listen', path]);
    },
    differs: {
      why: 'Listening on a path in a folder that is not there fails with ENOENT, as the kernel says; Node makes EACCES of it.',
      async run(_net, t) {
        const server = t.server();
        const path = join(t.folder(), 'none', 'socket');
        server.listen(path);
        const [error] = (await event(server, 'error')) as [ConnectError];
        assert.deepEqual([error.code, error.syscall, error.address], ['ENOENT', 'listen', path]);
      },
    },
  },
  {
    name: 'readableAll and writableAll open the file to all users',
    areas: ['unix', 'listen'],
    async run(_net, t) {
      const path = join(t.folder(), 'socket');
      const server = t.server();
      await called((done) => server.listen({ path, readableAll: true, writableAll: true }, done));
      assert.equal(statSync(path).mode & 0o666, 0o666);
    },
  },
  {
    name: 'an abstract name, which begins with a zero byte, is no file',
    areas: ['unix', 'connect', 'listen'],
    async run(net, t) {
      const path = `\0net-behaviour-${process.pid}-${process.hrtime.bigint()}`;
      const server = t.server({}, (socket) => socket.end('abstract'));
      await called((done) => server.listen(path, done));
      assert.equal(server.address(), path);
      const client = t.own(net.connect(path));
      assert.equal((await everything(client)).toString(), 'abstract');
    },
  },
  {
    name: 'getConnections() and maxConnections work over a path',
    areas: ['unix', 'server close'],
    async run(net, t) {
      const { server, path } = await onPath(t);
      server.maxConnections = 1;
      const accepted = event(server, 'connection');
      await event(t.own(net.connect(path)), 'connect');
      await accepted;
      const dropped = event(server, 'drop');
      const second = t.own(net.connect(path));
      await dropped;
      await closed(second.resume());
      const [error, count] = await called((done) => server.getConnections(done));
      assert.deepEqual([error, count], [null, 1]);
    },
  },
  {
    name: 'a path has no lookup, and no events of attempts',
    areas: ['unix', 'events'],
    async run(net, t) {
      const { path } = await onPath(t);
      const client = t.own(net.connect(path));
      const seen = record(client, 'lookup', 'connectionAttempt', 'connect', 'ready');
      await event(client, 'ready');
      assert.deepEqual(seen, ['connect', 'ready']);
    },
  },
];
