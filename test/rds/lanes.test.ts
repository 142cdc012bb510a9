/**
 * Lanes: a node and the model of a kernel (test/support/sim-kernel.ts), or two nodes, on virtual time, with lanes that are lost
 * under traffic. A seed that fails is run again, alone, as in simulation.test.ts. What must hold: exactly once, in order for each sending socket, one lane with peers that do not go by the source
 * port, all lanes with those that do.
 */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { RdsNode } from '../../src/rds/node.ts';
import type { RdsSocket } from '../../src/rds/socket.ts';
import { RDS_TCP_PORT } from '../../src/wire/rds.ts';
import { scaled } from '../support/counts.ts';
import { Random } from '../support/random.ts';
import { Process, World } from '../support/sim.ts';
import { SimKernel } from '../support/sim-kernel.ts';

const PORTS = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39];
const RUNS = Number(process.env.ZEROTX_SIM_RUNS ?? scaled(12, 500));
const ONE_SEED = process.env.ZEROTX_SIM_SEED;

function boot(world: World, bootMs = 1_000_000): Process {
  return new Process(world, { lendable: true, budgetPages: -1, bootMs: bootMs + world.now });
}

function numbered(count: number, bytes = 200): Buffer {
  const payload = Buffer.alloc(bytes, count);
  payload.writeUInt32BE(count);
  return payload;
}

/** What a receiver got, by sending port. */
class Got {
  readonly numbers = new Map<number, number[]>();

  add(port: number, payload: Buffer): void {
    const list = this.numbers.get(port) ?? [];
    this.numbers.set(port, list);
    list.push(payload.readUInt32BE());
  }

  check(ports: readonly number[], count: number): void {
    for (const port of ports) {
      const expected = Array.from({ length: count }, (_, i) => i);
      assert.deepEqual(this.numbers.get(port) ?? [], expected, `from port ${port}`);
    }
  }
}

function readInto(sockets: readonly RdsSocket[], got: Got): void {
  for (const socket of sockets) {
    socket.on('readable', () => {
      for (let next = socket.recvmsg(); next !== null; next = socket.recvmsg()) {
        if (next.kind === 'data') got.add(next.port, next.data);
      }
    });
  }
}

type Role = 'dials' | 'is dialled';

/** A node and a kernel, with a socket for each of PORTS on either side. */
class Pair {
  readonly world: World;
  readonly random: Random;
  readonly own: string;
  readonly theirs: string;
  readonly kernel: SimKernel;
  process!: Process;
  node!: RdsNode;
  sockets: RdsSocket[] = [];
  got = new Got();
  /** Rounds of messages sent since the node started. */
  rounds = 0;
  #heardBefore = 0;

  constructor(version: 6 | 7, role: Role, seed: number) {
    this.random = new Random(seed);
    this.world = new World(this.random);
    [this.own, this.theirs] = role === 'dials' ? ['10.0.0.1', '10.0.0.2'] : ['10.0.0.2', '10.0.0.1'];
    this.kernel = new SimKernel(boot(this.world), { version, address: this.theirs, peer: this.own });
    this.start(1_000_000);
  }

  /** The node's process, whose clock says `bootMs`. */
  start(bootMs: number): void {
    this.process = boot(this.world, bootMs);
    this.node = new RdsNode(this.own, this.process.environment);
    this.sockets = PORTS.map((port) => this.node.bind(port));
    this.got = new Got();
    readInto(this.sockets, this.got);
    this.rounds = 0;
    this.#heardBefore = this.kernel.received.length;
  }

  traffic(rounds: number): void {
    const { world, random } = this;
    for (let i = 0; i < rounds; i++) {
      for (const [j, port] of PORTS.entries()) {
        this.sockets[j]?.sendmsg(numbered(this.rounds), { address: this.theirs, port });
        this.kernel.send(port, port, numbered(this.rounds));
      }
      this.rounds += 1;
      world.run(world.now + random.pick([0, 1, 10, 100]));
      const links = [...world.links];
      if (random.chance(0.3) && links.length > 0) random.pick(links).cut();
      if (random.chance(0.05)) for (const link of links) link.cut();
    }
    world.run(world.now + 60_000);
  }

