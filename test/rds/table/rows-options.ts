/** setsockopt and getsockopt: net/rds/af_rds.c, and sock_setsockopt (net/core/sock.c) for those of SOL_SOCKET. */
import { codeOr, type Group, type Scene, type TableSocket } from './shape.ts';

/** Sets and reads by names that the types may not have. */
interface Untyped {
  setsockopt(name: string, value: unknown): void;
  getsockopt(name: string): unknown;
}

function untyped(socket: TableSocket): Untyped {
  return socket as unknown as Untyped;
}

function setting(name: string, value: unknown): (scene: Scene) => unknown {
  return (scene) => {
    const socket = untyped(scene.socket());
    socket.setsockopt(name, value);
    return socket.getsockopt(name);
  };
}

function reading(name: string): (scene: Scene) => unknown {
  return (scene) => untyped(scene.socket()).getsockopt(name);
}

export const options: Group = {
  name: 'options',
  rows: [
    { name: 'a name that is none, to set', call: setting('SO_NONE', 1), expected: 'ENOPROTOOPT' },
    { name: 'a name that is none, to read', call: reading('SO_NONE'), expected: 'ENOPROTOOPT' },
    { name: 'SO_SNDBUF is read back doubled', call: setting('SO_SNDBUF', 50_000), expected: 100_000 },
    { name: 'SO_SNDBUF below the least', call: setting('SO_SNDBUF', 1), expected: 4608 },
    { name: 'SO_RCVBUF is read back doubled', call: setting('SO_RCVBUF', 50_000), expected: 100_000 },
    { name: 'SO_RCVBUF below the least', call: setting('SO_RCVBUF', 1), expected: 2304 },
    {
      name: 'SO_SNDBUF is the longest message',
      call: (scene) => {
        const socket = scene.socket();
        socket.setsockopt('SO_SNDBUF', 10_000);
        return [10_001, 10_000].map((length) =>
          codeOr(() => socket.sendmsg(Buffer.alloc(length), scene.absent)),
        );
      },
      expected: ['EMSGSIZE', 10_000],
    },
    { name: 'SO_SNDTIMEO, none at first', call: reading('SO_SNDTIMEO'), expected: 0 },
    { name: 'SO_SNDTIMEO', call: setting('SO_SNDTIMEO', 2000), expected: 2000 },
    { name: 'SO_RCVTIMEO, none at first', call: reading('SO_RCVTIMEO'), expected: 0 },
    { name: 'SO_RCVTIMEO', call: setting('SO_RCVTIMEO', 3000), expected: 3000 },
    { name: 'SO_ZEROCOPY, off at first', call: reading('SO_ZEROCOPY'), expected: false },
    { name: 'SO_ZEROCOPY', call: setting('SO_ZEROCOPY', true), expected: true },
    {
      name: 'SO_ZEROCOPY allows lending from then on',
      call: (scene) => {
        const socket = scene.socket();
        const send = () =>
          codeOr(() => socket.sendmsg(Buffer.alloc(1), scene.absent, { zerocopy: true, cookie: 1 }));
        const before = send();
        socket.setsockopt('SO_ZEROCOPY', true);
        const after = send();
        socket.setsockopt('SO_ZEROCOPY', false);
        return [before, after, send()];
      },
      expected: ['EINVAL', 1, 'EINVAL'],
    },
    { name: 'SO_TIMESTAMP', call: setting('SO_TIMESTAMP', true), expected: true },
    { name: 'RDS_RECVERR, off at first', call: reading('RDS_RECVERR'), expected: false },
    { name: 'RDS_RECVERR', call: setting('RDS_RECVERR', true), expected: true },
    {
      name: 'RDS_CONG_MONITOR is for setting only',
      call: reading('RDS_CONG_MONITOR'),
      expected: 'ENOPROTOOPT',
    },
    { name: 'RDS_CANCEL_SENT_TO is for doing', call: reading('RDS_CANCEL_SENT_TO'), expected: 'ENOPROTOOPT' },
    { name: 'SO_RDS_TRANSPORT is TCP', call: reading('SO_RDS_TRANSPORT'), expected: 2 },
    {
      name: 'SO_RDS_TRANSPORT of a bound socket',
      call: setting('SO_RDS_TRANSPORT', 2),
      expected: 'EOPNOTSUPP',
    },
    {
      name: 'SO_RDS_TRANSPORT of a bound socket, to one that is none',
      call: setting('SO_RDS_TRANSPORT', 7),
      expected: 'EOPNOTSUPP',
    },
    {
      name: 'SO_RDS_MSG_RXPATH_LATENCY: up to three points of three',
      call: (scene) => {
        const socket = scene.socket();
        const set = (points: readonly number[]) =>
          codeOr(() => socket.setsockopt('SO_RDS_MSG_RXPATH_LATENCY', points)) ?? 'set';
        return [[], [0], [2, 1, 0], [1, 1, 1], [3], [0, 1, 3], [0, 1, 2, 0]].map(set);
      },
      expected: ['set', 'set', 'set', 'set', 'EFAULT', 'EFAULT', 'EFAULT'],
    },
    {
      name: 'SO_RDS_MSG_RXPATH_LATENCY is for setting only',
      call: reading('SO_RDS_MSG_RXPATH_LATENCY'),
      expected: 'ENOPROTOOPT',
    },
  ],
};
