/** One direction ends before the other: end(), the peer's end, and allowHalfOpen. */
import assert from 'node:assert/strict';
import { called, closed, event, everything, failure, LOOPBACK, received, record } from './scene.ts';
import type { Table } from './table.ts';

export const HALF_OPEN: Table = [
  {
    name: 'by default a client whose peer ends ends too, and both close without error',
    areas: ['half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const both = Promise.all([closed(client), closed(peer)]);
      const seen = record(client, 'end', 'finish');
      client.resume();
      peer.resume().end();
      await both;
      assert.deepEqual(seen, ['end', 'finish']);
      assert.deepEqual(
        (await both).map(({ hadError }) => hadError),
        [false, false],
      );
    },
  },
  {
    name: 'by default a server side whose peer ends ends too',
    areas: ['half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const both = Promise.all([closed(client), closed(peer)]);
      peer.resume();
      client.resume().end();
      await both;
      assert.equal(peer.readableEnded, true);
      assert.equal(peer.writableFinished, true);
    },
  },
  {
    name: 'allowHalfOpen of the client: it writes on after the end of its peer',
    areas: ['half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair({ client: { allowHalfOpen: true } });
      const got = everything(peer);
      client.resume();
      peer.end('over to you');
      await event(client, 'end');
      assert.equal(client.writable, true);
      assert.equal(client.readyState, 'writeOnly');
      const outcome = closed(client);
      client.write('late');
      client.end(' word');
      assert.equal((await got).toString(), 'late word');
      await outcome;
    },
  },
  {
    name: 'allowHalfOpen of the server: it answers after the end of the request',
    areas: ['half-open', 'server'],
    async run(net, t) {
      const { port } = await t.listening({ allowHalfOpen: true }, (socket) => {
        let request = '';
        socket.setEncoding('utf8').on('data', (text: string) => {
          request += text;
        });
        socket.on('end', () => socket.end(request.toUpperCase()));
      });
      const client = t.own(net.connect(port, LOOPBACK));
      client.end('question');
      assert.equal((await everything(client)).toString(), 'QUESTION');
      await closed(client);
    },
  },
  {
    name: 'with allowHalfOpen the socket stays until end() is called',
    areas: ['half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair({ client: { allowHalfOpen: true } });
      const seen = record(client, 'end', 'finish', 'close');
      client.resume();
      peer.end();
      await event(client, 'end');
      client.write('still here');
      await received(peer, 10);
      assert.deepEqual(seen, ['end']);
      client.end();
      await closed(client);
      assert.deepEqual(seen, ['end', 'finish', 'close(false)']);
    },
  },
  {
    name: 'allowHalfOpen can be read and set',
    areas: ['half-open', 'state'],
    async run(net, t) {
      assert.equal(new net.Socket().allowHalfOpen, false);
      assert.equal(new net.Socket({ allowHalfOpen: true }).allowHalfOpen, true);
      const { client, peer } = await t.pair({ server: { allowHalfOpen: true } });
      assert.equal(client.allowHalfOpen, false);
      assert.equal(peer.allowHalfOpen, true);
    },
  },
  {
    name: 'after end() the socket reads on until its peer ends',
    areas: ['half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair({ server: { allowHalfOpen: true } });
      const got = everything(client);
      client.end();
      await event(client, 'finish');
      assert.equal(client.readyState, 'readOnly');
      assert.equal(client.writable, false);
      peer.write('one ');
      peer.end('two');
      assert.equal((await got).toString(), 'one two');
    },
  },
  {
    name: 'end(data, encoding, callback) sends the data first',
    areas: ['half-open', 'encodings'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      client.resume();
      await called((done) => client.end('68656c6c6f', 'hex', done));
      assert.equal(client.writableFinished, true);
      assert.equal((await got).toString(), 'hello');
    },
  },
  {
    name: 'end() returns the socket, and twice is no error',
    areas: ['half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.resume();
      client.resume();
      assert.equal(client.end(), client);
      assert.equal(client.end(), client);
      assert.equal((await closed(client)).hadError, false);
    },
  },
  {
    name: 'end(callback) after finish has ERR_STREAM_ALREADY_FINISHED',
    areas: ['half-open', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair({ server: { allowHalfOpen: true } });
      peer.resume();
      client.end();
      await event(client, 'finish');
      const [error] = await called((done) => client.end(done));
      assert.equal((error as NodeJS.ErrnoException).code, 'ERR_STREAM_ALREADY_FINISHED');
    },
  },
  {
    name: 'end(data) before connect: the data and the end go out after it',
    areas: ['half-open', 'connect'],
    async run(net, t) {
      const { server, port } = await t.listening();
      const got = event(server, 'connection').then(([peer]) => everything(peer as never));
      const client = t.own(net.connect(port, LOOPBACK));
      client.end('all I have');
      client.resume();
      assert.equal((await got).toString(), 'all I have');
      await closed(client);
    },
  },
  {
    name: "'end' waits until what came before it is read",
    areas: ['half-open', 'read'],
    async run(net, t) {
      const { client, peer, port } = await t.pair();
      const seen = record(client, 'data', 'end', 'close');
      client.pause();
      peer.end('unread');
      await event(peer, 'finish');
      await event(t.own(net.connect(port, LOOPBACK)), 'connect');
      assert.deepEqual(seen, []);
      client.resume();
      await closed(client);
      assert.deepEqual(seen, ['data', 'end', 'close(false)']);
    },
  },
  {
    name: 'large data before end() arrives whole',
    areas: ['half-open', 'write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const sent = Buffer.alloc(4 << 20, 'x');
      const got = everything(peer);
      client.resume();
      client.end(sent);
      assert.ok(sent.equals(await got));
      await closed(client);
    },
  },
  {
    name: "a write in a listener of 'end' still goes out",
    areas: ['half-open', 'write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      client.resume().on('end', () => client.write('parting words'));
      peer.end();
      assert.equal((await got).toString(), 'parting words');
    },
  },
  {
    name: 'a write after the peer ended, and the socket with it: EPIPE in the callback and as error',
    areas: ['half-open', 'write', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const outcome = failure(client.resume());
      let given: Promise<unknown[]> | undefined;
      client.on('finish', () => {
        given = called((done) => assert.equal(client.write('late', done), false));
      });
      peer.end();
      const error = await outcome;
      assert.equal(error.code, 'EPIPE');
      assert.deepEqual(await given, [error]);
    },
  },
];
