/** What keeps a process alive, and errors that nobody listens to: each row runs a child of its own. */
import assert from 'node:assert/strict';
import type { Socket } from 'node:net';
import { event, LOOPBACK } from './scene.ts';
import type { Table } from './table.ts';

export const PROCESS: Table = [
  {
    name: 'an open connection keeps the process alive until it closes',
    areas: ['ref'],
    async run(_net, t) {
      const { server, port } = await t.listening();
      const accepted = event(server, 'connection');
      const child = t.child(
        `const socket = net.connect(process.argv[1], '${LOOPBACK}', () => console.log('connected'));
         socket.on('data', (data) => console.log(String(data)));`,
        port,
      );
      const [peer] = (await accepted) as [Socket];
      await child.says();
      peer.end('then closed');
      const { code, stdout, stderr } = await child.exit();
      assert.deepEqual([code, stderr], [0, '']);
      assert.equal(stdout, 'connected\nthen closed\n');
    },
  },
  {
    name: 'unref() of a connected socket lets the process exit',
    areas: ['ref'],
    async run(_net, t) {
      const { port } = await t.listening();
      const child = t.child(
        `const socket = net.connect(process.argv[1], '${LOOPBACK}', () => socket.unref());
         socket.on('close', () => console.log('closed'));`,
        port,
      );
      const { code, stdout, stderr } = await child.exit();
      assert.deepEqual([code, stdout, stderr], [0, '', '']);
    },
  },
  {
    name: 'unref() before connect() and while connecting holds once connected',
    areas: ['ref', 'connect'],
    async run(_net, t) {
      const { port } = await t.listening();
      const child = t.child(
        `net.connect(process.argv[1], '${LOOPBACK}').unref();
         const socket = new net.Socket();
         socket.unref();
         socket.connect(process.argv[1], '${LOOPBACK}');`,
        port,
      );
      const { code, stderr } = await child.exit();
      assert.deepEqual([code, stderr], [0, '']);
    },
  },
  {
    name: 'ref() after unref() keeps the process alive',
    areas: ['ref'],
    async run(_net, t) {
      const { server, port } = await t.listening();
      const accepted = event(server, 'connection');
      const child = t.child(
        `const socket = net.connect(process.argv[1], '${LOOPBACK}', () => {
           socket.unref();
           socket.ref();
           setImmediate(() => setImmediate(() => console.log('ready')));
         });
         socket.on('data', (data) => { console.log(String(data)); socket.destroy(); });`,
        port,
      );
      const [peer] = (await accepted) as [Socket];
      await child.says();
      peer.write('reached');
      const { code, stdout } = await child.exit();
      assert.deepEqual([code, stdout], [0, 'ready\nreached\n']);
    },
  },
  {
    name: 'a listening server keeps the process alive until it closes',
    areas: ['ref', 'server close'],
    async run(net, t) {
      const child = t.child(
        `const server = net.createServer((socket) => { socket.end('bye'); server.close(); });
         server.listen(0, '${LOOPBACK}', () => console.log(server.address().port));`,
      );
      const port = Number(await child.says());
      t.own(net.connect(port, LOOPBACK)).resume();
      const { code, stderr } = await child.exit();
      assert.deepEqual([code, stderr], [0, '']);
    },
  },
  {
    name: 'unref() of a server lets the process exit, before and after listen()',
    areas: ['ref', 'listen'],
    async run(_net, t) {
      const child = t.child(
        `net.createServer().unref().listen(0, '${LOOPBACK}');
         const server = net.createServer();
         server.listen(0, '${LOOPBACK}', () => server.unref());`,
      );
      const { code, stderr } = await child.exit();
      assert.deepEqual([code, stderr], [0, '']);
    },
  },
  {
    name: 'an error of a socket that nobody listens to ends the process',
    areas: ['errors', 'uncaught'],
    async run(_net, t) {
      const port = await t.freePort();
      const child = t.child(`net.connect(process.argv[1], '${LOOPBACK}');`, port);
      const { code, stderr } = await child.exit();
      assert.equal(code, 1);
      assert.match(stderr, /ECONNREFUSED/);
    },
  },
  {
    name: 'an error of a server that nobody listens to ends the process',
    areas: ['errors', 'uncaught', 'listen'],
    async run(_net, t) {
      const { port } = await t.listening();
      const child = t.child(`net.createServer().listen(Number(process.argv[1]), '${LOOPBACK}');`, port);
      const { code, stderr } = await child.exit();
      assert.equal(code, 1);
      assert.match(stderr, /EADDRINUSE/);
    },
  },
  {
    name: 'what a listener throws is uncaught, and the socket goes on',
    areas: ['errors', 'uncaught'],
    async run(_net, t) {
      const { port } = await t.listening({}, (socket) => socket.pipe(socket));
      const child = t.child(
        `process.on('uncaughtException', (error) => console.log('uncaught ' + error.message));
         const socket = net.connect(process.argv[1], '${LOOPBACK}', () => socket.write('1'));
         let reads = 0;
         socket.on('data', () => {
           if (++reads === 2) { console.log('again'); socket.end(); return; }
           setImmediate(() => socket.write('2'));
           throw new Error('thrown by data');
         });`,
        port,
      );
      const { code, stdout, stderr } = await child.exit();
      assert.deepEqual([code, stderr], [0, '']);
      assert.equal(stdout, 'uncaught thrown by data\nagain\n');
    },
  },
  {
    name: 'process.exit() with open sockets and servers exits with its code',
    areas: ['ref', 'exit'],
    async run(_net, t) {
      const { port } = await t.listening();
      const child = t.child(
        `net.createServer().listen(0, '${LOOPBACK}', () => {
           const socket = net.connect(process.argv[1], '${LOOPBACK}', () => {
             socket.write(Buffer.alloc(1 << 20));
             process.exit(7);
           });
         });`,
        port,
      );
      const { code, stderr } = await child.exit();
      assert.deepEqual([code, stderr], [7, '']);
    },
  },
  {
    name: 'idle time alone does not keep the process alive',
    areas: ['ref', 'timeout'],
    async run(_net, t) {
      const { port } = await t.listening();
      const child = t.child(
        `const socket = net.connect(process.argv[1], '${LOOPBACK}', () => {
           socket.setTimeout(60_000);
           socket.unref();
         });`,
        port,
      );
      const { code, stderr } = await child.exit();
      assert.deepEqual([code, stderr], [0, '']);
    },
  },
];
