/** What sockets say of themselves: addresses, counts and states. */
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { Duplex } from 'node:stream';
import { closed, event, LOOPBACK, received } from './scene.ts';
import type { Table } from './table.ts';

export const STATE: Table = [
  {
    name: 'the two ends name each other',
    areas: ['address'],
    async run(_net, t) {
      const { client, peer, port } = await t.pair();
      assert.deepEqual(
        [client.remoteAddress, client.remotePort, client.remoteFamily],
        [LOOPBACK, port, 'IPv4'],
      );
      assert.deepEqual([peer.localAddress, peer.localPort, peer.localFamily], [LOOPBACK, port, 'IPv4']);
      assert.equal(client.localAddress, peer.remoteAddress);
      assert.equal(client.localPort, peer.remotePort);
      assert.equal(client.localFamily, peer.remoteFamily);
    },
  },
  {
    name: 'address() is the local end',
    areas: ['address'],
    async run(_net, t) {
      const { client, peer, port } = await t.pair();
      assert.deepEqual(peer.address(), { address: LOOPBACK, family: 'IPv4', port });
      assert.deepEqual(client.address(), { address: LOOPBACK, family: 'IPv4', port: peer.remotePort });
    },
  },
  {
    name: 'before connect there are no addresses',
    areas: ['address'],
    async run(net, t) {
      const { port } = await t.listening();
      const socket = t.own(new net.Socket());
      for (const when of ['new', 'connecting']) {
        assert.deepEqual(socket.address(), {}, when);
        assert.deepEqual(
          [socket.remoteAddress, socket.remotePort, socket.remoteFamily],
          [undefined, undefined, undefined],
          when,
        );
        if (when === 'new') socket.connect(port, LOOPBACK);
      }
      await event(socket, 'connect');
      assert.equal(socket.remoteAddress, LOOPBACK);
    },
  },
  {
    name: 'the remote address stays after close if it was read before; the local one goes',
    areas: ['address', 'destroy'],
    async run(_net, t) {
      const { client, peer, port } = await t.pair();
      assert.deepEqual([client.remoteAddress, client.localAddress], [LOOPBACK, LOOPBACK]);
      assert.equal(peer.remoteAddress, LOOPBACK);
      client.destroy();
      await closed(peer.resume());
      for (const socket of [client, peer]) {
        assert.equal(socket.remoteAddress, LOOPBACK);
        assert.equal(socket.localAddress, undefined);
        assert.deepEqual(socket.address(), {});
      }
      assert.equal(client.remotePort, port);
    },
    differs: {
      why: 'All addresses of a socket stay readable after it has closed, also those that nobody read before.',
      async run(_net, t) {
        const { client, peer, port } = await t.pair();
        client.destroy();
        await closed(peer.resume());
        assert.deepEqual([client.remoteAddress, client.remotePort], [LOOPBACK, port]);
        assert.deepEqual([peer.localAddress, peer.localPort], [LOOPBACK, port]);
        assert.equal(client.localPort, peer.remotePort);
      },
    },
  },
  {
    name: 'a server on all addresses sees the one that was asked for',
    areas: ['address', 'server'],
    async run(net, t) {
      const server = t.server();
      server.listen(0, '0.0.0.0');
      await event(server, 'listening');
      const accepted = event(server, 'connection');
      const { port } = server.address() as { port: number };
      t.own(net.connect(port, '127.0.0.9'));
      const [peer] = (await accepted) as [import('node:net').Socket];
      assert.equal(peer.localAddress, '127.0.0.9');
    },
  },
  {
    name: 'bytesRead and bytesWritten count both directions, and stay after close',
    areas: ['counts'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      assert.deepEqual([client.bytesRead, client.bytesWritten], [0, 0]);
      client.write('grüße');
      await received(peer, 7);
      peer.write(Buffer.alloc(1_000));
      await received(client, 1_000);
      const both = Promise.all([closed(client), closed(peer)]);
      peer.resume();
      client.resume().end('!');
      await both;
      assert.deepEqual([client.bytesRead, client.bytesWritten], [1_000, 8]);
      assert.deepEqual([peer.bytesRead, peer.bytesWritten], [8, 1_000]);
    },
  },
  {
    name: 'bytesRead counts what the socket took in, read by the program or not',
    areas: ['counts', 'pause'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.write('four');
      await event(client, 'readable');
      assert.equal(client.bytesRead, 4);
      assert.equal(client.readableLength, 4);
    },
  },
  {
    name: 'pending and connecting: before, while, and after connecting',
    areas: ['state', 'connect'],
    async run(net, t) {
      const { port } = await t.listening();
      const socket = t.own(new net.Socket());
      assert.deepEqual([socket.pending, socket.connecting], [true, false]);
      socket.connect(port, LOOPBACK);
      assert.deepEqual([socket.pending, socket.connecting], [true, true]);
      await event(socket, 'connect');
      assert.deepEqual([socket.pending, socket.connecting], [false, false]);
      socket.destroy();
      assert.deepEqual([socket.pending, socket.connecting], [true, false]);
      await closed(socket);
    },
  },
  {
    name: 'readyState: opening, open, and closed',
    areas: ['state'],
    async run(net, t) {
      const { port } = await t.listening();
      const socket = t.own(net.connect(port, LOOPBACK));
      assert.equal(socket.readyState, 'opening');
      await event(socket, 'connect');
      assert.equal(socket.readyState, 'open');
      socket.destroy();
      assert.equal(socket.readyState, 'closed');
      await closed(socket);
      assert.equal(socket.readyState, 'closed');
    },
  },
  {
    name: 'readyState of the two ends of a half-open connection',
    areas: ['state', 'half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair({ server: { allowHalfOpen: true } });
      client.end();
      peer.resume();
      await event(peer, 'end');
      assert.equal(client.readyState, 'readOnly');
      assert.equal(peer.readyState, 'writeOnly');
    },
  },
  {
    name: 'a new socket is neither destroyed nor connecting, and may be ended',
    areas: ['state'],
    run(net) {
      const socket = new net.Socket();
      assert.equal(socket.destroyed, false);
      assert.equal(socket.readyState, 'open');
      assert.deepEqual([socket.bytesRead, socket.bytesWritten], [0, 0]);
      socket.destroy();
      assert.equal(socket.destroyed, true);
    },
  },
  {
    name: 'sockets are Duplex streams, servers are EventEmitters',
    areas: ['state', 'streams'],
    async run(net, t) {
      const { server, client, peer } = await t.pair();
      assert.ok(client instanceof net.Socket && client instanceof Duplex);
      assert.ok(peer instanceof net.Socket);
      assert.ok(server instanceof net.Server && server instanceof EventEmitter);
    },
  },
  {
    name: 'classes derived of Socket and Server work',
    areas: ['state', 'streams'],
    async run(net, t) {
      class Client extends net.Socket {
        readonly tag = 'mine';
      }
      class Own extends net.Server {
        count = 0;
      }
      const server = new Own((socket) => {
        server.count++;
        socket.end('x');
      });
      t.adopt(server);
      server.listen(0, LOOPBACK);
      await event(server, 'listening');
      const client = t.own(new Client());
      client.connect((server.address() as { port: number }).port, LOOPBACK);
      client.resume();
      await closed(client);
      assert.equal(client.tag, 'mine');
      assert.equal(server.count, 1);
    },
  },
  {
    name: 'ref() and unref() return the socket, and the server',
    areas: ['ref'],
    async run(net, t) {
      const { server, client } = await t.pair();
      for (const one of [client, t.own(new net.Socket())]) {
        assert.equal(one.unref(), one);
        assert.equal(one.ref(), one);
      }
      for (const one of [server, t.server()]) {
        assert.equal(one.unref(), one);
        assert.equal(one.ref(), one);
      }
    },
  },
];
