/** bind and connect: rds_bind (net/rds/bind.c) and rds_connect (net/rds/af_rds.c). */
import { bytes, codeOr, type Group, of, type Scene, textOf } from './shape.ts';

/** Opening a node is the kernel's bind to its address. */
async function opening({ factory }: Scene, address: string): Promise<unknown> {
  const node = await factory.open(address);
  // The kernel binds with the first port.
  try {
    await node.bind(0).close();
  } finally {
    await node.close({ timeoutMs: 1000 });
  }
  return 'open';
}

export const binding: Group = {
  name: 'bind',
  rows: [
    { name: 'the unspecified address', call: (scene) => opening(scene, '0.0.0.0'), expected: 'EINVAL' },
    { name: 'a multicast address', call: (scene) => opening(scene, '224.0.0.1'), expected: 'EINVAL' },
    { name: 'the broadcast address', call: (scene) => opening(scene, '255.255.255.255'), expected: 'EINVAL' },
    { name: 'the unspecified IPv6 address', call: (scene) => opening(scene, '::'), expected: 'EINVAL' },
    {
      name: 'a link-local address without its link',
      call: (scene) => opening(scene, 'fe80::1'),
      expected: 'EINVAL',
    },
    {
      name: 'an address of another host',
      call: (scene) => opening(scene, '203.0.113.7'),
      expected: 'EADDRNOTAVAIL',
    },
    { name: 'port 1, which is the handshake’s', call: ({ a }) => a.bind(1), expected: 'EINVAL' },
    {
      name: 'port 0 takes a free one, never 0 or 1',
      call: (scene) => {
        const ports = Array.from({ length: 50 }, () => scene.socket().port);
        return [new Set(ports).size, ports.every((port) => port >= 2 && port <= 65535)];
      },
      expected: [50, true],
    },
    { name: 'a taken port', call: (scene) => scene.a.bind(scene.socket().port), expected: 'EADDRINUSE' },
    {
      name: 'the same port of another address',
      call: async (scene) => {
        const { port } = scene.socket();
        const other = scene.b.bind(port);
        await other.close();
        return other.port === port;
      },
      expected: true,
    },
    {
      name: 'the port of a closed socket is free at once',
      call: async ({ a }) => {
        const first = a.bind(0);
        const closing = first.close();
        const second = a.bind(first.port);
        await Promise.all([closing, second.close()]);
        return 'bound';
      },
      expected: 'bound',
    },
    {
      name: 'the highest port',
      call: async ({ a }) => {
        const socket = a.bind(65535);
        await socket.close();
        return socket.port;
      },
      expected: 65535,
    },
  ],
};

function connecting(address: string): (scene: Scene) => unknown {
  return (scene) => {
    scene.socket().connect({ address, port: 4000 });
    return 'connected';
  };
}

export const connection: Group = {
  name: 'connect',
  rows: [
    { name: 'the unspecified address', call: connecting('0.0.0.0'), expected: 'EDESTADDRREQ' },
    { name: 'a multicast address', call: connecting('224.0.0.1'), expected: 'EINVAL' },
    { name: 'the broadcast address', call: connecting('255.255.255.255'), expected: 'EINVAL' },
    { name: 'the unspecified IPv6 address', call: connecting('::'), expected: 'EPROTOTYPE' },
    { name: 'an IPv6 multicast address', call: connecting('ff02::1'), expected: 'EPROTOTYPE' },
    { name: 'an IPv6 address, from an IPv4 socket', call: connecting('2001:db8::1'), expected: 'connected' },
    {
      name: 'an address that is away, at once and without a word',
      call: (scene) => connecting(scene.factory.absent)(scene),
      expected: 'connected',
    },
    {
      name: 'sets where sendmsg() goes, and may be repeated',
      call: async (scene) => {
        const [first, second] = [scene.peer(), scene.peer()];
        const socket = scene.socket();
        socket.connect(of(first));
        socket.sendmsg(bytes('one'));
        socket.connect(of(second));
        socket.sendmsg(bytes('two'));
        await scene.until(() => first.readable && second.readable);
        return [first.recvmsg(), second.recvmsg()].map(textOf);
      },
      expected: ['one', 'two'],
    },
    {
      name: 'is what remote says, null before it',
      call: (scene) => {
        const socket = scene.socket();
        const before = socket.remote;
        socket.connect(scene.absent);
        const { address, port } = scene.absent;
        return [before, socket.remote?.address === address, socket.remote?.port === port];
      },
      expected: [null, true, true],
    },
    {
      name: 'a name given to sendmsg() goes before it',
      call: async (scene) => {
        const [connected, named] = [scene.peer(), scene.peer()];
        const socket = scene.socket();
        socket.connect(of(connected));
        socket.sendmsg(bytes('named'), of(named));
        await scene.until(() => named.readable);
        return [textOf(named.recvmsg()), connected.recvmsg()];
      },
      expected: ['named', null],
    },
    {
      name: 'does not filter what is received',
      call: async (scene) => {
        const socket = scene.socket();
        socket.connect(scene.absent);
        scene.peer().sendmsg(bytes('from elsewhere'), of(socket));
        await scene.until(() => socket.readable);
        return textOf(socket.recvmsg());
      },
      expected: 'from elsewhere',
    },
    {
      name: 'a refused one leaves the destination as it was',
      call: async (scene) => {
        const peer = scene.peer();
        const socket = scene.socket();
        socket.connect(of(peer));
        const code = codeOr(() => socket.connect({ address: '224.0.0.1', port: 1 }));
        socket.sendmsg(bytes('still'));
        await scene.until(() => peer.readable);
        return [code, textOf(peer.recvmsg())];
      },
      expected: ['EINVAL', 'still'],
    },
  ],
};
