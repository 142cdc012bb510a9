/** A peer that goes away and comes back, on virtual time: when the first message is there again. */
import assert from 'node:assert/strict';
import { RdsNode } from '../../src/rds/node.ts';
import { Random } from './random.ts';
import { Process, World } from './sim.ts';

const A = '10.0.0.1';
const B = '10.0.0.2';
const PORT = 20;
/** BACKOFF_MAX_MS of rds/connection-dialing.ts, and the kernel's net.rds.reconnect_max_delay_ms. */
const CEILING_MS = 1000;

export interface ReconnectTimes {
  readonly firstMessageMs: readonly number[];
  readonly ceilingMs: number;
}

/** From the moment at which the peer listens again to the first message it receives, one figure a seed. */
export function reconnectTimes(seeds: number): ReconnectTimes {
  const firstMessageMs = Array.from({ length: seeds }, (_, i) => reconnectTime(i + 1));
  return { firstMessageMs, ceilingMs: CEILING_MS };
}

function reconnectTime(seed: number): number {
  const random = new Random(seed);
  const world = new World(random);
  const boot = (): Process =>
    new Process(world, { lendable: true, budgetPages: -1, bootMs: 1e6 + world.now });
  const socket = new RdsNode(A, boot().environment).bind(PORT);
  let process = boot();
  let peer = new RdsNode(B, process.environment).bind(PORT);
  const send = (): number => socket.sendmsg(Buffer.alloc(100), { address: B, port: PORT });
  send();
  world.run(1000);
  assert.notEqual(peer.recvmsg(), null);
  process.die(random.pick(['reset', 'fin'] as const));
  send();
  // Long enough for the back-off to be at its ceiling, and at any point of it.
  world.run(world.now + 5000 + random.below(20_000));
  const backAtMs = world.now;
  let cameAtMs = Number.NaN;
  process = boot();
  peer = new RdsNode(B, process.environment).bind(PORT);
  peer.on('readable', () => {
    cameAtMs = world.now;
  });
  world.run(world.now + 10 * CEILING_MS);
  assert.ok(cameAtMs >= backAtMs, `seed ${seed}: no message`);
  return cameAtMs - backAtMs;
}
