/**
 * Stream ports over loopback and Unix sockets: against each other, and against a peer that is written in plain Node and
 * speaks as QEMU's `-netdev stream` does.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, describe, it } from 'node:test';
import { OFFLOAD_ALL } from '../../src/core/port.ts';
import { type StreamOptions, StreamPort } from '../../src/ports/stream.ts';
import { assertFrames, deferred, FrameSink, frame, sendAll } from '../support/frames.ts';
import { addHead, table } from '../support/guest-memory.ts';
import { atEnd, closePorts, guest, isUp, opened, settled } from '../support/ports.ts';
import { Random } from '../support/random.ts';

const folder = mkdtempSync(join(tmpdir(), 'zerotx-stream-'));
let paths = 0;

after(() => rmSync(folder, { recursive: true }));

afterEach(closePorts);

function open(options: Partial<StreamOptions>): Promise<StreamPort> {
  return opened(new StreamPort({ name: 'stream', ...options }));
}

/** QEMU's side: each frame behind its length. */
class QemuPeer {
  readonly frames: Uint8Array[] = [];
  readonly socket: Socket;
  readonly closed: Promise<void>;
  #partial: Buffer = Buffer.alloc(0);
  #wake: () => void = () => {};

  constructor(socket: Socket) {
    this.socket = socket;
    atEnd(() => socket.destroy());
    socket.on('error', () => {});
    this.closed = new Promise((resolve) => socket.on('close', () => resolve()));
    socket.on('data', (data: Buffer) => {
      this.#partial = Buffer.concat([this.#partial, data]);
      while (this.#partial.length >= 4) {
        const length = this.#partial.readUInt32BE(0);
        if (this.#partial.length < 4 + length) break;
        this.frames.push(Uint8Array.from(this.#partial.subarray(4, 4 + length)));
        this.#partial = this.#partial.subarray(4 + length);
      }
      this.#wake();
    });
  }

  send(bytes: Uint8Array): void {
    const prefix = Buffer.alloc(4);
    prefix.writeUInt32BE(bytes.length);
    this.socket.write(Buffer.concat([prefix, bytes]));
  }

  async until(count: number): Promise<void> {
    while (this.frames.length < count) {
      const { promise, resolve } = deferred<void>();
      this.#wake = resolve;
      await promise;
    }
  }
}

async function qemuServer(where: { port: number } | { path: string }): Promise<Server> {
  const server = createServer();
  atEnd(() => server.close());
  server.listen(where);
  await once(server, 'listening');
  return server;
}

async function accepted(server: Server): Promise<QemuPeer> {
  const [socket] = (await once(server, 'connection')) as [Socket];
  return new QemuPeer(socket);
}

function portOf(server: Server): number {
  const address = server.address();
  assert.ok(address !== null && typeof address === 'object');
  return address.port;
}

function newPath(): string {
  return join(folder, `${paths++}.sock`);
}

/** Frames of all kinds of lengths. */
function mixture(count: number, seed: number, bytesMax = 62_000): Uint8Array[] {
  const random = new Random(seed);
  return Array.from({ length: count }, (_, i) => {
    const kind = random.below(4);
    const bytes =
      kind === 0
        ? 14 + random.below(50)
        : kind === 1
          ? 14 + random.below(1500)
          : 14 + random.below(bytesMax - 14);
    return frame(bytes, seed * 1000 + i);
  });
}

describe('a stream port and a peer in plain Node', { timeout: 60_000 }, () => {
  for (const kind of ['TCP', 'Unix']) {
    it(`exchange frames over ${kind}, byte for byte`, async () => {
      const where = kind === 'TCP' ? { port: 0 } : { path: newPath() };
      const server = await qemuServer(where);
      const connection = accepted(server);
      const port = await open('path' in where ? where : { port: portOf(server) });
      const sink = new FrameSink(port);
      const peer = await connection;
      await isUp(port);
      const frames = mixture(120, 7);
      const source = guest();
      await source.send(port, frames.slice(0, 60));
      await source.send(port, frames.slice(60));
      await peer.until(frames.length);
      assertFrames(peer.frames, frames);
      for (const one of frames) peer.send(one);
      await sink.until(frames.length);
      assertFrames(sink.frames, frames);
      const bytes = frames.reduce((sum, one) => sum + one.length, 0);
      const { txFrames, txBytes, rxFrames, rxBytes, txLentBytes } = port.counters;
      assert.deepEqual(
        { txFrames, txBytes, rxFrames, rxBytes },
        {
          txFrames: frames.length,
          txBytes: bytes,
          rxFrames: frames.length,
          rxBytes: bytes,
        },
      );
      assert.equal(txLentBytes, 0, 'the peer is on this host');
      assert.equal(port.capability.zeroCopy, kind === 'TCP' ? 'large' : 'never');
    });
  }

  it('that sends a byte at a time is understood', async () => {
    const port = await open({ listen: true, port: 0 });
    const sink = new FrameSink(port);
    const peer = new QemuPeer(connect(port.listeningPort, '127.0.0.1'));
    peer.socket.setNoDelay(true);
    const frames = [frame(14, 1), frame(60, 2), frame(300, 3)];
    for (const one of frames) {
      const prefix = Buffer.alloc(4);
      prefix.writeUInt32BE(one.length);
      for (const byte of Buffer.concat([prefix, one])) {
        await new Promise<void>((resolve) => peer.socket.write(Uint8Array.of(byte), () => resolve()));
      }
    }
    await sink.until(frames.length);
    assertFrames(sink.frames, frames);
  });

  it('that announces a length no frame has is closed, and nothing else is', async () => {
    const port = await open({ listen: true, port: 0 });
    const sink = new FrameSink(port);
    let hostile = 0;
    for (const length of [0, 1, 13, 65_567, 0x7fff_ffff, 0xffff_ffff]) {
      const peer = new QemuPeer(connect(port.listeningPort, '127.0.0.1'));
      await isUp(port);
      const good = frame(100, length >>> 3);
      peer.send(good);
      await sink.until(++hostile);
      const prefix = Buffer.alloc(4);
      prefix.writeUInt32BE(length);
      peer.socket.write(prefix);
      await peer.closed;
      await isUp(port, false);
      assertFrames(sink.frames.slice(-1), [good]);
      assert.equal(port.hostileConnections, hostile);
      assert.equal(port.counters.rxErrors, hostile);
    }
    const peer = new QemuPeer(connect(port.listeningPort, '127.0.0.1'));
    peer.send(frame(65_566, 5));
    await sink.until(hostile + 1);
    assert.equal(sink.frames.at(-1)?.length, 65_566);
  });

  it('is one at a time: another is closed while there is one', async () => {
    const port = await open({ listen: true, port: 0 });
    const first = new QemuPeer(connect(port.listeningPort, '127.0.0.1'));
    await isUp(port);
    const second = new QemuPeer(connect(port.listeningPort, '127.0.0.1'));
    await second.closed;
    assert.equal(port.refusedConnections, 1);
    const source = guest();
    await source.send(port, [frame(64, 1)]);
    await first.until(1);
    first.socket.destroy();
    await isUp(port, false);
    const third = new QemuPeer(connect(port.listeningPort, '127.0.0.1'));
    await isUp(port);
    await source.send(port, [frame(65, 2)]);
    await third.until(1);
    assertFrames(third.frames, [frame(65, 2)]);
  });

  it('that comes back is connected to again, and what was sent meanwhile is dropped', async () => {
    const path = newPath();
    const port = await open({ path });
    const source = guest();
    await source.send(port, [frame(64, 1)]);
    assert.equal(port.counters.txDropped, 1);
    const server = await qemuServer({ path });
    for (let i = 0; i < 3; i++) {
      const peer = await accepted(server);
      await isUp(port);
      const one = frame(500, 10 + i);
      await source.send(port, [one]);
      await peer.until(1);
      assertFrames(peer.frames, [one]);
      peer.socket.destroy();
      await isUp(port, false);
    }
    await source.send(port, [frame(64, 1)]);
    assert.equal(port.counters.txDropped, 2);
  });
});

describe('two stream ports', { timeout: 60_000 }, () => {
  async function pair(options: Partial<StreamOptions>): Promise<[StreamPort, StreamPort]> {
    const listening = await open({ listen: true, port: 0, ...options });
    const where = options.path === undefined ? { port: listening.listeningPort } : { path: options.path };
    const connected = await open({ ...options, ...where });
    await Promise.all([isUp(listening), isUp(connected)]);
    return [connected, listening];
  }

  it('carry vnet headers by agreement', async () => {
    const [from, to] = await pair({ vnet: true });
    assert.equal(from.capability.offloads, OFFLOAD_ALL);
    const sink = new FrameSink(to);
    const headers = [
      Uint8Array.of(1, 1, 54, 0, 0xa8, 0x05, 34, 0, 16, 0, 0, 0),
      Uint8Array.of(2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
      Uint8Array.of(0xff, 4, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9),
    ];
    const frames = [frame(3000, 1), frame(60, 2), frame(14, 3)];
    await guest().send(from, frames, headers);
    await sink.until(3);
    assertFrames(sink.frames, frames);
    const bytes = sink.vnet.map((words) => new Uint8Array(words.buffer, words.byteOffset, 12));
    const expected = headers.map((header) => Uint8Array.from(header));
    for (const one of expected) one.set([one[0]! & 3], 0);
    for (const one of expected) one.set([1, 0], 10);
    assert.deepEqual(bytes, expected);
  });

  for (const how of ['lent', 'copied', 'refused'] as const) {
    it(`finish frames that a tiny send buffer takes in parts: ${how}`, async () => {
      const [from, to] = await pair({
        sendBufferBytes: 4096,
        zerocopy: how === 'copied' ? 'off' : 'force',
      });
      const sink = new FrameSink(to);
      const frames = mixture(150, 21);
      const source = guest({ memoryBytes: 16 << 20 });
      source.refuses = how === 'refused';
      for (let i = 0; i < frames.length; i += 50) await source.send(from, frames.slice(i, i + 50));
      await sink.until(frames.length);
      assertFrames(sink.frames, frames);
      assert.equal(from.counters.txFrames, frames.length);
      if (how !== 'lent') assert.equal(source.loans.length, 0);
      else {
        assert.ok(from.counters.txLentBytes > 0);
        await settled(source);
        assert.ok(source.loans.every(({ borrower }) => borrower === from));
        assert.equal(from.zerocopy.pinnedBytes, 0);
      }
    });
  }

  it('hold back what the receiver does not take', async () => {
    const [from, to] = await pair({ path: newPath() });
    const sink = new FrameSink(to);
    sink.takes = 0;
    const frames = mixture(300, 31, 20_000);
    const source = guest({ memoryBytes: 16 << 20 });
    const sent = source.send(from, frames);
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(sink.frames.length, 0);
    for (let taken = 0; sink.frames.length < frames.length; ) {
      // Some of what it is offered each time.
      sink.takes = 7;
      to.resume();
      await sink.until(Math.min(frames.length, taken + 1));
      taken = sink.frames.length;
    }
    await sent;
    assertFrames(sink.frames, frames);
    assert.equal(to.counters.rxFrames, frames.length);
  });

  it('send frames of the host, which cannot be lent', async () => {
    const [from, to] = await pair({ zerocopy: 'force' });
    const sink = new FrameSink(to);
    const host = table(3, 0, 62_000);
    const frames = [frame(62_000, 1), frame(14, 2), frame(1500, 3)];
    for (const one of frames) addHead(host, one);
    await sendAll(from, host);
    await sink.until(3);
    assertFrames(sink.frames, frames);
    assert.equal(from.counters.txLentBytes, 0);
  });

  it('drop frames that are none', async () => {
    const [from, to] = await pair({});
    const sink = new FrameSink(to);
    const host = table(3, 0, 70_000);
    addHead(host, new Uint8Array(13));
    addHead(host, frame(64, 1));
    addHead(host, new Uint8Array(65_567));
    await sendAll(from, host);
    await sink.until(1);
    assertFrames(sink.frames, [frame(64, 1)]);
    assert.equal(from.counters.txDropped, 2);
    assert.equal(from.counters.txFrames, 1);
  });

  it('send frames whose memory went away as zeros, and lose no frame behind them', async () => {
    for (const zerocopy of ['force', 'off'] as const) {
      const [from, to] = await pair({ zerocopy });
      const sink = new FrameSink(to);
      const source = guest({ memoryBytes: 1 << 20 });
      const frames = [frame(3000, 1), frame(20_000, 2), frame(3000, 3)];
      const sent = source.table(frames);
      // From the middle of the second frame on there is no file any more.
      source.memory.truncate(8192);
      await sendAll(from, sent);
      const other = guest();
      await other.send(from, [frame(5000, 4)]);
      await sink.until(4);
      assertFrames(sink.frames.slice(0, 1), frames.slice(0, 1));
      assert.deepEqual(
        sink.frames.map(({ length }) => length),
        [3000, 20_000, 3000, 5000],
      );
      assertFrames(sink.frames.slice(3), [frame(5000, 4)]);
      assert.ok(from.isUp);
      await settled(source);
      assert.equal(source.memory.space.poisoned, true);
    }
  });
});
