/** A server's end: close(), the connections it counts and refuses, and options of what it accepts. */
import assert from 'node:assert/strict';
import type { Server, Socket } from 'node:net';
import { called, closed, event, failure, LOOPBACK, received, record, turns } from './scene.ts';
import type { Table } from './table.ts';

type Disposable = { [Symbol.asyncDispose](): Promise<void> };

export const SERVER: Table = [
  {
    name: 'close(callback) calls back without error, and the server is not listening at once',
    areas: ['server close'],
    async run(_net, t) {
      const { server } = await t.listening();
      const result = called((done) => assert.equal(server.close(done), server));
      assert.equal(server.listening, false);
      assert.equal(server.address(), null);
      assert.equal((await result)[0], undefined);
    },
  },
  {
    name: 'close() refuses new connections, and leaves those there are',
    areas: ['server close'],
    async run(net, t) {
      const { server, client, peer, port } = await t.pair();
      const gone = event(server, 'close');
      server.close();
      assert.equal((await failure(t.own(net.connect(port, LOOPBACK)))).code, 'ECONNREFUSED');
      client.write('still served');
      assert.equal((await received(peer, 12)).toString(), 'still served');
      const seen = record(server, 'close');
      assert.deepEqual(seen, []);
      peer.resume();
      client.destroy();
      await gone;
    },
  },
  {
    name: 'close() of a server that does not listen: ERR_SERVER_NOT_RUNNING in the callback',
    areas: ['server close', 'errors'],
    async run(_net, t) {
      const [error] = await called((done) => t.server().close(done));
      assert.equal((error as NodeJS.ErrnoException).code, 'ERR_SERVER_NOT_RUNNING');
    },
  },
  {
    name: 'close() twice: the second callback has ERR_SERVER_NOT_RUNNING, and close comes once for each wait',
    areas: ['server close', 'errors'],
    async run(_net, t) {
      const { server } = await t.listening();
      const first = called((done) => server.close(done));
      const second = called((done) => server.close(done));
      assert.equal((await first)[0], undefined);
      assert.equal(((await second)[0] as NodeJS.ErrnoException).code, 'ERR_SERVER_NOT_RUNNING');
    },
  },
  {
    name: 'close() in the turn of listen(): no listening event comes',
    areas: ['server close', 'listen'],
    async run(_net, t) {
      const server = t.server();
      const seen = record(server, 'listening', 'close');
      server.listen(0);
      server.close();
      await event(server, 'close');
      await turns();
      assert.deepEqual(seen, ['close']);
    },
  },
  {
    name: 'getConnections() counts, and returns the server',
    areas: ['server', 'connections'],
    async run(net, t) {
      const { server, client, peer, port } = await t.pair();
      const accepted = event(server, 'connection');
      t.own(net.connect(port, LOOPBACK));
      await accepted;
      const two = await called((done) => assert.equal(server.getConnections(done), server));
      assert.deepEqual(two, [null, 2]);
      const gone = closed(peer.resume());
      client.destroy();
      await gone;
      assert.deepEqual(await called((done) => server.getConnections(done)), [null, 1]);
    },
  },
  {
    name: "maxConnections: one more is closed, with 'drop' and both its addresses",
    areas: ['server', 'connections', 'events'],
    async run(net, t) {
      const { server, port } = await t.pair();
      server.maxConnections = 1;
      const seen = record(server, 'connection');
      const dropped = event(server, 'drop');
      const second = t.own(net.connect(port, LOOPBACK));
      const outcome = closed(second.resume());
      await event(second, 'connect');
      const localPort = second.localPort;
      const [data] = await dropped;
      assert.deepEqual(
        { ...(data as object) },
        {
          localAddress: LOOPBACK,
          localPort: port,
          localFamily: 'IPv4',
          remoteAddress: LOOPBACK,
          remotePort: localPort,
          remoteFamily: 'IPv4',
        },
      );
      await outcome;
      assert.deepEqual(seen, []);
    },
  },
  {
    name: 'maxConnections: when one has gone, another is accepted',
    areas: ['server', 'connections'],
    async run(net, t) {
      const { server, client, peer, port } = await t.pair();
      server.maxConnections = 1;
      const gone = closed(peer.resume());
      client.destroy();
      await gone;
      const accepted = event(server, 'connection');
      await event(t.own(net.connect(port, LOOPBACK)), 'connect');
      await accepted;
    },
  },
  {
    name: 'await using closes the server, and is no error when it does not listen',
    areas: ['server close', 'dispose'],
    async run(_net, t) {
      const { server } = await t.listening();
      await (server as Server & Disposable)[Symbol.asyncDispose]();
      assert.equal(server.listening, false);
      await (t.server() as Server & Disposable)[Symbol.asyncDispose]();
    },
  },
  {
    name: 'pauseOnConnect: nothing is read before resume()',
    areas: ['server', 'pause'],
    async run(_net, t) {
      const { client, peer } = await t.pair({ server: { pauseOnConnect: true } });
      const seen: string[] = [];
      peer.on('data', (chunk: Buffer) => {
        seen.push(chunk.toString());
      });
      assert.equal(peer.isPaused(), true);
      await called((done) => client.write('kept', done));
      await turns();
      assert.equal(peer.bytesRead, 0);
      assert.deepEqual(seen, []);
      peer.resume();
      await event(peer, 'data');
      assert.deepEqual(seen, ['kept']);
    },
  },
  {
    name: 'highWaterMark of createServer is that of its connections',
    areas: ['server', 'back-pressure'],
    async run(_net, t) {
      const { peer } = await t.pair({ server: { highWaterMark: 4_096 } });
      assert.equal(peer.readableHighWaterMark, 4_096);
      assert.equal(peer.writableHighWaterMark, 4_096);
    },
  },
  {
    name: 'a client that resets before it is accepted does not hurt the server',
    areas: ['server', 'errors'],
    async run(net, t) {
      const { server, port } = await t.listening();
      for (let i = 0; i < 10; i++) {
        const client = t.own(net.connect(port, LOOPBACK));
        client.on('error', () => {});
        client.resetAndDestroy();
        await closed(client);
      }
      const served = called((done) => {
        server.on('connection', (socket: Socket) => {
          socket.on('data', done);
        });
      });
      t.own(net.connect(port, LOOPBACK)).write('hello');
      await served;
      assert.equal(server.listening, true);
    },
  },
  {
    name: 'a connection outlives its server',
    areas: ['server close'],
    async run(_net, t) {
      const { server, client, peer } = await t.pair();
      server.close();
      peer.pipe(peer);
      client.write('echo');
      assert.equal((await received(client, 4)).toString(), 'echo');
    },
  },
  {
    name: 'what a server accepts can be written to at once',
    areas: ['server', 'write'],
    async run(net, t) {
      const { port } = await t.listening({}, (socket) => {
        socket.write('first ');
        socket.end('words');
      });
      const client = t.own(net.connect(port, LOOPBACK));
      assert.equal((await received(client, 11)).toString(), 'first words');
    },
  },
  {
    name: 'maxConnections of 0 drops all',
    areas: ['server', 'connections'],
    since: { 21: 0 },
    async run(net, t) {
      const { server, port } = await t.listening();
      server.maxConnections = 0;
      const dropped = event(server, 'drop');
      const client = t.own(net.connect(port, LOOPBACK));
      await dropped;
      await closed(client.resume());
    },
  },
];
