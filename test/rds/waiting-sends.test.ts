/**
 * Messages that wait in send(), on virtual time: whose turn it is, what may change while they wait (the peer, the buffer),
 * and what they are told when they are withdrawn.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Ubuf } from '../../src/core/ubuf.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import type { Channel } from '../../src/rds/transport.ts';
import { codeOf } from '../support/rds-nodes.ts';
import {
  codeFrom,
  type Fate,
  newProcess,
  readAll,
  readMessages,
  run,
  type Scene,
  scene,
  stall,
  TO,
  watch,
} from '../support/scene.ts';
import type { World } from '../support/sim.ts';

const AWAY = { address: '10.0.0.9', port: 1 };

/** Connected, and `TO` is congested. */
async function congested(made: Scene): Promise<Scene> {
  const { world, b, socket, peer } = made;
  socket.sendmsg(Buffer.alloc(1), TO);
  await run(world, 100);
  assert.deepEqual(readAll(peer), [1]);
  b.localMap.update(TO.port, 2, 1);
  await run(world, 100);
  assert.equal(
    codeOf(() => socket.sendmsg(Buffer.alloc(1), TO)),
    'ENOBUFS',
  );
  return made;
}

describe('a congested port of a peer that goes away', () => {
  for (const role of ['dials', 'is dialled'] as const) {
    for (const refused of ['before', 'after'] as const) {
      it(`${refused} the refusal, when this side ${role}: its successor is asked, and the message goes`, async () => {
        const { world, socket, b, processes } = scene({ zerocopy: true });
        const [ours, theirs] = role === 'dials' ? [socket, null] : [null, b];
        const us = ours ?? theirs?.bind(4000, { zerocopy: true });
        assert.ok(us !== undefined);
        const to = role === 'dials' ? TO : { address: '10.0.0.1', port: 5000 };
        const victim = role === 'dials' ? processes.b : processes.a;
        socket.sendmsg(Buffer.alloc(1), TO);
        await run(world, 100);
        const map = role === 'dials' ? b.localMap : socket.node.localMap;
        map.update(to.port, 2, 1);
        await run(world, 100);
        let writable = 0;
        us.on('writable', () => {
          writable += 1;
        });
        const attempt = (): Fate => {
          assert.equal(
            codeOf(() => us.sendmsg(Buffer.alloc(2), to)),
            'ENOBUFS',
          );
          return watch(us.send(Buffer.alloc(600), to));
        };
        let sent: Fate | null = refused === 'after' ? null : attempt();
        victim.die('reset');
        await run(world, 3000);
        sent ??= attempt();
        await run(world, 3000);
        assert.equal(sent.outcome(), null);
        const successor = new RdsNode(to.address, newProcess(world).environment).bind(to.port);
        await run(world, 10_000);
        assert.equal(sent.outcome()?.bytes, 600);
        assert.equal(writable, 1);
        assert.deepEqual(readAll(successor), [600]);
      });
    }
  }
});

describe('a message that waits for a peer that is forgotten', () => {
  it('goes when the peer is back', async () => {
    const { world, a, socket, processes } = await congested(scene({}, { limits: { a: { peers: 1 } } }));
    const sent = watch(socket.send(Buffer.alloc(50), TO));
    processes.b.die('reset');
    await run(world, 70_000);
    assert.deepEqual([sent.outcome(), sent.error()], [null, null]);
    // Another peer takes the place.
    const other = newProcess(world);
    new RdsNode('10.0.0.3', other.environment)
      .bind(2)
      .sendmsg(Buffer.alloc(1), { address: a.address, port: 9 });
    await run(world, 10_000);
    assert.equal(a.counters.peers_forgotten, 1);
    assert.deepEqual(
      a.peers.map(({ address }) => address),
      ['10.0.0.3'],
    );
    other.die('reset');
    await run(world, 70_000);
    assert.deepEqual([sent.outcome(), sent.error()], [null, null]);
    const successor = new RdsNode(TO.address, newProcess(world).environment).bind(TO.port);
    socket.sendmsg(Buffer.alloc(33), TO);
    await run(world, 10_000);
    assert.equal(sent.outcome()?.bytes, 50);
    assert.deepEqual(readAll(successor), [33, 50]);
  });
});

