/** Connections that cannot be made: what the error says, and what comes after it. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import type { LookupFunction } from 'node:net';
import { constants } from 'node:os';
import { join } from 'node:path';
import { called, closed, event, failure, LOOPBACK, record } from './scene.ts';
import type { Table } from './table.ts';

export const CONNECT_ERRORS: Table = [
  {
    name: 'a port where nobody listens: ECONNREFUSED with errno, syscall, address and port',
    areas: ['connect errors'],
    async run(net, t) {
      const port = await t.freePort();
      const error = await failure(t.own(net.connect(port, LOOPBACK)));
      assert.equal(error.code, 'ECONNREFUSED');
      assert.equal(error.errno, -constants.errno.ECONNREFUSED);
      assert.equal(error.syscall, 'connect');
      assert.equal(error.address, LOOPBACK);
      assert.equal(error.port, port);
      assert.equal(error.message, `connect ECONNREFUSED ${LOOPBACK}:${port}`);
      assert.ok(error instanceof Error);
    },
  },
  {
    name: "a refused connection: 'error', then 'close' with true, and no 'connect'",
    areas: ['connect errors', 'events'],
    async run(net, t) {
      const port = await t.freePort();
      const socket = t.own(net.connect(port, LOOPBACK));
      const seen = record(socket, 'connect', 'ready', 'error', 'end', 'finish', 'close');
      await closed(socket);
      assert.deepEqual(seen, ['error', 'close(true)']);
      assert.equal(socket.destroyed, true);
      assert.equal(socket.connecting, false);
    },
  },
  {
    name: 'errors of the system are emitted, never thrown',
    areas: ['connect errors'],
    async run(net, t) {
      const port = await t.freePort();
      const socket = t.own(new net.Socket());
      let emitted = false;
      socket.on('error', () => {
        emitted = true;
      });
      socket.connect(port, LOOPBACK);
      assert.equal(emitted, false);
      await closed(socket);
      assert.equal(emitted, true);
    },
  },
  {
    name: 'a path that is not there: ENOENT with the path as address, and no port',
    areas: ['connect errors', 'unix'],
    async run(net, t) {
      const path = join(t.folder(), 'none');
      const error = await failure(t.own(net.connect(path)));
      assert.equal(error.code, 'ENOENT');
      assert.equal(error.syscall, 'connect');
      assert.equal(error.address, path);
      assert.equal(error.port, undefined);
      assert.equal(error.message, `connect ENOENT ${path}`);
    },
  },
  {
    name: 'a file that is no socket: ECONNREFUSED',
    areas: ['connect errors', 'unix'],
    async run(net, t) {
      const path = join(t.folder(), 'file');
      writeFileSync(path, '');
      const error = await failure(t.own(net.connect({ path })));
      assert.deepEqual([error.code, error.address], ['ECONNREFUSED', path]);
    },
  },
  {
    name: "a lookup that fails: its error in 'lookup' and in 'error'",
    areas: ['connect errors', 'lookup'],
    async run(net, t) {
      const reason = Object.assign(new Error('getaddrinfo ENOTFOUND host.example'), {
        code: 'ENOTFOUND',
        syscall: 'getaddrinfo',
        hostname: 'host.example',
      });
      const lookup: LookupFunction = (_host, _options, callback) =>
        process.nextTick(() => callback(reason, ''));
      for (const autoSelectFamily of [true, false]) {
        const socket = t.own(net.connect({ port: 1, host: 'host.example', lookup, autoSelectFamily }));
        const seen = record(socket, 'lookup', 'connect', 'error', 'close');
        let looked: unknown;
        socket.on('lookup', (error) => {
          looked = error;
        });
        assert.equal(await failure(socket), reason);
        assert.equal(looked, reason);
        assert.deepEqual(seen, ['lookup', 'error', 'close(true)']);
      }
    },
  },
  {
    name: 'a localAddress that is not of this host: EADDRNOTAVAIL of bind',
    areas: ['connect errors', 'address'],
    async run(net, t) {
      const { port } = await t.listening();
      const error = await failure(t.own(net.connect({ port, host: LOOPBACK, localAddress: '192.0.2.1' })));
      assert.equal(error.code, 'EADDRNOTAVAIL');
      assert.equal(error.syscall, 'bind');
      assert.equal(error.address, '192.0.2.1');
    },
  },
  {
    name: 'a localPort that is taken: EADDRINUSE',
    areas: ['connect errors', 'address'],
    async run(net, t) {
      const { port } = await t.listening();
      const other = await t.listening();
      const options = { port, host: LOOPBACK, localAddress: LOOPBACK, localPort: other.port };
      const error = await failure(t.own(net.connect(options)));
      assert.equal(error.code, 'EADDRINUSE');
    },
  },
  {
    name: 'with localAddress, the error of connect names the local end',
    areas: ['connect errors', 'address'],
    async run(net, t) {
      const port = await t.freePort();
      const localPort = await t.freePort('127.0.0.3');
      const options = { port, host: LOOPBACK, localAddress: '127.0.0.3', localPort };
      const error = await failure(t.own(net.connect(options)));
      assert.equal(error.code, 'ECONNREFUSED');
      assert.deepEqual([error.localAddress, error.localPort], ['127.0.0.3', localPort]);
      assert.equal(
        error.message,
        `connect ECONNREFUSED ${LOOPBACK}:${port} - Local (127.0.0.3:${localPort})`,
      );
    },
  },
  {
    name: 'what was written before a refused connection gets the error in its callback',
    areas: ['connect errors', 'write'],
    async run(net, t) {
      const port = await t.freePort();
      const socket = t.own(net.connect(port, LOOPBACK));
      const outcome = failure(socket);
      const [written] = await called((done) => socket.write('early', done));
      assert.ok(written instanceof Error);
      assert.equal((await outcome).code, 'ECONNREFUSED');
    },
  },
  {
    name: 'a socket that failed to connect can try again',
    areas: ['connect errors', 'state'],
    async run(net, t) {
      const refused = await t.freePort();
      const { port } = await t.listening();
      const socket = t.own(net.connect(refused, LOOPBACK));
      await failure(socket);
      socket.removeAllListeners();
      socket.connect(port, LOOPBACK);
      await event(socket, 'connect');
      assert.equal(socket.remotePort, port);
    },
  },
  {
    name: "destroy() while connecting: 'close' with false, and no 'connect'",
    areas: ['connect errors', 'destroy'],
    async run(net, t) {
      const { port } = await t.listening();
      const socket = t.own(net.connect(port, LOOPBACK));
      const seen = record(socket, 'connect', 'ready', 'error', 'close');
      socket.destroy();
      await closed(socket);
      assert.deepEqual(seen, ['close(false)']);
    },
  },
  {
    name: 'destroy() while a lookup is under way: its answer is not used',
    areas: ['connect errors', 'destroy', 'lookup'],
    async run(net, t) {
      const { server, port } = await t.listening();
      let connections = 0;
      server.on('connection', () => connections++);
      let answer: (() => void) | undefined;
      const lookup: LookupFunction = (_host, options, callback) => {
        answer = () => {
          if (options.all === true) callback(null, [{ address: LOOPBACK, family: 4 }]);
          else callback(null, LOOPBACK, 4);
        };
      };
      const socket = t.own(net.connect({ port, host: 'host.example', lookup }));
      const seen = record(socket, 'connect', 'error', 'close');
      await new Promise(setImmediate);
      socket.destroy();
      await closed(socket);
      answer?.();
      await event(t.own(net.connect(port, LOOPBACK)), 'connect');
      await new Promise(setImmediate);
      assert.deepEqual(seen, ['close(false)']);
      assert.equal(connections, 1);
    },
  },
];
