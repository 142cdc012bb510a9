/** IPv6, and sockets that serve both families. */
import assert from 'node:assert/strict';
import type { LookupFunction, Server, Socket } from 'node:net';
import type { Scene } from './scene.ts';
import { event, everything, failure, LOOPBACK, portOf } from './scene.ts';
import type { Table } from './table.ts';

async function on(t: Scene, options: import('node:net').ListenOptions): Promise<Server> {
  const server = t.server();
  server.listen({ port: 0, ...options });
  await event(server, 'listening');
  return server;
}

export const IPV6: Table = [
  {
    name: '::1 end to end, with its family in all addresses',
    areas: ['ipv6', 'address'],
    ipv6: true,
    async run(net, t) {
      const server = await on(t, { host: '::1' });
      const port = portOf(server);
      assert.deepEqual(server.address(), { address: '::1', family: 'IPv6', port });
      const accepted = event(server, 'connection');
      const client = t.own(net.connect(port, '::1'));
      await event(client, 'connect');
      const [peer] = (await accepted) as [Socket];
      assert.deepEqual(
        [client.remoteAddress, client.remoteFamily, client.localAddress, client.localFamily],
        ['::1', 'IPv6', '::1', 'IPv6'],
      );
      assert.deepEqual([peer.remoteAddress, peer.remoteFamily], ['::1', 'IPv6']);
      assert.deepEqual(client.address(), { address: '::1', family: 'IPv6', port: peer.remotePort });
      peer.end('six');
      assert.equal((await everything(client)).toString(), 'six');
    },
  },
  {
    name: 'listen() without a host serves both families',
    areas: ['ipv6', 'listen'],
    ipv6: true,
    async run(net, t) {
      const server = await on(t, {});
      const { address, family } = server.address() as { address: string; family: string };
      assert.deepEqual([address, family], ['::', 'IPv6']);
      for (const [host, seen] of [
        [LOOPBACK, `::ffff:${LOOPBACK}`],
        ['::1', '::1'],
      ] as const) {
        const accepted = event(server, 'connection');
        await event(t.own(net.connect(portOf(server), host)), 'connect');
        const [peer] = (await accepted) as [Socket];
        assert.equal(peer.remoteAddress, seen);
        assert.equal(peer.remoteFamily, 'IPv6');
      }
    },
  },
  {
    name: 'ipv6Only refuses IPv4',
    areas: ['ipv6', 'listen'],
    ipv6: true,
    async run(net, t) {
      const server = await on(t, { host: '::', ipv6Only: true });
      const port = portOf(server);
      assert.equal((await failure(t.own(net.connect(port, LOOPBACK)))).code, 'ECONNREFUSED');
      await event(t.own(net.connect(port, '::1')), 'connect');
    },
  },
  {
    name: 'ipv6Only leaves the port of IPv4 to another server',
    areas: ['ipv6', 'listen'],
    ipv6: true,
    async run(_net, t) {
      for (let attempt = 1; ; attempt++) {
        const server = await on(t, { host: '::', ipv6Only: true });
        try {
          const other = await on(t, { host: '0.0.0.0', port: portOf(server) });
          assert.equal(portOf(other), portOf(server));
          return;
        } catch (error) {
          // Somebody else's connection over IPv4 may have that port.
          if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE' || attempt === 8) throw error;
        }
      }
    },
  },
  {
    name: 'an IPv6 port where nobody listens: the error has the address',
    areas: ['ipv6', 'connect errors'],
    ipv6: true,
    async run(net, t) {
      const port = await t.freePort('::1');
      const error = await failure(t.own(net.connect(port, '::1')));
      assert.deepEqual([error.code, error.address, error.port], ['ECONNREFUSED', '::1', port]);
      assert.equal(error.message, `connect ECONNREFUSED ::1:${port}`);
    },
  },
  {
    name: 'family: 6 asks lookup for IPv6',
    areas: ['ipv6', 'lookup'],
    ipv6: true,
    async run(net, t) {
      const server = await on(t, { host: '::1' });
      let family: unknown;
      const lookup: LookupFunction = (_host, options, callback) => {
        family = options.family;
        process.nextTick(callback, null, '::1', 6);
      };
      const client = t.own(net.connect({ port: portOf(server), host: 'host.example', family: 6, lookup }));
      await event(client, 'connect');
      assert.equal(family, 6);
      assert.equal(client.remoteAddress, '::1');
    },
  },
  {
    name: 'a mapped address reaches an IPv4 server',
    areas: ['ipv6', 'connect'],
    ipv6: true,
    async run(net, t) {
      const { port } = await t.listening();
      const client = t.own(net.connect(port, `::ffff:${LOOPBACK}`));
      await event(client, 'connect');
      assert.equal(client.remoteFamily, 'IPv6');
    },
  },
];
