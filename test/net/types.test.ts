/** The public door as a TypeScript program uses it: what matters here is that it compiles, and which values there are. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { describe, it } from 'node:test';
import * as net from '../../src/net/index.ts';
import {
  type ConnectOptions,
  type CopyCause,
  connect,
  createServer,
  type ListenOptions,
  type NetStats,
  type Outcome,
  Pool,
  type SocketStats,
  type TcpSocket,
  type ZerocopyOptions,
} from '../../src/net/index.ts';

describe('the door zerotx/net', () => {
  it('exports these values, and no more', () => {
    assert.deepEqual(Object.keys(net).sort(), [
      'BlockList',
      'COPY_CAUSES',
      'Lease',
      'Pool',
      'Server',
      'Socket',
      'StillLentError',
      'TcpServer',
      'TcpSocket',
      'UdpSocket',
      'ZerotxError',
      'askSockets',
      'askStats',
      'channels',
      'collectMetrics',
      'connect',
      'controlFolders',
      'controlSockets',
      'createConnection',
      'createServer',
      'createUdpSocket',
      'default',
      'isIP',
      'isIPv4',
      'isIPv6',
      'openControl',
      'socketStats',
      'stats',
    ]);
  });

  it('serves a program that changed its import', async () => {
    const server = createServer({ allowHalfOpen: true }, (peer: TcpSocket) => {
      peer.pipe(peer);
    });
    const where: ListenOptions = { port: 0, host: '127.0.0.1' };
    await once(server.listen(where), 'listening');
    const { port } = server.address() as AddressInfo;
    const zerocopy: ZerocopyOptions = { mode: 'force', thresholdBytes: 4096, pin: true };
    const options: ConnectOptions = { port, host: '127.0.0.1', zerocopy };
    const socket = connect(options, () => socket.setNoDelay().setKeepAlive(true, 1000));
    using lease = await new Pool().acquire(8192);
    lease.buffer.fill('z');
    const sent: Outcome = await socket.send(lease);
    socket.end('tail');
    assert.equal((await text(socket)).length, 8192 + 4);
    const one: SocketStats = socket.stats();
    const all: NetStats = net.stats();
    const cause: CopyCause = 'threshold';
    assert.equal(sent.bytes, 8192);
    assert.equal(one.zerocopy.copied[cause], 4);
    assert.ok(all.zerocopy.lentBytes >= one.zerocopy.lentBytes);
    server.close();
    await once(server, 'close');
  });
});

it('the default export has the names of node:net', () => {
  assert.equal(net.default.Socket, net.TcpSocket);
  assert.equal(net.default.connect, net.connect);
});
