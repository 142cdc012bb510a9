/** recvmsg, its flags and its waiting form: rds_recvmsg (net/rds/recv.c). */
import { bytes, codeOfError, type Group, of, type Scene, type TableSocket, textOf } from './shape.ts';

/** A socket with these messages from another one, all there. */
async function received(
  scene: Scene,
  texts: readonly string[],
  options: Parameters<Scene['peer']>[0] = {},
): Promise<TableSocket> {
  const peer = scene.peer(options);
  const socket = scene.socket();
  for (const text of texts) socket.sendmsg(bytes(text), of(peer));
  // In order: when the last is there, all are.
  await scene.until(() => peer.readable);
  return peer;
}

const code = (promise: Promise<unknown>): Promise<unknown> => promise.catch(codeOfError);

export const receiving: Group = {
  name: 'recvmsg',
  rows: [
    { name: 'with nothing there', call: (scene) => scene.socket().recvmsg(), expected: null },
    {
      name: 'says who sent it',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket();
        socket.sendmsg(bytes('x'), of(peer));
        await scene.until(() => peer.readable);
        const message = peer.recvmsg();
        return [message?.address === socket.address, message?.port === socket.port];
      },
      expected: [true, true],
    },
    {
      name: 'gives empty messages, too',
      call: async (scene) => {
        const peer = await received(scene, ['']);
        const { kind, length, truncated } = peer.recvmsg() ?? {};
        return [kind, length, truncated];
      },
      expected: ['data', 0, false],
    },
    {
      name: 'with less room: the rest is discarded',
      call: async (scene) => {
        const peer = await received(scene, ['0123456789']);
        const message = peer.recvmsg({ maxBytes: 4 });
        return [textOf(message), message?.length, message?.truncated, peer.recvmsg()];
      },
      expected: ['0123', 4, true, null],
    },
    {
      name: 'MSG_TRUNC with less room: the length is that of the message',
      call: async (scene) => {
        const peer = await received(scene, ['0123456789']);
        const message = peer.recvmsg({ maxBytes: 4, trunc: true });
        return [textOf(message), message?.length, message?.fullLength, message?.truncated];
      },
      expected: ['0123', 10, 10, true],
    },
    {
      name: 'with just enough room',
      call: async (scene) => {
        const peer = await received(scene, ['0123456789']);
        const message = peer.recvmsg({ maxBytes: 10 });
        return [textOf(message), message?.length, message?.truncated];
      },
      expected: ['0123456789', 10, false],
    },
    {
      name: 'MSG_PEEK leaves the message',
      call: async (scene) => {
        const peer = await received(scene, ['once']);
        return [
          peer.recvmsg({ peek: true }),
          peer.recvmsg({ peek: true }),
          peer.recvmsg(),
          peer.recvmsg(),
        ].map(textOf);
      },
      expected: ['once', 'once', 'once', null],
    },
    {
      name: 'MSG_PEEK with less room leaves all of it',
      call: async (scene) => {
        const peer = await received(scene, ['0123456789']);
        return [textOf(peer.recvmsg({ peek: true, maxBytes: 4 })), textOf(peer.recvmsg())];
      },
      expected: ['0123', '0123456789'],
    },
    {
      name: 'has no timestamp that nobody asked for',
      call: async (scene) => (await received(scene, ['x'])).recvmsg()?.timestamp,
      expected: null,
    },
    {
      name: 'SO_TIMESTAMP: when it came',
      call: async (scene) => {
        const before = Date.now();
        const peer = await received(scene, ['x'], { timestamp: true });
        const { timestamp } = peer.recvmsg() ?? {};
        return typeof timestamp === 'number' && timestamp > before - 1000 && timestamp < Date.now() + 1000;
      },
      expected: true,
    },
    {
      name: 'SO_RDS_MSG_RXPATH_LATENCY: the points that were asked for, in that order',
      call: async (scene) => {
        const peer = await received(scene, ['x'], { receiveLatency: [2, 0] });
        const { latency } = peer.recvmsg() ?? {};
        return latency?.map(({ point, ns }) => [point, Number.isInteger(ns) && ns >= 0 && ns < 1e12]);
      },
      expected: [
        [2, true],
        [0, true],
      ],
    },
  ],
};

export const waiting: Group = {
  name: 'waiting recvmsg',
  rows: [
    {
      name: 'SO_RCVTIMEO over',
      call: (scene) => {
        const socket = scene.socket();
        socket.setsockopt('SO_RCVTIMEO', 20);
        return socket.receive();
      },
      expected: 'ETIMEDOUT',
    },
    {
      name: 'what is there already',
      call: async (scene) => textOf(await (await received(scene, ['at once'])).receive()),
      expected: 'at once',
    },
    {
      name: 'what comes later',
      call: async (scene) => {
        const peer = scene.peer();
        const waits = peer.receive();
        scene.socket().sendmsg(bytes('later'), of(peer));
        return textOf(await waits);
      },
      expected: 'later',
    },
    {
      name: 'cookies alone end no wait, and are there afterwards',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket({ zerocopy: true });
        socket.sendmsg(bytes('x'), of(peer), { zerocopy: true, cookie: 3 });
        await scene.until(() => peer.recvmsg() !== null);
        await scene.until(() => socket.readable);
        const waited = await code(socket.receive({ timeoutMs: 20 }));
        return [waited, socket.recvmsg()?.cookies];
      },
      expected: ['ETIMEDOUT', [3]],
    },
    {
      name: 'by another one meanwhile does not lose its place',
      call: async (scene) => {
        const peer = scene.peer();
        const waits = [peer.receive(), peer.receive()];
        const socket = scene.socket();
        socket.sendmsg(bytes('first'), of(peer));
        socket.sendmsg(bytes('second'), of(peer));
        return (await Promise.all(waits)).map(textOf);
      },
      expected: ['first', 'second'],
    },
  ],
};
