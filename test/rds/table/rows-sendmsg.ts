/** sendmsg, in the order of rds_sendmsg's checks (net/rds/send.c), and what it accepts. */
import type { RdsAddress, SendOptions } from '../../../src/rds/options.ts';
import { bytes, codeOr, type Group, of, type Scene, type TableSocket, textOf } from './shape.ts';

const MIB = 1024 * 1024;
/** Over every limit: what the checks before it see decides. */
const tooLong = Buffer.alloc(MIB + 1);
const SMALL = 64 * 1024;
const overBuffer = Buffer.alloc(SMALL + 1);

function sending(
  data: Uint8Array,
  to: RdsAddress | ((scene: Scene) => RdsAddress) | undefined,
  options: SendOptions = {},
): (scene: Scene) => unknown {
  return (scene) => {
    const socket = scene.socket({ sendBufferBytes: SMALL, zerocopy: true });
    return socket.sendmsg(data, typeof to === 'function' ? to(scene) : to, options);
  };
}

const away = (scene: Scene): RdsAddress => scene.absent;
const flagAlone: SendOptions = { zerocopy: true };

/** A socket whose send buffer is full for good, as nobody answers at `absent`. */
function full(scene: Scene): TableSocket {
  const socket = scene.socket({ sendBufferBytes: 4096 });
  while (codeOr(() => socket.sendmsg(Buffer.alloc(4096), scene.absent)) !== 'EAGAIN');
  return socket;
}

/** A peer whose port is congested, once `socket` knows it. */
async function congested(scene: Scene, socket: TableSocket): Promise<TableSocket> {
  const peer = scene.peer({ receiveBufferBytes: 4096 });
  await scene.until(() => codeOr(() => socket.sendmsg(Buffer.alloc(2048), of(peer))) === 'ENOBUFS');
  return peer;
}

/** Lets all there is to read go by, and says when that frees the port. */
function drain(peer: TableSocket): number {
  let messages = 0;
  while (peer.recvmsg() !== null) messages += 1;
  return messages;
}

export const checks: Group = {
  name: 'sendmsg refuses',
  rows: [
    {
      name: 'the unspecified address',
      call: sending(tooLong, { address: '0.0.0.0', port: 1 }, flagAlone),
      expected: 'EINVAL',
    },
    {
      name: 'a multicast address',
      call: sending(tooLong, { address: '224.0.0.1', port: 1 }, flagAlone),
      expected: 'EINVAL',
    },
    {
      name: 'the broadcast address',
      call: sending(tooLong, { address: '255.255.255.255', port: 1 }, flagAlone),
      expected: 'EINVAL',
    },
    {
      name: 'an IPv6 multicast address',
      call: sending(tooLong, { address: 'ff02::1', port: 1 }, flagAlone),
      expected: 'EINVAL',
    },
    { name: 'no destination', call: sending(tooLong, undefined, flagAlone), expected: 'ENOTCONN' },
    {
      name: 'IPv6 from an IPv4 socket',
      call: sending(tooLong, { address: '2001:db8::1', port: 1 }, flagAlone),
      expected: 'EOPNOTSUPP',
    },
    { name: 'more than 1 MiB', call: sending(tooLong, away, flagAlone), expected: 'EMSGSIZE' },
    { name: 'more than the send buffer', call: sending(overBuffer, away, flagAlone), expected: 'EMSGSIZE' },
    { name: 'MSG_ZEROCOPY without a cookie', call: sending(bytes('x'), away, flagAlone), expected: 'EINVAL' },
    {
      name: 'a cookie without MSG_ZEROCOPY',
      call: sending(bytes('x'), away, { cookie: 1 }),
      expected: 'EINVAL',
    },
    {
      name: 'a cookie for an empty message',
      call: sending(bytes(''), away, { zerocopy: true, cookie: 1 }),
      expected: 'EINVAL',
    },
    {
      name: 'a cookie without SO_ZEROCOPY',
      call: (scene) => scene.socket().sendmsg(bytes('x'), scene.absent, { zerocopy: true, cookie: 1 }),
      expected: 'EINVAL',
    },
    {
      name: 'a congested port, even when the send buffer is full',
      call: async (scene) => {
        const socket = full(scene);
        const other = scene.socket();
        const peer = await congested(scene, other);
        await scene.until(() => codeOr(() => socket.sendmsg(bytes('x'), of(peer))) === 'ENOBUFS');
        return codeOr(() => socket.sendmsg(bytes('x'), of(peer)));
      },
      expected: 'ENOBUFS',
    },
    {
      name: 'what finds the send buffer full',
      call: (scene) => full(scene).sendmsg(bytes('x'), scene.absent),
      expected: 'EAGAIN',
    },
    {
      name: 'no port of an address that is not congested',
      call: async (scene) => {
        const socket = scene.socket();
        await congested(scene, socket);
        const free = scene.peer();
        return socket.sendmsg(bytes('x'), of(free));
      },
      expected: 1,
    },
  ],
};

