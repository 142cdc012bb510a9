/** Forms in which a connection can be asked for, and arguments that are refused. */
import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import dns from 'node:dns';
import type { AddressInfo, LookupFunction, Socket, TcpNetConnectOpts } from 'node:net';
import * as calls from '../../../src/sys/calls.ts';
import { AF_INET, SOCK_STREAM } from '../../../src/sys/constants.ts';
import { called, closed, event, failure, LOOPBACK, type Pair, received, type Scene } from './scene.ts';
import type { Table } from './table.ts';

/** Answers every name with 127.0.0.1, and notes what it was asked. */
function answering(asked: unknown[][]): LookupFunction {
  return (host, options, callback) => {
    asked.push([host, options]);
    process.nextTick(() => {
      if (options.all === true) callback(null, [{ address: LOOPBACK, family: 4 }]);
      else callback(null, LOOPBACK, 4);
    });
  };
}

/** What node's channels say while a connection is made. */
async function publishedFor(t: Scene): Promise<Pair & { readonly published: unknown[] }> {
  const published: unknown[] = [];
  const note = (message: unknown): void => {
    published.push((message as { socket: unknown }).socket);
  };
  const names = ['net.client.socket', 'net.server.socket'];
  for (const name of names) subscribe(name, note);
  t.defer(() => {
    for (const name of names) unsubscribe(name, note);
  });
  return { ...(await t.pair()), published };
}

