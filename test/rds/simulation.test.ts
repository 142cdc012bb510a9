/**
 * Two RDS nodes, from the socket down to the connection, over simulated links that stall, break and half-close, with
 * processes that restart, and with up to eight lanes. Each seed is one history; a failing seed is printed and can be run alone:
 *
 *   ZEROTX_SIM_SEED=17 node --test out/test/rds/simulation.test.js
 *
 * What must hold: every accepted message is delivered exactly once, in order per pair of sockets, or is still held; every lent
 * message completes exactly once, in order, and its buffer is not read after that. The one exception: a message that was in
 * flight when its receiver restarted has an unknown fate. It is delivered at most once to each incarnation.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ZerotxError } from '../../src/core/errors.ts';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { Process, World } from '../support/sim.ts';

const RUNS = Number(process.env.ZEROTX_SIM_RUNS ?? scaled(100, 5000));
const ONE_SEED = process.env.ZEROTX_SIM_SEED;
const HEADER_BYTES = 20;

interface Sent {
  readonly id: number;
  readonly to: string;
  /** Accepted before the receiver's last restart: its fate may be unknown. */
  inDoubt: boolean;
  deliveries: number;
}

/** One side, across its restarts. */
class Side {
  readonly world: World;
  readonly address: string;
  readonly ports: readonly number[];
  readonly #faults: Faults;
  process!: Process;
  node!: RdsNode;
  sockets: RdsSocket[] = [];
  incarnation = 0;
  /** Messages by flow "fromIncarnation/fromPort>toPort", in the order of acceptance. */
  readonly sent = new Map<string, Sent[]>();
  readonly lent = new Map<number, Buffer>();
  /** Cookies outstanding, by port, in the order of acceptance. */
  readonly lentOrder = new Map<number, number[]>();
  nextCookie = 1;
  reading = true;
  knownRestarts = 0;
  other!: Side;
  /** Highest delivery index per flow, for this incarnation of the receiver. */
  expected = new Map<string, number>();

  constructor(world: World, address: string, ports: readonly number[], faults: Faults) {
    this.world = world;
    this.address = address;
    this.ports = ports;
    this.#faults = faults;
    this.boot();
  }

