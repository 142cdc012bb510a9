/** Hosts with several addresses: the order of the attempts, their events, and how all of them fail. */
import assert from 'node:assert/strict';
import type { LookupAddress } from 'node:dns';
import { isIPv6, type LookupFunction, type TcpNetConnectOpts } from 'node:net';
import { closed, event, failure, LOOPBACK, portOf, record } from './scene.ts';
import type { Table } from './table.ts';

/** Answers with all of `addresses`, or with the first. */
function addresses(...list: readonly string[]): LookupFunction {
  const all: LookupAddress[] = list.map((address) => ({ address, family: isIPv6(address) ? 6 : 4 }));
  return (_host, options, callback) => {
    process.nextTick(() => {
      if (options.all === true) callback(null, all);
      else callback(null, all[0]!.address, all[0]!.family);
    });
  };
}

/** Options of a connection to a name that has `list`. */
function named(port: number, ...list: readonly string[]): TcpNetConnectOpts {
  return { port, host: 'host.example', autoSelectFamily: true, lookup: addresses(...list) };
}

export const FAMILY: Table = [
  {
    name: 'autoSelectFamily asks lookup for all addresses, and emits lookup for each',
    areas: ['autoSelectFamily', 'lookup'],
    async run(net, t) {
      const { port } = await t.listening();
      let all: unknown;
      const lookup: LookupFunction = (host, options, callback) => {
        all = options.all;
        addresses(LOOPBACK, '127.0.0.2')(host, options, callback);
      };
      const socket = t.own(net.connect({ ...named(port), lookup }));
      const looked: unknown[] = [];
      socket.on('lookup', (_error, address) => {
        looked.push(address);
      });
      await event(socket, 'connect');
      assert.equal(all, true);
      assert.deepEqual(looked, [LOOPBACK, '127.0.0.2']);
      assert.equal(socket.remoteAddress, LOOPBACK);
    },
  },
  {
    name: 'autoSelectFamily is the default',
    areas: ['autoSelectFamily', 'lookup'],
    async run(net, t) {
      const { port } = await t.listening();
      let all: unknown;
      const lookup: LookupFunction = (host, options, callback) => {
        all = options.all;
        addresses(LOOPBACK)(host, options, callback);
      };
      await event(t.own(net.connect({ port, host: 'host.example', lookup })), 'connect');
      assert.equal(all, true);
    },
  },
  {
    name: 'the first address refuses: the second is tried, with events of both attempts',
    areas: ['autoSelectFamily', 'events'],
    async run(net, t) {
      const server = t.server();
      server.listen(0, '127.0.0.2');
      await event(server, 'listening');
      const port = portOf(server);
      const socket = t.own(net.connect(named(port, LOOPBACK, '127.0.0.2')));
      const seen: unknown[] = [];
      socket.on('connectionAttempt', (...args) => seen.push(['attempt', ...args]));
      socket.on('connectionAttemptFailed', (address, to, family, error) => {
        seen.push(['failed', address, to, family, (error as NodeJS.ErrnoException).code]);
      });
      socket.on('connectionAttemptTimeout', (...args) => seen.push(['timeout', ...args]));
      await event(socket, 'connect');
      assert.deepEqual(seen, [
        ['attempt', LOOPBACK, port, 4],
        ['failed', LOOPBACK, port, 4, 'ECONNREFUSED'],
        ['attempt', '127.0.0.2', port, 4],
      ]);
      assert.equal(socket.remoteAddress, '127.0.0.2');
      assert.deepEqual(socket.autoSelectFamilyAttemptedAddresses, [
        `${LOOPBACK}:${port}`,
        `127.0.0.2:${port}`,
      ]);
    },
  },
  {
    name: 'IPv6 refuses: IPv4 is tried',
    areas: ['autoSelectFamily', 'ipv6'],
    ipv6: true,
    async run(net, t) {
      const { port } = await t.listening();
      const socket = t.own(net.connect(named(port, '::1', LOOPBACK)));
      await event(socket, 'connect');
      assert.equal(socket.remoteAddress, LOOPBACK);
      assert.equal(socket.remoteFamily, 'IPv4');
    },
  },
  {
    name: 'the families alternate, beginning with that of the first answer',
    areas: ['autoSelectFamily', 'ipv6'],
    ipv6: true,
    async run(net, t) {
      const port = await t.freePort();
      const socket = t.own(net.connect(named(port, '127.0.0.4', '127.0.0.5', '::1')));
      const tried: string[] = [];
      socket.on('connectionAttempt', (address) => {
        tried.push(address);
      });
      await failure(socket);
      assert.deepEqual(tried, ['127.0.0.4', '::1', '127.0.0.5']);
    },
  },
  {
    name: 'the first address does not answer: the second is tried after autoSelectFamilyAttemptTimeout',
    areas: ['autoSelectFamily', 'timeout', 'events'],
    async run(net, t) {
      const { port } = await t.listening();
      t.stalled('127.0.0.2', port);
      const options = { ...named(port, '127.0.0.2', LOOPBACK), autoSelectFamilyAttemptTimeout: 20 };
      const socket = t.own(net.connect(options));
      const timedOut: unknown[] = [];
      socket.on('connectionAttemptTimeout', (...args) => timedOut.push(args));
      await event(socket, 'connect');
      assert.deepEqual(timedOut, [['127.0.0.2', port, 4]]);
      assert.equal(socket.remoteAddress, LOOPBACK);
    },
  },
  {
    name: 'the last address is waited for without a limit',
    areas: ['autoSelectFamily', 'timeout'],
    async run(net, t) {
      const port = t.stalled(LOOPBACK);
      t.stalled('127.0.0.2', port);
      const options = { ...named(port, LOOPBACK, '127.0.0.2'), autoSelectFamilyAttemptTimeout: 10 };
      const socket = t.own(net.connect(options));
      const timedOut: string[] = [];
      socket.on('connectionAttemptTimeout', (address) => {
        timedOut.push(address);
      });
      socket.setTimeout(50);
      await event(socket, 'timeout');
      assert.deepEqual(timedOut, [LOOPBACK]);
      assert.equal(socket.connecting, true);
    },
  },
  {
    name: 'all addresses refuse: an AggregateError with the code of the first and all errors',
    areas: ['autoSelectFamily', 'connect errors'],
    async run(net, t) {
      const port = await t.freePort();
      const socket = t.own(net.connect(named(port, LOOPBACK, '127.0.0.2')));
      const error = await failure(socket);
      assert.equal(error.name, 'AggregateError');
      assert.ok(error instanceof AggregateError);
      assert.equal((error as NodeJS.ErrnoException).code, 'ECONNREFUSED');
      const each = error.errors as (NodeJS.ErrnoException & { address: string; port: number })[];
      assert.deepEqual(
        each.map(({ code, address, port: to }) => [code, address, to]),
        [
          ['ECONNREFUSED', LOOPBACK, port],
          ['ECONNREFUSED', '127.0.0.2', port],
        ],
      );
    },
  },
  {
    name: 'one address that refuses is an error of its own',
    areas: ['autoSelectFamily', 'connect errors'],
    async run(net, t) {
      const port = await t.freePort();
      const error = await failure(t.own(net.connect(named(port, LOOPBACK))));
      assert.equal(error instanceof AggregateError, false);
      assert.deepEqual([error.code, error.address, error.port], ['ECONNREFUSED', LOOPBACK, port]);
    },
  },
  {
    name: 'autoSelectFamily: false tries the first address alone',
    areas: ['autoSelectFamily', 'connect errors'],
    async run(net, t) {
      const server = t.server();
      server.listen(0, '127.0.0.2');
      await event(server, 'listening');
      const options = { ...named(portOf(server), LOOPBACK, '127.0.0.2'), autoSelectFamily: false };
      const error = await failure(t.own(net.connect(options)));
      assert.deepEqual([error.code, error.address], ['ECONNREFUSED', LOOPBACK]);
    },
  },
  {
    name: 'family: 4 asks for one address of that family',
    areas: ['autoSelectFamily', 'lookup'],
    async run(net, t) {
      const { port } = await t.listening();
      const asked: unknown[] = [];
      const lookup: LookupFunction = (host, options, callback) => {
        asked.push(options.all === true, options.family);
        addresses(LOOPBACK)(host, options, callback);
      };
      const options = { port, host: 'host.example', family: 4, lookup, autoSelectFamily: true };
      await event(t.own(net.connect(options)), 'connect');
      assert.deepEqual(asked, [false, 4]);
    },
  },
  {
    name: 'an address alone has events of its attempt too',
    areas: ['autoSelectFamily', 'events'],
    async run(net, t) {
      const port = await t.freePort();
      const socket = t.own(net.connect(port, LOOPBACK));
      const seen = record(socket, 'connectionAttempt', 'connectionAttemptFailed', 'error', 'close');
      await closed(socket);
      assert.deepEqual(seen, ['connectionAttempt', 'connectionAttemptFailed', 'error', 'close(true)']);
    },
  },
  {
    name: 'destroy() between two attempts ends them',
    areas: ['autoSelectFamily', 'destroy'],
    async run(net, t) {
      const { server, port } = await t.listening();
      let connections = 0;
      server.on('connection', () => connections++);
      const socket = t.own(net.connect(named(port, '127.0.0.2', LOOPBACK)));
      const seen = record(socket, 'connect', 'error', 'close');
      socket.on('connectionAttemptFailed', () => socket.destroy());
      await closed(socket);
      await event(t.own(net.connect(port, LOOPBACK)), 'connect');
      await new Promise(setImmediate);
      assert.deepEqual(seen, ['close(false)']);
      assert.equal(connections, 1);
    },
  },
  {
    name: 'autoSelectFamily and its timeout of a wrong type or range throw',
    areas: ['autoSelectFamily', 'arguments'],
    run(net) {
      const wrong: [object, string][] = [
        [{ autoSelectFamily: 'yes' }, 'ERR_INVALID_ARG_TYPE'],
        [{ autoSelectFamily: true, autoSelectFamilyAttemptTimeout: '10' }, 'ERR_INVALID_ARG_TYPE'],
        [{ autoSelectFamily: true, autoSelectFamilyAttemptTimeout: 0 }, 'ERR_OUT_OF_RANGE'],
        [{ autoSelectFamily: true, autoSelectFamilyAttemptTimeout: -1 }, 'ERR_OUT_OF_RANGE'],
      ];
      for (const [options, code] of wrong) {
        assert.throws(
          () => net.connect({ port: 1, host: 'host.example', lookup: addresses(LOOPBACK), ...options }),
          { code },
          JSON.stringify(options),
        );
      }
    },
  },
];
