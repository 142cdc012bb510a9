/**
 * Memory that received messages hold, on virtual time: what a peer can make a node hold while its program does not read, and
 * that nothing is lost meanwhile, whatever happens to the connection.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { CHUNK_BYTES } from '../../src/rds/memory.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import type { Channel } from '../../src/rds/transport.ts';
import { encodeHeader, HEADER_BYTES, RETRANSMITTED } from '../../src/wire/rds.ts';
import { Random } from '../support/random.ts';
import { message } from '../support/raw-peer.ts';
import { codeOf } from '../support/rds-nodes.ts';
import { newProcess, readAll, readMessages, run, type Scene, scene, TO } from '../support/scene.ts';
import { type Process, World } from '../support/sim.ts';

const MIB = 1 << 20;
const LIMIT = MIB;

/** A peer that writes what it is told, whole, then says FIN; what comes back it throws away. */
class Flood {
  readonly #channel: Channel;
  readonly #bytes: Uint8Array;
  #written = 0;

  constructor(process: Process, from: string, to: string, bytes: Uint8Array, lane: number) {
    const scratch = [new Uint8Array(64 * 1024)];
    this.#bytes = bytes;
    this.#channel = process.environment.transport.dial(from, to, lane, {
      connected: () => this.#write(),
      writable: () => this.#write(),
      readable: () => {
        while (this.#channel.readv(scratch, 1) > 0);
      },
      released: () => {},
    });
  }

  #write(): void {
    while (this.#written < this.#bytes.byteLength) {
      const n = this.#channel.send([this.#bytes.subarray(this.#written)], 1, false);
      if (n <= 0) return;
      this.#written += n;
    }
    this.#channel.shutdownWrite();
  }
}

interface Victim {
  readonly world: World;
  readonly node: RdsNode;
  readonly socket: RdsSocket;
  flood(bytes: Uint8Array, lane?: number): void;
}

function victim(): Victim {
  const world = new World(new Random(7));
  const node = new RdsNode('10.0.0.2', newProcess(world).environment, { heldBytesPerPeer: LIMIT });
  const socket = node.bind(5000, { receiveBufferBytes: 1 << 28 });
  const attacker = newProcess(world);
  const flood = (bytes: Uint8Array, lane = 0): void => {
    new Flood(attacker, '10.0.0.1', node.address, bytes, lane);
  };
  return { world, node, socket, flood };
}

function numbered(id: number, bytes: number): Buffer {
  const data = Buffer.alloc(bytes);
  data.writeUInt32BE(id);
  return data;
}

/** Reads from now on; returns the numbers of the messages so far. */
function reader(socket: RdsSocket): number[] {
  const ids: number[] = [];
  const read = (): void => {
    for (const { data } of readMessages(socket)) ids.push(data.readUInt32BE(0));
  };
  socket.on('readable', read);
  read();
  return ids;
}

const upTo = (count: number): number[] => Array.from({ length: count }, (_, i) => i);