  boot(): void {
    const { random } = this.world;
    this.incarnation += 1;
    this.process = new Process(this.world, {
      lendable: random.chance(0.8),
      budgetPages: random.pick([-1, 200, 2048]),
      // The clock goes on, or it went back since the process before (NTP, a snapshot that was restored).
      bootMs:
        2_000_000 + this.world.now + this.incarnation - (random.chance(0.3) ? random.below(1_900_000) : 0),
    });
    const least = random.pick([20_000, 1 << 20]);
    // With restarts what a peer repeats before it has said who it is must fit, as it does by default: more than TCP's buffers.
    const held = { heldBytesPerPeer: this.#faults.restarts ? 1 << 20 : least };
    this.node = new RdsNode(this.address, this.process.environment, held, null, random.pick([1, 2, 8]));
    this.sockets = this.ports.map((port) =>
      this.node.bind(port, {
        zerocopy: true,
        sendBufferBytes: random.pick([30_000, 200_000]),
        receiveBufferBytes: random.pick([10_000, 100_000]),
      }),
    );
    this.expected.clear();
    for (const socket of this.sockets) {
      socket.on('readable', () => {
        if (this.reading) this.read(socket);
      });
    }
  }

  /** Process ends and starts again; what it had accepted from its program is gone with it, as with a kernel. */
  restart(how: 'reset' | 'fin' | 'silent'): void {
    this.process.die(how);
    // Buffers lent by the old incarnation died with it, but for what its kernel still sends: leave them unchanged.
    this.lent.clear();
    this.lentOrder.clear();
    this.other.doubt();
    // What the dead process had accepted may or may not have left it.
    this.doubt();
    this.boot();
    this.knownRestarts = 0;
  }

  /** From here on the fate of what is not delivered yet may be unknown. */
  doubt(): void {
    for (const list of this.sent.values())
      for (const message of list) if (message.deliveries === 0) message.inDoubt = true;
  }

  /** What is in flight when this side *learns* of the restart is in doubt, too: it had gone to the old incarnation. */
  noticeRestarts(): void {
    if (this.node.counters.peer_restarts === this.knownRestarts) return;
    this.knownRestarts = this.node.counters.peer_restarts;
    this.doubt();
  }

  send(): void {
    const { random } = this.world;
    const socket = random.pick(this.sockets);
    const to = { address: this.other.address, port: random.pick(this.other.ports) };
    const flow = `${this.incarnation}/${socket.port}>${to.port}`;
    const list = this.sent.get(flow) ?? [];
    this.sent.set(flow, list);
    const size = random.pick([HEADER_BYTES, 40, 64, 600, 5000, 9000, 25_000]);
    const data = Buffer.alloc(size, list.length & 0xff);
    data.writeUInt32BE(this.incarnation, 0);
    data.writeUInt32BE(list.length, 4);
    data.writeUInt32BE(size, 8);
    const zerocopy = random.chance(0.5);
    const cookie = this.nextCookie;
    try {
      socket.sendmsg(data, to, zerocopy ? { zerocopy, cookie } : {});
    } catch (error) {
      assert(
        error instanceof ZerotxError && ['EAGAIN', 'ENOBUFS', 'ENOMEM'].includes(error.code),
        String(error),
      );
      return;
    }
    list.push({ id: list.length, to: flow, inDoubt: false, deliveries: 0 });
    if (zerocopy) {
      this.nextCookie += 1;
      this.lent.set(cookie, data);
      const order = this.lentOrder.get(socket.port) ?? [];
      this.lentOrder.set(socket.port, order);
      order.push(cookie);
    } else data.fill(0xee); // copied: ours again at once
  }

  read(socket: RdsSocket): void {
    for (let received = socket.recvmsg(); received !== null; received = socket.recvmsg()) {
      if (received.kind === 'congestion') continue;
      for (const cookie of received.cookies) this.completed(socket.port, cookie);
      if (received.kind === 'completion') continue;
      this.delivered(socket, received.port, received.data);
      received.recycle();
    }
  }

  completed(port: number, cookie: number): void {
    const buffer = this.lent.get(cookie);
    assert(buffer !== undefined, `cookie ${cookie} completed twice or never sent`);
    assert.equal(this.lentOrder.get(port)?.shift(), cookie, 'completions out of order');
    this.lent.delete(cookie);
    buffer.fill(0xdd); // ours again: if it is still read, the content shows
  }

  delivered(socket: RdsSocket, fromPort: number, data: Buffer): void {
    const incarnation = data.readUInt32BE(0);
    const id = data.readUInt32BE(4);
    const flow = `${incarnation}/${fromPort}>${socket.port}`;
    // What it had begun to send when it learned of our restart, a moment ago perhaps, is in doubt.
    this.other.noticeRestarts();
    const message = this.other.sent.get(flow)?.[id];
    assert(message !== undefined, `message ${flow} ${id} was never sent`);
    assert.equal(data.byteLength, data.readUInt32BE(8), 'length');
    for (let i = HEADER_BYTES; i < data.byteLength; i++) {
      if (data[i] !== (id & 0xff)) assert.fail(`message ${flow} ${id}: byte ${i} is ${data[i]}`);
    }
    const expected = this.expected.get(flow) ?? 0;
    assert(id >= expected, `message ${flow} ${id} came again or late: ${expected} is due`);
    for (let skipped = expected; skipped < id; skipped++) {
      const other = this.other.sent.get(flow)?.[skipped] as Sent;
      assert(other.inDoubt || other.deliveries > 0, `message ${flow} ${skipped} is missing before ${id}`);
    }
    this.expected.set(flow, id + 1);
    message.deliveries += 1;
  }

  /** Reads what piled up while it did not read. */
  resume(): void {
    this.reading = true;
    for (const socket of this.sockets) this.read(socket);
  }
}

interface Faults {
  readonly restarts: boolean;
}

function runHistory(seed: number, faults: Faults): Record<string, number>[] {
  const random = new Random(seed);
  const world = new World(random);
  const a = new Side(world, '10.0.0.1', [10, 11], faults);
  const b = new Side(world, '10.0.0.2', [20, 21], faults);
  a.other = b;
  b.other = a;
  const sides = [a, b];
  const steps = 60 + random.below(100);
  for (let step = 0; step < steps; step++) {
    for (let i = random.below(12); i > 0; i--) random.pick(sides).send();
    disturb(world, random, sides, faults);
    world.run(world.now + random.pick([0, 1, 5, 50, 500]));
    for (const side of sides) side.noticeRestarts();
  }
  for (const side of sides) side.resume();
  world.settle();
  // Quiet from here on: within a minute everything must have arrived.
  const end = world.now + 120_000;
  while (world.now < end) {
    world.run(world.now + 1000);
    for (const side of sides) {
      side.noticeRestarts();
      side.resume();
    }
  }
  for (const side of sides) {
    for (const [flow, list] of side.sent) {
      for (const message of list) {
        assert(
          message.deliveries > 0 || message.inDoubt,
          `message ${flow} ${message.id} was never delivered`,
        );
        if (!faults.restarts) assert.equal(message.deliveries, 1);
      }
    }
    assert.equal(side.lent.size, 0, 'every lent buffer came back');
    assert.equal(side.node.stats().queuedBytes, 0);
    assert.equal(side.node.stats().lentBytes, 0);
    assert.equal(side.node.stats().heldBytes, 0);
    assert.equal(side.process.environment.budget.used(), 0);
  }
  return sides.map((side) => ({ ...side.node.counters }));
}

function disturb(world: World, random: Random, sides: Side[], faults: Faults): void {
  const links = [...world.links];
  if (links.length > 0 && random.chance(0.1)) random.pick(links).cut();
  if (links.length > 0 && random.chance(0.1)) random.pick(links).stall(random.pick([20, 400, 3000, 8000]));
  // A storm: all lanes at once, some while they are being dialled anew.
  if (random.chance(0.03)) for (const link of links) link.cut();
  if (random.chance(0.08)) {
    // One side drops its lane gracefully: half-closed until the other has read and answered.
    const peer = random.pick(random.pick(sides).node.peers.slice(0, 1).concat(random.pick(sides).node.peers));
    if (peer !== undefined) random.pick(peer.lanes).connection.drop(world.now, 'test');
  }
  if (random.chance(0.1)) random.pick(sides).reading = false;
  if (random.chance(0.2)) random.pick(sides).resume();
  if (faults.restarts && random.chance(0.03))
    random.pick(sides).restart(random.pick(['reset', 'fin', 'silent'] as const));
}

function runSeeds(name: string, faults: Faults, mustMove: readonly string[]): void {
  test(name, () => {
    const totals: Record<string, number> = {};
    const seeds = ONE_SEED === undefined ? Array.from({ length: RUNS }, (_, i) => i + 1) : [Number(ONE_SEED)];
    for (const seed of seeds) {
      try {
        for (const counters of runHistory(seed, faults)) {
          for (const [key, value] of Object.entries(counters)) totals[key] = (totals[key] ?? 0) + value;
        }
      } catch (error) {
        throw new Error(`seed ${seed}: ${(error as Error).message}`, { cause: error });
      }
    }
    // A simulation in which nothing goes wrong proves nothing.
    if (ONE_SEED === undefined) for (const key of mustMove) assert(totals[key]! > 0, `${key} never happened`);
  });
}

runSeeds('exactly once and in order over links that stall, break and half-close', { restarts: false }, [
  'conn_reset',
  'send_retransmitted',
  'recv_drop_old_seq',
  'recv_truncated',
  'recv_held_back',
  'cong_send_error',
  'send_queue_full',
  'accept_replaced',
]);

runSeeds('the same, with restarts on either side', { restarts: true }, [
  'conn_reset',
  'peer_restarts',
  'send_drop_generation',
]);

test('a long stream from ten sockets over lanes that are cut again and again', { timeout: 3_600_000 }, () => {
  const total = scaled(30_000, 10_000_000);
  const random = new Random(23);
  const world = new World(random);
  const boot = (): Process => new Process(world, { lendable: false, budgetPages: -1, bootMs: 1_000_000 });
  const sender = new RdsNode('10.0.0.1', boot().environment);
  const sockets = Array.from({ length: 10 }, (_, i) => sender.bind(100 + i, { sendBufferBytes: 3000 }));
  const receiver = new RdsNode('10.0.0.2', boot().environment).bind(7, { receiveBufferBytes: 1 << 26 });
  const next = new Map<number, number>();
  let received = 0;
  receiver.on('readable', () => {
    for (let message = receiver.recvmsg(); message !== null; message = receiver.recvmsg()) {
      if (message.kind !== 'data') continue;
      const expected = next.get(message.port) ?? 0;
      assert.equal(message.data.readUInt32BE(), expected, `from port ${message.port}`);
      next.set(message.port, expected + 1);
      received += 1;
      message.recycle();
    }
  });
  const sent = sockets.map(() => 0);
  const payload = Buffer.alloc(40);
  for (let round = 0; received < total; round++) {
    assert.ok(round < total, `${received} of ${total} after ${round} rounds`);
    for (const [i, socket] of sockets.entries()) {
      while (socket.writable && sent[i]! < total / sockets.length) {
        payload.writeUInt32BE(sent[i]!);
        socket.sendmsg(payload, { address: '10.0.0.2', port: 7 });
        sent[i]! += 1;
      }
    }
    world.run(world.now + 5);
    if (round % 10 === 9 && world.links.size > 0) random.pick([...world.links]).cut();
    if (round % 50 === 49) for (const link of [...world.links]) link.cut();
  }
  assert.equal(received, total);
  assert.ok(sender.counters.conn_reset > 0 && sender.counters.send_retransmitted > 0);
  assert.equal(sender.peers[0]?.npaths, 8);
});
