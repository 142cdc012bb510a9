/** Reading: flowing and paused, by hand, as an iterator, through pipes, and into memory of the program. */
import assert from 'node:assert/strict';
import { Duplex, Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { called, closed, event, everything, LOOPBACK, pattern, received, turns } from './scene.ts';
import type { Table } from './table.ts';

export const READ: Table = [
  {
    name: 'data comes as Buffers that stay as they are',
    areas: ['read'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const sent = pattern(1 << 20);
      const chunks: Buffer[] = [];
      client.on('data', (chunk: Buffer) => {
        chunks.push(chunk);
      });
      peer.end(sent);
      await event(client, 'end');
      assert.ok(chunks.every((chunk) => Buffer.isBuffer(chunk)));
      assert.ok(Buffer.concat(chunks).equals(sent));
    },
  },
  {
    name: 'setEncoding() gives strings, and keeps characters together',
    areas: ['read', 'encodings'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      assert.equal(client.setEncoding('utf8'), client);
      const bytes = Buffer.from('x€y');
      const parts: string[] = [];
      client.on('data', (part: unknown) => {
        assert.equal(typeof part, 'string');
        parts.push(part as string);
        // The first part has come: the character's other bytes follow.
        if (parts.length === 1) peer.end(bytes.subarray(2));
      });
      peer.write(bytes.subarray(0, 2));
      await event(client, 'end');
      assert.deepEqual(parts, ['x', '€y']);
    },
  },
  {
    name: 'setEncoding(hex) gives hexadecimal',
    areas: ['read', 'encodings'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      client.setEncoding('hex');
      let text = '';
      client.on('data', (part: unknown) => {
        text += part;
      });
      peer.end(Buffer.from([0, 255, 16]));
      await event(client, 'end');
      assert.equal(text, '00ff10');
    },
  },
  {
    name: 'no data is read before somebody listens',
    areas: ['read'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      await called((done) => peer.write('waiting', done));
      await turns();
      assert.equal(client.readableFlowing, null);
      assert.equal((await received(client, 7)).toString(), 'waiting');
    },
  },
  {
    name: 'pause() stops data, resume() brings it',
    areas: ['read', 'pause'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const seen: string[] = [];
      client.on('data', (chunk: Buffer) => {
        seen.push(chunk.toString());
      });
      assert.equal(client.pause(), client);
      assert.equal(client.isPaused(), true);
      await called((done) => peer.write('held', done));
      await turns();
      assert.deepEqual(seen, []);
      assert.equal(client.resume(), client);
      await event(client, 'data');
      assert.deepEqual(seen, ['held']);
    },
  },
  {
    name: 'pause() in a data listener holds the rest back',
    areas: ['read', 'pause'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      let bytes = 0;
      client.on('data', (chunk: Buffer) => {
        bytes += chunk.length;
        client.pause();
      });
      const sent = pattern(2 << 20);
      peer.end(sent);
      await event(client, 'data');
      const first = bytes;
      await turns();
      assert.equal(bytes, first);
      assert.ok(first < sent.length);
      client.on('pause', () => setImmediate(() => client.resume()));
      client.resume();
      await event(client, 'end');
      assert.equal(bytes, sent.length);
    },
  },
  {
    name: "'readable' and read(size) give what is asked",
    areas: ['read'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const readable = event(client, 'readable');
      peer.write('abcdef');
      await readable;
      assert.equal(String(client.read(4)), 'abcd');
      assert.equal(client.read(4), null);
      peer.end('gh');
      const rest: string[] = [];
      client.on('readable', () => {
        for (let chunk = client.read(); chunk !== null; chunk = client.read()) rest.push(String(chunk));
      });
      await event(client, 'end');
      assert.equal(rest.join(''), 'efgh');
    },
  },
  {
    name: 'for await gives everything, and the socket closes',
    areas: ['read', 'iteration'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const sent = pattern(300_000);
      peer.end(sent);
      const chunks: Buffer[] = [];
      for await (const chunk of client) chunks.push(chunk as Buffer);
      assert.ok(Buffer.concat(chunks).equals(sent));
      assert.equal(client.readableEnded, true);
    },
  },
  {
    name: 'leaving for await destroys the socket with an AbortError',
    areas: ['read', 'iteration', 'destroy'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.write('one');
      const outcome = closed(client);
      for await (const chunk of client) {
        assert.equal(String(chunk), 'one');
        break;
      }
      assert.equal((await outcome).error?.name, 'AbortError');
      assert.equal(client.destroyed, true);
    },
  },
  {
    name: 'for await of a reset connection throws ECONNRESET',
    areas: ['read', 'iteration', 'errors'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const reading = (async () => {
        for await (const _ of client) peer.resetAndDestroy();
      })();
      peer.write('one');
      await assert.rejects(reading, { code: 'ECONNRESET' });
    },
  },
  {
    name: 'pipe() to itself echoes',
    areas: ['read', 'pipe'],
    async run(net, t) {
      const { port } = await t.echo();
      const client = t.own(net.connect(port, LOOPBACK));
      const sent = pattern(1 << 20);
      client.end(sent);
      assert.ok(sent.equals(await everything(client)));
      await closed(client);
    },
  },
  {
    name: 'pipeline() into and out of a socket',
    areas: ['read', 'pipe'],
    async run(net, t) {
      const { port } = await t.echo();
      const client = t.own(net.connect(port, LOOPBACK));
      const parts = Array.from({ length: 40 }, (_, i) => Buffer.alloc(10_000, i));
      const got: Buffer[] = [];
      const sink = new Writable({
        write(chunk: Buffer, _encoding, callback) {
          got.push(chunk);
          callback();
        },
      });
      await pipeline(Readable.from(parts), client, sink);
      assert.ok(Buffer.concat(parts).equals(Buffer.concat(got)));
    },
  },
  {
    name: 'pipe() between two connections ends the second with the first',
    areas: ['read', 'pipe', 'half-open'],
    async run(_net, t) {
      const left = await t.pair();
      const right = await t.pair();
      left.peer.pipe(right.client);
      const got = everything(right.peer);
      left.client.end('through');
      assert.equal((await got).toString(), 'through');
    },
  },
  {
    name: 'unshift() puts bytes back in front',
    areas: ['read'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.write('header');
      const [first] = (await event(client, 'data')) as [Buffer];
      client.pause();
      client.unshift(first.subarray(2));
      assert.equal((await received(client, 4)).toString(), 'ader');
    },
  },
  {
    name: 'onread: data comes in the memory given, and not as data',
    areas: ['read', 'onread'],
    async run(net, t) {
      const { port } = await t.listening({}, (socket) => socket.end('into your memory'));
      const buffer = Buffer.alloc(8);
      const parts: string[] = [];
      const options = {
        port,
        host: LOOPBACK,
        onread: {
          buffer,
          callback(bytes: number, memory: Uint8Array): boolean {
            assert.equal(memory, buffer);
            parts.push(Buffer.from(memory.subarray(0, bytes)).toString());
            return true;
          },
        },
      };
      const client = t.own(net.connect(options));
      let data = 0;
      client.on('data', () => data++);
      await event(client, 'end');
      assert.equal(parts.join(''), 'into your memory');
      assert.ok(parts.every((part) => part.length <= 8));
      assert.equal(data, 0);
      assert.equal(client.bytesRead, 16);
    },
  },
  {
    name: 'onread: a function gives the memory for each read',
    areas: ['read', 'onread'],
    async run(net, t) {
      const { port } = await t.listening({}, (socket) => socket.end('0123456789'));
      const given: Uint8Array[] = [];
      const parts: string[] = [];
      const options = {
        port,
        host: LOOPBACK,
        onread: {
          buffer: () => given[given.push(Buffer.alloc(4)) - 1] as Uint8Array,
          callback(bytes: number, memory: Uint8Array): boolean {
            assert.ok(given.includes(memory));
            parts.push(Buffer.from(memory.subarray(0, bytes)).toString());
            return true;
          },
        },
      };
      await event(t.own(net.connect(options)), 'end');
      assert.equal(parts.join(''), '0123456789');
      assert.ok(given.length >= 3);
    },
  },
  {
    name: 'onread: false pauses until resume()',
    areas: ['read', 'onread', 'pause'],
    async run(net, t) {
      const { port } = await t.listening({}, (socket) => socket.end('abcdefgh'));
      const parts: string[] = [];
      let paused: (() => void) | undefined;
      const options = {
        port,
        host: LOOPBACK,
        onread: {
          buffer: Buffer.alloc(4),
          callback(bytes: number, memory: Uint8Array): boolean {
            parts.push(Buffer.from(memory.subarray(0, bytes)).toString());
            paused?.();
            return parts.length > 1;
          },
        },
      };
      const client = t.own(net.connect(options));
      await called((done) => {
        paused = done;
      });
      await turns();
      assert.deepEqual(parts, ['abcd']);
      client.resume();
      await event(client, 'end');
      assert.equal(parts.join(''), 'abcdefgh');
    },
  },
  {
    name: 'bytes that come with the end are read before it',
    areas: ['read', 'half-open'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      const sent = pattern(500_000);
      peer.end(sent);
      await event(peer, 'finish');
      assert.ok(sent.equals(await everything(client)));
    },
  },
  {
    name: 'Duplex.toWeb() makes web streams of a socket',
    areas: ['read', 'write', 'streams'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.pipe(peer);
      const { readable, writable } = Duplex.toWeb(client);
      const writer = writable.getWriter();
      await writer.write(Buffer.from('through '));
      await writer.write(Buffer.from('the web'));
      await writer.close();
      let text = '';
      for await (const chunk of readable) text += Buffer.from(chunk as Uint8Array).toString();
      assert.equal(text, 'through the web');
    },
  },
];
