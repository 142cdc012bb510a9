/** Writing: results and callbacks, before connect and after end, back-pressure, corking, and what a chunk may be. */
import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { called, closed, event, everything, failure, LOOPBACK, pattern, received } from './scene.ts';
import type { Table } from './table.ts';

const CHUNK = 64 * 1024;

/** Writes until write() says to stop; returns the number of writes. */
function fill(socket: Socket): number {
  const chunk = pattern(CHUNK);
  for (let writes = 1; writes <= 1_000; writes++) if (!socket.write(chunk)) return writes;
  throw new Error('write() never said to stop');
}

export const WRITE: Table = [
  {
    name: 'a small write returns true, and its callback has no error',
    areas: ['write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.resume();
      const [error] = await called((done) => assert.equal(client.write('small', done), true));
      assert.ok(error === undefined || error === null);
    },
  },
  {
    name: 'the callback of a write comes later than the call',
    areas: ['write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.resume();
      let back = false;
      await called((done) => {
        client.write('x', () => done(assert.equal(back, true)));
        back = true;
      });
    },
  },
  {
    name: 'callbacks come in the order of the writes, and bytes too',
    areas: ['write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      const order: number[] = [];
      let expected = '';
      for (let i = 0; i < 100; i++) {
        expected += `${i},`;
        client.write(`${i},`, () => order.push(i));
      }
      client.end();
      assert.equal((await got).toString(), expected);
      assert.deepEqual(
        order,
        Array.from({ length: 100 }, (_, i) => i),
      );
    },
  },
  {
    name: 'a write after end(): ERR_STREAM_WRITE_AFTER_END in the callback and as error',
    areas: ['write', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.resume();
      client.end();
      const outcome = failure(client);
      const [error] = await called((done) => client.write('late', done));
      assert.equal((error as NodeJS.ErrnoException).code, 'ERR_STREAM_WRITE_AFTER_END');
      assert.equal(await outcome, error);
    },
  },
  {
    name: 'a write before connect is kept, counted, and sent first',
    areas: ['write', 'connect', 'state'],
    async run(net, t) {
      const { server, port } = await t.listening();
      const got = event(server, 'connection').then(([peer]) => everything(peer as Socket));
      const client = t.own(net.connect(port, LOOPBACK));
      const order: string[] = [];
      client.on('connect', () => order.push('connect'));
      client.write('früh ', () => order.push('first'));
      client.write(Buffer.from('second '), () => order.push('second'));
      assert.equal(client.pending, true);
      assert.equal(client.connecting, true);
      assert.equal(client.bytesWritten, Buffer.byteLength('früh second '));
      await event(client, 'connect');
      assert.equal(client.pending, false);
      client.end('third');
      assert.equal((await got).toString(), 'früh second third');
      assert.deepEqual(order, ['connect', 'first', 'second']);
    },
  },
  {
    name: 'a write to a socket that never connected fails with ERR_SOCKET_CLOSED',
    areas: ['write', 'errors'],
    async run(net, t) {
      const socket = t.own(new net.Socket());
      const outcome = failure(socket);
      const [error] = await called((done) => socket.write('x', done));
      assert.equal((error as NodeJS.ErrnoException).code, 'ERR_SOCKET_CLOSED');
      assert.equal(await outcome, error);
    },
  },
  {
    name: 'a peer that does not read: write returns false, and drain comes when it reads',
    areas: ['write', 'back-pressure'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.pause();
      const writes = fill(client);
      assert.equal(client.writableNeedDrain, true);
      assert.ok(client.writableLength > 0);
      const got = received(peer, writes * CHUNK);
      await event(client, 'drain');
      assert.equal(client.writableNeedDrain, false);
      assert.equal(client.writableLength, 0);
      const whole = await got;
      assert.equal(whole.length, writes * CHUNK);
      assert.ok(whole.subarray(-CHUNK).equals(pattern(CHUNK)));
    },
  },
  {
    name: 'bufferSize and writableLength count what is not with the kernel yet',
    areas: ['write', 'back-pressure', 'state'],
    async run(net, t) {
      const { port } = await t.listening();
      const client = t.own(net.connect(port, LOOPBACK));
      client.write('12345');
      client.write('6789');
      assert.equal(client.writableLength, 9);
      assert.equal(client.bufferSize, 9);
      await event(client, 'connect');
      await called((done) => client.write('', done));
      assert.equal(client.writableLength, 0);
      assert.equal(client.bufferSize, 0);
    },
  },
  {
    name: 'back-pressure of a paused peer is bounded: it does not read ahead without limit',
    areas: ['write', 'back-pressure', 'read'],
    async run(net, t) {
      const { client, peer, port } = await t.pair();
      peer.pause();
      fill(client);
      await event(t.own(net.connect(port, LOOPBACK)), 'connect');
      assert.ok(peer.readableLength <= peer.readableHighWaterMark + CHUNK, `${peer.readableLength}`);
    },
  },
  {
    name: 'cork() keeps writes back until uncork()',
    areas: ['write', 'cork'],
    async run(net, t) {
      const { client, peer, port } = await t.pair();
      const chunks: string[] = [];
      peer.on('data', (chunk: Buffer) => {
        chunks.push(chunk.toString());
      });
      client.cork();
      for (const text of ['a', 'b', 'c']) client.write(text);
      assert.equal(client.writableCorked, 1);
      assert.equal(client.writableLength, 3);
      assert.equal(client.bytesWritten, 3);
      const other = t.own(net.connect(port, LOOPBACK));
      await event(other, 'connect');
      assert.deepEqual(chunks, []);
      client.uncork();
      await event(peer, 'data');
      assert.deepEqual(chunks, ['abc']);
    },
  },
  {
    name: 'end() uncorks',
    areas: ['write', 'cork', 'half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      client.cork();
      client.cork();
      client.write('corked ');
      client.end('and ended');
      assert.equal((await got).toString(), 'corked and ended');
    },
  },
  {
    name: 'many corked chunks of strings and bytes arrive in order',
    areas: ['write', 'cork', 'encodings'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      const expected: Buffer[] = [];
      client.cork();
      for (let i = 0; i < 3_000; i++) {
        const text = `<${i}ä>`;
        const encoding = i % 3 === 1 ? 'latin1' : 'utf8';
        expected.push(Buffer.from(text, encoding));
        if (i % 3 === 2) client.write(Buffer.from(text));
        else client.write(text, encoding);
      }
      client.uncork();
      client.end();
      assert.ok(Buffer.concat(expected).equals(await got));
    },
  },
  {
    name: 'strings are sent in the encoding of the call',
    areas: ['write', 'encodings'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      client.write('ü');
      client.write('ü', 'latin1');
      client.write('00ff', 'hex');
      client.write('AQID', 'base64');
      client.write('a', 'utf16le');
      client.end('z', 'ascii');
      assert.equal((await got).toString('hex'), 'c3bcfc00ff01020361007a');
    },
  },
  {
    name: 'setDefaultEncoding() is for strings without one',
    areas: ['write', 'encodings'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      client.setDefaultEncoding('hex');
      client.write('6869');
      client.end();
      assert.equal((await got).toString(), 'hi');
    },
  },
  {
    name: 'an unknown encoding throws ERR_UNKNOWN_ENCODING, null ERR_STREAM_NULL_VALUES',
    areas: ['write', 'encodings', 'arguments'],
    async run(_net, t) {
      const { client } = await t.pair();
      assert.throws(() => client.write('x', 'klingon' as BufferEncoding), { code: 'ERR_UNKNOWN_ENCODING' });
      assert.throws(() => client.write(null as unknown as string), { code: 'ERR_STREAM_NULL_VALUES' });
    },
  },
  {
    name: 'a chunk may be a Uint8Array that is no Buffer, and part of a larger memory',
    areas: ['write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      const memory = new Uint8Array([0, 1, 2, 3, 4, 5, 6, 7]);
      client.write(memory.subarray(2, 5));
      client.end(new Uint8Array(memory.buffer, 6, 2));
      assert.deepEqual([...(await got)], [2, 3, 4, 6, 7]);
    },
  },
  {
    name: 'empty chunks are called back, and send nothing',
    areas: ['write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const got = everything(peer);
      await called((done) => client.write('', done));
      await called((done) => client.write(Buffer.alloc(0), done));
      client.end();
      assert.equal((await got).length, 0);
      assert.equal(client.bytesWritten, 0);
    },
  },
  {
    name: 'one large write arrives whole, is counted, and is called back once',
    areas: ['write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const sent = pattern((8 << 20) + 13);
      const got = received(peer, sent.length);
      let calls = 0;
      await called((done) =>
        client.write(sent, (error) => {
          calls++;
          done(error);
        }),
      );
      assert.ok(sent.equals(await got));
      assert.equal(client.bytesWritten, sent.length);
      assert.equal(calls, 1);
    },
  },
  {
    name: 'a buffer may be used again when its write is called back',
    areas: ['write'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const buffer = Buffer.alloc(256 * 1024);
      const got = everything(peer);
      for (let round = 1; round <= 8; round++) {
        buffer.fill(round);
        await called((done) => client.write(buffer, done));
      }
      client.end();
      const whole = await got;
      assert.equal(whole.length, 8 * buffer.length);
      for (let round = 1; round <= 8; round++) {
        const part = whole.subarray((round - 1) * buffer.length, round * buffer.length);
        assert.ok(part.equals(Buffer.alloc(buffer.length, round)), `round ${round}`);
      }
    },
  },
  {
    name: 'both directions carry large data at once',
    areas: ['write', 'read'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const up = pattern(3 << 20);
      const down = pattern((2 << 20) + 5);
      const both = Promise.all([everything(client), everything(peer)]);
      client.end(up);
      peer.end(down);
      const [atClient, atPeer] = await both;
      assert.ok(atClient.equals(down));
      assert.ok(atPeer.equals(up));
    },
  },
  {
    name: 'highWaterMark of the socket decides when write says to stop',
    areas: ['write', 'back-pressure'],
    async run(net, t) {
      const { port } = await t.listening();
      const options = { port, host: LOOPBACK, highWaterMark: 10 };
      const client = t.own(net.connect(options));
      assert.equal(client.writableHighWaterMark, 10);
      assert.equal(client.readableHighWaterMark, 10);
      assert.equal(client.write('123456789'), true);
      assert.equal(client.write('0'), false);
      await event(client, 'drain');
      client.destroy();
      await closed(client);
    },
  },
  {
    name: 'readableHighWaterMark and writableHighWaterMark are those of streams',
    areas: ['write', 'read', 'back-pressure'],
    run(net) {
      const options = { readableHighWaterMark: 1_234, writableHighWaterMark: 4_321 };
      const socket = new net.Socket(options as object);
      assert.equal(socket.readableHighWaterMark, 1_234);
      assert.equal(socket.writableHighWaterMark, 4_321);
    },
  },
];