describe('a buffer that changes while its message waits', () => {
  type Change = readonly [name: string, make: () => Uint8Array, change: (data: Uint8Array) => void];
  /** Newer than the type library. */
  const Resizable = ArrayBuffer as unknown as new (
    bytes: number,
    options: { maxByteLength: number },
  ) => ArrayBuffer & { resize(bytes: number): void };
  const changes: readonly Change[] = [
    [
      'detached',
      () => new Uint8Array(40_000),
      ({ buffer }) => structuredClone(buffer, { transfer: [buffer as ArrayBuffer] }),
    ],
    [
      'shrunk',
      () => new Uint8Array(new Resizable(40_000, { maxByteLength: 40_000 })),
      ({ buffer }) => (buffer as InstanceType<typeof Resizable>).resize(4),
    ],
  ];
  for (const zerocopy of [false, true]) {
    for (const [name, make, change] of changes) {
      it(`${name}, ${zerocopy ? 'lent' : 'copied'}: EINVAL, and nothing of it is left`, async () => {
        const { world, socket, peer, budget, a } = scene({ zerocopy, sendBufferBytes: 60_000 });
        // Fills the send buffer.
        socket.sendmsg(Buffer.alloc(60_000, 1), AWAY);
        const data = make().fill(2);
        const sent = watch(socket.send(data, TO));
        const next = watch(socket.send(Buffer.alloc(700, 3), TO));
        await run(world, 10);
        change(data);
        socket.cancelSentTo(AWAY.address);
        await run(world, 5000);
        assert.equal(codeFrom(sent), 'EINVAL');
        assert.equal(next.outcome()?.bytes, 700);
        const received = readMessages(peer);
        assert.deepEqual(
          received.map(({ data: bytes }) => [bytes.length, bytes[0], bytes.at(-1)]),
          [[700, 3, 3]],
        );
        assert.deepEqual([socket.queuedBytes, socket.lentBytes, budget.used()], [0, 0, 0]);
        assert.equal(a.stats().queuedBytes, 0);
      });
    }
  }
});

/** Keeps `depth` sends to each of the ports under way, for as long as the world turns. */
function pump(socket: RdsSocket, ports: readonly number[], depth: number): void {
  for (const port of ports) {
    for (let i = 0; i < depth; i++) {
      const next = (): void => {
        void socket.send(Buffer.alloc(8000), { address: TO.address, port }).then(next, () => {});
      };
      next();
    }
  }
}

async function turns(world: World, count: number): Promise<void> {
  for (let i = 0; i < count; i++) await run(world, 1);
}

describe('messages that wait for room', () => {
  it('take turns between destinations', async () => {
    const { world, b, socket } = scene({ sendBufferBytes: 65_536 });
    const ports = [5001, 5002, 5003];
    const counts = ports.map((port) => {
      const at = b.bind(port);
      let count = 0;
      at.on('readable', () => {
        count += readAll(at).length;
      });
      return () => count;
    });
    pump(socket, ports, 32);
    await turns(world, 400);
    const received = counts.map((count) => count());
    const [most, least] = [Math.max(...received), Math.min(...received)];
    assert.ok(least > 50, `${received}`);
    assert.ok(most <= 1.2 * least, `${received}`);
    await socket.close().catch(() => {});
  });

  it('in the order of send() to each of them', async () => {
    const { world, b, socket } = scene({ sendBufferBytes: 2304 });
    const received = new Map<number, number[]>();
    for (const port of [5001, 5002, 5003]) {
      const at = b.bind(port);
      at.on('readable', () => received.set(port, [...(received.get(port) ?? []), ...readAll(at)]));
      for (let i = 0; i < 20; i++) void socket.send(Buffer.alloc(1000 + i), { address: TO.address, port });
    }
    await turns(world, 1000);
    const expected = Array.from({ length: 20 }, (_, i) => 1000 + i);
    assert.deepEqual(Object.fromEntries(received), { 5001: expected, 5002: expected, 5003: expected });
  });

  it('to 1000 destinations are not all tried again and again', async () => {
    const { world, a, socket } = scene({ sendBufferBytes: 65_536 });
    const sends = Array.from({ length: 1000 }, (_, i) =>
      watch(socket.send(Buffer.alloc(1000), { address: TO.address, port: 2 + i })),
    );
    await turns(world, 2000);
    assert.ok(sends.every((fate) => fate.resolved()));
    // Once each when they come, and then once for each time that there was room.
    assert.ok(a.counters.send_queue_full < 2000, `${a.counters.send_queue_full} refusals`);
  });
});

