/** What diagnostics_channel is told of a socket's life, and that subscribers can do no harm. */
import assert from 'node:assert/strict';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { after, before, describe, it } from 'node:test';
import {
  connect,
  createServer,
  type FallbackMessage,
  type ReleaseMessage,
  type SocketMessage,
  type TcpSocket,
  UdpSocket,
} from '../../src/net/index.ts';

type Message = SocketMessage | ReleaseMessage | FallbackMessage;

const names = ['open', 'release', 'fallback', 'close'] as const;
const BYTES = 300_000;

/** Messages of all channels, in order, until the function returned is called. */
function record(onMessage: (name: string, message: Message) => void): () => void {
  const listeners = names.map((name) => {
    const listener = (message: unknown): void => onMessage(name, message as Message);
    subscribe(`zerotx.net.${name}`, listener);
    return () => unsubscribe(`zerotx.net.${name}`, listener);
  });
  return () => {
    for (const stop of listeners) stop();
  };
}

describe('channels', { timeout: 30_000 }, () => {
  const server = createServer((socket) => socket.resume());
  let port = 0;
  before(async () => {
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    port = (server.address() as AddressInfo).port;
  });
  after(() => server[Symbol.asyncDispose]());

  const dial = (mode: 'force' | 'auto'): TcpSocket =>
    connect({ port, host: '127.0.0.1', zerocopy: { mode } });

  it('tell the life of a socket, with sums that are those of its counters', async () => {
    const heard: [string, Message][] = [];
    const socket = dial('force');
    const { id } = socket.stats();
    let stop = (): void => {};
    const closed = new Promise<void>((resolve) => {
      stop = record((name, message) => {
        heard.push([name, message]);
        if (name === 'close' && message.socket === id) resolve();
      });
    });
    await socket.send(Buffer.alloc(BYTES));
    await socket.send(Buffer.alloc(10));
    await socket[Symbol.asyncDispose]();
    await closed;
    stop();
    const own = heard.filter(([, message]) => message.socket === id);
    const of = (name: string): Message[] => own.filter(([its]) => its === name).map(([, message]) => message);
    assert.equal(own[0]?.[0], 'open');
    assert.equal(own.at(-1)?.[0], 'close');
    const [open] = of('open') as SocketMessage[];
    assert.equal(open?.stats.remote, `127.0.0.1:${port}`);
    assert.equal(open?.stats.zerocopy.lentCalls, 0);
    const [close] = of('close') as SocketMessage[];
    const { zerocopy, bytesWritten, local } = close?.stats ?? assert.fail('no close');
    assert.equal(bytesWritten, BYTES + 10);
    assert.equal(local, open?.stats.local);
    const releases = of('release') as ReleaseMessage[];
    const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
    assert.equal(releases.length, zerocopy.lentCalls);
    assert.equal(sum(releases.map(({ outcome }) => outcome.bytes)), zerocopy.lentBytes);
    assert.equal(sum(releases.map(({ outcome }) => outcome.copiedBytes)), zerocopy.kernelCopiedBytes);
    assert.ok(Math.abs(sum(releases.map(({ latencyUs }) => latencyUs)) - zerocopy.latency.sumUs) < 1);
    const fallbacks = of('fallback') as FallbackMessage[];
    assert.equal(sum(fallbacks.map(({ bytes }) => bytes)), zerocopy.fallbackBytes);
    assert.deepEqual(fallbacks.at(-1), { socket: id, bytes: 10, cause: 'threshold' });
  });

  it('know the addresses of a UDP socket to the end', async () => {
    const heard: SocketMessage[] = [];
    const socket = new UdpSocket({ type: 'udp4' });
    let stop = (): void => {};
    const closed = new Promise<void>((resolve) => {
      stop = record((name, message) => {
        if (name === 'open') heard.push(message as SocketMessage);
        if (name !== 'close') return;
        heard.push(message as SocketMessage);
        resolve();
      });
    });
    socket.connect(9, '127.0.0.1');
    await once(socket, 'connect');
    const { local } = socket.stats();
    await socket[Symbol.asyncDispose]();
    await closed;
    stop();
    const [open, close] = heard;
    assert.match(open?.stats.local ?? '', /^0\.0\.0\.0:\d+$/);
    assert.deepEqual([close?.stats.local, close?.stats.remote], [local, '127.0.0.1:9']);
    assert.deepEqual([open?.socket, close?.socket], [open?.stats.id, open?.stats.id]);
  });

  it('let a subscriber write and close in the middle of a send', async () => {
    const socket = dial('auto');
    await once(socket, 'connect');
    const { id } = socket.stats();
    let fallbacks = 0;
    const stop = record((name, message) => {
      if (name !== 'fallback' || message.socket !== id) return;
      fallbacks += 1;
      if (fallbacks === 1) socket.write(Buffer.alloc(BYTES));
      else socket.destroy();
    });
    socket.write(Buffer.alloc(BYTES));
    await once(socket, 'close');
    stop();
    assert.ok(fallbacks >= 2);
  });

  it('make nothing while nobody listens', async () => {
    const heard: string[] = [];
    record((name) => heard.push(name))();
    await using socket = dial('auto');
    await socket.send(Buffer.alloc(BYTES));
    assert.deepEqual(heard, []);
  });
});
