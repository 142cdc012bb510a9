/** Zero-copy and its cookies, what is withdrawn, and what closing leaves: net/rds/message.c, send.c, af_rds.c. */
import { bytes, codeOfError, codeOr, type Group, of, type Scene, type TableSocket, textOf } from './shape.ts';

/** Reads what there is until `count` cookies came. */
async function cookies(scene: Scene, socket: TableSocket, count: number): Promise<number[]> {
  const found: number[] = [];
  await scene.until(() => {
    for (let got = socket.recvmsg(); got !== null; got = socket.recvmsg()) found.push(...(got.cookies ?? []));
    return found.length >= count;
  });
  return found.sort((x, y) => x - y);
}

/** Reads away what comes for `peer`, for as long as the row runs. */
async function sink(scene: Scene, peer: TableSocket, messages: number): Promise<void> {
  let seen = 0;
  await scene.until(() => {
    while (peer.recvmsg() !== null) seen += 1;
    return seen >= messages;
  });
}

export const completions: Group = {
  name: 'zero-copy',
  rows: [
    {
      name: 'each cookie comes back once',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket({ zerocopy: true });
        for (let cookie = 0; cookie < 20; cookie++)
          socket.sendmsg(Buffer.alloc(100), of(peer), { zerocopy: true, cookie });
        await sink(scene, peer, 20);
        return [await cookies(scene, socket, 20), socket.readable];
      },
      expected: [Array.from({ length: 20 }, (_, i) => i), false],
    },
    {
      name: 'cookies need not differ, and may be any 32 bits',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket({ zerocopy: true });
        for (const cookie of [0, 0xffffffff, 0xffffffff])
          socket.sendmsg(bytes('x'), of(peer), { zerocopy: true, cookie });
        await sink(scene, peer, 3);
        return cookies(scene, socket, 3);
      },
      expected: [0, 0xffffffff, 0xffffffff],
    },
    {
      name: 'no cookie comes back for what was refused',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket({ zerocopy: true, sendBufferBytes: 4096 });
        codeOr(() => socket.sendmsg(Buffer.alloc(4097), of(peer), { zerocopy: true, cookie: 1 }));
        socket.sendmsg(bytes('x'), of(peer), { zerocopy: true, cookie: 2 });
        await sink(scene, peer, 1);
        return cookies(scene, socket, 1);
      },
      expected: [2],
    },
    {
      name: 'control: false leaves cookies where they are',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket({ zerocopy: true });
        socket.sendmsg(bytes('x'), of(peer), { zerocopy: true, cookie: 5 });
        await sink(scene, peer, 1);
        await scene.until(() => socket.readable);
        return [socket.recvmsg({ control: false }), await cookies(scene, socket, 1)];
      },
      expected: [null, [5]],
    },
    {
      name: 'cookies come along on data, eight at most',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket({ zerocopy: true });
        for (let cookie = 1; cookie <= 8; cookie++)
          socket.sendmsg(bytes('x'), of(peer), { zerocopy: true, cookie });
        await sink(scene, peer, 8);
        await scene.until(() => socket.readable);
        peer.sendmsg(bytes('answer'), of(socket));
        let carried: number[] = [];
        await scene.until(() => {
          // Peeking shows when the answer is there without taking a cookie alone.
          if (socket.recvmsg({ peek: true, control: false }) === null) return false;
          carried = [...(socket.recvmsg()?.cookies ?? [])];
          return true;
        });
        return carried.length >= 1 && carried.length <= 8;
      },
      expected: true,
    },
  ],
};

