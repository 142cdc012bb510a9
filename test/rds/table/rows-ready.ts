/** When a socket is readable and writable: rds_poll (net/rds/af_rds.c). And the waiting form of sendmsg, which waits for that. */
import { bytes, codeOfError, codeOr, type Group, of, type Scene, type TableSocket } from './shape.ts';

/** A socket whose send buffer is full for good, as nobody answers at `absent`. */
function full(scene: Scene): TableSocket {
  const socket = scene.socket({ sendBufferBytes: 4096 });
  while (codeOr(() => socket.sendmsg(Buffer.alloc(2048), scene.absent)) !== 'EAGAIN');
  return socket;
}

export const readiness: Group = {
  name: 'poll',
  rows: [
    {
      name: 'a new socket is writable and not readable',
      call: (scene) => {
        const { readable, writable } = scene.socket();
        return [readable, writable];
      },
      expected: [false, true],
    },
    {
      name: 'a full send buffer is not writable, and is again when there is room',
      call: async (scene) => {
        const socket = full(scene);
        const before = socket.writable;
        socket.setsockopt('RDS_CANCEL_SENT_TO', scene.absent);
        await scene.until(() => socket.writable);
        return [before, socket.sendmsg(bytes('x'), scene.absent)];
      },
      expected: [false, 1],
    },
    {
      name: 'a message makes it readable until it was read',
      call: async (scene) => {
        const peer = scene.peer();
        scene.socket().sendmsg(bytes('x'), of(peer));
        await scene.until(() => peer.readable);
        peer.recvmsg({ peek: true });
        const peeked = peer.readable;
        peer.recvmsg();
        return [peeked, peer.readable];
      },
      expected: [true, false],
    },
    {
      name: 'so does an empty one',
      call: async (scene) => {
        const peer = scene.peer();
        scene.socket().sendmsg(bytes(''), of(peer));
        await scene.until(() => peer.readable);
        return [peer.recvmsg()?.length, peer.readable];
      },
      expected: [0, false],
    },
    {
      name: 'so does a cookie that came back',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket({ zerocopy: true });
        socket.sendmsg(bytes('x'), of(peer), { zerocopy: true, cookie: 1 });
        await scene.until(() => peer.recvmsg() !== null);
        await scene.until(() => socket.readable);
        return [socket.recvmsg()?.cookies, socket.readable];
      },
      expected: [[1], false],
    },
    {
      name: 'waiting for room: SO_SNDTIMEO over',
      call: async (scene) => {
        const socket = full(scene);
        socket.setsockopt('SO_SNDTIMEO', 20);
        return socket.send(bytes('x'), scene.absent).catch(codeOfError);
      },
      expected: 'ETIMEDOUT',
    },
    {
      name: 'waiting for room that comes',
      call: async (scene) => {
        const socket = full(scene);
        const peer = scene.peer();
        const sent = socket.send(bytes('in time'), of(peer));
        socket.setsockopt('RDS_CANCEL_SENT_TO', scene.absent);
        await sent;
        await scene.until(() => peer.readable);
        return peer.recvmsg()?.length;
      },
      expected: 7,
    },
  ],
};
