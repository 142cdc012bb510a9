/** The order in which sockets and servers emit. */
import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import type { LookupFunction, Socket } from 'node:net';
import { called, closed, event, LOOPBACK, record } from './scene.ts';
import type { Table } from './table.ts';

const LIFE = ['lookup', 'connect', 'ready', 'data', 'end', 'finish', 'error', 'close'] as const;

const lookup: LookupFunction = (_host, options, callback) => {
  process.nextTick(() => {
    if (options.all === true) callback(null, [{ address: LOOPBACK, family: 4 }]);
    else callback(null, LOOPBACK, 4);
  });
};

export const ORDER: Table = [
  {
    name: 'a client that is answered and ended: lookup, connect, ready, data, end, finish, close',
    areas: ['events'],
    async run(net, t) {
      const { port } = await t.listening({}, (socket) => socket.end('hello'));
      const client = t.own(net.connect({ port, host: 'host.example', lookup }));
      const seen = record(client, ...LIFE);
      await closed(client);
      assert.deepEqual(seen, ['lookup', 'connect', 'ready', 'data', 'end', 'finish', 'close(false)']);
    },
  },
  {
    name: 'a client that ends first: finish, then end, then close',
    areas: ['events', 'half-open'],
    async run(net, t) {
      const { port } = await t.listening({}, (socket) => socket.resume());
      const client = t.own(net.connect(port, LOOPBACK));
      const seen = record(client, ...LIFE);
      await event(client, 'connect');
      client.resume().end('bye');
      await closed(client);
      assert.deepEqual(seen, ['connect', 'ready', 'finish', 'end', 'close(false)']);
    },
  },
  {
    name: 'the server side of an ended connection: data, end, finish, close',
    areas: ['events', 'half-open'],
    async run(net, t) {
      const { server, port } = await t.listening();
      const accepted = event(server, 'connection');
      t.own(net.connect(port, LOOPBACK)).end('request');
      const [peer] = (await accepted) as [Socket];
      const seen = record(peer, ...LIFE);
      await closed(peer);
      assert.deepEqual(seen, ['data', 'end', 'finish', 'close(false)']);
    },
  },
  {
    name: 'connect comes in a later turn than the call',
    areas: ['events', 'connect'],
    async run(net, t) {
      const { port } = await t.listening();
      const client = t.own(net.connect(port, LOOPBACK));
      const seen = record(client, 'connect');
      await Promise.resolve();
      assert.deepEqual(seen, []);
      await event(client, 'connect');
    },
  },
  {
    name: 'connecting is over when connect is emitted, and writes go out',
    areas: ['events', 'state'],
    async run(net, t) {
      const { port } = await t.echo();
      const client = t.own(net.connect(port, LOOPBACK));
      await event(client, 'connect');
      assert.equal(client.connecting, false);
      assert.equal(client.writable, true);
      client.end('x');
      client.resume();
      await closed(client);
    },
  },
  {
    name: 'a server emits listening, connection, and close when its last connection is gone',
    areas: ['events', 'server close'],
    async run(net, t) {
      const server = t.server();
      const seen = record(server, 'listening', 'connection', 'error', 'close');
      server.listen(0, LOOPBACK);
      await event(server, 'listening');
      const accepted = event(server, 'connection');
      const { port } = server.address() as { port: number };
      const client = t.own(net.connect(port, LOOPBACK));
      const [peer] = (await accepted) as [Socket];
      server.on('close', () => seen.push(`destroyed: ${peer.destroyed}`));
      server.close();
      peer.resume();
      client.end();
      await event(server, 'close');
      assert.deepEqual(seen, ['listening', 'connection', 'close', 'destroyed: true']);
    },
  },
  {
    name: 'a server emits connection with itself as this and one argument',
    areas: ['events', 'server'],
    async run(net, t) {
      const { server, port } = await t.listening();
      const result = called((done) => {
        server.on('connection', function (this: unknown, ...args: unknown[]) {
          done(this, args.length, args[0] instanceof net.Socket);
        });
      });
      t.own(net.connect(port, LOOPBACK));
      assert.deepEqual(await result, [server, 1, true]);
    },
  },
  {
    name: 'callbacks of writes come before finish, and that of end() just before it',
    areas: ['events', 'write', 'half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.resume();
      const seen = record(client, 'finish');
      client.write('one', () => seen.push('one'));
      client.write('two', () => seen.push('two'));
      client.end('three', () => seen.push('end'));
      client.resume();
      await closed(client);
      assert.deepEqual(seen, ['one', 'two', 'end', 'finish']);
    },
  },
  {
    name: 'a destroyed socket emits nothing more than close',
    areas: ['events', 'destroy'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const seen = record(client, 'data', 'end', 'close');
      client.on('data', () => client.destroy());
      peer.write('a');
      peer.end('b');
      await closed(client);
      await closed(peer);
      assert.deepEqual(seen, ['data', 'close(false)']);
    },
  },
  {
    name: 'close comes last, and the socket is destroyed by then',
    areas: ['events', 'state'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      let destroyed: boolean | undefined;
      client.on('close', () => {
        destroyed = client.destroyed;
      });
      client.resume();
      peer.end();
      await closed(client);
      assert.equal(destroyed, true);
      assert.equal(client.closed, true);
    },
  },
  {
    name: 'listeners run in the asynchronous context of the call that connected',
    areas: ['events', 'context'],
    async run(net, t) {
      const { port } = await t.echo();
      const storage = new AsyncLocalStorage<string>();
      const seen: string[] = [];
      const note = (name: string): void => {
        seen.push(`${name} ${storage.getStore()}`);
      };
      const client = storage.run('inside', () => t.own(net.connect(port, LOOPBACK, () => note('connect'))));
      client.on('data', () => note('data'));
      client.on('close', () => note('close'));
      await event(client, 'connect');
      storage.run('writing', () => client.write('x', () => note('written')));
      await event(client, 'data');
      client.end();
      await closed(client);
      assert.deepEqual([...new Set(seen)].filter((line) => !line.startsWith('close')).sort(), [
        'connect inside',
        'data inside',
        'written writing',
      ]);
    },
  },
];