describe('a peer whose messages are not read', () => {
  it('holds no more than its bound, though a small message keeps the whole buffer it came in', async () => {
    const { world, node, socket, flood } = victim();
    const UNITS = 400;
    const parts: Buffer[] = [];
    for (let i = 0, seq = 1; i < UNITS; i++) {
      parts.push(message(seq++, 9, 5000, numbered(i, 4)));
      // Nobody has this port: dropped, but they fill the buffer that the one before them lies in.
      for (let k = 0; k < 4; k++) parts.push(message(seq++, 9, 7777, Buffer.alloc(15 * 1024)));
    }
    flood(Buffer.concat(parts));
    await run(world, 60_000);
    const waiting = socket.unreadBytes / 4;
    assert.equal(node.counters.recv_held_back, 1);
    assert.ok(waiting > 4 && waiting * CHUNK_BYTES <= LIMIT + 2 * CHUNK_BYTES, `${waiting} messages wait`);
    assert.ok(node.heldBytes <= LIMIT + 2 * CHUNK_BYTES, `${node.heldBytes} bytes held`);
    const ids = reader(socket);
    await run(world, 60_000);
    assert.deepEqual(ids, upTo(UNITS));
    assert.equal(node.heldBytes, 0);
  });

  for (const [what, payload, dport] of [
    ['messages', 15_000, 5000],
    ['empty messages', 0, 5000],
    ['pings', 0, 0],
  ] as const) {
    it(`holds no more in ${what} that may have come before, and nothing is lost`, async () => {
      const { world, node, socket, flood } = victim();
      flood(message(1_000_000, 9, 5000, numbered(0, 4)), 3);
      await run(world, 10);
      // Of another source port, and below that number: are they another lane's? The peer never says.
      const COUNT = Math.ceil((4 * LIMIT) / Math.max(payload, 64));
      const one = (seq: number) => message(seq, 9, dport, Buffer.alloc(payload), RETRANSMITTED);
      flood(Buffer.concat(Array.from({ length: COUNT }, (_, i) => one(i + 1))), 4);
      let heldMax = 0;
      for (let i = 0; i < 1000; i++) {
        await run(world, 5);
        heldMax = Math.max(heldMax, node.heldBytes);
        if (i === 2) assert.ok(node.counters.recv_held_unclear > 0, 'they are held');
      }
      assert.ok(heldMax <= LIMIT + 4 * CHUNK_BYTES, `${heldMax} bytes held`);
      let got = 0;
      socket.on('readable', () => {
        got += readMessages(socket).length;
      });
      got += readMessages(socket).length;
      await run(world, 60_000);
      assert.equal(got, dport === 0 ? 1 : COUNT + 1);
      assert.equal(node.counters.recv_ping, dport === 0 ? COUNT : 0);
      assert.equal(node.heldBytes, 0);
    });
  }

  it('holds no more with each connection it replaces, and everything arrives', async () => {
    const { world, node, socket, flood } = victim();
    const PER_CONNECTION = 20;
    const held: number[] = [];
    for (let k = 0; k < 5; k++) {
      const parts = Array.from({ length: PER_CONNECTION }, (_, i) => {
        const id = k * PER_CONNECTION + i;
        return message(1 + id, 9, 5000, numbered(id, 60_000));
      });
      flood(Buffer.concat(parts));
      await run(world, 10_000);
      held.push(node.heldBytes);
    }
    assert.ok((held[0] as number) > LIMIT && (held[0] as number) <= LIMIT + 4 * CHUNK_BYTES, `${held}`);
    assert.deepEqual(held, Array(5).fill(held[0]));
    const ids = reader(socket);
    await run(world, 60_000);
    assert.deepEqual(ids, upTo(5 * PER_CONNECTION));
    assert.equal(node.heldBytes, 0);
  });
});

describe('a node of the same process', () => {
  it('is congested by many small messages, and they are accounted', async () => {
    const { world, a, socket, processes } = scene({ receiveBufferBytes: 64 * 1024 });
    const other = new RdsNode('10.0.0.7', processes.a.environment);
    const from = other.bind(1000);
    let sent = 0;
    const send = (): string | null =>
      codeOf(() => from.sendmsg(Buffer.alloc(1), { address: a.address, port: 4000 }));
    let code = send();
    for (; code === null && sent < 100_000; code = send()) sent += 1;
    assert.equal(code, 'ENOBUFS');
    assert.ok(sent <= (64 * 1024) / 64 + 1, `${sent} messages`);
    assert.ok(a.heldBytes >= 64 * sent, `${a.heldBytes} bytes held for ${sent} messages`);
    await run(world, 10);
    assert.equal(readAll(socket).length, sent);
    assert.equal(a.heldBytes, 0);
    assert.equal(send(), null, 'free again');
  });
});

/** `a` is over its bound, and does not read what `peer` sends; returns how many messages were sent. */
async function paused(made: Scene): Promise<{ count: () => number; send: (count: number) => void }> {
  const { world, a, peer } = made;
  let next = 0;
  const send = (count: number): void => {
    for (let i = 0; i < count; i++) peer.sendmsg(numbered(next++, 1000), { address: a.address, port: 4000 });
  };
  send(3000);
  await run(world, 1000);
  assert.equal(a.counters.recv_held_back, 1);
  assert.ok(peer.queuedBytes > 0, 'not all is acknowledged');
  return { count: () => next, send };
}

/** Copies what is lent, as a kernel may. */
function copying(channel: Channel): Channel {
  (channel as { lends: unknown }).lends = () => false;
  return channel;
}

const SLOW = {
  peer: { sendBufferBytes: 1 << 26 },
  limits: { a: { heldBytesPerPeer: LIMIT } },
};

