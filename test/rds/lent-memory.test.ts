/**
 * Lent memory that the program takes away, on virtual time: the message fails, and is counted; the stream stays whole for
 * all others.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import type { Channel } from '../../src/rds/transport.ts';
import { codeFrom, cut, readMessages, run, type Scene, scene, stall, TO, watch } from '../support/scene.ts';

/** Newer than the type library. */
const Resizable = ArrayBuffer as unknown as new (
  bytes: number,
  options: { maxByteLength: number },
) => ArrayBuffer & { resize(bytes: number): void };

type Way = readonly [name: string, make: (bytes: number) => Uint8Array, take: (data: Uint8Array) => void];
const ways: readonly Way[] = [
  [
    'detached',
    (bytes) => new Uint8Array(bytes),
    ({ buffer }) => structuredClone(buffer, { transfer: [buffer as ArrayBuffer] }),
  ],
  [
    'shrunk',
    (bytes) => new Uint8Array(new Resizable(bytes, { maxByteLength: bytes })),
    ({ buffer }) => (buffer as InstanceType<typeof Resizable>).resize(100),
  ],
];

/** Copies what is lent, as a kernel may: so what was written stays what it was. */
function copying(channel: Channel): Channel {
  (channel as { lends: unknown }).lends = () => false;
  return channel;
}

function begin(): Scene & { warnings: string[] } {
  const made = scene({ zerocopy: true, sendBufferBytes: 1 << 22 }, { through: copying });
  const warnings: string[] = [];
  made.a.on('warning', ({ event }) => warnings.push(event));
  return { ...made, warnings };
}

async function connected(made: Scene): Promise<void> {
  made.socket.sendmsg(Buffer.alloc(8, 0xff), TO);
  await run(made.world, 1000);
  assert.equal(readMessages(made.peer).length, 1);
}

/** Messages behind the one that is taken: small and large, copied and lent, each with its own filling. */
function sendOthers({ socket }: Scene, first: number): void {
  for (let i = first; i < first + 20; i++) {
    const data = Buffer.alloc(i % 4 === 0 ? 70_000 : 100, i);
    if (i % 2 === 0) socket.sendmsg(data, TO, { zerocopy: true, cookie: i });
    else socket.sendmsg(data, TO);
  }
}

function assertOthers({ peer }: Scene, from: number, to: number): void {
  const fillings = readMessages(peer).map(({ data }) => {
    assert.ok(data.equals(Buffer.alloc(data.length, data[0])), 'one filling from end to end');
    return [data[0], data.length];
  });
  const expected = Array.from({ length: to - from }, (_, i) => [
    from + i,
    (from + i) % 4 === 0 ? 70_000 : 100,
  ]);
  assert.deepEqual(fillings, expected);
}

function cookies({ socket }: Scene): number[] {
  const all: number[] = [];
  for (let next = socket.recvErrqueue(); next !== null; next = socket.recvErrqueue())
    all.push(...next.cookies);
  return all;
}

function assertNothingLeft({ a, socket, budget }: Scene): void {
  assert.deepEqual([socket.queuedBytes, socket.lentBytes, budget.used()], [0, 0, 0]);
  assert.equal(a.peers[0]?.lanes[0]?.connection.sender.idle, true);
  assert.equal(a.peers[0]?.lanes[0]?.connection.state, 'up');
}

for (const [way, make, take] of ways) {
  describe(`lent memory that is ${way}`, () => {
    it('before a byte of it was sent: the message is left out', async () => {
      const made = begin();
      const { world, a, socket } = made;
      sendOthers(made, 0);
      const data = make(200_000).fill(0xee);
      const sent = watch(socket.send(data, TO));
      const other = make(600).fill(0xee);
      socket.sendmsg(other, TO, { zerocopy: true, cookie: 1000 });
      sendOthers(made, 20);
      take(data);
      take(other);
      await run(world, 20_000);
      assert.equal(codeFrom(sent), 'ZTX_MEMORY_TAKEN');
      assert.equal(a.counters.send_memory_taken, 2);
      assertOthers(made, 0, 40);
      // A cookie says that the memory is free, which it is.
      const even = Array.from({ length: 20 }, (_, i) => 2 * i);
      assert.deepEqual(cookies(made), [...even.slice(0, 10), 1000, ...even.slice(10)]);
      assert.equal(a.counters.conn_reset, 0, 'no reason to lose the connection');
      assertNothingLeft(made);
    });

    it('half sent: the connection is given up, the message with it, and the rest is sent on the next', async () => {
      const made = begin();
      const { world, a, b, socket, warnings } = made;
      await connected(made);
      const data = make(1 << 20).fill(0xee);
      const sent = watch(socket.send(data, TO));
      sendOthers(made, 0);
      world.settle();
      const written = a.peers[0]?.lanes[0]?.connection.sender.writtenBytes ?? 0;
      assert.ok(written > 10_000 && written < 1 << 20, `${written} bytes written`);
      take(data);
      sendOthers(made, 20);
      await run(world, 60_000);
      assert.equal(codeFrom(sent), 'ZTX_MEMORY_TAKEN');
      assertOthers(made, 0, 40);
      assert.deepEqual([a.counters.send_memory_taken, a.counters.conn_reset], [1, 1]);
      assert.equal(b.counters.recv_truncated, 1);
      assert.ok(warnings.includes('lent memory taken'), `${warnings}`);
      assertNothingLeft(made);
    });

    it('sent and not acknowledged: it is not sent again, and what is behind it is', async () => {
      const made = begin();
      const { world, a, socket } = made;
      await connected(made);
      stall(world);
      const data = make(2000).fill(0xee);
      const sent = watch(socket.send(data, TO));
      sendOthers(made, 0);
      world.settle();
      assert.ok((a.peers[0]?.lanes[0]?.connection.sender.writtenBytes ?? 0) > 2048);
      take(data);
      await run(world, 100);
      cut(world);
      await run(world, 60_000);
      assert.equal(codeFrom(sent), 'ZTX_MEMORY_TAKEN');
      assertOthers(made, 0, 20);
      assert.equal(a.counters.send_memory_taken, 1);
      assertNothingLeft(made);
    });

    it('behind another one that is half sent: the connection stays', async () => {
      const made = begin();
      const { world, a, socket } = made;
      await connected(made);
      const first = watch(socket.send(new Uint8Array(1 << 20), TO));
      const data = make(2000).fill(0xee);
      const sent = watch(socket.send(data, TO));
      sendOthers(made, 0);
      world.settle();
      take(data);
      await run(world, 60_000);
      assert.equal(first.outcome()?.bytes, 1 << 20);
      assert.equal(codeFrom(sent), 'ZTX_MEMORY_TAKEN');
      assert.equal(made.peer.recvmsg()?.kind, 'data');
      assertOthers(made, 0, 20);
      assert.deepEqual([a.counters.send_memory_taken, a.counters.conn_reset], [1, 0]);
      assertNothingLeft(made);
    });
  });
}