export const CONNECT: Table = [
  {
    name: 'connect(port, host, callback) connects and calls back with the socket as this',
    areas: ['connect'],
    async run(net, t) {
      const { server, port } = await t.listening();
      const accepted = event(server, 'connection');
      let socket: Socket | undefined;
      const [self] = await called((done) => {
        function connected(this: unknown): void {
          done(this);
        }
        socket = t.own(net.connect(port, LOOPBACK, connected));
      });
      assert.equal(self, socket);
      await accepted;
    },
  },
  {
    name: 'connect(port, callback) goes to localhost',
    areas: ['connect'],
    async run(net, t) {
      const server = t.server();
      server.listen(0, 'localhost');
      await event(server, 'listening');
      const { port } = server.address() as AddressInfo;
      const connect = net.connect as unknown as (to: number, callback: () => void) => Socket;
      let socket: Socket | undefined;
      await called((done) => {
        socket = t.own(connect(port, done));
      });
      assert.ok(['127.0.0.1', '::1'].includes(socket?.remoteAddress ?? ''));
    },
  },
  {
    name: 'connect({ port, host }, callback) connects',
    areas: ['connect'],
    async run(net, t) {
      const { port } = await t.listening();
      await called((done) => t.own(net.connect({ port, host: LOOPBACK }, done)));
    },
  },
  {
    name: 'createConnection takes the same forms as connect',
    areas: ['connect'],
    async run(net, t) {
      const { port } = await t.listening();
      await called((done) => t.own(net.createConnection(port, LOOPBACK, done)));
      await called((done) => t.own(net.createConnection({ port, host: LOOPBACK }, done)));
      await event(t.own(net.createConnection(port, LOOPBACK)), 'connect');
    },
  },
  {
    name: 'a new Socket connects later, and connect() returns it',
    areas: ['connect'],
    async run(net, t) {
      const { port } = await t.listening();
      const first = t.own(new net.Socket());
      await called((done) => assert.equal(first.connect(port, LOOPBACK, done), first));
      const second = t.own(new net.Socket());
      await called((done) => assert.equal(second.connect({ port, host: LOOPBACK }, done), second));
    },
  },
  {
    name: 'a port may be a string of digits',
    areas: ['connect'],
    async run(net, t) {
      const { port } = await t.listening();
      const socket = t.own(net.connect({ port: String(port) as unknown as number, host: LOOPBACK }));
      await event(socket, 'connect');
      assert.equal(socket.remotePort, port);
    },
  },
  {
    name: 'the callback is a listener of connect that runs once',
    areas: ['connect'],
    async run(net, t) {
      const { port } = await t.listening();
      let runs = 0;
      const socket = t.own(net.connect(port, LOOPBACK, () => runs++));
      assert.equal(socket.listenerCount('connect'), 1);
      await event(socket, 'connect');
      assert.equal(runs, 1);
      assert.equal(socket.listenerCount('connect'), 0);
    },
  },
  {
    name: 'ports out of range or of another form throw ERR_SOCKET_BAD_PORT',
    areas: ['connect', 'arguments'],
    run(net) {
      for (const port of [-1, 65_536, 1.5, Number.NaN, 'a', '1 2', '']) {
        assert.throws(() => net.connect({ port: port as number, host: LOOPBACK }), {
          code: 'ERR_SOCKET_BAD_PORT',
          name: 'RangeError',
        });
      }
    },
  },
  {
    name: 'a port that is neither number nor string throws ERR_INVALID_ARG_TYPE',
    areas: ['connect', 'arguments'],
    run(net) {
      for (const port of [true, {}, [], () => {}]) {
        assert.throws(() => net.connect({ port: port as number, host: LOOPBACK }), {
          code: 'ERR_INVALID_ARG_TYPE',
          name: 'TypeError',
        });
      }
    },
  },
  {
    name: 'neither port nor path throws ERR_MISSING_ARGS',
    areas: ['connect', 'arguments'],
    run(net) {
      for (const options of [{}, { host: LOOPBACK }]) {
        assert.throws(() => net.connect(options as TcpNetConnectOpts), { code: 'ERR_MISSING_ARGS' });
      }
      assert.throws(() => (net.connect as unknown as () => void)(), { code: 'ERR_MISSING_ARGS' });
    },
  },
  {
    name: 'a host, path or local address of the wrong type throws ERR_INVALID_ARG_TYPE',
    areas: ['connect', 'arguments'],
    run(net) {
      const wrong: object[] = [
        { path: 5 },
        { port: 1, host: LOOPBACK, localPort: 'a' },
        { port: 1, host: LOOPBACK, localPort: true },
        { port: 1, host: 'host.example', lookup: 'lookup' },
      ];
      for (const options of wrong) {
        assert.throws(
          () => net.connect(options as TcpNetConnectOpts),
          { code: 'ERR_INVALID_ARG_TYPE' },
          JSON.stringify(options),
        );
      }
    },
  },
  {
    name: 'localAddress that is no address throws ERR_INVALID_IP_ADDRESS',
    areas: ['connect', 'arguments'],
    run(net) {
      assert.throws(() => net.connect({ port: 1, host: LOOPBACK, localAddress: 'localhost' }), {
        code: 'ERR_INVALID_IP_ADDRESS',
      });
    },
  },
  {
    name: 'hints other than those of dns.lookup throw ERR_INVALID_ARG_VALUE',
    areas: ['connect', 'lookup', 'arguments'],
    run(net) {
      assert.throws(() => net.connect({ port: 1, host: 'host.example', hints: 0x4000_0000 }), {
        code: 'ERR_INVALID_ARG_VALUE',
      });
    },
  },
  {
    name: 'localAddress is the address that the peer sees',
    areas: ['connect', 'address'],
    async run(_net, t) {
      const { client, peer } = await t.pair({ client: { localAddress: '127.0.0.2' } });
      assert.equal(client.localAddress, '127.0.0.2');
      assert.equal(peer.remoteAddress, '127.0.0.2');
    },
  },
  {
    name: 'localPort is the port that the peer sees',
    areas: ['connect', 'address'],
    async run(_net, t) {
      const localPort = await t.freePort('127.0.0.3');
      const { client, peer } = await t.pair({ client: { localAddress: '127.0.0.3', localPort } });
      assert.equal(client.localPort, localPort);
      assert.equal(peer.remotePort, localPort);
    },
  },
  {
    name: 'lookup is asked for the host, with family and hints',
    areas: ['connect', 'lookup'],
    async run(net, t) {
      const { port } = await t.listening();
      const asked: unknown[][] = [];
      const options = { family: 4, hints: dns.ADDRCONFIG };
      const socket = t.own(net.connect({ port, host: 'host.example', lookup: answering(asked), ...options }));
      await event(socket, 'connect');
      assert.equal(asked.length, 1);
      const [host, given] = asked[0] as [string, dns.LookupOptions];
      assert.equal(host, 'host.example');
      assert.equal(given.family, 4);
      assert.equal(given.hints, dns.ADDRCONFIG);
      assert.equal(socket.remoteAddress, LOOPBACK);
    },
  },
  {
    name: 'lookup is not asked for an address',
    areas: ['connect', 'lookup'],
    async run(net, t) {
      const { port } = await t.listening();
      const asked: unknown[][] = [];
      const socket = t.own(net.connect({ port, host: LOOPBACK, lookup: answering(asked) }));
      await event(socket, 'connect');
      assert.deepEqual(asked, []);
    },
  },
  {
    name: "'lookup' has the error, the address, its family and the host",
    areas: ['connect', 'lookup', 'events'],
    async run(net, t) {
      const { port } = await t.listening();
      const socket = t.own(net.connect({ port, host: 'host.example', lookup: answering([]) }));
      const [looked] = await Promise.all([event(socket, 'lookup'), event(socket, 'connect')]);
      assert.deepEqual(looked, [null, LOOPBACK, 4, 'host.example']);
    },
  },
  {
    name: 'a lookup that answers at once is as good as one that answers later',
    areas: ['connect', 'lookup'],
    async run(net, t) {
      const { port } = await t.listening();
      const lookup: LookupFunction = (_host, options, callback) => {
        if (options.all === true) callback(null, [{ address: LOOPBACK, family: 4 }]);
        else callback(null, LOOPBACK, 4);
      };
      for (const autoSelectFamily of [true, false]) {
        const socket = t.own(net.connect({ port, host: 'host.example', lookup, autoSelectFamily }));
        await event(socket, 'connect');
      }
    },
  },
  {
    name: 'an answer that is no address fails with ERR_INVALID_IP_ADDRESS',
    areas: ['connect', 'lookup', 'errors'],
    async run(net, t) {
      const lookup: LookupFunction = (_host, _options, callback) =>
        process.nextTick(callback, null, 'nonsense', 4);
      const options = { port: 1, host: 'host.example', lookup, autoSelectFamily: false };
      const error = await failure(t.own(net.connect(options)));
      assert.equal(error.code, 'ERR_INVALID_IP_ADDRESS');
    },
  },
  {
    name: 'an answer of a family that is neither 4 nor 6 fails with ERR_INVALID_ADDRESS_FAMILY',
    areas: ['connect', 'lookup', 'errors'],
    async run(net, t) {
      const lookup: LookupFunction = (_host, _options, callback) =>
        process.nextTick(callback, null, LOOPBACK, 100);
      const options = { port: 1, host: 'host.example', lookup, autoSelectFamily: false };
      const error = await failure(t.own(net.connect(options)));
      assert.equal(error.code, 'ERR_INVALID_ADDRESS_FAMILY');
      assert.equal((error as unknown as { host: string }).host, 'host.example');
      assert.equal(error.port, 1);
    },
  },
  {
    name: 'a socket that has closed can connect again',
    areas: ['connect', 'state'],
    async run(net, t) {
      const { port } = await t.echo();
      const socket = t.own(net.connect(port, LOOPBACK));
      await event(socket, 'connect');
      socket.end('first');
      assert.equal((await received(socket, 5)).toString(), 'first');
      await closed(socket);
      assert.equal(socket.destroyed, true);
      socket.connect(port, LOOPBACK);
      await event(socket, 'connect');
      assert.equal(socket.destroyed, false);
      socket.write('second');
      assert.equal((await received(socket, 6)).toString(), 'second');
    },
  },
  {
    name: 'Socket and Server work without new',
    areas: ['connect', 'server'],
    run(net) {
      const { Socket: socket, Server: server } = net as unknown as Record<string, () => unknown>;
      assert.ok(socket?.() instanceof net.Socket);
      assert.ok(server?.() instanceof net.Server);
    },
    differs: {
      why: '`Socket` and `Server` are classes: calling them without `new` throws a TypeError.',
      run(net) {
        const { Socket: socket, Server: server } = net as unknown as Record<string, () => unknown>;
        assert.throws(() => socket?.(), TypeError);
        assert.throws(() => server?.(), TypeError);
      },
    },
  },
  {
    name: 'a socket can be made of a descriptor',
    areas: ['connect', 'handles'],
    run(net, t) {
      const fd = calls.socket(AF_INET, SOCK_STREAM);
      const socket = t.own(new net.Socket({ fd }));
      assert.equal((socket as unknown as { _handle: { fd: number } })._handle.fd, fd);
    },
    differs: {
      why: 'Descriptors and handles are neither taken nor given: no `fd`, no `handle`, no `_handle`, no sending to child processes, no `cluster`.',
      run(net, t) {
        const { _handle: handle } = t.own(new net.Socket()) as unknown as { _handle?: unknown };
        assert.equal(handle, undefined);
        assert.throws(() => t.server().listen({ fd: 0 } as object), { code: 'ERR_INVALID_ARG_VALUE' });
      },
    },
  },
  {
    name: 'new sockets are published on the channels net.client.socket and net.server.socket',
    areas: ['connect', 'server', 'diagnostics'],
    async run(_net, t) {
      const { published, client, peer } = await publishedFor(t);
      assert.ok(published.includes(client) && published.includes(peer));
    },
    differs: {
      why: 'Nothing is published on `net.client.socket` and `net.server.socket`; there are channels of its own.',
      async run(_net, t) {
        assert.deepEqual((await publishedFor(t)).published, []);
      },
    },
  },
];