/** Copies what is lent, as a kernel may, so that acknowledgement alone ends a message. */
function copying(channel: Channel): Channel {
  (channel as { lends: unknown }).lends = () => false;
  return channel;
}

/** A kernel that holds on to what it was lent for as long as the test says. */
function holding(held: Ubuf[]): (channel: Channel) => Channel {
  return (channel) => {
    const inner = channel.sendLent.bind(channel);
    channel.lends = () => true;
    channel.sendLent = (ubuf, views, count) => {
      const n = inner(ubuf, views, count);
      if (n > 0) held.push(ubuf.ref());
      return n;
    };
    return channel;
  };
}

describe('ECANCELED', () => {
  it('is not said of a message that the peer has, though nobody looked yet', async () => {
    const { world, socket, peer } = scene({ zerocopy: true }, { through: copying });
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 1000);
    const sent = watch(socket.send(Buffer.alloc(3000), TO));
    const [link] = world.links;
    const [end] = link?.ends ?? [];
    assert.ok(end !== undefined);
    const before = end.ackedBytes();
    for (let i = 0; i < 1000 && end.ackedBytes() < before + 3048; i++) world.run(world.now + 0.01);
    assert.equal(end.ackedBytes(), before + 3048);
    assert.equal(socket.queuedBytes, 3000, 'acknowledged, and not looked at');
    socket.cancelSentTo(TO.address);
    await run(world, 1000);
    assert.equal(sent.outcome()?.bytes, 3000);
    assert.deepEqual(readAll(peer), [1, 3000]);
  });

  for (const how of ['cancelSentTo', 'close'] as const) {
    it(`is not said by ${how}() of an acknowledged message whose pages the kernel still holds`, async () => {
      const held: Ubuf[] = [];
      const { world, socket, peer } = scene({ zerocopy: true }, { through: holding(held) });
      const sent = watch(socket.send(Buffer.alloc(3000), TO));
      await run(world, 1000);
      assert.deepEqual([socket.queuedBytes, socket.lentBytes], [0, 3000]);
      const closing = how === 'close' ? watch(socket.close()) : null;
      if (how === 'cancelSentTo') socket.cancelSentTo(TO.address);
      await run(world, 100);
      assert.deepEqual([sent.outcome(), sent.error()], [null, null]);
      for (const ubuf of held) ubuf.unref();
      await run(world, 1);
      assert.equal(sent.outcome()?.bytes, 3000);
      assert.deepEqual(readAll(peer), [3000]);
      if (closing !== null) assert.equal(closing.resolved(), true);
    });
  }

  it('is said by cancelSentTo() of what is lent and not acknowledged, when the buffer is free', async () => {
    const { world, socket, peer } = scene({ zerocopy: true, sendBufferBytes: 1 << 24 });
    socket.sendmsg(Buffer.alloc(1), TO);
    await run(world, 1000);
    stall(world);
    const begun = watch(socket.send(Buffer.alloc(1 << 20), TO));
    const queued = watch(socket.send(Buffer.alloc(600), TO));
    await run(world, 10);
    socket.cancelSentTo(TO.address);
    await run(world, 10);
    assert.equal(codeFrom(queued), 'ECANCELED');
    assert.deepEqual([begun.outcome(), begun.error()], [null, null], 'its buffer is not the caller’s yet');
    await run(world, 2e5);
    assert.equal(codeFrom(begun), 'ECANCELED');
    assert.equal(socket.lentBytes, 0);
    assert.deepEqual(readAll(peer), [1, 1 << 20], 'half sent, so it is finished');
  });

  it('is said by cancelSentTo() of what waits for that peer, and of nothing else', async () => {
    const { world, socket, peer } = scene({ sendBufferBytes: 2304 });
    socket.sendmsg(Buffer.alloc(2304), AWAY);
    const toAway = [1, 2].map((port) => watch(socket.send(Buffer.alloc(10), { ...AWAY, port })));
    const elsewhere = watch(socket.send(Buffer.alloc(20), TO));
    await run(world, 10);
    socket.cancelSentTo(AWAY.address);
    await run(world, 1000);
    assert.deepEqual(toAway.map(codeFrom), ['ECANCELED', 'ECANCELED']);
    assert.equal(elsewhere.outcome()?.bytes, 20);
    assert.deepEqual(readAll(peer), [20]);
  });

  it('is said by cancelSentTo() of what waits for a node of this process, too', async () => {
    const { world, a, processes, socket } = scene();
    const beside = new RdsNode('10.0.0.7', processes.a.environment);
    beside.localMap.update(5000, 2, 1);
    const sent = watch(socket.send(Buffer.alloc(10), { address: '10.0.0.7', port: 5000 }));
    await run(world, 10);
    assert.deepEqual([sent.outcome(), sent.error()], [null, null]);
    socket.cancelSentTo('10.0.0.7');
    await run(world, 10);
    assert.equal(codeFrom(sent), 'ECANCELED');
    assert.equal(a.stats().queuedBytes, 0);
  });
});