export const withdrawing: Group = {
  name: 'RDS_CANCEL_SENT_TO',
  rows: [
    {
      name: 'frees the send buffer',
      call: (scene) => {
        const socket = scene.socket({ sendBufferBytes: 4096 });
        while (codeOr(() => socket.sendmsg(Buffer.alloc(2048), scene.absent)) !== 'EAGAIN');
        socket.setsockopt('RDS_CANCEL_SENT_TO', scene.absent);
        return [socket.writable, socket.sendmsg(Buffer.alloc(100), scene.absent)];
      },
      expected: [true, 100],
    },
    {
      name: 'brings cookies back',
      call: async (scene) => {
        const socket = scene.socket({ zerocopy: true });
        socket.sendmsg(Buffer.alloc(100), scene.absent, { zerocopy: true, cookie: 9 });
        socket.setsockopt('RDS_CANCEL_SENT_TO', scene.absent);
        return cookies(scene, socket, 1);
      },
      expected: [9],
    },
    {
      name: 'is for one port: what goes to another one stays',
      call: async (scene) => {
        const socket = scene.socket({ zerocopy: true });
        const other = { address: scene.absent.address, port: scene.absent.port + 1 };
        socket.sendmsg(Buffer.alloc(100), other, { zerocopy: true, cookie: 1 });
        socket.sendmsg(Buffer.alloc(100), scene.absent, { zerocopy: true, cookie: 2 });
        socket.setsockopt('RDS_CANCEL_SENT_TO', other);
        const first = await cookies(scene, socket, 1);
        socket.setsockopt('RDS_CANCEL_SENT_TO', scene.absent);
        return [first, await cookies(scene, socket, 1)];
      },
      expected: [[1], [2]],
    },
    {
      name: 'of an address that nothing went to',
      call: (scene) => scene.socket().setsockopt('RDS_CANCEL_SENT_TO', scene.absent) ?? 'done',
      expected: 'done',
    },
  ],
};

export const monitoring: Group = {
  name: 'RDS_CONG_MONITOR',
  rows: [
    {
      name: 'ENOBUFS, and then news of the port, modulo 64, before data',
      call: async (scene) => {
        const socket = scene.socket();
        socket.setsockopt('RDS_CONG_MONITOR', true);
        const peer = scene.peer({ receiveBufferBytes: 4096 });
        await scene.until(() => codeOr(() => socket.sendmsg(Buffer.alloc(2048), of(peer))) === 'ENOBUFS');
        peer.sendmsg(bytes('data'), of(socket));
        await scene.until(() => socket.recvmsg({ peek: true, control: false }) !== null);
        await scene.until(() => {
          while (peer.recvmsg() !== null);
          return codeOr(() => socket.sendmsg(bytes('x'), of(peer))) === 1;
        });
        // The map that freed the port brought the news.
        const news = socket.recvmsg();
        const data = socket.recvmsg();
        return [(news?.mask ?? 0n) >> BigInt(peer.port % 64), textOf(data), socket.recvmsg()];
      },
      expected: [1n, 'data', null],
    },
    {
      name: 'off: no news',
      call: async (scene) => {
        const socket = scene.socket();
        const peer = scene.peer({ receiveBufferBytes: 4096 });
        await scene.until(() => codeOr(() => socket.sendmsg(Buffer.alloc(2048), of(peer))) === 'ENOBUFS');
        await scene.until(() => {
          while (peer.recvmsg() !== null);
          return codeOr(() => socket.sendmsg(bytes('x'), of(peer))) === 1;
        });
        return socket.recvmsg();
      },
      expected: null,
    },
  ],
};

export const closing: Group = {
  name: 'a closed socket',
  rows: [
    {
      name: 'sends and connects no more',
      call: async (scene) => {
        const socket = scene.socket();
        await socket.close();
        return [
          codeOr(() => socket.sendmsg(bytes('x'), scene.absent)),
          codeOr(() => socket.connect(scene.absent)),
          codeOr(() => socket.getsockopt('SO_SNDBUF')),
          await socket.receive().catch(codeOfError),
        ];
      },
      expected: ['EBADF', 'EBADF', 'EBADF', 'EBADF'],
    },
    {
      name: 'gets nothing of what came before: a new one on its port begins empty',
      call: async (scene) => {
        const peer = scene.peer();
        scene.socket().sendmsg(bytes('unread'), of(peer));
        await scene.until(() => peer.readable);
        const { port } = peer;
        await peer.close();
        const next = scene.b.bind(port);
        const got = next.recvmsg();
        await next.close();
        return got;
      },
      expected: null,
    },
    {
      name: 'withdraws what nobody has acknowledged',
      call: async (scene) => {
        const socket = scene.socket({ zerocopy: true });
        socket.sendmsg(Buffer.alloc(100), scene.absent, { zerocopy: true, cookie: 9 });
        await socket.close();
        return 'closed';
      },
      expected: 'closed',
    },
    {
      name: 'frees its congested port',
      call: async (scene) => {
        const socket = scene.socket();
        const peer = scene.peer({ receiveBufferBytes: 4096 });
        await scene.until(() => codeOr(() => socket.sendmsg(Buffer.alloc(2048), of(peer))) === 'ENOBUFS');
        const to = of(peer);
        await peer.close();
        await scene.until(() => codeOr(() => socket.sendmsg(bytes('x'), to)) === 1);
        return 'free';
      },
      expected: 'free',
    },
  ],
};
