/** Forms of listen(), and what is refused. */
import assert from 'node:assert/strict';
import type { ListenOptions, Server, Socket } from 'node:net';
import { called, event, LOOPBACK, portOf, record, turns } from './scene.ts';
import type { ConnectError, Table } from './table.ts';

export const LISTEN: Table = [
  {
    name: 'port 0 takes a free port, and address() has it',
    areas: ['listen', 'address'],
    async run(_net, t) {
      const server = t.server();
      server.listen(0, LOOPBACK);
      await event(server, 'listening');
      const address = server.address() as { address: string; family: string; port: number };
      assert.deepEqual([address.address, address.family], [LOOPBACK, 'IPv4']);
      assert.ok(address.port > 0 && address.port < 65_536);
    },
  },
  {
    name: 'all forms of listen() with a callback',
    areas: ['listen'],
    async run(_net, t) {
      const forms: ((server: Server, done: () => void) => Server)[] = [
        (server, done) => server.listen(done as never),
        (server, done) => server.listen(0, done),
        (server, done) => server.listen(0, LOOPBACK, done),
        (server, done) => server.listen(0, 16, done),
        (server, done) => server.listen(0, LOOPBACK, 16, done),
        (server, done) => server.listen({ port: 0 }, done),
        (server, done) => server.listen({ port: 0, host: LOOPBACK, backlog: 16, exclusive: true }, done),
        (server, done) => server.listen('0' as unknown as number, LOOPBACK, done),
        (server, done) => server.listen(undefined, done),
        (server, done) => server.listen(null as unknown as number, done),
      ];
      for (const [i, form] of forms.entries()) {
        const server = t.server();
        await called((done) => assert.equal(form(server, done), server));
        assert.equal(server.listening, true, `form ${i}`);
        assert.ok(portOf(server) > 0);
      }
    },
  },
  {
    name: 'listen() without arguments takes a free port',
    areas: ['listen'],
    async run(_net, t) {
      const server = t.server();
      server.listen();
      await event(server, 'listening');
      assert.ok(portOf(server) > 0);
    },
  },
  {
    name: "'listening' comes later than the call, with the server as this in the callback",
    areas: ['listen', 'events'],
    async run(_net, t) {
      const server = t.server();
      let back = false;
      const result = called((done) => {
        function listening(this: unknown): void {
          done(this, back);
        }
        server.listen(0, LOOPBACK, listening);
      });
      back = true;
      assert.deepEqual(await result, [server, true]);
    },
  },
  {
    name: 'a host that is a name is looked up',
    areas: ['listen', 'lookup'],
    async run(_net, t) {
      const server = t.server();
      server.listen(0, 'localhost');
      await event(server, 'listening');
      assert.ok([LOOPBACK, '::1'].includes((server.address() as { address: string }).address));
    },
  },
  {
    name: 'before listen() a server is not listening, and has no address',
    areas: ['listen', 'address'],
    run(_net, t) {
      const server = t.server();
      assert.equal(server.listening, false);
      assert.equal(server.address(), null);
    },
  },
  {
    name: 'createServer(listener), createServer(options, listener), new Server(listener)',
    areas: ['listen', 'server'],
    async run(net, t) {
      for (const make of [
        (listener: (socket: Socket) => void) => net.createServer(listener),
        (listener: (socket: Socket) => void) => net.createServer({}, listener),
        (listener: (socket: Socket) => void) => new net.Server(listener),
        (listener: (socket: Socket) => void) => new net.Server({ noDelay: true }, listener),
      ]) {
        let connected: (() => void) | undefined;
        const server = t.adopt(make(() => connected?.()));
        await called((done) => server.listen(0, LOOPBACK, done));
        const arrived = called((done) => {
          connected = done;
        });
        t.own(net.connect(portOf(server), LOOPBACK));
        await arrived;
      }
    },
  },
  {
    name: 'createServer() of something else throws ERR_INVALID_ARG_TYPE',
    areas: ['server', 'arguments'],
    run(net) {
      for (const options of ['path', 80, true]) {
        assert.throws(() => net.createServer(options as unknown as object), { code: 'ERR_INVALID_ARG_TYPE' });
      }
    },
  },
  {
    name: 'ports out of range throw ERR_SOCKET_BAD_PORT',
    areas: ['listen', 'arguments'],
    run(_net, t) {
      for (const port of [-1, 65_536, 1.5]) {
        assert.throws(() => t.server().listen(port), { code: 'ERR_SOCKET_BAD_PORT', name: 'RangeError' });
        assert.throws(() => t.server().listen({ port }), { code: 'ERR_SOCKET_BAD_PORT' });
      }
    },
  },
  {
    name: 'options with neither port nor path throw ERR_INVALID_ARG_VALUE',
    areas: ['listen', 'arguments'],
    run(_net, t) {
      for (const options of [{}, { host: LOOPBACK }, { backlog: 5 }]) {
        assert.throws(() => t.server().listen(options as ListenOptions), { code: 'ERR_INVALID_ARG_VALUE' });
      }
    },
  },
  {
    name: 'a port that is taken: EADDRINUSE of listen with address and port',
    areas: ['listen', 'errors'],
    async run(_net, t) {
      const { port } = await t.listening();
      const second = t.server();
      const seen = record(second, 'listening', 'error', 'close');
      second.listen(port, LOOPBACK);
      const [error] = (await event(second, 'error')) as [ConnectError];
      assert.deepEqual(
        [error.code, error.syscall, error.address, error.port],
        ['EADDRINUSE', 'listen', LOOPBACK, port],
      );
      assert.equal(error.message, `listen EADDRINUSE: address already in use ${LOOPBACK}:${port}`);
      await turns();
      assert.deepEqual(seen, ['error']);
      assert.equal(second.listening, false);
    },
  },
  {
    name: 'a server that failed to listen can try again',
    areas: ['listen', 'errors'],
    async run(_net, t) {
      const { port } = await t.listening();
      const server = t.server();
      server.listen(port, LOOPBACK);
      await event(server, 'error');
      server.listen(0, LOOPBACK);
      await event(server, 'listening');
      assert.equal(server.listening, true);
    },
  },
  {
    name: 'an address that is not of this host: EADDRNOTAVAIL of listen',
    areas: ['listen', 'errors'],
    async run(_net, t) {
      const server = t.server();
      server.listen(0, '192.0.2.1');
      const [error] = (await event(server, 'error')) as [ConnectError];
      assert.deepEqual([error.code, error.syscall, error.address], ['EADDRNOTAVAIL', 'listen', '192.0.2.1']);
    },
  },
  {
    name: 'listen() while listening throws ERR_SERVER_ALREADY_LISTEN',
    areas: ['listen', 'errors'],
    async run(_net, t) {
      const { server } = await t.listening();
      assert.throws(() => server.listen(0), { code: 'ERR_SERVER_ALREADY_LISTEN' });
      assert.equal(server.listening, true);
    },
  },
  {
    name: 'listen() again after close()',
    areas: ['listen', 'server close'],
    async run(net, t) {
      const { server } = await t.listening();
      server.close();
      await event(server, 'close');
      server.listen(0, LOOPBACK);
      await event(server, 'listening');
      await event(t.own(net.connect(portOf(server), LOOPBACK)), 'connect');
    },
  },
  {
    name: 'a port can be bound again as soon as its server has closed',
    areas: ['listen', 'server close'],
    async run(_net, t) {
      const { server, client, peer, port } = await t.pair();
      const gone = event(server, 'close');
      server.close();
      client.resume();
      peer.end();
      await gone;
      const second = t.server();
      second.listen(port, LOOPBACK);
      await event(second, 'listening');
    },
  },
  {
    name: 'reusePort lets two servers have one port',
    areas: ['listen'],
    since: { 22: 12, 23: 1 },
    async run(_net, t) {
      const first = t.server();
      const options = (port: number): ListenOptions => ({ port, host: LOOPBACK, reusePort: true }) as object;
      first.listen(options(0));
      await event(first, 'listening');
      const second = t.server();
      second.listen(options(portOf(first)));
      await event(second, 'listening');
      assert.equal(portOf(second), portOf(first));
    },
  },
  {
    name: 'connections that came before the server looked are not lost',
    areas: ['listen', 'backlog'],
    async run(net, t) {
      const { server, port } = await t.listening();
      let count = 0;
      const all = called((done) => {
        server.on('connection', () => {
          if (++count === 50) done();
        });
      });
      for (let i = 0; i < 50; i++) t.own(net.connect(port, LOOPBACK));
      await all;
    },
  },
];