describe('closing with drain', () => {
  it('says ETIMEDOUT when the peer is away, and the rest is withdrawn', async () => {
    const { world, a, socket } = scene({});
    socket.sendmsg(Buffer.alloc(1000), AWAY);
    const closing = watch(socket.close({ drain: true, timeoutMs: 500 }));
    await run(world, 499);
    assert.deepEqual([closing.resolved(), closing.error()], [false, null]);
    await run(world, 2);
    assert.equal(codeFrom(closing), 'ETIMEDOUT');
    assert.equal(a.counters.send_cancelled, 1);
    assert.deepEqual([a.stats().queuedBytes, a.stats().sockets], [0, 0]);
  });

  it('of a node says it, too, and the node is closed all the same', async () => {
    const { world, a, b, socket, processes } = scene({});
    socket.sendmsg(Buffer.alloc(1000), AWAY);
    let closed = 0;
    a.on('close', () => {
      closed += 1;
    });
    const closing = watch(a.close({ drain: true, timeoutMs: 500 }));
    await run(world, 20_000);
    assert.equal(codeFrom(closing), 'ETIMEDOUT');
    assert.deepEqual([closed, a.peers.length, a.stats().queuedBytes], [1, 0, 0]);
    assert.equal(processes.a.environment.nodes.size, 0, 'the address is free');
    const fine = watch(b.close({ drain: true, timeoutMs: 500 }));
    await run(world, 20_000);
    assert.equal(fine.resolved(), true);
  });

  it('without anything left resolves', async () => {
    const { world, socket, peer } = scene({});
    socket.sendmsg(Buffer.alloc(1000), TO);
    const closing = watch(socket.close({ drain: true, timeoutMs: 500 }));
    await run(world, 1000);
    assert.equal(closing.resolved(), true);
    assert.deepEqual(readAll(peer), [1000]);
  });
});
