/** Idle time, and the options of TCP that programs set. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import type { Socket } from 'node:net';
import { closed, event, LOOPBACK, record } from './scene.ts';
import type { Table } from './table.ts';

/** Whether the keep-alive timer of a connection runs: the field `tr` of /proc/net/tcp is 2 (get_tcp4_sock). */
function keptAlive(socket: Socket): boolean {
  const port = (value: number | undefined): string =>
    (value ?? 0).toString(16).toUpperCase().padStart(4, '0');
  const row = readFileSync('/proc/self/net/tcp', 'utf8')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .find(
      ([, local, remote]) =>
        local?.endsWith(`:${port(socket.localPort)}`) && remote?.endsWith(`:${port(socket.remotePort)}`),
    );
  assert.ok(row !== undefined, 'the connection is in /proc/net/tcp');
  return row[5]?.startsWith('02:') === true;
}

export const TIMEOUT: Table = [
  {
    name: "setTimeout(): 'timeout' when idle; the socket stays open",
    areas: ['timeout'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      assert.equal(client.timeout, undefined);
      assert.equal(client.setTimeout(15), client);
      assert.equal(client.timeout, 15);
      await event(client, 'timeout');
      assert.equal(client.destroyed, false);
      client.write('alive');
      await event(peer, 'data');
    },
  },
  {
    name: 'setTimeout(time, callback) is a listener that runs once',
    areas: ['timeout'],
    async run(_net, t) {
      const { client } = await t.pair();
      let runs = 0;
      client.setTimeout(10, () => runs++);
      assert.equal(client.listenerCount('timeout'), 1);
      await event(client, 'timeout');
      assert.equal(runs, 1);
      assert.equal(client.listenerCount('timeout'), 0);
    },
  },
  {
    name: 'reading and writing begin the idle time anew',
    areas: ['timeout'],
    async run(_net, t) {
      const idle = await t.pair();
      const busy = await t.pair();
      const seen = record(busy.client, 'timeout');
      busy.peer.pipe(busy.peer);
      busy.client.on('data', (chunk: Buffer) => {
        setImmediate(() => {
          if (!busy.client.destroyed) busy.client.write(chunk);
        });
      });
      idle.client.setTimeout(40);
      busy.client.setTimeout(40);
      busy.client.write('ping');
      await event(idle.client, 'timeout');
      assert.deepEqual(seen, []);
      busy.client.destroy();
    },
  },
  {
    name: 'setTimeout(0) ends it, and takes its callback away',
    areas: ['timeout'],
    async run(_net, t) {
      const still = await t.pair();
      const ticking = await t.pair();
      const seen = record(still.client, 'timeout');
      const callback = (): void => {
        seen.push('callback');
      };
      still.client.setTimeout(5, callback);
      still.client.setTimeout(0, callback);
      assert.equal(still.client.timeout, 0);
      ticking.client.setTimeout(25);
      await event(ticking.client, 'timeout');
      assert.deepEqual(seen, []);
      assert.equal(still.client.listenerCount('timeout'), 1);
    },
  },
  {
    name: 'the option timeout of connect is setTimeout()',
    areas: ['timeout', 'connect'],
    async run(_net, t) {
      const { client } = await t.pair({ client: { timeout: 15 } });
      assert.equal(client.timeout, 15);
      await event(client, 'timeout');
    },
  },
  {
    name: 'the idle time runs while connecting',
    areas: ['timeout', 'connect'],
    async run(net, t) {
      const client = t.own(net.connect(t.stalled(), LOOPBACK));
      client.setTimeout(20);
      await event(client, 'timeout');
      assert.equal(client.connecting, true);
      const outcome = closed(client);
      client.destroy();
      assert.equal((await outcome).hadError, false);
    },
  },
  {
    name: 'setTimeout() of a wrong type or range throws',
    areas: ['timeout', 'arguments'],
    run(net) {
      const socket = new net.Socket();
      assert.throws(() => socket.setTimeout('10' as unknown as number), { code: 'ERR_INVALID_ARG_TYPE' });
      assert.throws(() => socket.setTimeout(-1), { code: 'ERR_OUT_OF_RANGE' });
      assert.throws(() => socket.setTimeout(Number.POSITIVE_INFINITY), { code: 'ERR_OUT_OF_RANGE' });
      assert.throws(() => socket.setTimeout(10, 'call' as unknown as () => void), {
        code: 'ERR_INVALID_ARG_TYPE',
      });
    },
  },
  {
    name: 'a closed socket has no timeout',
    areas: ['timeout', 'destroy'],
    async run(_net, t) {
      const gone = await t.pair();
      const ticking = await t.pair();
      const seen = record(gone.client, 'timeout');
      gone.client.setTimeout(5);
      gone.client.destroy();
      ticking.client.setTimeout(25);
      await event(ticking.client, 'timeout');
      assert.deepEqual(seen, []);
    },
  },
  {
    name: 'the server side has its own idle time',
    areas: ['timeout', 'server'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      peer.setTimeout(10, () => peer.end('bye'));
      client.resume();
      assert.equal((await closed(client)).hadError, false);
    },
  },
  {
    name: 'setNoDelay() and setKeepAlive() return the socket, connected or not',
    areas: ['options'],
    async run(net, t) {
      const { client, peer, port } = await t.pair();
      const fresh = t.own(new net.Socket());
      for (const socket of [client, peer, fresh]) {
        assert.equal(socket.setNoDelay(), socket);
        assert.equal(socket.setNoDelay(false), socket);
        assert.equal(socket.setKeepAlive(true, 5_000), socket);
        assert.equal(socket.setKeepAlive(), socket);
      }
      fresh.connect(port, LOOPBACK);
      await event(fresh, 'connect');
    },
  },
  {
    name: 'setKeepAlive(true) starts the timer of the kernel, and false stops it',
    areas: ['options'],
    async run(_net, t) {
      const { client, peer } = await t.pair();
      assert.equal(keptAlive(client), false);
      client.setKeepAlive(true, 60_000);
      assert.equal(keptAlive(client), true);
      assert.equal(keptAlive(peer), false);
      client.setKeepAlive(false);
      assert.equal(keptAlive(client), false);
    },
  },
  {
    name: 'setKeepAlive() before connect holds after it',
    areas: ['options', 'connect'],
    async run(net, t) {
      const { port } = await t.listening();
      const socket = t.own(new net.Socket());
      socket.setKeepAlive(true, 60_000);
      socket.connect(port, LOOPBACK);
      await event(socket, 'connect');
      assert.equal(keptAlive(socket), true);
    },
  },
  {
    name: 'options keepAlive, keepAliveInitialDelay and noDelay of connect',
    areas: ['options', 'connect'],
    async run(_net, t) {
      const client = { keepAlive: true, keepAliveInitialDelay: 60_000, noDelay: true };
      const pair = await t.pair({ client });
      assert.equal(keptAlive(pair.client), true);
      assert.equal(keptAlive(pair.peer), false);
    },
  },
  {
    name: 'options keepAlive, keepAliveInitialDelay and noDelay of createServer',
    areas: ['options', 'server'],
    async run(_net, t) {
      const server = { keepAlive: true, keepAliveInitialDelay: 60_000, noDelay: true };
      const pair = await t.pair({ server });
      assert.equal(keptAlive(pair.peer), true);
      assert.equal(keptAlive(pair.client), false);
    },
  },
];