describe('a dialler that is held back', () => {
  it('whose connection is dropped loses nothing that was acknowledged', async () => {
    const made = scene({ receiveBufferBytes: 1 << 26 }, SLOW);
    const { world, a, socket } = made;
    const { count, send } = await paused(made);
    const lane = a.peers[0]?.lanes[0];
    assert.ok(lane !== undefined);
    lane.connection.drop(world.now, 'the path was lost');
    lane.queued();
    await run(world, 60_000);
    send(400);
    await run(world, 60_000);
    const ids = reader(socket);
    await run(world, 60_000);
    assert.deepEqual(ids, upTo(count()));
    assert.deepEqual([lane.connection.state, lane.connection.confirmed], ['up', true]);
    assert.equal(made.peer.queuedBytes, 0);
    assert.equal(a.heldBytes, 0);
  });

  it('confirms its next connection all the same, and keeps it', async () => {
    const made = scene(
      { zerocopy: true, receiveBufferBytes: 1 << 26, sendBufferBytes: 1 << 21 },
      { ...SLOW, through: copying },
    );
    const { world, a, b, socket } = made;
    const { count, send } = await paused(made);
    const lane = a.peers[0]?.lanes[0];
    assert.ok(lane !== undefined);
    // The one thing that ends a connection at once, whatever is unread: memory taken away in the middle of a message.
    const data = new Uint8Array(MIB);
    socket.sendmsg(data, TO, { zerocopy: true, cookie: 1 });
    world.settle();
    assert.ok(socket.queuedBytes > 0);
    structuredClone(data.buffer, { transfer: [data.buffer] });
    await run(world, 10_000);
    assert.equal(a.counters.conn_reset, 1);
    assert.equal(a.counters.recv_held_back, 1, 'still held back');
    assert.deepEqual([lane.connection.state, lane.connection.confirmed], ['up', true]);
    send(400);
    await run(world, 60_000);
    assert.equal(a.counters.conn_reset, 1);
    const ids = reader(socket);
    await run(world, 60_000);
    assert.deepEqual(ids, upTo(count()));
    assert.deepEqual([a.counters.conn_reset, b.stats().queuedBytes, a.heldBytes], [1, 0, 0]);
  });
});

describe('a message that was peeked at', () => {
  it('stays what it was when its socket is closed', async () => {
    const { world, b, socket, peer } = scene({});
    const other = b.bind(5001);
    socket.sendmsg(Buffer.alloc(300_000, 'A'), TO);
    await run(world, 1000);
    const peeked = peer.recvmsg({ peek: true });
    assert.ok(peeked?.kind === 'data');
    const { data } = peeked;
    assert.deepEqual([data[0], data.at(-1)], [65, 65]);
    await Promise.all([peer.close(), run(world, 10)]);
    for (let i = 0; i < 4; i++) socket.sendmsg(Buffer.alloc(300_000, 'B'), { ...TO, port: 5001 });
    await run(world, 1000);
    assert.deepEqual(readAll(other), Array(4).fill(300_000));
    assert.ok(data.equals(Buffer.alloc(300_000, 'A')));
    assert.equal(b.heldBytes, 0);
  });
});

describe('messages of which only the beginning came', () => {
  it('count, and may end when there is no room for more', async () => {
    const world = new World(new Random(9));
    const limitBytes = 3 * MIB;
    const limits = { heldBytes: limitBytes, heldBytesPerPeer: 64 * MIB };
    const node = new RdsNode('10.0.1.0', newProcess(world).environment, limits);
    const socket = node.bind(5000, { receiveBufferBytes: 1 << 28 });
    const attackers = Array.from({ length: 12 }, () => newProcess(world));
    const rest: (() => void)[] = [];
    for (const [i, attacker] of attackers.entries()) {
      const message = Buffer.alloc(HEADER_BYTES + MIB);
      encodeHeader(message, 0, 0, 1, MIB, 9, 5000, 0);
      const half = message.subarray(0, MIB / 2);
      const channel: Channel = attacker.environment.transport.dial(`10.0.0.${i + 1}`, node.address, 0, {
        connected: () => push(),
        writable: () => push(),
        readable: () => {
          while (channel.readv([Buffer.alloc(65_536)], 1) > 0);
        },
        released: () => {},
      });
      let written = 0;
      let end = half.byteLength;
      const push = (): void => {
        while (written < end) {
          const n = channel.send([message.subarray(written, end)], 1, false);
          if (n <= 0) return;
          written += n;
        }
      };
      rest.push(() => {
        end = message.byteLength;
        push();
      });
    }
    await run(world, 5000);
    assert.ok(node.heldBytes > limitBytes, `${node.heldBytes} bytes held`);
    // Over the bound each still has its one message, so that nobody can keep the others from theirs.
    for (const peer of node.peers) assert.ok(peer.heldBytes <= MIB, `${peer.heldBytes} bytes held`);
    assert.deepEqual(readAll(socket), []);
    for (const complete of rest) complete();
    const lengths: number[] = [];
    for (let i = 0; i < 60 && lengths.length < attackers.length; i++) {
      await run(world, 500);
      lengths.push(...readAll(socket));
    }
    assert.deepEqual(lengths, new Array(attackers.length).fill(MIB));
    for (const attacker of attackers) attacker.die('reset');
    await run(world, 60_000);
    assert.equal(node.heldBytes, 0);
  });
});
