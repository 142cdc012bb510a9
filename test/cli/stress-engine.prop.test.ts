/**
 * Two sides of rds-stress joined by sockets in memory that reorder between sockets and refuse at random. Whatever they
 * do, every message must arrive as the protocol makes it, and once the refusals stop, every pair of sockets goes on:
 * one lost acknowledgement would leave its pair stuck for good.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { Ending } from '../../src/cli/stress/ending.ts';
import { Task } from '../../src/cli/stress/socket.ts';
import { FakeNetwork, type Faults } from '../support/fake-rds.ts';

interface Shape {
  tasks: number;
  depth: number;
  reqSize: number;
  ackSize: number;
  simplex: boolean;
  verify: boolean;
  zerocopy: [active: boolean, passive: boolean];
  congestionMonitor: boolean;
  faults: Faults;
  seed: number;
}

const size = fc.integer({ min: 63, max: 300 });
const shape: fc.Arbitrary<Shape> = fc.record({
  tasks: fc.integer({ min: 1, max: 3 }),
  depth: fc.integer({ min: 1, max: 4 }),
  reqSize: size,
  ackSize: size,
  simplex: fc.boolean(),
  verify: fc.boolean(),
  zerocopy: fc.tuple(fc.boolean(), fc.boolean()),
  congestionMonitor: fc.boolean(),
  faults: fc.record({
    eagain: fc.integer({ min: 0, max: 40 }),
    enobufs: fc.integer({ min: 0, max: 40 }),
    enomem: fc.integer({ min: 0, max: 40 }),
  }),
  seed: fc.integer(),
});

const seed = process.env.FC_SEED;
const parameters = { numRuns: 150, ...(seed === undefined ? {} : { seed: Number(seed) }) };

const addresses = [0x0a000001, 0x0a000002] as const;

test('whatever is refused, nothing is lost and every pair of sockets goes on', { timeout: 60_000 }, () => {
  fc.assert(
    fc.property(shape, (given) => {
      const network = new FakeNetwork(mulberry32(given.seed));
      const ending = new Ending();
      const sides = [side(network, given, ending, 0), side(network, given, ending, 1)] as const;
      network.faults = given.faults;
      for (const task of [...sides[0], ...sides[1]]) task.start();
      run(network, ending, 1500);

      network.faults = { eagain: 0, enobufs: 0, enomem: 0 };
      network.delivered.clear();
      // Each pair needs a few turns of at most 3 * 3 * 2 * 4 messages; this is far more.
      run(network, ending, 4000);
      assert.equal(network.delivered.size, given.tasks * given.tasks * 2, 'a pair of sockets is stuck');
      for (const [pair, count] of network.delivered) assert.ok(count > given.depth, `${pair} is stuck`);
      checkTotals(sides, given);
      checkLending(network, sides, given);
    }),
    parameters,
  );
});

test('without a congestion monitor a refused destination is tried again', () => {
  const network = new FakeNetwork(mulberry32(7));
  const ending = new Ending();
  const given: Shape = {
    tasks: 2,
    depth: 2,
    reqSize: 100,
    ackSize: 63,
    simplex: false,
    verify: true,
    zerocopy: [false, false],
    congestionMonitor: false,
    faults: { eagain: 0, enobufs: 100, enomem: 0 },
    seed: 7,
  };
  const sides = [side(network, given, ending, 0), side(network, given, ending, 1)] as const;
  network.faults = given.faults;
  for (const task of [...sides[0], ...sides[1]]) task.start();
  assert.equal(network.delivered.size, 0);
  network.faults = { eagain: 0, enobufs: 0, enomem: 0 };
  run(network, ending, 200);
  assert.equal(network.delivered.size, 8);
});

function side(network: FakeNetwork, given: Shape, ending: Ending, which: 0 | 1): Task[] {
  const node = network.node(`10.0.0.${which + 1}`);
  const zerocopy = given.zerocopy[which];
  return Array.from({ length: given.tasks }, (_, i) => {
    const { congestionMonitor } = given;
    const socket = node.bind(4001 + i, {
      zerocopy,
      sendBufferBytes: 1,
      receiveBufferBytes: 1,
      congestionMonitor,
    });
    const config = {
      own: { address: addresses[which], port: 4001 + i },
      remote: { address: addresses[1 - which]!, firstPort: 4001, count: given.tasks },
      reqSize: given.reqSize,
      ackSize: given.ackSize,
      depth: given.depth,
      sendsRequests: which === 0 || !given.simplex,
      verify: given.verify,
      zerocopy,
      congestionMonitor,
    };
    return new Task(socket, config, ending, {});
  });
}

function run(network: FakeNetwork, ending: Ending, steps: number): void {
  for (let i = 0; i < steps; i++) {
    assert.ok(network.step(), 'nothing can happen any more');
    if (ending.failure !== undefined) throw ending.failure;
  }
}

function checkTotals(sides: readonly [Task[], Task[]], given: Shape): void {
  const pairs = given.tasks * given.tasks;
  for (const [from, to] of [sides, [sides[1], sides[0]]] as const) {
    const sender = sum(from);
    const receiver = sum(to);
    assert.ok(sender.reqTx >= receiver.reqRx && receiver.reqRx >= receiver.ackTx);
    assert.ok(receiver.ackTx >= sender.ackRx);
    assert.ok(sender.reqTx - sender.ackRx <= pairs * given.depth, 'more than the depth outstanding');
  }
  if (given.simplex) assert.equal(sum(sides[1]).reqTx, 0);
}

function checkLending(network: FakeNetwork, sides: readonly [Task[], Task[]], given: Shape): void {
  const outstanding = given.depth * given.tasks;
  for (const [index, tasks] of sides.entries()) {
    for (const [i, task] of tasks.entries()) {
      const { outbox } = task.engine;
      const socket = network.sockets[index * given.tasks + i]!;
      assert.equal(outbox.lentSends > 0, given.zerocopy[index]);
      // Two buffers for each request and each acknowledgement that may be outstanding.
      assert.ok(socket.lentMax <= outstanding * 4);
      assert.ok(outbox.lent <= outstanding * 4);
    }
  }
}

function sum(tasks: readonly Task[]): { reqTx: number; reqRx: number; ackTx: number; ackRx: number } {
  const total = { reqTx: 0, reqRx: 0, ackTx: 0, ackRx: 0 };
  for (const { engine } of tasks)
    for (const field of ['reqTx', 'reqRx', 'ackTx', 'ackRx'] as const) total[field] += engine.totals[field];
  return total;
}

/** A small generator with a seed, so that a failing case can be run again. */
function mulberry32(start: number): () => number {
  let state = start | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