  /** Every message once and in order, both ways, since the node started. */
  check(): void {
    this.got.check(PORTS, this.rounds);
    const heard = new Got();
    for (const { port, payload } of this.kernel.received.slice(this.#heardBefore)) heard.add(port, payload);
    heard.check(PORTS, this.rounds);
  }

  checkLanes(expected: 1 | 8): void {
    const [peer] = this.node.peers;
    const up = peer?.lanes.filter(({ connection }) => connection.state === 'up').length;
    const { lanesUp, namedMax } = this.kernel;
    assert.deepEqual([up, lanesUp, namedMax, peer?.npaths], [expected, expected, expected, expected]);
    if (expected === 1) return;
    for (const { index, channel } of this.kernel.lanes) {
      const same = peer?.lanes[index]?.channel;
      assert.deepEqual([same?.localPort, same?.remotePort], [channel?.remotePort, channel?.localPort]);
      const port = channel?.remotePort === RDS_TCP_PORT ? channel.localPort : channel?.remotePort;
      assert.equal((port ?? -1) % 8, index);
    }
  }
}

function forSeeds(run: (seed: number) => void): void {
  const seeds = ONE_SEED === undefined ? Array.from({ length: RUNS }, (_, i) => i + 1) : [Number(ONE_SEED)];
  for (const seed of seeds) {
    try {
      run(seed);
    } catch (error) {
      throw new Error(`seed ${seed}: ${(error as Error).message}`, { cause: error });
    }
  }
}

for (const version of [6, 7] as const) {
  const lanes = version === 6 ? 1 : 8;
  for (const role of ['dials', 'is dialled'] as const) {
    describe(`a node that ${role}, and Linux ${version}.x`, () => {
      it(`keep every message, once and in order; lanes: ${lanes}`, () => {
        forSeeds((seed) => {
          const pair = new Pair(version, role, seed);
          pair.traffic(30);
          pair.check();
          pair.checkLanes(lanes);
        });
      });

      it('go on when the node starts again, though its clock went back and the kernel remembers', () => {
        forSeeds((seed) => {
          const pair = new Pair(version, role, seed);
          pair.traffic(10);
          for (const bootMs of [500_000, 400_000]) {
            pair.process.die(pair.random.pick(['reset', 'fin'] as const));
            pair.start(bootMs);
            pair.traffic(15);
            pair.check();
            pair.checkLanes(lanes);
          }
        });
      });
    });
  }
}

function twoNodes(seed: number, lanes: readonly [number, number]): void {
  const random = new Random(seed);
  const world = new World(random);
  const [low, high] = ['10.0.0.1', '10.0.0.2'].map(
    (address, i) => new RdsNode(address, boot(world).environment, {}, null, lanes[i]),
  ) as [RdsNode, RdsNode];
  const got = new Got();
  const senders = PORTS.map((port) => low.bind(port));
  readInto([high.bind(7)], got);
  // Before anything is known of lanes, while they are being agreed on, and behind that.
  for (let round = 0; round < 40; round++) {
    for (const socket of senders) socket.sendmsg(numbered(round), { address: high.address, port: 7 });
    world.run(world.now + random.pick([0, 0.3, 1, 3]));
    if (random.chance(0.1) && world.links.size > 0) random.pick([...world.links]).stall(random.below(2500));
  }
  world.run(world.now + 30_000);
  got.check(PORTS, 40);
  const agreed = Math.min(...lanes.map((offered) => 2 ** Math.floor(Math.log2(offered))));
  for (const { peers } of [low, high]) {
    assert.equal(peers[0]?.npaths, agreed);
    const up = peers[0]?.lanes.filter(({ connection }) => connection.state === 'up').length;
    assert.equal(up, agreed, 'all lanes are up, whether something is sent on them or not');
  }
  const used = new Set(PORTS.map((port) => low.peers[0]?.laneFor(port)));
  assert.ok(agreed === 1 || used.size > 1, 'sockets are spread');
}

describe('two nodes', () => {
  for (const lanes of [
    [8, 8],
    [1, 8],
    [8, 2],
    [3, 5],
  ] as const) {
    it(`that offer ${lanes[0]} and ${lanes[1]} lanes agree, and keep the order while they do`, () => {
      forSeeds((seed) => twoNodes(seed, lanes));
    });
  }
});