export const acceptance: Group = {
  name: 'sendmsg accepts',
  rows: [
    { name: 'a message to an address that is away', call: sending(bytes('five!'), away), expected: 5 },
    { name: 'an empty message', call: sending(bytes(''), away), expected: 0 },
    {
      name: 'pieces, as one message',
      call: async (scene) => {
        const peer = scene.peer();
        const length = scene.socket().sendmsg([bytes('one '), bytes(''), bytes('message')], of(peer));
        await scene.until(() => peer.readable);
        return [length, textOf(peer.recvmsg()), peer.recvmsg()];
      },
      expected: [11, 'one message', null],
    },
    {
      name: '1 MiB, where the send buffer holds it',
      call: async (scene) => {
        const peer = scene.peer({ receiveBufferBytes: 4 * MIB });
        const socket = scene.socket({ sendBufferBytes: MIB });
        const length = socket.sendmsg(Buffer.alloc(MIB, 7), of(peer));
        await scene.until(() => peer.readable);
        const { data } = peer.recvmsg() ?? {};
        return [length, data?.byteLength, data?.every((byte) => byte === 7)];
      },
      expected: [MIB, MIB, true],
    },
    {
      name: 'one more message while less than the send buffer is queued',
      call: (scene) => {
        const socket = scene.socket({ sendBufferBytes: 4096 });
        const lengths = [4095, 4096, 1].map((length) =>
          codeOr(() => socket.sendmsg(Buffer.alloc(length), scene.absent)),
        );
        return [lengths, socket.writable];
      },
      expected: [[4095, 4096, 'EAGAIN'], false],
    },
    {
      name: 'empty messages without an end',
      call: (scene) => {
        const socket = scene.socket({ sendBufferBytes: 4096 });
        const results = Array.from({ length: 1000 }, () =>
          codeOr(() => socket.sendmsg(bytes(''), scene.absent)),
        );
        return results.filter((result) => result === 0).length;
      },
      expected: 1000,
    },
    {
      name: 'a message to a port that nobody has: it is dropped there',
      call: async (scene) => {
        const gone = scene.peer();
        const to = of(gone);
        await gone.close();
        return scene.socket().sendmsg(bytes('x'), to);
      },
      expected: 1,
    },
    {
      name: 'a ping, to port 0: answered from there by an empty message',
      call: async (scene) => {
        const socket = scene.socket();
        const length = socket.sendmsg(bytes(''), { address: scene.b.address, port: 0 });
        await scene.until(() => socket.readable);
        const { address, port, length: answer } = socket.recvmsg() ?? {};
        return [length, address === scene.b.address, port, answer];
      },
      expected: [0, true, 0, 0],
    },
    {
      name: 'again when the port was read',
      call: async (scene) => {
        const socket = scene.socket();
        const peer = await congested(scene, socket);
        await scene.until(() => {
          drain(peer);
          return codeOr(() => socket.sendmsg(bytes('at last'), of(peer))) === 7;
        });
        await scene.until(() => peer.readable);
        return textOf(peer.recvmsg());
      },
      expected: 'at last',
    },
    {
      name: 'nothing of what it refused',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket({ sendBufferBytes: 4096 });
        codeOr(() => socket.sendmsg(Buffer.alloc(4097), of(peer)));
        codeOr(() => socket.sendmsg(bytes('x'), of(peer), { cookie: 1 }));
        socket.sendmsg(bytes('accepted'), of(peer));
        await scene.until(() => peer.readable);
        return [textOf(peer.recvmsg()), peer.recvmsg()];
      },
      expected: ['accepted', null],
    },
  ],
};
